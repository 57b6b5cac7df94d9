//! The menu: a list of every page that the user may open.
//!
//! The bottom bar of a phone has room for the most used pages only; its last entry leads here. The page is reachable at
//! any width and works without a script.

use leptos::prelude::*;
use leptos_meta::Title;

use crate::components::{
    menu::entries_for,
    nav::{NavLink, SignOutForm},
    page_header::PageHeader,
    session_context::use_role,
};

/// `/menu`.
#[component]
pub fn MenuPage() -> impl IntoView {
    let role = use_role();
    let list = move || {
        let role = role.get();
        untrack(|| {
            let links = entries_for(role).map(|entry| view! { <li><NavLink entry/></li> });
            view! {
                <nav class="card" aria-label="All pages">
                    <ul class="nav-group" id="pages">{links.collect::<Vec<_>>()}</ul>
                </nav>
                {role.map(|_| view! { <SignOutForm class="btn"/> })}
            }
        })
    };
    view! {
        <Title text="Menu"/>
        <PageHeader title="Menu" sub="The pages that you may open."/>
        <div class="stack">{list}</div>
    }
}
