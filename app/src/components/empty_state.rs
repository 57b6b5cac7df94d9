//! The placeholder of an empty list.

use leptos::prelude::*;

use super::icon::Icon;

/// An empty list: its contents, the reason why it is empty and, as children, the next step.
#[component]
pub fn EmptyState(
    /// Name of the icon.
    icon: &'static str,
    /// Short statement that the list is empty.
    #[prop(into)]
    title: String,
    /// The reason, in one sentence.
    #[prop(into)]
    text: String,
    /// The next step, such as a button.
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
