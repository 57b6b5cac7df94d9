//! Behavior shared by forms that are validated while they are filled in: a debounced check by the server, the state of the
//! preview that it computes, and the focus on the error summary.

use std::{future::Future, time::Duration};

use leptos::{ev, leptos_dom::helpers::TimeoutHandle, prelude::*, task::spawn_local};
use milvaion_api::requests::FieldError;

use super::{action_error::error_text, form_state::FormState, icon::Icon};
use crate::{api::session::SessionEnd, browser, error::AppError};

/// The time without input after which the form is checked.
const CHECK_DELAY: Duration = Duration::from_millis(300);
/// The id of the focusable summary beside a form, which contains its [`CheckedPreview`].
pub const FORM_SUMMARY_ID: &str = "form-summary";

/// The state of the check of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CheckProgress {
    /// The preview belongs to the values of the form.
    Current,
    /// The values have changed, and their check has no answer yet.
    Pending,
    /// The last check failed for this reason.
    Failed(String),
}

/// The check of a form by the server.
#[derive(Clone, Copy)]
pub struct FormCheck {
    progress: RwSignal<CheckProgress>,
    request: Callback<()>,
    remember: Callback<bool>,
}

impl FormCheck {
    /// Checks the form `CHECK_DELAY` after the last change. Until the answer its preview is outdated.
    pub fn changed(self) {
        let _ = self.progress.try_set(CheckProgress::Pending);
        self.request.run(());
    }

    /// Checks the form after the user has left a field, unless its values are those of the last check.
    pub fn left_field(self) {
        self.request.run(());
    }

    /// Notes that the values of the form are being saved. Saving finds every error of a check, and others. A check of
    /// the same values therefore changes no error.
    pub fn saving(self) {
        self.remember.run(true);
    }

    /// Notes the error of a save. The values were checked only if a field or the present state of the object is the
    /// reason.
    pub fn refused(self, error: &AppError) {
        if !matches!(error, AppError::Fields(_) | AppError::Conflict(_)) {
            let _ = self.remember.try_run(false);
        }
    }
}

/// Sends the form to the server for a check, `CHECK_DELAY` after the last call. Only the newest response is shown: `show`
/// displays its preview and returns the errors. The end of the session is reported, and any other failed check is stated
/// beside the preview.
pub fn debounced_check<T, A, Fut>(
    state: FormState,
    read: impl Fn() -> Option<T> + Copy + Send + Sync + 'static,
    check: impl Fn(T) -> Fut + Copy + Send + Sync + 'static,
    show: impl Fn(A) -> Vec<FieldError> + Copy + Send + Sync + 'static,
) -> FormCheck
where
    T: Clone + PartialEq + Send + Sync + 'static,
    A: 'static,
    Fut: Future<Output = Result<A, AppError>> + 'static,
{
    let timer = StoredValue::new(None::<TimeoutHandle>);
    let last_number = StoredValue::new(0_u32);
    let checked = StoredValue::new(None::<T>);
    let saved = StoredValue::new(None::<T>);
    let progress = RwSignal::new(CheckProgress::Current);
    let session_end = SessionEnd::current();
    let send = move || {
        let Some(form) = read() else { return };
        if checked.with_value(|checked| checked.as_ref() == Some(&form)) {
            progress.set(CheckProgress::Current);
            return;
        }
        let number = last_number.get_value();
        spawn_local(async move {
            let answer = check(form.clone()).await;
            if last_number.try_get_value() != Some(number) {
                return;
            }
            match answer {
                Ok(answer) => {
                    let found = show(answer);
                    if saved.with_value(|saved| saved.as_ref() != Some(&form)) {
                        saved.set_value(None);
                        let errors = state.errors.with_untracked(|shown| errors_after_check(shown, found));
                        if state.errors.with_untracked(|shown| *shown != errors) {
                            state.errors.set(errors);
                        }
                    }
                    checked.set_value(Some(form));
                    progress.set(CheckProgress::Current);
                }
                Err(error) => {
                    if error == AppError::SignedOut {
                        session_end.report_refused_read();
                    }
                    progress.set(CheckProgress::Failed(error.to_string()));
                }
            }
        });
    };
    on_cleanup(move || {
        if let Some(Some(timer)) = timer.try_get_value() {
            timer.clear();
        }
    });
    let request = Callback::new(move |()| {
        if let Some(timer) = timer.get_value() {
            timer.clear();
        }
        // The response of a check that is on its way belongs to older values.
        last_number.update_value(|number| *number += 1);
        timer.set_value(browser::run_after(CHECK_DELAY, send));
    });
    let remember = Callback::new(move |is_saving: bool| {
        checked.set_value(None);
        saved.set_value(is_saving.then(read).flatten());
    });
    FormCheck { progress, request, remember }
}

/// Returns the errors that are shown after a check: those that it has found, after the refusal of the last save. The
/// refusal belongs to no field. No check finds it, so it stays until the next save.
fn errors_after_check(shown: &[FieldError], found: Vec<FieldError>) -> Vec<FieldError> {
    shown.iter().filter(|error| error.field.is_empty()).cloned().chain(found).collect()
}

/// The preview of a form, which is marked from a change of the form until a check of its values has succeeded.
#[component]
pub fn CheckedPreview(
    /// The check that computes the preview.
    check: FormCheck,
    /// The preview.
    children: Children,
) -> impl IntoView {
    let progress = check.progress;
    let is_pending = Memo::new(move |_| progress.with(|progress| *progress == CheckProgress::Pending));
    let failure = Memo::new(move |_| {
        progress.with(|progress| match progress {
            CheckProgress::Failed(reason) => Some(reason.clone()),
            CheckProgress::Current | CheckProgress::Pending => None,
        })
    });
    let retry = move |_: ev::MouseEvent| {
        // The button disappears.
        browser::focus(FORM_SUMMARY_ID);
        check.changed();
    };
    let notice = move || {
        failure.get().map(|reason| {
            view! {
                <div class="notice" data-kind="warn">
                    <Icon name="triangle-alert"/>
                    <p>{error_text(format!("Could not check the form, so this preview is outdated. {reason}"))}</p>
                    <button type="button" class="btn btn-small" on:click=retry>"Try again"</button>
                </div>
            }
        })
    };
    let is_outdated = move || is_pending.get() || failure.with(Option::is_some);
    view! {
        <div
            class="checked-preview stack"
            data-outdated=move || is_outdated().then_some("true")
            aria-busy=move || is_pending.get().then_some("true")
        >
            <div role="status">{notice}</div>
            {children()}
            // Not in a live region, because it changes while the user types.
            <p class="hint check-pending">"The form has changed. Checking…"</p>
        </div>
    }
}

/// Moves the focus to the error summary after a plain form post was rejected.
pub fn focus_error_summary(state: FormState) {
    Effect::new(move |before: Option<()>| {
        if before.is_none() && state.shows_all.get_untracked() && !state.errors.with_untracked(Vec::is_empty) {
            browser::focus("error-summary");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_of_a_save_outlives_the_next_check() {
        let refusal = FieldError::new("", "This job was changed in the meantime.");
        let (old, new) = (FieldError::new("cron", "is missing"), FieldError::new("every", "is missing"));
        let shown = [refusal.clone(), old];
        assert_eq!(errors_after_check(&shown, vec![new.clone()]), [refusal.clone(), new]);
        assert_eq!(errors_after_check(&shown, Vec::new()), [refusal]);
    }
}
