//! The site map and the layout around every signed-in page.

use leptos::{prelude::*, tachys::view::iterators::StaticVec};
use leptos_meta::{Title, provide_meta_context};
use leptos_router::{
    NestedRoute, SsrMode,
    any_nested_route::{AnyNestedRoute, IntoAnyNestedRoute},
    components::{Outlet, Router, Routes},
    hooks::use_location,
};

use crate::{
    api::boot::Boot,
    browser,
    components::{
        action_error::{FlashNotice, PageNotice},
        cluster_state::ClusterState,
        leave_guard::{LeaveDialog, LeaveGuard},
        loading::ErrorPage,
        nav::{BottomBar, SideNav, TopBar},
        page_arrival::{FollowAddress, PageArrival},
        preferences::SharedPreferences,
        session_context::SessionContext,
        session_end::{SessionEndNotice, provide_session_end},
        shortcuts::Shortcuts,
        status_banner::StatusBanners,
        time::PageClock,
        toast::{ToastQueue, ToastRegion},
    },
    lazy_pages::{PAGES, Page},
    live::{LiveUpdates, announcer::LiveAnnouncer, read_state::ReadState},
};

/// The product's name, which is the title of a page that sets none.
const PRODUCT_NAME: &str = "Milvaion";

/// The whole dashboard.
///
/// Every page loads its data before its first byte is sent: a user without scripts gets the whole page, and the
/// response's status can still be 404.
#[component]
pub fn App() -> impl IntoView {
    provide_meta_context();
    PageClock::provide();
    ToastQueue::provide();
    // In this order and before the router, because the listeners of the window run in the order of their registration.
    LeaveGuard::provide();
    PageArrival::provide();
    browser::remember_focus();
    Effect::new(move |_| browser::mark_ready());
    view! {
        <Title text=PRODUCT_NAME formatter=|title: String| if title == PRODUCT_NAME { title } else { format!("{title} · {PRODUCT_NAME}") }/>
        <Router>
            <FollowAddress/>
            <Routes fallback=|| view! { <NotFoundPage/> } children=ToChildren::to_children(site_map)/>
            <ToastRegion/>
        </Router>
    }
}

/// Returns the routes of all pages. They have one type, because the router is compiled once for each type.
fn site_map() -> StaticVec<AnyNestedRoute> {
    let (doors, pages): (Vec<_>, Vec<_>) = PAGES.iter().copied().partition(|page| page.is_door());
    let route = |page: Page| NestedRoute::new(page, page).ssr_mode(SsrMode::Async).into_any_nested_route();
    let pages = pages.into_iter().map(route).collect::<Vec<_>>();
    let layout = NestedRoute::new((), Layout).ssr_mode(SsrMode::Async).child(StaticVec::from(pages));
    let doors = doors.into_iter().map(route);
    doors.chain([layout.into_any_nested_route()]).collect::<Vec<_>>().into()
}

/// The layout around every signed-in page. It is rendered once and stays while the pages inside it change.
#[component]
fn Layout() -> impl IntoView {
    let Some(boot) = Boot::take() else { return load_document() };
    SessionContext::provide(boot.me, boot.error);
    SharedPreferences::provide();
    PageNotice::provide();
    let guard = expect_context::<LeaveGuard>();
    provide_session_end(move || guard.is_dirty());
    LiveUpdates::provide();
    #[cfg(feature = "hydrate")]
    crate::stream::run();
    ReadState::provide();
    let cluster = ClusterState::provide(boot.cluster);
    view! {
        <div class="app">
            <a class="skip-link" href="#content" rel="external">"Skip to content"</a>
            <TopBar/>
            <SideNav/>
            <main class="content" id="content" tabindex="-1">
                <SessionEndNotice/>
                <StatusBanners cluster/>
                <FlashNotice flash=boot.flash/>
                <Outlet/>
            </main>
            <BottomBar/>
            <Shortcuts/>
            <LeaveDialog/>
            <LiveAnnouncer/>
        </div>
    }
    .into_any()
}

/// Loads the document of the page that the user has opened from a page outside the layout, because only a document has
/// what the layout shows. Waits one frame, so that the router has changed the address.
fn load_document() -> AnyView {
    let location = use_location();
    let address = untrack(|| format!("{}?{}", location.pathname.get(), location.search.get().trim_start_matches('?')));
    browser::run_on_next_frame(move || browser::load(address.trim_end_matches('?')));
    ().into_any()
}

/// The page for an unknown address.
#[component]
fn NotFoundPage() -> impl IntoView {
    #[cfg(feature = "ssr")]
    if let Some(response) = use_context::<leptos_axum::ResponseOptions>() {
        response.set_status(http::StatusCode::NOT_FOUND);
    }
    view! {
        <main class="auth" id="content">
            <div class="card">
                <ErrorPage title="Not found" text="There is no page at this address.".to_owned()/>
            </div>
        </main>
    }
}
