//! The notice of a page whose script has stopped.
//!
//! A panic ends the WebAssembly instance's work: no event is handled any more, while the page looks as before. The
//! notice is therefore plain DOM, and its button calls the browser's own `reload` without any code of the app. The page
//! below it stays, so that typed text can still be copied.

use js_sys::{Function, Reflect};
use wasm_bindgen::{JsCast, JsValue};
use web_sys::{Document, Element, Window};

/// The id of the notice.
const NOTICE_ID: &str = "crash-notice";
/// The text after a panic.
const CRASH_TEXT: &str = "This page stopped working. Reload it.";
/// The text after a failed load of the first page's module, which leaves the server's HTML without a script.
pub(crate) const FAILED_LOAD_TEXT: &str = "This page could not be loaded completely. A new version of Milvaion is \
                                           running, or the connection is lost. Reload it.";

/// Shows the notice after a panic, besides the message in the console.
pub(crate) fn install() {
    std::panic::set_hook(Box::new(|info| {
        console_error_panic_hook::hook(info);
        show(CRASH_TEXT);
    }));
}

/// Shows the notice, unless it is shown already.
pub(crate) fn show(text: &str) {
    // A panic inside the hook would hide the first one, so every failure here is ignored.
    let _ = web_sys::window().and_then(|window| try_show(&window, text));
}

fn try_show(window: &Window, text: &str) -> Option<()> {
    let document = window.document()?;
    if document.get_element_by_id(NOTICE_ID).is_some() {
        return None;
    }
    let notice = element(&document, "div", "notice crash-notice")?;
    notice.set_id(NOTICE_ID);
    notice.set_attribute("role", "alert").ok()?;
    notice.set_attribute("data-kind", "error").ok()?;
    let words = element(&document, "p", "")?;
    words.set_text_content(Some(text));
    let button = element(&document, "button", "btn")?;
    button.set_attribute("type", "button").ok()?;
    button.set_text_content(Some("Reload"));
    let location = window.location();
    let reload: Function = Reflect::get(&location, &JsValue::from_str("reload")).ok()?.dyn_into().ok()?;
    button.add_event_listener_with_callback("click", &reload.bind0(&location)).ok()?;
    notice.append_child(&words).ok()?;
    notice.append_child(&button).ok()?;
    document.body()?.append_child(&notice).ok()?;
    Some(())
}

fn element(document: &Document, name: &str, class: &str) -> Option<Element> {
    let element = document.create_element(name).ok()?;
    element.set_class_name(class);
    Some(element)
}
