//! A page's data while it loads, and the page shown instead after an error.

use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::{NavigateOptions, components::Redirect, hooks::use_location};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    cluster_state::{ClusterState, TROUBLE_REFRESH_INTERVAL, use_cluster_status},
    icon::Icon,
    page_header::PageHeader,
    session_context::SessionContext,
};
use crate::{api::session::query_value, error::AppError, live::use_polling};

/// The explanation on a page that cannot be read because PostgreSQL is down.
const DATABASE_OUTAGE_TEXT: &str = "PostgreSQL does not respond, so this page cannot be read. Runs that have started \
                                    continue on their workers, and their results are stored once PostgreSQL is back. \
                                    Start PostgreSQL, or check the server's DATABASE_URL; an open page then loads \
                                    again by itself.";

/// The next step of a user whose role does not permit a page.
const DENIED_NEXT: &str = "To get access, ask an Admin to change your role on the page Team.";

/// Renders a page once its data is known.
///
/// The server waits for it, so its HTML is complete. In the browser a change of the resource's source keeps the old
/// page until the new one is ready. An error is rendered as a page too: `SignedOut` redirects to the sign-in page and
/// back, and other errors show their text with the next step. `view` runs untracked, so it reads each signal once.
pub fn render_page<T, V, F>(data: Resource<Result<T, AppError>>, view: F) -> AnyView
where
    T: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
    V: IntoView + 'static,
    F: Fn(T) -> V + Clone + Send + Sync + 'static,
{
    let session = use_context::<SessionContext>();
    if let Some(session) = &session {
        session.when_refetched(move || data.refetch());
    }
    let session_to_refetch = session.clone();
    let retry = Callback::new(move |()| match &session_to_refetch {
        Some(session) => session.refetch(),
        None => data.refetch(),
    });
    let draw = move || {
        let (view, session) = (view.clone(), session.clone());
        Suspend::new(async move {
            let data = data.await;
            let known = session.map_or(Ok(None), |session| session.user());
            untrack(|| match known.and(data) {
                Ok(data) => view(data).into_any(),
                Err(error) => error_view(error, retry),
            })
        })
    };
    view! { <Transition fallback=|| view! { <LoadingIndicator/> }>{draw}</Transition> }.into_any()
}

/// The indicator shown while a page loads.
#[component]
pub fn LoadingIndicator() -> impl IntoView {
    view! {
        <p class="cluster muted" role="status">
            <Icon name="loader-circle"/>
            <span>"Loading…"</span>
        </p>
    }
}

/// Renders an error in place of the requested page.
fn error_view(error: AppError, retry: Callback<()>) -> AnyView {
    match error {
        AppError::SignedOut => {
            let options = NavigateOptions { replace: true, ..NavigateOptions::default() };
            view! { <Redirect path=sign_in_path() options=options/> }.into_any()
        }
        AppError::NotFound(text) => view! { <ErrorPage title="Not found" text/> }.into_any(),
        AppError::Denied(text) => view! { <ErrorPage title="Not allowed" text next=DENIED_NEXT/> }.into_any(),
        AppError::Unavailable(text) => view! { <UnavailablePage text retry/> }.into_any(),
        other => view! {
            <Title text="Something went wrong"/>
            <PageHeader title="Something went wrong"/>
            <div class="notice" data-kind="error" role="alert">
                <Icon name="circle-alert"/>
                <p>{other.to_string()}</p>
            </div>
            <TryAgain retry/>
        }
        .into_any(),
    }
}

#[component]
fn TryAgain(retry: Callback<()>) -> impl IntoView {
    view! {
        <p class="needs-js">
            <button type="button" class="btn" on:click=move |_| retry.run(())>
                <Icon name="refresh-cw"/>
                "Try again"
            </button>
        </p>
        <p class="hide-js">"Reload this page in a moment."</p>
    }
}

/// The page shown while a service that its data needs is unavailable. It loads the data again once PostgreSQL is back.
#[component]
fn UnavailablePage(
    /// The reason, used unless the state of the cluster gives a better one.
    text: String,
    retry: Callback<()>,
) -> impl IntoView {
    let status = use_cluster_status();
    let is_down =
        Memo::new(move |_| status.with(|status| status.as_ref().is_some_and(|status| !status.is_database_up())));
    if let Some(cluster) = use_context::<ClusterState>() {
        // The last status may predate the outage.
        Effect::new(move |_| cluster.request_own());
    }
    Effect::new(move |was_down: Option<bool>| {
        let is_down = is_down.get();
        if was_down == Some(true) && !is_down {
            retry.run(());
        }
        is_down
    });
    // A single repetition may come too early, because the server needs a moment to connect again.
    use_polling(TROUBLE_REFRESH_INTERVAL, move || {
        if !is_down.get_untracked() {
            retry.run(());
        }
    });
    let reason = move || if is_down.get() { DATABASE_OUTAGE_TEXT.to_owned() } else { text.clone() };
    view! {
        <Title text="Service unavailable"/>
        <PageHeader title="Service unavailable"/>
        <div class="notice" data-kind="error">
            <Icon name="circle-alert"/>
            <p>{reason}</p>
        </div>
        <TryAgain retry/>
    }
}

/// Returns the address of the sign-in page, with the current page as the one to return to.
#[must_use]
pub fn sign_in_path() -> String {
    let location = use_location();
    let path = location.pathname.get_untracked();
    let search = location.search.get_untracked();
    if path == "/" && search.is_empty() {
        return "/login".into();
    }
    let search = if search.is_empty() { search } else { format!("?{}", search.trim_start_matches('?')) };
    format!("/login?next={}", query_value(&format!("{path}{search}")))
}

/// A page that explains why the requested page is not shown.
#[component]
pub fn ErrorPage(
    /// The heading.
    title: &'static str,
    /// The reason and the next step.
    text: String,
    /// More about the next step.
    #[prop(default = "")]
    next: &'static str,
) -> impl IntoView {
    view! {
        <Title text=title/>
        <PageHeader title=title/>
        <div class="empty">
            <p>{text}</p>
            {(!next.is_empty()).then(|| view! { <p>{next}</p> })}
            <p>
                <a class="btn" href="/">"Go to the overview"</a>
            </p>
        </div>
    }
}
