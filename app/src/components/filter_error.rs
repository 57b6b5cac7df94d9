//! The notice of a page whose address holds an invalid filter.
//!
//! A filter that cannot be read must never widen a list: a page that ignored it would show rows, and offer actions on
//! rows, that its address does not ask for. Such a page therefore shows this notice in place of its rows, and its
//! response has status 400. The pages parse their addresses themselves, once, and pass what they could not read.

use leptos::prelude::*;

use super::icon::Icon;
use crate::format::clip;

/// The maximum length of a value in the notice, in characters.
const VALUE_MAX_CHARS: usize = 80;

/// One parameter of an address that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    /// The name in the address: `state`.
    pub parameter: &'static str,
    /// The value in the address.
    pub value: String,
    /// The accepted values, as a sentence: "Use open, resolved or all."
    pub remedy: String,
}

impl FilterError {
    /// Returns the error as a sentence: `The filter state has the value "foo", which is not valid.`
    #[must_use]
    pub fn sentence(&self) -> String {
        let value = clip(&self.value, VALUE_MAX_CHARS);
        format!("The filter {} has the value \"{value}\", which is not valid. {}", self.parameter, self.remedy)
    }
}

/// The notice shown in place of a list while its filter is invalid. Sets the status of the response to 400.
#[component]
pub fn FilterErrorNotice(
    /// The parameters that cannot be read; at least one.
    errors: Vec<FilterError>,
    /// The address of the same list without these parameters.
    reset: String,
) -> impl IntoView {
    mark_bad_request();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentence_names_parameter_value_and_remedy() {
        let error =
            FilterError { parameter: "state", value: "x".repeat(500), remedy: "Use open, resolved or all.".into() };
        let sentence = error.sentence();
        assert!(sentence.starts_with("The filter state has the value \"xxx"), "{sentence}");
        assert!(sentence.ends_with("…\", which is not valid. Use open, resolved or all."), "{sentence}");
        assert!(sentence.len() < 200, "a long value is clipped");
    }
}
