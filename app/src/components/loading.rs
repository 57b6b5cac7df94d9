//! A page's data while it loads, and the page shown instead after an error.

use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::{NavigateOptions, components::Redirect, hooks::use_location};
use serde::{Serialize, de::DeserializeOwned};

use super::{icon::Icon, page_header::PageHeader, session_context::SessionContext};
use crate::{api::session::query_value, error::AppError};

/// Renders a page once its data and the signed-in user are known.
///
/// The server waits for both, so its HTML is complete. In the browser a change of the resource's source keeps the old
/// page until the new one is ready. An error is rendered as a page too: `SignedOut` redirects to the sign-in page and
/// back, and other errors show their text with the next step. `view` runs untracked, so it reads each signal once.
pub fn render_page<T, V, F>(data: Resource<Result<T, AppError>>, view: F) -> AnyView
where
    T: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
    V: IntoView + 'static,
    F: Fn(T) -> V + Clone + Send + Sync + 'static,
{
    let session = use_context::<SessionContext>();
    let session_to_refetch = session.clone();
    let retry = Callback::new(move |()| {
        if let Some(session) = &session_to_refetch {
            session.refetch();
        }
        data.refetch();
    });
    let draw = move || {
        let (view, session) = (view.clone(), session.clone());
        Suspend::new(async move {
            let known = match session {
                Some(session) => session.user().await.map(|_| ()),
                None => Ok(()),
            };
            let data = data.await;
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
        AppError::Denied(text) => view! { <ErrorPage title="Not allowed" text/> }.into_any(),
        other => view! {
            <Title text="Something went wrong"/>
            <PageHeader title="Something went wrong"/>
            <div class="notice" data-kind="error" role="alert">
                <Icon name="circle-alert"/>
                <p>{other.to_string()}</p>
            </div>
            <p class="needs-js">
                <button type="button" class="btn" on:click=move |_| retry.run(())>
                    <Icon name="refresh-cw"/>
                    "Try again"
                </button>
            </p>
            <p class="hide-js">"Reload this page in a moment."</p>
        }
        .into_any(),
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
) -> impl IntoView {
    view! {
        <Title text=title/>
        <PageHeader title=title/>
        <div class="empty">
            <p>{text}</p>
            <p>
                <a class="btn" href="/">"Go to the overview"</a>
            </p>
        </div>
    }
}
