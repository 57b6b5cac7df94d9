//! Short notices about a completed action.
//!
//! Toasts report success; an error is shown at the place of its action, see [`action_error`](super::action_error). A
//! toast with an undo button stays until it is used or dismissed. Other toasts disappear after a while, unless the
//! pointer or the focus is on them. All toasts are in one polite live region that exists from the start, because screen
//! readers do not announce a region that is added with its text. The region is not atomic: a new toast is announced
//! without those that are already shown.

use std::time::Duration;

use leptos::prelude::*;
use milvaion_protocol::id::OccurrenceId;

use super::icon::Icon;
use crate::browser;

/// The display time of a toast without an undo button.
const TOAST_DURATION: Duration = Duration::from_secs(8);
/// The maximum number of toasts at once. A further one replaces the oldest that would disappear by itself, or the
/// oldest if all have an undo button.
const MAX_TOASTS: usize = 4;

/// The kind of a toast, which selects its color and icon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToastKind {
    /// A successful action.
    Success,
    /// Information.
    Info,
}

impl ToastKind {
    const fn slug(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Info => "info",
        }
    }

    const fn icon(self) -> &'static str {
        match self {
            Self::Success => "circle-check",
            Self::Info => "info",
        }
    }
}

/// What a toast offers beside its dismissal.
#[derive(Clone, Copy)]
enum ToastAction {
    None,
    Undo(Callback<()>),
    ViewRun(OccurrenceId),
}

#[derive(Clone)]
struct Toast {
    id: u64,
    kind: ToastKind,
    text: String,
    action: ToastAction,
}

impl Toast {
    const fn has_undo(&self) -> bool {
        matches!(self.action, ToastAction::Undo(_))
    }
}

/// The queue of visible toasts.
#[derive(Clone, Copy)]
pub struct ToastQueue {
    shown: RwSignal<Vec<Toast>>,
    next: StoredValue<u64>,
    is_hovered: RwSignal<bool>,
}

impl ToastQueue {
    /// Creates the queue. Called once, by the root.
    pub fn provide() -> Self {
        let toasts =
            Self { shown: RwSignal::new(Vec::new()), next: StoredValue::new(0), is_hovered: RwSignal::new(false) };
        provide_context(toasts);
        toasts
    }

    /// Shows a toast for eight seconds.
    pub fn show(self, kind: ToastKind, text: impl Into<String>) {
        let id = self.push(kind, text.into(), ToastAction::None);
        self.dismiss_later(id);
    }

    /// Shows the success of an action that has queued a run, with a link to the run.
    pub fn show_run(self, text: impl Into<String>, run: OccurrenceId) {
        let id = self.push(ToastKind::Success, text.into(), ToastAction::ViewRun(run));
        self.dismiss_later(id);
    }

    /// Shows a success toast with a button that undoes the action. It stays until it is used or dismissed.
    pub fn with_undo(self, text: impl Into<String>, undo: Callback<()>) {
        self.push(ToastKind::Success, text.into(), ToastAction::Undo(undo));
    }

    fn push(self, kind: ToastKind, text: String, action: ToastAction) -> u64 {
        let id = self.next.get_value();
        self.next.set_value(id + 1);
        self.shown.update(|shown| {
            if shown.len() >= MAX_TOASTS {
                let replaced = shown.iter().position(|toast| !toast.has_undo()).unwrap_or_default();
                shown.remove(replaced);
            }
            shown.push(Toast { id, kind, text, action });
        });
        id
    }

    fn dismiss_later(self, id: u64) {
        browser::run_after(TOAST_DURATION, move || match self.is_hovered.try_get_untracked() {
            Some(true) => self.dismiss_later(id),
            Some(false) => self.dismiss(id),
            None => {}
        });
    }

    /// Dismisses a toast whose button was clicked, and gives the focus back.
    fn dismiss_by_click(self, id: u64) {
        browser::keep_focus();
        self.dismiss(id);
    }

    fn dismiss(self, id: u64) {
        self.shown.update(|shown| shown.retain(|toast| toast.id != id));
        if self.shown.with_untracked(Vec::is_empty) {
            self.is_hovered.set(false);
        }
    }
}

/// Returns the toast queue.
///
/// # Panics
///
/// Panics outside the app, which provides the queue at its root.
#[must_use]
pub fn toasts() -> ToastQueue {
    expect_context()
}

/// The live region that contains the toasts. Rendered once, by the root.
#[component]
pub fn ToastRegion() -> impl IntoView {
    let toasts = toasts();
    let set_hovered = move |hovered: bool| toasts.is_hovered.set(hovered);
    view! {
        <div
            class="toasts"
            role="status"
            aria-live="polite"
            aria-atomic="false"
            on:mouseenter=move |_| set_hovered(true)
            on:mouseleave=move |_| set_hovered(false)
            on:focusin=move |_| set_hovered(true)
            on:focusout=move |_| set_hovered(false)
        >
            <For each=move || toasts.shown.get() key=|toast| toast.id let:toast>
                <ToastView toast toasts/>
            </For>
        </div>
    }
}

#[component]
fn ToastView(toast: Toast, toasts: ToastQueue) -> impl IntoView {
    let Toast { id, kind, text, action } = toast;
    let action = match action {
        ToastAction::None => ().into_any(),
        ToastAction::Undo(undo) => {
            let on_undo = move |_| {
                toasts.dismiss_by_click(id);
                undo.run(());
            };
            view! { <button type="button" class="btn btn-small" on:click=on_undo>"Undo"</button> }.into_any()
        }
        ToastAction::ViewRun(run) => {
            view! { <a class="btn btn-small" href=format!("/occurrences/{run}")>"View run"</a> }.into_any()
        }
    };
    view! {
        <div class="toast" data-kind=kind.slug()>
            <Icon name=kind.icon()/>
            <p class="grow">{text}</p>
            {action}
            <button type="button" class="icon-btn" aria-label="Dismiss" on:click=move |_| toasts.dismiss_by_click(id)>
                <Icon name="x"/>
            </button>
        </div>
    }
}
