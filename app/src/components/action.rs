//! Actions of the user: calls to the server that run once at a time, and the button that submits their form.
//!
//! A button is disabled for assistive technology while its action runs, and a click on it does nothing. The attribute
//! `disabled` would take the focus from the button. The calls are boxed, so that the code around them exists once.

use std::pin::Pin;

use leptos::{ev, prelude::*, task::spawn_local};
use milvaion_api::requests::FieldError;

use super::{
    action_error::LastError,
    form_check::FormCheck,
    form_state::FormState,
    toast::{ToastKind, ToastQueue, toasts},
};
use crate::{
    api::session::{SessionEnd, SessionEndReason},
    error::AppError,
};

/// A call with what it changes on the page. It returns the text of the toast that reports its success, or `None` if the
/// page shows the success in another way.
type Call = Pin<Box<dyn Future<Output = Result<Option<String>, AppError>>>>;

/// The place that shows the error of an action.
#[derive(Clone, Copy)]
pub enum ErrorPlace {
    /// The notice near the button.
    Notice(LastError),
    /// A text that the page removes.
    Text(RwSignal<Option<String>>),
    /// The fields of a form and the list above them. They stay until the next success.
    Fields(RwSignal<Vec<FieldError>>),
    /// The form that the action saves, with its check. The end of the session has a notice of its own, and the form
    /// stays as it is.
    Saved(FormState, Option<FormCheck>, SessionEnd),
}

impl ErrorPlace {
    fn begin(self) {
        match self {
            Self::Notice(error) => error.clear(),
            Self::Saved(_, Some(check), _) => check.saving(),
            Self::Text(_) | Self::Fields(_) | Self::Saved(_, None, _) => {}
        }
    }

    /// Shows the error, or none after a success. The page may have been left.
    fn end(self, error: Option<AppError>) {
        match (self, error) {
            (Self::Text(text), Some(error)) => {
                let _ = text.try_set(Some(error.to_string()));
            }
            (Self::Fields(errors), error) => {
                let _ = errors.try_set(error.map(|error| error.problems()).unwrap_or_default());
            }
            (Self::Notice(place), Some(error)) => place.show(error),
            (Self::Saved(.., session_end), Some(AppError::SignedOut)) => {
                session_end.report(SessionEndReason::SignedOut);
            }
            (Self::Saved(state, check, _), Some(error)) => {
                if let Some(check) = check {
                    check.refused(&error);
                }
                state.refuse(&error);
            }
            (Self::Notice(_) | Self::Text(_) | Self::Saved(..), None) => {}
        }
    }
}

/// An action of the user. Its copies are the same action.
#[derive(Clone, Copy)]
pub struct UserAction {
    is_running: RwSignal<bool>,
    place: ErrorPlace,
    toasts: ToastQueue,
}

/// Returns an action that does not run. Its error is shown near its button.
#[must_use]
pub fn use_action(error: LastError) -> UserAction {
    UserAction::new(ErrorPlace::Notice(error))
}

impl UserAction {
    /// Creates an action that does not run, with the place of its error.
    #[must_use]
    pub fn new(place: ErrorPlace) -> Self {
        Self { is_running: RwSignal::new(false), place, toasts: toasts() }
    }

    /// Returns the same action with the place of the error of its next call.
    #[must_use]
    pub fn at(self, error: LastError) -> Self {
        Self { place: ErrorPlace::Notice(error), ..self }
    }

    /// Runs `call`, unless an earlier one has not ended, and shows its outcome.
    pub fn run(self, call: impl Future<Output = Result<Option<String>, AppError>> + 'static) {
        self.start(Box::pin(call), false);
    }

    /// Runs `call` like [`run`](Self::run). After a success the action does not run again, because its button
    /// disappears.
    pub fn run_once(self, call: impl Future<Output = Result<Option<String>, AppError>> + 'static) {
        self.start(Box::pin(call), true);
    }

    /// Runs `call`, which undoes an earlier one, even while the action runs or after its page was left.
    pub fn undo(self, call: impl Future<Output = Result<Option<String>, AppError>> + 'static) {
        self.place.begin();
        let call: Call = Box::pin(call);
        spawn_local(async move { self.report(call.await) });
    }

    fn start(self, call: Call, is_last: bool) {
        if self.is_running.try_get_untracked() != Some(false) {
            return;
        }
        self.is_running.set(true);
        self.place.begin();
        spawn_local(async move {
            let answer = call.await;
            if !is_last || answer.is_err() {
                self.restart();
            }
            self.report(answer);
        });
    }

    fn report(self, answer: Result<Option<String>, AppError>) {
        match answer {
            Ok(text) => {
                self.place.end(None);
                if let Some(text) = text {
                    self.toasts.show(ToastKind::Success, text);
                }
            }
            Err(error) => self.place.end(Some(error)),
        }
    }

    /// Permits another run after [`run_once`](Self::run_once). The page may have been left.
    pub fn restart(self) {
        let _ = self.is_running.try_set(false);
    }

    /// Removes the error near the button.
    pub fn clear_error(self) {
        self.place.begin();
    }

    /// Returns true if the action can run. Does not track the state.
    #[must_use]
    pub fn is_idle(self) -> bool {
        !self.is_running.get_untracked()
    }

    /// Returns true while the action runs.
    #[must_use]
    pub fn is_running(self) -> bool {
        self.is_running.get()
    }

    /// Returns the value of `aria-disabled` for the button of the action.
    #[must_use]
    pub fn disabled(self) -> Option<&'static str> {
        self.is_running.get().then_some("true")
    }

    /// Returns a signal that is true while the action runs.
    #[must_use]
    pub fn pending(self) -> Signal<bool> {
        self.is_running.into()
    }
}

/// The button that submits a form whose call a server action makes.
#[component]
pub fn SubmitButton(
    /// True while the call has no answer. The form is then not submitted again.
    #[prop(into)]
    is_busy: Signal<bool>,
    /// The classes.
    #[prop(default = "btn btn-primary")]
    class: &'static str,
    /// The label.
    children: Children,
) -> impl IntoView {
    let click = move |event: ev::MouseEvent| {
        if is_busy.get_untracked() {
            event.prevent_default();
        }
    };
    view! {
        <button type="submit" class=class aria-disabled=move || is_busy.get().then_some("true") on:click=click>
            {children()}
        </button>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_fields_stay_until_the_next_success() {
        Owner::new().with(|| {
            let fields = RwSignal::new(Vec::new());
            let place = ErrorPlace::Fields(fields);
            place.end(Some(AppError::field("reason", "is too long.")));
            place.begin();
            assert_eq!(fields.get_untracked(), [FieldError::new("reason", "is too long.")]);
            place.end(None);
            assert!(fields.with_untracked(Vec::is_empty));
        });
    }

    #[test]
    fn running_action_ignores_another_call() {
        Owner::new().with(|| {
            ToastQueue::provide();
            let action = use_action(LastError::of("Delete job"));
            assert!(action.is_idle());
            action.is_running.set(true);
            // A test has no executor, with which the call would run.
            action.run(async { Ok(None) });
            assert_eq!(action.disabled(), Some("true"));
            action.restart();
            assert!(action.is_idle());
        });
    }
}
