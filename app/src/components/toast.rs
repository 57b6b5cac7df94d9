//! Short notices about what was just done.
//!
//! Success is told here, errors where they happened. A notice that offers something to do stays until it is used or put
//! away; the others leave after a while, unless the reader is on them. All of them lie in one polite live region that
//! exists from the start, since a region that arrives together with its text is not read out.

use std::time::Duration;

use leptos::prelude::*;

use super::icon::Icon;

/// How long a notice without anything to do stays.
const TOAST_DURATION: Duration = Duration::from_secs(8);
/// The most notices at once; the oldest makes room.
const MAX_TOASTS: usize = 4;

/// What kind of notice it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToastKind {
    /// Something went well.
    Success,
    /// Something to know.
    Info,
    /// Something did not go well, and there is no better place to say it.
    Error,
}

impl ToastKind {
    const fn slug(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Info => "info",
            Self::Error => "error",
        }
    }

    const fn icon(self) -> &'static str {
        match self {
            Self::Success => "circle-check",
            Self::Info => "info",
            Self::Error => "circle-alert",
        }
    }
}

#[derive(Clone)]
struct Toast {
    id: u64,
    kind: ToastKind,
    text: String,
    undo: Option<Callback<()>>,
}

/// Where notices go.
#[derive(Clone, Copy)]
pub struct ToastQueue {
    shown: RwSignal<Vec<Toast>>,
    next: StoredValue<u64>,
    held: RwSignal<bool>,
}

impl ToastQueue {
    /// Makes the place. Called once, by the root.
    pub fn provide() -> Self {
        let toasts = Self { shown: RwSignal::new(Vec::new()), next: StoredValue::new(0), held: RwSignal::new(false) };
        provide_context(toasts);
        toasts
    }

    /// Shows a notice for a while.
    pub fn show(self, kind: ToastKind, text: impl Into<String>) {
        let id = self.push(kind, text.into(), None);
        self.dismiss_later(id);
    }

    /// Shows a notice with a button that takes back what was done. It stays until it is used or put away.
    pub fn with_undo(self, text: impl Into<String>, undo: Callback<()>) {
        self.push(ToastKind::Success, text.into(), Some(undo));
    }

    fn push(self, kind: ToastKind, text: String, undo: Option<Callback<()>>) -> u64 {
        let id = self.next.get_value();
        self.next.set_value(id + 1);
        self.shown.update(|shown| {
            if shown.len() >= MAX_TOASTS {
                shown.remove(0);
            }
            shown.push(Toast { id, kind, text, undo });
        });
        id
    }

    fn dismiss_later(self, id: u64) {
        set_timeout(
            move || match self.held.try_get_untracked() {
                Some(true) => self.dismiss_later(id),
                Some(false) => self.dismiss(id),
                None => {}
            },
            TOAST_DURATION,
        );
    }

    fn dismiss(self, id: u64) {
        self.shown.update(|shown| shown.retain(|toast| toast.id != id));
        if self.shown.with_untracked(Vec::is_empty) {
            self.held.set(false);
        }
    }
}

/// Where notices go.
///
/// # Panics
///
/// Outside the app, which provides it at its root.
#[must_use]
pub fn toasts() -> ToastQueue {
    expect_context()
}

/// The region that holds the notices. Drawn once, by the root.
#[component]
pub fn ToastRegion() -> impl IntoView {
    let toasts = toasts();
    let hold = move |held: bool| toasts.held.set(held);
    view! {
        <div
            class="toasts"
            role="status"
            aria-live="polite"
            on:mouseenter=move |_| hold(true)
            on:mouseleave=move |_| hold(false)
            on:focusin=move |_| hold(true)
            on:focusout=move |_| hold(false)
        >
            <For each=move || toasts.shown.get() key=|toast| toast.id let:toast>
                <ToastView toast toasts/>
            </For>
        </div>
    }
}

#[component]
fn ToastView(toast: Toast, toasts: ToastQueue) -> impl IntoView {
    let Toast { id, kind, text, undo } = toast;
    let undo = undo.map(|undo| {
        let take_back = move |_| {
            toasts.dismiss(id);
            undo.run(());
        };
        view! { <button type="button" class="btn btn-small" on:click=take_back>"Undo"</button> }
    });
    view! {
        <div class="toast" data-kind=kind.slug()>
            <Icon name=kind.icon()/>
            <p class="grow">{text}</p>
            {undo}
            <button type="button" class="icon-btn" aria-label="Dismiss" on:click=move |_| toasts.dismiss(id)>
                <Icon name="x"/>
            </button>
        </div>
    }
}
