//! The menu: a list of every page that the user may open.
//!
//! The bottom bar of a phone has room for the most used pages only; its last entry leads here. The page is reachable at
//! any width and works without a script.

use leptos::prelude::*;
use leptos_meta::Title;
use milvaion_api::permissions::Permission;

use crate::components::{
    nav::{NavLink, SignOutForm},
    page_header::PageHeader,
    session_context::SessionContext,
};

/// Address, icon and name of the pages that every user may open.
const PAGES: [(&str, &str, &str); 11] = [
    ("/", "layout-dashboard", "Overview"),
    ("/jobs", "briefcase-business", "Jobs"),
    ("/occurrences", "list-checks", "Occurrences"),
    ("/failed", "octagon-x", "Failures"),
    ("/alerts", "bell", "Alerts"),
    ("/workers", "server", "Workers"),
    ("/singleton-loops", "refresh-cw", "Singleton loops"),
    ("/calendars", "calendar-off", "Calendars"),
    ("/account", "user-cog", "Account"),
    ("/tokens", "key-round", "API tokens"),
    ("/help", "circle-help", "Help"),
];

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
            let may = |action| me.as_ref().is_some_and(|me| me.role.allows(action));
            let team = may(Permission::ReadTeam).then_some(("/team", "users", "Team"));
            let audit = may(Permission::ReadAudit).then_some(("/audit", "scroll-text", "Audit log"));
            let links = PAGES.into_iter().chain(team).chain(audit);
            untrack(|| {
                let links = links.map(|(href, icon, word)| view! { <li><NavLink href icon word/></li> });
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
