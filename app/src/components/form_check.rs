//! What a form that checks itself does beside its fields: it asks the server a moment after each change, holds back who
//! leaves with unsaved changes, and leads to what is wrong.

use std::{future::Future, time::Duration};

use leptos::{ev, leptos_dom::helpers::TimeoutHandle, prelude::*, task::spawn_local};

use super::input_form::FormState;
use crate::{browser, error::AppError};

/// How long somebody has stopped typing before the server is asked.
const CHECK_DELAY: Duration = Duration::from_millis(300);

/// Asks the server, a moment after the last call, what it makes of the form. Only the newest answer is shown. A check
/// that fails says nothing about the form; saving will tell what is the matter.
pub fn debounced_check<T, A, Fut>(
    read: impl Fn() -> Option<T> + Copy + Send + Sync + 'static,
    ask: impl Fn(T) -> Fut + Copy + Send + Sync + 'static,
    show: impl Fn(A) + Copy + Send + Sync + 'static,
) -> Callback<()>
where
    T: 'static,
    A: 'static,
    Fut: Future<Output = Result<A, AppError>> + 'static,
{
    let timer = StoredValue::new(None::<TimeoutHandle>);
    let asked = StoredValue::new(0_u32);
    let ask = move || {
        let Some(form) = read() else { return };
        let number = asked.get_value() + 1;
        asked.set_value(number);
        spawn_local(async move {
            let answer = ask(form).await;
            if asked.try_get_value() == Some(number)
                && let Ok(answer) = answer
            {
                show(answer);
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
        timer.set_value(set_timeout_with_handle(ask, CHECK_DELAY).ok());
    })
}

/// Lets the browser ask before a page with unsaved changes is left.
pub fn warn_before_unload(state: FormState) {
    Effect::new(move |_| {
        let guard = window_event_listener(ev::beforeunload, move |event| {
            if state.is_dirty.try_get_untracked() == Some(true) {
                event.prevent_default();
            }
        });
        on_cleanup(move || guard.remove());
    });
}

/// Takes the reader to the list of errors a plain form came back with.
pub fn focus_error_summary(state: FormState) {
    Effect::new(move |before: Option<()>| {
        if before.is_none() && state.shows_all.get_untracked() && !state.errors.with_untracked(Vec::is_empty) {
            browser::focus("error-summary");
        }
    });
}
