//! The header of a page, with its only `h1`, the breadcrumbs, and a title that changes.

use leptos::prelude::*;
use leptos_meta::Title;

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

/// The title of the document, which follows the data of the page.
///
/// The server reads a title when it writes the head of the document. The page is drawn by then, and its signals may be
/// gone, so the text is read here.
#[component]
pub fn LiveTitle(
    /// The title.
    #[prop(into)]
    text: Signal<String>,
) -> impl IntoView {
    if cfg!(feature = "ssr") {
        return view! { <Title text=text.get_untracked()/> }.into_any();
    }
    view! { <Title text=move || text.get()/> }.into_any()
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
