//! Addresses, the history of the tab and the scroll position.

use wasm_bindgen::{JsCast, JsValue};
use web_sys::{Element, Event, History, HtmlAnchorElement, Location, MouseEvent, ScrollRestoration};

use super::{FollowedLink, window};

fn location() -> Option<Location> {
    Some(window()?.location())
}

fn history() -> Option<History> {
    window()?.history().ok()
}

/// Returns the page's path and query, for use as `next` after signing in. Empty on the server, which has the request.
#[must_use]
pub fn current_path() -> String {
    let Some(location) = location() else { return String::new() };
    let path = location.pathname().unwrap_or_default();
    format!("{path}{}", location.search().unwrap_or_default())
}

/// Returns the link that a click is about to follow in this tab; `None` for other clicks and other sites.
#[must_use]
pub fn followed_link(event: &Event) -> Option<FollowedLink> {
    let click = event.dyn_ref::<MouseEvent>()?;
    if click.button() != 0 || click.meta_key() || click.alt_key() || click.ctrl_key() || click.shift_key() {
        return None;
    }
    let link = click.target()?.dyn_into::<Element>().ok()?.closest("a[href]").ok()??;
    let link = link.dyn_into::<HtmlAnchorElement>().ok()?;
    let is_here = matches!(link.target().as_str(), "" | "_self") && !link.has_attribute("download");
    if !is_here || location()?.origin().ok()? != link.origin() {
        return None;
    }
    Some(FollowedLink {
        address: format!("{}{}", link.pathname(), link.search()),
        fragment: link.hash(),
        is_external: link.rel().split(' ').any(|word| word == "external"),
    })
}

/// Loads an address of this server.
pub fn load(address: &str) {
    if let Some(location) = location() {
        // `assign` fails only for an invalid address, and this one comes from a link.
        let _ = location.assign(address);
    }
}

/// Loads the page again.
pub fn reload() {
    if let Some(location) = location() {
        // Fails only in a sandboxed frame.
        let _ = location.reload();
    }
}

/// Adds an entry for `address` to the browser's history without loading it.
pub fn push_address(address: &str) {
    if let Some(history) = history() {
        let _ = history.push_state_with_url(&JsValue::NULL, "", Some(address));
    }
}

/// Gives the current entry of the browser's history another address without loading it.
pub fn replace_address(address: &str) {
    if let Some(history) = history() {
        let state = history.state().unwrap_or(JsValue::NULL);
        let _ = history.replace_state_with_url(&state, "", Some(address));
    }
}

/// Goes back by one entry of the browser's history.
pub fn go_back() {
    if let Some(history) = history() {
        let _ = history.back();
    }
}

/// Returns the id of the heading of the list that a click on a pager's link changes, which is `default` unless the
/// pager names another; `None` for other clicks.
#[must_use]
pub fn list_heading(event: &Event, default: &str) -> Option<String> {
    let link = event.target()?.dyn_into::<Element>().ok()?.closest(".pager a[href]").ok()??;
    let pager = link.closest(".pager").ok()??;
    Some(pager.get_attribute("data-heading").unwrap_or_else(|| default.to_owned()))
}

/// Returns the page's vertical scroll position, in CSS pixels.
#[must_use]
pub fn scroll_offset() -> f64 {
    window().and_then(|window| window.scroll_y().ok()).unwrap_or_default()
}

/// Scrolls the page to this vertical position, in CSS pixels, or as far as its height allows.
pub fn scroll_to(offset: u32) {
    if let Some(window) = window() {
        window.scroll_to_with_x_and_y(0.0, f64::from(offset));
    }
}

/// Turns off the browser's own restoration of scroll positions, or on again.
pub fn restore_scroll_by_script(is_by_script: bool) {
    if let Some(history) = history() {
        let mode = if is_by_script { ScrollRestoration::Manual } else { ScrollRestoration::Auto };
        let _ = history.set_scroll_restoration(mode);
    }
}

/// Returns true if the browser's own restoration of scroll positions is off for this entry of the history.
#[must_use]
pub fn is_scroll_restored_by_script() -> bool {
    history().is_some_and(|history| history.scroll_restoration() == Ok(ScrollRestoration::Manual))
}
