//! Behavior shared by forms that are validated while they are filled in: a debounced check by the server, and the focus
//! on the error summary.

use std::{future::Future, time::Duration};

use leptos::{leptos_dom::helpers::TimeoutHandle, prelude::*, task::spawn_local};

use super::{input_form::FormState, session_end::SessionEnd};
use crate::{browser, error::AppError};

/// The time without input after which the form is checked.
const CHECK_DELAY: Duration = Duration::from_millis(300);

/// Sends the form to the server for a check, `CHECK_DELAY` after the last call. Only the newest response is shown. The
/// end of the session is reported; any other failed check is ignored, because it says nothing about the form and saving
/// reports the same error.
pub fn debounced_check<T, A, Fut>(
    read: impl Fn() -> Option<T> + Copy + Send + Sync + 'static,
    check: impl Fn(T) -> Fut + Copy + Send + Sync + 'static,
    show: impl Fn(A) + Copy + Send + Sync + 'static,
) -> Callback<()>
where
    T: 'static,
    A: 'static,
    Fut: Future<Output = Result<A, AppError>> + 'static,
{
    let timer = StoredValue::new(None::<TimeoutHandle>);
    let last_number = StoredValue::new(0_u32);
    let session_end = SessionEnd::current();
    let send = move || {
        let Some(form) = read() else { return };
        let number = last_number.get_value() + 1;
        last_number.set_value(number);
        spawn_local(async move {
            let answer = check(form).await;
            if last_number.try_get_value() != Some(number) {
                return;
            }
            match answer {
                Ok(answer) => show(answer),
                Err(AppError::SignedOut) => session_end.report_refused_read(),
                Err(_) => {}
            }
        });
    };
    on_cleanup(move || {
        if let Some(Some(timer)) = timer.try_get_value() {
            timer.clear();
        }
    });
    Callback::new(move |()| {
        if let Some(timer) = timer.get_value() {
            timer.clear();
        }
        timer.set_value(set_timeout_with_handle(send, CHECK_DELAY).ok());
    })
}

/// Moves the focus to the error summary after a plain form post was rejected.
pub fn focus_error_summary(state: FormState) {
    Effect::new(move |before: Option<()>| {
        if before.is_none() && state.shows_all.get_untracked() && !state.errors.with_untracked(Vec::is_empty) {
            browser::focus("error-summary");
        }
    });
}
