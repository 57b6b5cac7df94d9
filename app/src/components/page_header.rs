//! The header of a page, with its only `h1`, and the breadcrumbs.

use leptos::prelude::*;

use super::page_arrival::PageArrival;
use crate::browser::PAGE_TITLE_ID;

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
    if let Some(arrival) = use_context::<PageArrival>() {
        Effect::new(move |_| arrival.heading_shown());
    }
    view! {
        <div class="page-head">
            <div class="grow">
                <h1 id=PAGE_TITLE_ID tabindex="-1">{move || title.get()}</h1>
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
