//! The top of a page: its only `h1`.

use leptos::prelude::*;

use crate::browser;

/// Remembers that the reader came here by a link of ours, so that the new page's heading takes the focus as it would
/// after a full load. The first page is left alone: the browser has done it.
#[derive(Clone, Copy)]
pub struct FocusHeading(StoredValue<bool>);

impl FocusHeading {
    /// Makes it. Called once, by the root.
    pub fn provide() -> Self {
        let focus = Self(StoredValue::new(false));
        provide_context(focus);
        focus
    }

    /// The next heading that appears takes the focus.
    pub fn request(self) {
        self.0.set_value(true);
    }
}

/// A page's heading with what can be done beside it.
#[component]
pub fn PageHeader(
    /// The heading.
    #[prop(into)]
    title: Signal<String>,
    /// A line below it.
    #[prop(optional, into)]
    sub: Option<String>,
    /// What can be done.
    #[prop(optional)]
    children: Option<Children>,
) -> impl IntoView {
    if let Some(FocusHeading(wanted)) = use_context() {
        Effect::new(move |_| {
            // One frame later, so that whoever follows the address has had its turn.
            request_animation_frame(move || {
                if wanted.try_get_value() == Some(true) {
                    wanted.set_value(false);
                    browser::focus("page-title");
                }
            });
        });
    }
    view! {
        <div class="page-head">
            <div class="grow">
                <h1 id="page-title" tabindex="-1">{move || title.get()}</h1>
                {sub.map(|sub| view! { <p class="page-sub">{sub}</p> })}
            </div>
            {children.map(|children| view! { <div class="page-actions">{children()}</div> })}
        </div>
    }
}

/// The way back up.
#[component]
pub fn Breadcrumbs(
    /// Address and name of each step above this page.
    steps: Vec<(String, String)>,
    /// This page.
    #[prop(into)]
    here: Signal<String>,
) -> impl IntoView {
    let steps = steps.into_iter().map(|(href, name)| view! { <li><a href=href>{name}</a></li> }).collect::<Vec<_>>();
    view! {
        <nav class="crumbs" aria-label="Breadcrumb">
            <ol>
                {steps}
                <li aria-current="page">{move || here.get()}</li>
            </ol>
        </nav>
    }
}
