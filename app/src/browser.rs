//! Direct calls to browser APIs.
//!
//! Each function has a counterpart on the server that returns an empty value, so that pages need no conditional
//! compilation: pages use these values only in effects, and effects do not run on the server.

#[cfg(feature = "hydrate")]
pub use real::*;
#[cfg(not(feature = "hydrate"))]
pub use stub::*;

/// An instant in the user's own zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalTime {
    /// `2026-11-21`.
    pub date: String,
    /// `15:02:05`.
    pub clock: String,
    /// `UTC+1`, `UTC−3:30`. Not a zone's abbreviation, because most abbreviations stand for several zones.
    pub offset: String,
}

#[cfg(feature = "hydrate")]
mod real {
    use chrono::{DateTime, Utc};
    use leptos::prelude::{document, window};
    use wasm_bindgen::{JsCast, JsValue};
    use web_sys::{Event, EventInit, HtmlDocument, HtmlElement, HtmlInputElement, HtmlTextAreaElement};

    use super::LocalTime;

    /// Returns the browser's clock, in milliseconds since 1970.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "a browser's clock fits into 53 bits")]
    pub fn now_millis() -> i64 {
        js_sys::Date::now() as i64
    }

    /// Converts `at` to the user's own zone.
    #[must_use]
    pub fn local_time(at: DateTime<Utc>) -> Option<LocalTime> {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit into 53 bits")]
        let date = js_sys::Date::new(&JsValue::from_f64(at.timestamp_millis() as f64));
        #[expect(clippy::cast_possible_truncation, reason = "a zone is at most a day away from UTC")]
        let minutes = -date.get_timezone_offset() as i32;
        let (hours, rest) = (minutes.abs() / 60, minutes.abs() % 60);
        let sign = if minutes < 0 { '−' } else { '+' };
        let offset = match (hours, rest) {
            (0, 0) => "UTC".to_owned(),
            (_, 0) => format!("UTC{sign}{hours}"),
            _ => format!("UTC{sign}{hours}:{rest:02}"),
        };
        Some(LocalTime {
            date: format!("{:04}-{:02}-{:02}", date.get_full_year(), date.get_month() + 1, date.get_date()),
            clock: format!("{:02}:{:02}:{:02}", date.get_hours(), date.get_minutes(), date.get_seconds()),
            offset,
        })
    }

    /// Returns the IANA name of the user's zone.
    #[must_use]
    pub fn zone_name() -> Option<String> {
        let options =
            js_sys::Intl::DateTimeFormat::new(&js_sys::Array::new(), &js_sys::Object::new()).resolved_options();
        js_sys::Reflect::get(&options, &JsValue::from_str("timeZone")).ok()?.as_string()
    }

    /// Generates a unique idempotency key for a request that may be sent twice.
    #[must_use]
    pub fn random_key() -> String {
        format!(
            "{:x}-{:016x}-{:016x}",
            now_millis(),
            js_sys::Math::random().to_bits(),
            js_sys::Math::random().to_bits()
        )
    }

    fn html_document() -> Option<HtmlDocument> {
        document().dyn_into().ok()
    }

    /// Returns the value of a cookie.
    #[must_use]
    pub fn cookie(name: &str) -> Option<String> {
        let all = html_document()?.cookie().ok()?;
        all.split("; ").find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(ToOwned::to_owned)
    }

    /// Stores a preference in a cookie for one year. The value must not contain `;` or secrets.
    pub fn set_cookie(name: &str, value: &str) {
        if let Some(document) = html_document() {
            // A browser that refuses cookies keeps the default, which needs no error.
            let _ = document.set_cookie(&format!("{name}={value}; Path=/; Max-Age=31536000; SameSite=Lax"));
        }
    }

    /// Sets an attribute of the document's root element.
    pub fn set_root_attribute(name: &str, value: &str) {
        if let Some(root) = document().document_element() {
            let _ = root.set_attribute(name, value);
        }
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

    /// Returns the page's path and query, for use as `next` after signing in.
    #[must_use]
    pub fn current_path() -> String {
        let location = window().location();
        let path = location.pathname().unwrap_or_default();
        format!("{path}{}", location.search().unwrap_or_default())
    }

    /// Copies `text` and calls `done` with the result. The clipboard API exists only on secure pages, so a plain HTTP
    /// page falls back to a hidden text area.
    pub fn copy(text: String, done: impl Fn(bool) + 'static) {
        if window().is_secure_context() {
            let promise = window().navigator().clipboard().write_text(&text);
            leptos::task::spawn_local(async move {
                done(wasm_bindgen_futures::JsFuture::from(promise).await.is_ok());
            });
        } else {
            done(copy_by_selection(&text).unwrap_or(false));
        }
    }

    fn copy_by_selection(text: &str) -> Option<bool> {
        let document = html_document()?;
        let area: HtmlTextAreaElement = document.create_element("textarea").ok()?.dyn_into().ok()?;
        area.set_value(text);
        area.set_class_name("sr-only");
        let body = document.body()?;
        let before = document.active_element();
        body.append_child(&area).ok()?;
        area.select();
        let copied = document.exec_command("copy").unwrap_or(false);
        area.remove();
        if let Some(element) = before.and_then(|element| element.dyn_into::<HtmlElement>().ok()) {
            let _ = element.focus();
        }
        Some(copied)
    }

    /// Focuses the element with this id, if it exists.
    pub fn focus(id: &str) {
        if let Some(element) =
            document().get_element_by_id(id).and_then(|element| element.dyn_into::<HtmlElement>().ok())
        {
            let _ = element.focus();
        }
    }

    /// Sets the value of the text field with this id, and reports it to the form like typed text.
    pub fn type_value(id: &str, value: &str) {
        let input = document().get_element_by_id(id).and_then(|element| element.dyn_into::<HtmlInputElement>().ok());
        let Some(input) = input else { return };
        input.set_value(value);
        let init = EventInit::new();
        init.set_bubbles(true);
        if let Ok(event) = Event::new_with_event_init_dict("input", &init) {
            let _ = input.dispatch_event(&event);
        }
    }

    /// Returns true if the focus or a text selection is inside the element with this id.
    #[must_use]
    pub fn is_busy_in(id: &str) -> bool {
        let document = document();
        let Some(element) = document.get_element_by_id(id) else { return false };
        if document.active_element().is_some_and(|focused| element.contains(Some(&focused))) {
            return true;
        }
        let Ok(Some(selection)) = window().get_selection() else { return false };
        !selection.is_collapsed() && selection.anchor_node().is_some_and(|node| element.contains(Some(&node)))
    }

    /// Returns the page's vertical scroll position, in CSS pixels.
    #[must_use]
    pub fn scroll_offset() -> f64 {
        window().scroll_y().unwrap_or(0.0)
    }
}

#[cfg(not(feature = "hydrate"))]
mod stub {
    use chrono::{DateTime, Utc};

    use super::LocalTime;

    /// Returns 0; the server does not use the browser's clock.
    #[must_use]
    pub const fn now_millis() -> i64 {
        0
    }

    /// Returns `None`; the server does not know the user's clock.
    #[must_use]
    pub const fn local_time(_at: DateTime<Utc>) -> Option<LocalTime> {
        None
    }

    /// Returns `None`; the server reads the cookie `zone` instead.
    #[must_use]
    pub const fn zone_name() -> Option<String> {
        None
    }

    /// Returns `None`; the server reads the request instead.
    #[must_use]
    pub const fn cookie(_name: &str) -> Option<String> {
        None
    }

    /// Returns an empty key; the browser sends a plain form once.
    #[must_use]
    pub const fn random_key() -> String {
        String::new()
    }

    /// Does nothing on the server.
    pub const fn set_cookie(_name: &str, _value: &str) {}

    /// Does nothing on the server.
    pub const fn set_root_attribute(_name: &str, _value: &str) {}

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

    /// Returns an empty path; the server knows the address from the request.
    #[must_use]
    pub const fn current_path() -> String {
        String::new()
    }

    /// Does nothing on the server.
    pub fn copy(_text: String, _done: impl Fn(bool) + 'static) {}

    /// Does nothing on the server.
    pub const fn focus(_id: &str) {}

    /// Does nothing on the server.
    pub const fn type_value(_id: &str, _value: &str) {}

    /// Returns false; a page being rendered has no focus.
    #[must_use]
    pub const fn is_busy_in(_id: &str) -> bool {
        false
    }

    /// Returns 0; a page being rendered is not scrolled.
    #[must_use]
    pub const fn scroll_offset() -> f64 {
        0.0
    }
}
