//! A page whose address holds a filter, and the notice in place of its list while the filter is invalid.
//!
//! The notice is shown in place of the rows, and the response has status 400. The pages parse their addresses
//! themselves, once, with a [`QueryReader`](super::query_reader::QueryReader).

use leptos::prelude::*;
use leptos_router::{hooks::use_query_map, params::ParamsMap};
use serde::{Serialize, de::DeserializeOwned};

use super::{icon::Icon, loading::render_page, query_reader::InvalidFilter};
use crate::error::AppError;

/// Returns the filter in the address of the page, as a memo.
pub fn use_filter<F: PartialEq + Send + Sync + 'static>(
    parse: fn(&ParamsMap) -> Result<F, InvalidFilter>,
) -> Memo<Result<F, InvalidFilter>> {
    let query = use_query_map();
    Memo::new(move |_| query.with(parse))
}

/// Reads the data that a filter selects and renders the page with it, as [`render_page`] does. While the filter is
/// invalid, nothing is read, and `view` receives the notice in place of the data.
pub fn render_filtered<F, T, Fut>(
    request: Memo<Result<F, InvalidFilter>>,
    read: impl Fn(F) -> Fut + Send + Sync + 'static,
    view: impl Fn(Result<T, AnyView>) -> AnyView + Clone + Send + Sync + 'static,
) -> AnyView
where
    F: Clone + PartialEq + Send + Sync + 'static,
    T: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
    Fut: Future<Output = Result<T, AppError>> + Send + 'static,
{
    let data = Resource::new_blocking(
        move || request.get(),
        move |filter| {
            let found = filter.ok().map(&read);
            async move {
                match found {
                    Some(found) => found.await.map(Some),
                    None => Ok(None),
                }
            }
        },
    );
    render_page(data, move |found: Option<T>| match (found, request.get_untracked()) {
        (Some(found), _) => view(Ok(found)),
        (None, Err(invalid)) => view(Err(view! { <FilterErrorNotice invalid/> }.into_any())),
        (None, Ok(_)) => ().into_any(),
    })
}

/// The notice shown in place of a list while its filter is invalid. Sets the status of the response to 400.
#[component]
pub fn FilterErrorNotice(
    /// The parameters that cannot be read.
    invalid: InvalidFilter,
) -> impl IntoView {
    mark_bad_request();
    let InvalidFilter { errors, reset } = invalid;
    let label = if errors.len() == 1 { "Remove the invalid filter" } else { "Remove the invalid filters" };
    let entries: Vec<_> =
        errors.iter().map(|error| view! { <p data-parameter=error.parameter>{error.sentence()}</p> }).collect();
    view! {
        <div class="stack" id="filter-error">
            <div class="notice" data-kind="error" role="alert">
                <Icon name="circle-alert"/>
                <div class="stack">
                    <p><strong>"This address cannot be shown. Nothing is listed."</strong></p>
                    {entries}
                </div>
            </div>
            <p>
                <a class="btn" href=reset>
                    <Icon name="x"/>
                    {label}
                </a>
            </p>
        </div>
    }
}

/// Sets the status of the page's response to 400. Does nothing in the browser.
fn mark_bad_request() {
    #[cfg(feature = "ssr")]
    if let Some(response) = use_context::<leptos_axum::ResponseOptions>() {
        response.set_status(http::StatusCode::BAD_REQUEST);
    }
}
