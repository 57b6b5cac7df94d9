//! The focus of a control that disappears. Without a new place it would fall to the start of the document.

use leptos::prelude::*;

use crate::browser;

/// Recovers the focus if `is_hidden` becomes true while the element with this id has it. The user may be on a control that
/// a change by another user hides.
pub fn recover_focus_when(is_hidden: Memo<bool>, id: &'static str) {
    Effect::new(move |_| {
        if is_hidden.get() && browser::had_focus(id) {
            browser::run_on_next_frame(browser::recover_focus);
        }
    });
}

/// Moves the focus to the heading `to` if it is in the element `from`, whose controls are about to disappear because of an
/// action that has succeeded.
pub fn hand_focus(from: &str, to: &str) {
    if browser::had_focus(from) {
        browser::focus_in_place(to);
    }
}
