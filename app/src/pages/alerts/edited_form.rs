//! The behavior that the forms of rules and channels share: their values are guarded, kept as a draft, and checked when
//! they are saved.

use leptos::{ev, prelude::*};
use serde::Serialize;

use crate::{
    api::session::FlashView,
    components::{
        action::UserAction, form_check::focus_error_summary, form_draft::FormDraft, input_form::FormState,
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
    /// The action that saves the form.
    action: UserAction,
    /// Handles the submission.
    pub submit: Callback<ev::SubmitEvent>,
}

impl EditedForm {
    /// Returns the behavior of a form. `read` returns its values, and `done` opens the next page after a successful
    /// `save` and returns the notice.
    pub fn new<F, T, Fut>(
        flash: &FlashView,
        draft: FormDraft,
        read: fn(FormState) -> Option<F>,
        save: fn(F) -> Fut,
        done: impl Fn(T) -> String + Clone + Send + Sync + 'static,
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
        let action = guarded.save_action();
        let submit = Callback::new(move |event: ev::SubmitEvent| {
            event.prevent_default();
            let Some(form) = read(state) else { return };
            let done = done.clone();
            action.run(async move {
                let saved = save(form).await?;
                guarded.forget();
                Ok(Some(done(saved)))
            });
        });
        Self { state, guarded, action, submit }
    }
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
            <button type="submit" class="btn btn-primary" aria-disabled=move || form.action.disabled()>
                {verb}
            </button>
            <a class="btn btn-quiet" href=list>"Cancel"</a>
        </div>
    }
}
