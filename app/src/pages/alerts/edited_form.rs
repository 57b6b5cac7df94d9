//! The behavior that the forms of rules and channels share: their values are guarded, kept as a draft, and checked when
//! they are saved.

use leptos::{ev, prelude::*, task::spawn_local};
use serde::Serialize;

use crate::{
    api::session::{FlashView, SessionEnd, SessionEndReason},
    browser,
    components::{
        form::ErrorSummary,
        form_check::focus_error_summary,
        form_draft::FormDraft,
        input_form::{FormState, summary_entries},
        leave_guard::GuardedForm,
    },
    error::AppError,
};

/// A form of a rule or a channel.
#[derive(Clone, Copy)]
pub struct EditedForm {
    /// The element and its errors, to which the errors of the page's other actions are added.
    pub state: FormState,
    /// The guard of unsaved changes.
    pub guarded: GuardedForm,
    /// True while the form is being saved.
    pub is_busy: RwSignal<bool>,
    /// Saves the form.
    pub submit: Callback<ev::SubmitEvent>,
}

impl EditedForm {
    /// Returns the behavior of a form. `read` returns its values, and `done` is called with the result of a successful
    /// `save`.
    pub fn new<F, T, Fut>(
        flash: &FlashView,
        draft: FormDraft,
        read: fn(FormState) -> Option<F>,
        save: fn(F) -> Fut,
        done: impl Fn(T) + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Serialize + 'static,
        T: 'static,
        Fut: Future<Output = Result<T, AppError>> + 'static,
    {
        let state = FormState::new(flash.problems());
        let values = move || read(state).and_then(|form| serde_json::to_value(form).ok());
        let guarded = GuardedForm::new(state, draft, !flash.typed.is_null(), None, values);
        focus_error_summary(state);
        let is_busy = RwSignal::new(false);
        let session_end = SessionEnd::current();
        let submit = Callback::new(move |event: ev::SubmitEvent| {
            event.prevent_default();
            let Some(form) = read(state) else { return };
            if is_busy.get_untracked() {
                return;
            }
            is_busy.set(true);
            let done = done.clone();
            spawn_local(async move {
                let answer = save(form).await;
                let _ = is_busy.try_set(false);
                match answer {
                    Ok(saved) => {
                        guarded.forget();
                        done(saved);
                    }
                    // The form stays as it is; the notice of the session's end states what to do.
                    Err(AppError::SignedOut) => session_end.report(SessionEndReason::SignedOut),
                    Err(error) => show_errors(state, &error),
                }
            });
        });
        Self { state, guarded, is_busy, submit }
    }
}

/// Shows the errors of a refused call above the form and beside its fields, and moves the focus there.
pub(super) fn show_errors(state: FormState, error: &AppError) {
    let _ = state.errors.try_set(error.problems());
    let _ = state.shows_all.try_set(true);
    // One frame later, when the list has been drawn: a hidden element takes no focus.
    request_animation_frame(|| browser::focus("error-summary"));
}

/// The errors of the page.
#[component]
pub fn PageErrors(
    /// The state of the form.
    state: FormState,
) -> impl IntoView {
    let errors = Signal::derive(move || {
        if state.shows_all.get() { state.errors.with(|errors| summary_entries(errors)) } else { Vec::new() }
    });
    view! { <ErrorSummary id="error-summary" errors/> }
}

/// The buttons of the form.
#[component]
pub fn EditedFormButtons(
    /// The behavior of the form.
    form: EditedForm,
    /// The label of the button that saves.
    verb: &'static str,
    /// The address of the list.
    list: &'static str,
) -> impl IntoView {
    view! {
        <div class="form-actions">
            <button type="submit" class="btn btn-primary" aria-disabled=move || form.is_busy.get().then_some("true")>
                {verb}
            </button>
            <a class="btn btn-quiet" href=list>"Cancel"</a>
        </div>
    }
}
