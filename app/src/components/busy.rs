//! Actions that run once at a time, and their buttons.
//!
//! A button is disabled for assistive technology while its action runs, and a click on it does nothing. The attribute
//! `disabled` would take the focus from the button.

use std::future::Future;

use leptos::{ev, prelude::*, task::spawn_local};

/// The state of an action that must not run twice at once.
#[derive(Clone, Copy)]
pub struct Busy(RwSignal<bool>);

impl Busy {
    /// Creates the state of an action that does not run.
    #[must_use]
    pub fn new() -> Self {
        Self(RwSignal::new(false))
    }

    /// Runs `action`, unless an earlier one has not ended.
    pub fn run(self, action: impl Future<Output = ()> + 'static) {
        if self.0.get_untracked() {
            return;
        }
        self.0.set(true);
        spawn_local(async move {
            action.await;
            // The page may have been left.
            let _ = self.0.try_set(false);
        });
    }

    /// Opens the dialog that confirms the action, unless the action runs.
    pub fn ask(self, open: RwSignal<bool>) {
        if !self.0.get_untracked() {
            open.set(true);
        }
    }

    /// Returns true while the action runs.
    #[must_use]
    pub fn is_on(self) -> bool {
        self.0.get()
    }

    /// Returns the value of `aria-disabled` for the button of the action.
    #[must_use]
    pub fn disabled(self) -> Option<&'static str> {
        self.0.get().then_some("true")
    }
}

impl Default for Busy {
    fn default() -> Self {
        Self::new()
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
