//! The question before a navigation that would discard a filled form.
//!
//! The router has no hook for this, so the guard listens to the browser's own events before the router does. A click on
//! a link is stopped until the user has answered. Going back or forward cannot be stopped, because the browser has moved
//! before the event arrives; the guard then adds the form's address to the history again and asks. Shortcuts call
//! [`LeaveGuard::leave`]. Closing the tab or loading another site is announced by `beforeunload`, for which the browser
//! has its own question.
//!
//! The browser sends `popstate` to the window itself, and Chromium calls the window's own listeners in the order in which
//! they were added, with or without capture. The guard is therefore created before the router. A later listener would
//! find the form already removed, because the router changes the page between two listeners.
//!
//! Two kinds of forms are guarded: those with a [`GuardedForm`], which also keep a draft, and forms with the attribute
//! `data-guarded`, which count as changed while they are visible and differ from their initial values.

use leptos::{ev, html, leptos_dom::helpers::WindowListenerHandle, prelude::*, web_sys::Event};
use leptos_router::{NavigateOptions, hooks::use_navigate};
use serde_json::Value;

use super::{
    action::{ErrorPlace, UserAction},
    dialog::Dialog,
    form_check::FormCheck,
    form_draft::{FormDraft, current_address},
    input_form::FormState,
};
use crate::{
    api::session::SessionEnd,
    browser::{self, FollowedLink},
};

/// The navigation that waits for the user's answer.
#[derive(Clone)]
enum PendingLeave {
    /// A link was clicked.
    Link(FollowedLink),
    /// The user went back or forward, and the guard has added the form's address again.
    History,
    /// Any other action that leaves the page.
    Action(Callback<()>),
}

/// The guard of all forms on the page.
#[derive(Clone, Copy)]
pub struct LeaveGuard {
    forms: StoredValue<Vec<(u64, GuardedForm)>>,
    next: StoredValue<u64>,
    /// The address of the last changed form with the attribute `data-guarded`.
    address: StoredValue<String>,
    pending: StoredValue<Option<PendingLeave>>,
    unload: StoredValue<Option<WindowListenerHandle>>,
    asks: RwSignal<bool>,
}

impl LeaveGuard {
    /// Creates the guard, which listens at once. Called once, by the root before the router.
    pub fn provide() {
        let guard = Self {
            forms: StoredValue::new(Vec::new()),
            next: StoredValue::new(0),
            address: StoredValue::new(String::new()),
            pending: StoredValue::new(None),
            unload: StoredValue::new(None),
            asks: RwSignal::new(false),
        };
        provide_context(guard);
        // Not in an effect, because effects run after the router has added its listeners.
        browser::on_capture("click", move |event| guard.on_click(&event));
        browser::on_capture("popstate", move |event| guard.on_popstate(&event));
        browser::on_capture("input", move |event| {
            if browser::is_in_guarded_form(&event) {
                let _ = guard.address.try_update_value(|known| *known = browser::current_path());
                guard.arm();
            }
        });
        on_cleanup(move || {
            if let Some(Some(unload)) = guard.unload.try_update_value(Option::take) {
                unload.remove();
            }
        });
    }

    /// Returns true if a form on the page has unsaved changes.
    #[must_use]
    pub fn is_dirty(self) -> bool {
        let forms = self.forms.try_get_value().unwrap_or_default();
        forms.into_iter().any(|(_, form)| form.is_dirty()) || browser::has_changed_form()
    }

    /// Runs `action`, which leaves the page, at once or after the user has agreed to discard the changes.
    pub fn leave(self, action: Callback<()>) {
        if self.is_dirty() {
            self.ask(PendingLeave::Action(action));
        } else {
            action.run(());
        }
    }

    fn ask(self, pending: PendingLeave) {
        self.pending.set_value(Some(pending));
        self.asks.set(true);
    }

    /// Guards the closing of the tab.
    fn arm(self) {
        if self.unload.try_with_value(Option::is_none) == Some(true) {
            let listener = window_event_listener(ev::beforeunload, move |event| {
                if self.is_dirty() {
                    event.prevent_default();
                }
            });
            self.unload.set_value(Some(listener));
        }
    }

    fn on_click(self, event: &Event) {
        let Some(link) = browser::followed_link(event) else { return };
        if !self.is_dirty() || link.address == browser::current_path() {
            return;
        }
        event.prevent_default();
        event.stop_immediate_propagation();
        self.ask(PendingLeave::Link(link));
    }

    fn on_popstate(self, event: &Event) {
        let Some(address) = self.changed_address() else { return };
        // A move between fragments stays on the page.
        if browser::current_path() == address {
            return;
        }
        event.stop_immediate_propagation();
        browser::push_address(&address);
        self.ask(PendingLeave::History);
    }

    /// Returns the address of the page with the changed form; `None` without unsaved changes.
    fn changed_address(self) -> Option<String> {
        let forms = self.forms.try_get_value()?;
        match forms.into_iter().find(|(_, form)| form.is_dirty()) {
            Some((_, form)) => form.address.try_get_value(),
            None if browser::has_changed_form() => self.address.try_get_value().filter(|address| !address.is_empty()),
            None => None,
        }
    }

    /// Discards the changes of every form and continues with the waiting navigation.
    fn discard(self, navigate: impl Fn(&str, NavigateOptions)) {
        for (_, form) in self.forms.try_get_value().unwrap_or_default() {
            form.forget();
        }
        browser::reset_guarded_forms();
        self.asks.set(false);
        match self.pending.try_update_value(Option::take).flatten() {
            Some(PendingLeave::Link(link)) => {
                browser::close_dialogs();
                let address = format!("{}{}", link.address, link.fragment);
                if link.is_external {
                    browser::load(&address);
                } else {
                    navigate(&address, NavigateOptions::default());
                }
            }
            Some(PendingLeave::History) => browser::go_back(),
            Some(PendingLeave::Action(action)) => action.run(()),
            None => {}
        }
    }
}

/// The dialog that asks before changes are discarded. Rendered once, by the layout.
#[component]
pub fn LeaveDialog() -> impl IntoView {
    let guard = expect_context::<LeaveGuard>();
    let navigate = use_navigate();
    let open = guard.asks;
    view! {
        <Dialog open id="leave-title" title=Signal::stored("Discard changes?".to_owned())>
            <p>"This page has unsaved changes. Leaving it discards them."</p>
            <div class="dialog-actions">
                <button type="button" class="btn" autofocus on:click=move |_| open.set(false)>"Keep editing"</button>
                <button type="button" class="btn btn-danger" on:click=move |_| guard.discard(&navigate)>"Discard"</button>
            </div>
        </Dialog>
    }
}

/// A form whose changes are guarded and kept as a draft.
#[derive(Clone, Copy)]
pub struct GuardedForm {
    state: FormState,
    draft: FormDraft,
    guard: Option<LeaveGuard>,
    address: StoredValue<String>,
    read: Callback<(), Option<Value>>,
    check: Option<FormCheck>,
}

impl GuardedForm {
    /// Guards a form for as long as the current owner lives. `read` returns its values for the draft, and `check` checks
    /// them after each change. `is_changed` states that the form starts with unsaved values.
    pub fn new(
        state: FormState,
        draft: FormDraft,
        is_changed: bool,
        check: Option<FormCheck>,
        read: impl Fn() -> Option<Value> + Send + Sync + 'static,
    ) -> Self {
        let form = Self {
            state,
            draft,
            guard: use_context::<LeaveGuard>(),
            address: StoredValue::new(current_address()),
            read: Callback::new(move |()| read()),
            check,
        };
        Effect::new(move |_| form.start(is_changed));
        form
    }

    fn start(self, is_changed: bool) {
        let hidden = window_event_listener(ev::pagehide, move |_| {
            if self.is_dirty() {
                self.draft.store(|| self.read.run(()));
            }
        });
        let registered = self.guard.map(|guard| {
            let id = guard.next.get_value();
            guard.next.set_value(id + 1);
            guard.forms.update_value(|forms| forms.push((id, self)));
            (guard, id)
        });
        on_cleanup(move || {
            hidden.remove();
            self.draft.stop_timer();
            if let Some((guard, id)) = registered {
                let _ = guard.forms.try_update_value(|forms| forms.retain(|(other, _)| *other != id));
            }
        });
        // The user may have changed the page's HTML before this script ran, and some browsers restore it on a reload.
        let differs = self.node().is_some_and(|form| browser::differs_from_defaults(&form));
        if self.draft.is_restored() {
            // The draft keeps the time of its last change.
            self.mark_dirty();
            self.check_later();
        } else if differs {
            self.changed();
        } else if is_changed {
            // The page shows the errors of the rejected post.
            self.mark_dirty();
            if let Some(check) = self.check {
                check.saving();
            }
            self.draft.store_later(move || self.read.run(()));
        }
    }

    fn node(self) -> Option<<html::Form as html::ElementType>::Output> {
        self.state.node.get_untracked()
    }

    fn mark_dirty(self) {
        let _ = self.state.is_dirty.try_set(true);
        if let Some(guard) = self.guard {
            guard.arm();
        }
    }

    /// Returns true while the form has unsaved changes.
    #[must_use]
    pub fn is_dirty(self) -> bool {
        self.state.is_dirty.try_get_untracked() == Some(true)
    }

    /// Handles a change by the user: the form is unsaved, its draft is stored and its values are checked.
    pub fn changed(self) {
        self.mark_dirty();
        self.draft.store_later(move || self.read.run(()));
        self.check_later();
    }

    fn check_later(self) {
        if let Some(check) = self.check {
            check.changed();
        }
    }

    /// Returns the action that saves the form.
    #[must_use]
    pub fn save_action(self) -> UserAction {
        UserAction::new(ErrorPlace::Saved(self.state, self.check, SessionEnd::current()))
    }

    /// Forgets the changes and the draft, because they are saved or discarded.
    pub fn forget(self) {
        let _ = self.state.is_dirty.try_set(false);
        self.draft.clear();
    }
}
