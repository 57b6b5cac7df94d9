//! What a list says when it has nothing to show.

use leptos::prelude::*;

use super::icon::Icon;

/// An empty list: what it would hold, why it holds nothing, and, as children, the next thing to do.
#[component]
pub fn EmptyState(
    /// The picture.
    icon: &'static str,
    /// What there is none of.
    #[prop(into)]
    title: String,
    /// Why, in a sentence.
    #[prop(into)]
    text: String,
    /// The next thing to do.
    #[prop(optional)]
    children: Option<Children>,
) -> impl IntoView {
    view! {
        <div class="empty">
            <Icon name=icon/>
            <p class="card-title">{title}</p>
            <p class="muted">{text}</p>
            {children.map(|children| view! { <div class="cluster">{children()}</div> })}
        </div>
    }
}
