//! The error of an action, shown at the place of the action.
//!
//! A toast may disappear or be dismissed before it is read, so no toast reports an error. The error stays beside the
//! action's button, or in its dialog, until the user tries the action again or dismisses the error.

use leptos::{ev, prelude::*};

use super::{
    icon::Icon,
    input_form::{capitalized, problems},
    nav::PageNotice,
    session_end::{SessionEndReason, sign_in_address},
};
use crate::{
    browser,
    error::{AppError, SIGNED_OUT_TEXT},
};

/// The error of the last try of an action.
///
/// The page holds it if the view of the action may be drawn again or removed before the error is read.
#[derive(Clone, Copy)]
pub struct LastError {
    action: &'static str,
    error: RwSignal<Option<AppError>>,
    notice: PageNotice,
}

impl LastError {
    /// Creates the state of an action that has not failed. `action` names it, as on its button.
    #[must_use]
    pub fn of(action: &'static str) -> Self {
        Self { action, error: RwSignal::new(None), notice: PageNotice::current() }
    }

    /// Removes the error. Called at the start of each try.
    pub fn clear(self) {
        let _ = self.error.try_set(None);
    }

    /// Shows `error` at the place of the action, or above the current page if the user has left that of the action.
    pub fn show(self, error: AppError) {
        if let Some(Some(error)) = self.error.try_set(Some(error)) {
            self.notice.warn_here(format!("“{}” failed. {}", self.action, messages(&error)));
        }
    }
}

/// The live region for the error of one action, empty without an error. It exists from the start, because screen
/// readers do not announce a region that is added with its text.
#[component]
pub fn ActionError(
    /// The error of the last try.
    error: LastError,
) -> impl IntoView {
    let dismiss = move |_: ev::MouseEvent| {
        browser::keep_focus();
        error.clear();
    };
    let notice = move || {
        error.error.get().map(|found| {
            view! {
                <div class="notice" data-kind="error">
                    <Icon name="circle-alert"/>
                    <p>{error_text(messages(&found))}</p>
                    <button
                        type="button"
                        class="icon-btn"
                        aria-label="Dismiss the error"
                        on:click=dismiss
                    >
                        <Icon name="x"/>
                    </button>
                </div>
            }
        })
    };
    view! { <div class="action-error" role="alert">{notice}</div> }
}

/// Returns the text of an error; for invalid fields the messages of all of them.
fn messages(error: &AppError) -> String {
    problems(error).iter().map(|problem| capitalized(&problem.message)).collect::<Vec<_>>().join(" ")
}

/// Renders the text of an error, with a link to the sign-in page if the error is that the user is signed out.
pub fn error_text(text: String) -> AnyView {
    let link = text.ends_with(SIGNED_OUT_TEXT).then(|| {
        let address = sign_in_address(SessionEndReason::SignedOut, &browser::current_path());
        view! { " " <a href=address>"Sign in"</a> }
    });
    (text, link).into_any()
}

#[cfg(test)]
mod tests {
    use milvaion_api::requests::FieldError;

    use super::*;

    #[test]
    fn every_invalid_field_is_named() {
        let fields = vec![FieldError::new("reason", "is too long."), FieldError::new("id", "is missing.")];
        assert_eq!(messages(&AppError::Fields(fields)), "Is too long. Is missing.");
        assert_eq!(messages(&AppError::SignedOut), SIGNED_OUT_TEXT);
    }
}
