//! The document: its root element, its state and its events.

#[cfg(feature = "hydrate")]
pub use real::*;
#[cfg(not(feature = "hydrate"))]
pub use stub::*;

#[cfg(feature = "hydrate")]
mod real {
    use leptos::prelude::{StoredValue, WithValue, document, on_cleanup, window};
    use wasm_bindgen::{JsCast, closure::Closure};
    use web_sys::Event;

    use crate::browser::BUILD_META;

    /// Sets an attribute of the document's root element.
    pub fn set_root_attribute(name: &str, value: &str) {
        if let Some(root) = document().document_element() {
            let _ = root.set_attribute(name, value);
        }
    }

    /// Returns an attribute of the document's root element.
    #[must_use]
    pub fn root_attribute(name: &str) -> Option<String> {
        document().document_element()?.get_attribute(name)
    }

    /// Marks the document as scripted. The style sheet then shows the controls that need a script and hides their
    /// replacements.
    pub fn mark_scripted() {
        if let Some(root) = document().document_element() {
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
        document().hidden()
    }

    /// Returns true if the browser reports a network connection.
    #[must_use]
    pub fn is_online() -> bool {
        window().navigator().on_line()
    }

    /// Returns true if the document and everything that it refers to are loaded.
    #[must_use]
    pub fn is_loaded() -> bool {
        document().ready_state() == "complete"
    }

    /// Returns the name of the build that this page belongs to.
    #[must_use]
    pub fn page_build() -> Option<String> {
        document().query_selector(&format!("meta[name={BUILD_META}]")).ok()??.get_attribute("content")
    }

    /// Returns the contents of a `<meta>` element, which is empty afterwards.
    #[must_use]
    pub fn take_meta(name: &str) -> Option<String> {
        let meta = document().query_selector(&format!("meta[name={name}]")).ok()??;
        let content = meta.get_attribute("content");
        let _ = meta.remove_attribute("content");
        content
    }

    /// Calls `listener` for every event of this name on the page, before any other listener receives it. Ends with the
    /// current owner.
    pub fn on_capture(name: &'static str, listener: impl Fn(Event) + 'static) {
        let listener = StoredValue::new_local(Closure::<dyn Fn(Event)>::new(listener));
        let of = |change: &dyn Fn(&js_sys::Function)| {
            let _ = listener.try_with_value(|listener| change(listener.as_ref().unchecked_ref()));
        };
        of(&|function| {
            let _ = window().add_event_listener_with_callback_and_bool(name, function, true);
        });
        on_cleanup(move || {
            let _ = listener.try_with_value(|listener| {
                window().remove_event_listener_with_callback_and_bool(name, listener.as_ref().unchecked_ref(), true)
            });
        });
    }
}

#[cfg(not(feature = "hydrate"))]
mod stub {
    use leptos::web_sys::Event;

    /// Does nothing on the server.
    pub const fn set_root_attribute(_name: &str, _value: &str) {}

    /// Returns `None`; the server writes the document.
    #[must_use]
    pub const fn root_attribute(_name: &str) -> Option<String> {
        None
    }

    /// Does nothing on the server.
    pub const fn mark_scripted() {}

    /// Does nothing on the server.
    pub const fn mark_ready() {}

    /// Returns false; a page being rendered is not hidden.
    #[must_use]
    pub const fn is_hidden() -> bool {
        false
    }

    /// Returns true; the server is always connected.
    #[must_use]
    pub const fn is_online() -> bool {
        true
    }

    /// Returns false; a page being rendered is not loaded.
    #[must_use]
    pub const fn is_loaded() -> bool {
        false
    }

    /// Returns `None`; a page being rendered has no document.
    #[must_use]
    pub const fn page_build() -> Option<String> {
        None
    }

    /// Returns `None`; a page being rendered has no document.
    #[must_use]
    pub const fn take_meta(_name: &str) -> Option<String> {
        None
    }

    /// Does nothing on the server.
    pub fn on_capture(_name: &'static str, _listener: impl Fn(Event) + 'static) {}
}
