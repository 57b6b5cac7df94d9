//! The error of an action, shown at the place of the action, and the notices of an action above the page.
//!
//! A toast may disappear or be dismissed before it is read, so no toast reports an error. The error stays beside the
//! action's button, or in its dialog, until the user tries the action again or dismisses the error. If the user has
//! left the page of the action, the error is a notice above the page that is open.

use leptos::{ev, prelude::*};
use leptos_router::hooks::use_location;

use super::icon::Icon;
use crate::{
    api::session::{FlashView, SessionEndReason, sign_in_address},
    browser,
    error::{AppError, SIGNED_OUT_TEXT},
    format::capitalized,
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
    error.problems().iter().map(|problem| capitalized(&problem.message)).collect::<Vec<_>>().join(" ")
}

/// Renders the text of an error, with a link to the sign-in page if the error is that the user is signed out.
pub fn error_text(text: String) -> AnyView {
    let link = text.ends_with(SIGNED_OUT_TEXT).then(|| {
        let address = sign_in_address(SessionEndReason::SignedOut, &browser::current_path());
        view! { " " <a href=address>"Sign in"</a> }
    });
    (text, link).into_any()
}

/// The notice of the page's last action, shown until the next navigation: left by a plain form post, or set by a script
/// that then opened another page.
#[component]
pub fn FlashNotice(
    /// The message of the plain form post.
    flash: Option<FlashView>,
) -> impl IntoView {
    let location = use_location();
    let address = Memo::new(move |_| (location.pathname.get(), location.search.get()));
    let own = PageNotice::current().0;
    let is_left = RwSignal::new(false);
    Effect::new(move |before: Option<(String, String)>| {
        let here = address.get();
        if before.is_some_and(|before| before != here) {
            is_left.set(true);
            if own.with_untracked(|own| own.as_ref().is_some_and(|(path, _)| *path != here.0)) {
                own.set(None);
            }
        }
        here
    });
    let flash = flash.unwrap_or_default();
    let kind = if flash.error.is_some() { "warn" } else { "success" };
    let notice = flash.error.or(flash.notice).map(|text| notice_box(kind, text));
    view! {
        <div class="page-notices">
            <div role="status" hidden=move || is_left.get()>
                {notice}
            </div>
            <div role="status">
                {move || {
                    let text = own.with(|own| {
                        own.as_ref().filter(|(path, _)| address.with(|(here, _)| here == path)).map(|(_, text)| text.clone())
                    });
                    text.map(|text| notice_box("warn", text))
                }}
            </div>
        </div>
    }
}

fn notice_box(kind: &'static str, text: String) -> impl IntoView {
    let icon = if kind == "success" { "circle-check" } else { "triangle-alert" };
    view! {
        <div class="notice" data-kind=kind>
            <Icon name=icon/>
            <p>{error_text(text)}</p>
        </div>
    }
}

/// A warning that a script sets for the current page or for the page that it opens next. Unlike a toast it stays until
/// the user leaves that page.
#[derive(Clone, Copy)]
pub struct PageNotice(RwSignal<Option<(String, String)>>);

impl PageNotice {
    /// Creates the empty notice. Called once, by the layout.
    pub fn provide() {
        provide_context(Self(RwSignal::new(None)));
    }

    /// Returns the notice of the layout. Outside the layout it is never shown.
    #[must_use]
    pub fn current() -> Self {
        use_context().unwrap_or_else(|| Self(RwSignal::new(None)))
    }

    /// Shows `text` while the page at `path` is open.
    pub fn warn_at(self, path: &str, text: String) {
        // Outside the layout nothing shows it.
        let _ = self.0.try_set(Some((path.to_owned(), text)));
    }

    /// Shows `text` until the user leaves the current page.
    pub fn warn_here(self, text: String) {
        let address = browser::current_path();
        self.warn_at(address.split('?').next().unwrap_or_default(), text);
    }

    /// Removes the notice.
    pub fn clear(self) {
        self.0.set(None);
    }
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
