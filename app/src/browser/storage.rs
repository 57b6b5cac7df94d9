//! What a page stores outside of itself: cookies, the storage of the tab and the clipboard.

use wasm_bindgen::JsCast;
use web_sys::{HtmlDocument, HtmlElement, HtmlTextAreaElement, Storage};

use super::{PREFERENCE_SECONDS, document, window};

fn html_document() -> Option<HtmlDocument> {
    document()?.dyn_into().ok()
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
        let _ = document.set_cookie(&format!("{name}={value}; Path=/; Max-Age={PREFERENCE_SECONDS}; SameSite=Lax"));
    }
}

fn session_storage() -> Option<Storage> {
    window()?.session_storage().ok().flatten()
}

/// Returns an item of this tab's storage.
#[must_use]
pub fn tab_item(key: &str) -> Option<String> {
    session_storage()?.get_item(key).ok().flatten()
}

/// Stores an item until the tab is closed. A browser without storage or space stores nothing.
pub fn set_tab_item(key: &str, value: &str) {
    if let Some(storage) = session_storage() {
        let _ = storage.set_item(key, value);
    }
}

/// Removes an item of this tab's storage.
pub fn remove_tab_item(key: &str) {
    if let Some(storage) = session_storage() {
        let _ = storage.remove_item(key);
    }
}

/// Copies `text` and calls `done` with the result. The clipboard API exists only on secure pages, so a plain HTTP
/// page falls back to a hidden text area.
pub fn copy(text: String, done: impl Fn(bool) + 'static) {
    let Some(window) = window() else { return };
    if window.is_secure_context() {
        let promise = window.navigator().clipboard().write_text(&text);
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
