//! The header of a page, with its only `h1`, and the breadcrumbs.

use leptos::prelude::*;

use crate::browser;

/// A request to focus the next page's heading. After a navigation inside the app the new heading receives the focus, as
/// after a full load. The first page needs none, because the browser has set its focus.
#[derive(Clone, Copy)]
pub struct FocusHeading(StoredValue<bool>);

impl FocusHeading {
    /// Creates the flag. Called once, by the root.
    pub fn provide() -> Self {
        let focus = Self(StoredValue::new(false));
        provide_context(focus);
        focus
    }

    /// Requests the focus for the next heading that appears.
    pub fn request(self) {
        self.0.set_value(true);
    }
}

/// A page's heading with its actions.
#[component]
pub fn PageHeader(
    /// The heading.
    #[prop(into)]
    title: Signal<String>,
    /// A line of text below the heading.
    #[prop(optional, into)]
    sub: Option<String>,
    /// The page's actions, such as buttons.
    #[prop(optional)]
    children: Option<Children>,
) -> impl IntoView {
    if let Some(FocusHeading(wanted)) = use_context() {
        Effect::new(move |_| {
            // Waits one frame, so that the component that sets the request on navigation has run.
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

/// The links to the pages above this one.
#[component]
pub fn Breadcrumbs(
    /// Address and name of each page above this one.
    steps: Vec<(String, String)>,
    /// The name of this page.
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
