//! The site map and the layout around every signed-in page.

use leptos::prelude::*;
use leptos_meta::{Title, provide_meta_context};
use leptos_router::{
    Lazy, SsrMode,
    components::{Outlet, ParentRoute, Route, Router, Routes},
    path,
};

use crate::{
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
    lazy_pages,
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
            <Routes fallback=|| view! { <NotFoundPage/> }>
                <Route path=path!("/setup") view={Lazy::<lazy_pages::OneTimeLinkRoute>::new()} ssr=SsrMode::Async/>
                <Route path=path!("/invite") view={Lazy::<lazy_pages::OneTimeLinkRoute>::new()} ssr=SsrMode::Async/>
                <Route path=path!("/reset") view={Lazy::<lazy_pages::OneTimeLinkRoute>::new()} ssr=SsrMode::Async/>
                <Route path=path!("/login") view={Lazy::<lazy_pages::LoginRoute>::new()} ssr=SsrMode::Async/>
                <ParentRoute path=path!("") view=Layout ssr=SsrMode::Async>
                    <Route path=path!("/") view={Lazy::<lazy_pages::OverviewRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/jobs") view={Lazy::<lazy_pages::JobsRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/jobs/new") view={Lazy::<lazy_pages::NewJobRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/jobs/:id") view={Lazy::<lazy_pages::JobRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/jobs/:id/edit") view={Lazy::<lazy_pages::EditJobRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/calendars") view={Lazy::<lazy_pages::CalendarsRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/calendars/new") view={Lazy::<lazy_pages::NewCalendarRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/calendars/:id/edit") view={Lazy::<lazy_pages::EditCalendarRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/occurrences") view={Lazy::<lazy_pages::OccurrencesRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/occurrences/:id") view={Lazy::<lazy_pages::OccurrenceRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/failed") view={Lazy::<lazy_pages::FailuresRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/failed/:key") view={Lazy::<lazy_pages::FailureRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/alerts") view={Lazy::<lazy_pages::AlertsRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/alerts/rules") view={Lazy::<lazy_pages::AlertRulesRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/alerts/rules/new") view={Lazy::<lazy_pages::NewAlertRuleRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/alerts/rules/:id") view={Lazy::<lazy_pages::AlertRuleRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/alerts/channels") view={Lazy::<lazy_pages::AlertChannelsRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/alerts/channels/new") view={Lazy::<lazy_pages::NewAlertChannelRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/alerts/channels/:id") view={Lazy::<lazy_pages::AlertChannelRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/workers") view={Lazy::<lazy_pages::WorkersRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/singleton-loops") view={Lazy::<lazy_pages::SingletonLoopsRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/team") view={Lazy::<lazy_pages::TeamRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/team/:id") view={Lazy::<lazy_pages::PersonRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/audit") view={Lazy::<lazy_pages::AuditRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/account") view={Lazy::<lazy_pages::AccountRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/tokens") view={Lazy::<lazy_pages::TokensRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/menu") view={Lazy::<lazy_pages::MenuRoute>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/help") view={Lazy::<lazy_pages::HelpRoute>::new()} ssr=SsrMode::Async/>
                </ParentRoute>
            </Routes>
            <ToastRegion/>
        </Router>
    }
}

/// The layout around every signed-in page. It is rendered once and stays while the pages inside it change.
#[component]
fn Layout() -> impl IntoView {
    let session = SessionContext::provide();
    SharedPreferences::provide();
    PageNotice::provide();
    let guard = expect_context::<LeaveGuard>();
    provide_session_end(move || guard.is_dirty());
    LiveUpdates::provide();
    #[cfg(feature = "hydrate")]
    crate::stream::run();
    ReadState::provide();
    let cluster = ClusterState::provide();
    view! {
        <div class="app">
            <a class="skip-link" href="#content" rel="external">"Skip to content"</a>
            <TopBar session=session.clone() cluster=cluster.clone()/>
            <SideNav session=session.clone()/>
            <main class="content" id="content" tabindex="-1">
                <SessionEndNotice/>
                <StatusBanners session cluster/>
                <FlashNotice/>
                <Outlet/>
            </main>
            <BottomBar/>
            <Shortcuts/>
            <LeaveDialog/>
            <LiveAnnouncer/>
        </div>
    }
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
