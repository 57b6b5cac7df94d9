//! Dialogs based on the browser's `<dialog>` element, which keeps the focus inside, closes on Escape and returns the
//! focus afterwards.
//!
//! A page that changes does not remove an open dialog, in which text may have been typed. If the action of the dialog is
//! no longer possible, it says so and acts no more.

use leptos::{ev, html, prelude::*};

use super::{icon::Icon, session_end::DialogSessionEndNotice};
use crate::browser;

/// Returns a memo that remains true once `condition` was true. An action and its dialog that are drawn under it outlive a
/// change after which the action is no longer offered.
pub fn once_true(condition: impl Fn() -> bool + Send + Sync + 'static) -> Memo<bool> {
    Memo::new(move |before: Option<&bool>| before == Some(&true) || condition())
}

/// States in a dialog why its action is no longer possible.
#[component]
pub fn Impossible(
    /// The reason; `None` while the action is possible.
    #[prop(into)]
    reason: Signal<Option<String>>,
) -> impl IntoView {
    let notice = move || {
        reason.get().map(|reason| {
            view! {
                <div class="notice" data-kind="warn">
                    <Icon name="triangle-alert"/>
                    <p>{reason}</p>
                </div>
            }
        })
    };
    view! { <div role="status">{notice}</div> }
}

/// A modal dialog controlled by a signal.
#[component]
pub fn Dialog(
    /// True while the dialog is open. Set to false when the user closes it.
    open: RwSignal<bool>,
    /// The heading's id, unique on the page.
    #[prop(into)]
    id: String,
    /// The heading.
    #[prop(into)]
    title: Signal<String>,
    /// The contents.
    children: Children,
) -> impl IntoView {
    let heading = id.clone();
    let node = NodeRef::<html::Dialog>::new();
    let had_focus = StoredValue::new(false);
    Effect::new(move |_| {
        let wanted = open.get();
        let Some(dialog) = node.get() else { return };
        if wanted && !dialog.open() {
            had_focus.set_value(browser::has_focus());
            // Fails only if the element is not in the document, and then it is not visible.
            let _ = dialog.show_modal();
        } else if !wanted && dialog.open() {
            dialog.close();
        }
    });
    let closed = move |_: ev::Event| {
        open.set(false);
        // The browser has returned the focus, unless the button that opened the dialog is gone.
        if had_focus.try_get_value() == Some(true) {
            browser::run_on_next_frame(browser::recover_focus);
        }
    };
    view! {
        <dialog class="dialog" node_ref=node aria-labelledby=heading on:close=closed>
            <DialogSessionEndNotice open/>
            <h2 id=id>{move || title.get()}</h2>
            {children()}
        </dialog>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn action_stays_after_it_was_offered_once() {
        Owner::new().with(|| {
            let is_possible = RwSignal::new(false);
            let is_offered = once_true(move || is_possible.get());
            let offered = [false, true, false].map(|now| {
                is_possible.set(now);
                is_offered.get_untracked()
            });
            assert_eq!(offered, [false, true, true]);
        });
    }
}
