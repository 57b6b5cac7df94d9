//! The focus, and where the user is on the page.

use std::cell::RefCell;

use wasm_bindgen::JsCast;
use web_sys::{Element, FocusOptions, HtmlElement};

use super::{PAGE_TITLE_ID, document, on_capture, run_on_next_frame, window};

fn html_element(id: &str) -> Option<HtmlElement> {
    document()?.get_element_by_id(id)?.dyn_into().ok()
}

/// Returns the element that has the focus. Without one a browser names the body.
fn focused() -> Option<Element> {
    document()?.active_element().filter(|element| element.tag_name() != "BODY")
}

/// Focuses the element with this id, if it exists.
pub fn focus(id: &str) {
    if let Some(element) = html_element(id) {
        let _ = element.focus();
    }
}

/// Focuses the element with this id in the next frame, after the page has been drawn: a hidden element takes no focus.
pub fn focus_on_next_frame(id: &str) {
    let id = id.to_owned();
    run_on_next_frame(move || focus(&id));
}

/// Focuses the element with this id, if it exists, without scrolling to it.
pub fn focus_in_place(id: &str) {
    if let Some(element) = html_element(id) {
        focus_element_in_place(&element);
    }
}

fn focus_element_in_place(element: &HtmlElement) {
    let options = FocusOptions::new();
    options.set_prevent_scroll(true);
    let _ = element.focus_with_options(&options);
}

/// The maximum number of elements that [`remember_focus`] remembers.
const MAX_REMEMBERED_FOCUS: usize = 8;

thread_local! {
    /// The elements that had the focus, the last one at the end.
    static REMEMBERED_FOCUS: RefCell<Vec<HtmlElement>> = const { RefCell::new(Vec::new()) };
}

/// Remembers the elements that receive the focus, for [`recover_focus`]. Ends with the current owner.
pub fn remember_focus() {
    on_capture("focusin", |event| {
        let target = event.target().and_then(|target| target.dyn_into::<HtmlElement>().ok());
        let Some(element) = target else { return };
        REMEMBERED_FOCUS.with_borrow_mut(|remembered| {
            remembered.retain(|other| *other != element && other.is_connected());
            if remembered.len() >= MAX_REMEMBERED_FOCUS {
                remembered.remove(0);
            }
            remembered.push(element);
        });
    });
}

/// Moves the focus if its element has left the page or is hidden: back to the last element that had it before and is
/// still shown, or else to the heading of the page.
pub fn recover_focus() {
    let focused = focused().and_then(|element| element.dyn_into::<HtmlElement>().ok());
    if focused.is_some_and(|element| is_shown(&element)) {
        return;
    }
    let before =
        REMEMBERED_FOCUS.with_borrow(|remembered| remembered.iter().rev().find(|element| is_shown(element)).cloned());
    match before {
        Some(element) => focus_element_in_place(&element),
        None => focus_in_place(PAGE_TITLE_ID),
    }
}

/// Returns true if the element with this id, or one in it, has the focus, or had it last and no other has it now: a
/// browser takes the focus from an element as soon as it is hidden.
#[must_use]
pub fn had_focus(id: &str) -> bool {
    let Some(element) = document().and_then(|document| document.get_element_by_id(id)) else { return false };
    let is_in = |focused: &Element| element.contains(Some(focused));
    if focused().is_some_and(|focused| !is_in(&focused)) {
        return false;
    }
    REMEMBERED_FOCUS.with_borrow(|remembered| remembered.last().is_some_and(|last| is_in(last)))
}

/// Keeps the focus in the page while the control that has it disappears because of its use: recovers it after the
/// page is drawn. Without a focus it does nothing, because a click gives a button no focus in every browser.
pub fn keep_focus() {
    if has_focus() {
        run_on_next_frame(recover_focus);
    }
}

/// Returns true if the element is in the page and not hidden.
fn is_shown(element: &HtmlElement) -> bool {
    element.offset_width() > 0
}

/// Returns true if an element of the page has the focus.
#[must_use]
pub fn has_focus() -> bool {
    focused().is_some()
}

/// Returns true if the focus, a pressed pointer or a text selection is inside the element with this id.
#[must_use]
pub fn is_busy_in(id: &str) -> bool {
    let (Some(document), Some(window)) = (document(), window()) else { return false };
    let Some(element) = document.get_element_by_id(id) else { return false };
    if element.matches(":active").unwrap_or(false) {
        return true;
    }
    if document.active_element().is_some_and(|focused| element.contains(Some(&focused))) {
        return true;
    }
    let Ok(Some(selection)) = window.get_selection() else { return false };
    !selection.is_collapsed() && selection.anchor_node().is_some_and(|node| element.contains(Some(&node)))
}

/// Returns true if the pointer is over the element with this id.
#[must_use]
pub fn is_pointer_in(id: &str) -> bool {
    let hovered = document().and_then(|document| document.query_selector(&format!("#{id}:hover")).ok().flatten());
    hovered.is_some()
}
