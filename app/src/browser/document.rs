//! The document: its root element, its state and its events.

use leptos::prelude::{StoredValue, WithValue, on_cleanup};
use wasm_bindgen::{JsCast, closure::Closure};
use web_sys::{Element, Event};

use super::{BUILD_META, IN_BROWSER, document, window};

fn root() -> Option<Element> {
    document()?.document_element()
}

/// Sets an attribute of the document's root element.
pub fn set_root_attribute(name: &str, value: &str) {
    if let Some(root) = root() {
        let _ = root.set_attribute(name, value);
    }
}

/// Returns an attribute of the document's root element.
#[must_use]
pub fn root_attribute(name: &str) -> Option<String> {
    root()?.get_attribute(name)
}

/// Marks the document as scripted. The style sheet then shows the controls that need a script and hides their
/// replacements.
pub fn mark_scripted() {
    if let Some(root) = root() {
        let _ = root.class_list().add_1("js");
    }
}

/// Marks the page as hydrated, for tests and assistive scripts.
pub fn mark_ready() {
    set_root_attribute("data-ready", "true");
}

/// Returns true if the page is in a hidden tab.
#[must_use]
pub fn is_hidden() -> bool {
    document().is_some_and(|document| document.hidden())
}

/// Returns true if the browser reports a network connection, and on the server.
#[must_use]
pub fn is_online() -> bool {
    window().is_none_or(|window| window.navigator().on_line())
}

/// Returns true if the document and everything that it refers to are loaded.
#[must_use]
pub fn is_loaded() -> bool {
    document().is_some_and(|document| document.ready_state() == "complete")
}

/// Returns the name of the build that this page belongs to.
#[must_use]
pub fn page_build() -> Option<String> {
    document()?.query_selector(&format!("meta[name={BUILD_META}]")).ok()??.get_attribute("content")
}

/// Returns the contents of a `<meta>` element, which is empty afterwards.
#[must_use]
pub fn take_meta(name: &str) -> Option<String> {
    let meta = document()?.query_selector(&format!("meta[name={name}]")).ok()??;
    let content = meta.get_attribute("content");
    let _ = meta.remove_attribute("content");
    content
}

/// Calls `listener` for every event of this name on the page, before any other listener receives it. Ends with the
/// current owner.
pub fn on_capture(name: &'static str, listener: impl Fn(Event) + 'static) {
    if !IN_BROWSER {
        return;
    }
    let listener = StoredValue::new_local(Closure::<dyn Fn(Event)>::new(listener));
    let change = move |is_added: bool| {
        let Some(window) = window() else { return };
        let _ = listener.try_with_value(|listener| {
            let function = listener.as_ref().unchecked_ref();
            if is_added {
                window.add_event_listener_with_callback_and_bool(name, function, true)
            } else {
                window.remove_event_listener_with_callback_and_bool(name, function, true)
            }
        });
    };
    change(true);
    on_cleanup(move || change(false));
}
