//! The site map and the layout around every signed-in page.

use leptos::prelude::*;
use leptos_meta::{Title, provide_meta_context};
use leptos_router::{
    SsrMode,
    components::{Outlet, ParentRoute, Route, Router, Routes},
    hooks::use_location,
    path,
};

use crate::{
    browser,
    components::{
        cluster_state::ClusterState,
        loading::ErrorPage,
        nav::{BottomBar, FlashNotice, SideNav, TopBar},
        page_header::FocusHeading,
        session_context::SessionContext,
        shortcuts::Shortcuts,
        status_banner::StatusBanners,
        time::PageClock,
        toast::{ToastQueue, ToastRegion},
    },
    live::{LiveUpdates, read_state::ReadState},
    pages::{
        calendars::{
            CalendarsPage,
            form::{EditCalendarPage, NewCalendarPage},
        },
        failures::{FailurePage, FailuresPage},
        help::HelpPage,
        invite::{InvitePage, SetupPage},
        job::JobPage,
        job_form::{EditJobPage, NewJobPage},
        jobs::JobsPage,
        login::LoginPage,
        occurrence::OccurrencePage,
        occurrences::OccurrencesPage,
        overview::OverviewPage,
        team::TeamPage,
        workers::WorkersPage,
    },
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
    let focus = FocusHeading::provide();
    Effect::new(move |_| browser::mark_ready());
    view! {
        <Title text=PRODUCT_NAME formatter=|title: String| if title == PRODUCT_NAME { title } else { format!("{title} · {PRODUCT_NAME}") }/>
        <Router>
            <FollowFocus focus/>
            <Routes fallback=|| view! { <NotFoundPage/> }>
                <Route path=path!("/setup") view=SetupPage ssr=SsrMode::Async/>
                <Route path=path!("/invite") view=InvitePage ssr=SsrMode::Async/>
                <Route path=path!("/login") view=LoginPage ssr=SsrMode::Async/>
                <ParentRoute path=path!("") view=Layout ssr=SsrMode::Async>
                    <Route path=path!("/") view=OverviewPage ssr=SsrMode::Async/>
                    <Route path=path!("/jobs") view=JobsPage ssr=SsrMode::Async/>
                    <Route path=path!("/jobs/new") view=NewJobPage ssr=SsrMode::Async/>
                    <Route path=path!("/jobs/:id") view=JobPage ssr=SsrMode::Async/>
                    <Route path=path!("/jobs/:id/edit") view=EditJobPage ssr=SsrMode::Async/>
                    <Route path=path!("/calendars") view=CalendarsPage ssr=SsrMode::Async/>
                    <Route path=path!("/calendars/new") view=NewCalendarPage ssr=SsrMode::Async/>
                    <Route path=path!("/calendars/:id/edit") view=EditCalendarPage ssr=SsrMode::Async/>
                    <Route path=path!("/occurrences") view=OccurrencesPage ssr=SsrMode::Async/>
                    <Route path=path!("/occurrences/:id") view=OccurrencePage ssr=SsrMode::Async/>
                    <Route path=path!("/failed") view=FailuresPage ssr=SsrMode::Async/>
                    <Route path=path!("/failed/:key") view=FailurePage ssr=SsrMode::Async/>
                    <Route path=path!("/workers") view=WorkersPage ssr=SsrMode::Async/>
                    <Route path=path!("/team") view=TeamPage ssr=SsrMode::Async/>
                    <Route path=path!("/help") view=HelpPage ssr=SsrMode::Async/>
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
    LiveUpdates::provide();
    ReadState::provide();
    let cluster = ClusterState::provide();
    view! {
        <div class="app">
            <a class="skip-link" href="#content" rel="external">"Skip to content"</a>
            <TopBar session=session.clone()/>
            <SideNav session=session.clone()/>
            <main class="content" id="content" tabindex="-1">
                <StatusBanners session cluster/>
                <FlashNotice/>
                <Outlet/>
            </main>
            <BottomBar/>
            <Shortcuts/>
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

/// Moves the focus to the page's heading after a navigation inside the app.
#[component]
fn FollowFocus(focus: FocusHeading) -> impl IntoView {
    let pathname = use_location().pathname;
    Effect::new(move |before: Option<String>| {
        let here = pathname.get();
        if before.is_some_and(|before| before != here) {
            focus.request();
        }
        here
    });
}
