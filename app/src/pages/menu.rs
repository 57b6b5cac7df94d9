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
    session_context::SessionContext,
};

/// `/menu`.
#[component]
pub fn MenuPage() -> impl IntoView {
    let session = use_context::<SessionContext>();
    let list = move || {
        let session = session.clone();
        Suspend::new(async move {
            // The pages stay reachable while the user cannot be read.
            let me = match session {
                Some(session) => session.user().await.ok().flatten(),
                None => None,
            };
            let links = entries_for(me.as_ref().map(|me| me.role));
            untrack(|| {
                let links = links.map(|entry| view! { <li><NavLink entry/></li> });
                view! {
                    <nav class="card" aria-label="All pages">
                        <ul class="nav-group" id="pages">{links.collect::<Vec<_>>()}</ul>
                    </nav>
                    {me.map(|_| view! { <SignOutForm class="btn"/> })}
                }
            })
        })
    };
    view! {
        <Title text="Menu"/>
        <PageHeader title="Menu" sub="The pages that you may open."/>
        <div class="stack">
            <Transition>{list}</Transition>
        </div>
    }
}
