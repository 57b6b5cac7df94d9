//! A page's data, or what is said instead of it.

use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::{NavigateOptions, components::Redirect, hooks::use_location};
use serde::{Serialize, de::DeserializeOwned};

use super::{icon::Icon, page_header::PageHeader, session_context::SessionContext};
use crate::{api::session::query_value, error::AppError};

/// Draws a page once its data is there and it is known who reads.
///
/// The server waits for both, so its HTML is whole; in the browser a change of the resource's source keeps the old page
/// until the new one is ready. An error becomes a page too: `SignedOut` leads to the sign-in page and back, the others
/// say what happened and what can be done. `view` runs outside any tracking: what it reads it reads once.
pub fn render_page<T, V, F>(data: Resource<Result<T, AppError>>, view: F) -> AnyView
where
    T: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
    V: IntoView + 'static,
    F: Fn(T) -> V + Clone + Send + Sync + 'static,
{
    let session = use_context::<SessionContext>();
    let asked = session.clone();
    let retry = Callback::new(move |()| {
        if let Some(session) = &asked {
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
                Err(error) => problem(error, retry),
            })
        })
    };
    view! { <Transition fallback=|| view! { <LoadingIndicator/> }>{draw}</Transition> }.into_any()
}

/// What is shown while a page is on its way.
#[component]
pub fn LoadingIndicator() -> impl IntoView {
    view! {
        <p class="cluster muted" role="status">
            <Icon name="loader-circle"/>
            <span>"Loading…"</span>
        </p>
    }
}

/// An error as the page that stands in for the one asked for.
fn problem(error: AppError, retry: Callback<()>) -> AnyView {
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
            <p class="hide-js">"Load this page again in a moment."</p>
        }
        .into_any(),
    }
}

/// Where somebody who is signed out goes, with the way back.
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

/// A page that says why there is no page.
#[component]
pub fn ErrorPage(
    /// What it is.
    title: &'static str,
    /// Why, and what to do.
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
