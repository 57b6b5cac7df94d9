//! Addresses, the history of the tab and the scroll position.

#[cfg(feature = "hydrate")]
pub use real::*;
#[cfg(not(feature = "hydrate"))]
pub use stub::*;

#[cfg(feature = "hydrate")]
mod real {
    use leptos::prelude::window;
    use wasm_bindgen::{JsCast, JsValue};
    use web_sys::{Element, Event, HtmlAnchorElement, MouseEvent, ScrollRestoration};

    use crate::browser::FollowedLink;

    /// Returns the page's path and query, for use as `next` after signing in.
    #[must_use]
    pub fn current_path() -> String {
        let location = window().location();
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
        if !is_here || window().location().origin().ok()? != link.origin() {
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
        // `assign` fails only for an invalid address, and this one comes from a link.
        let _ = window().location().assign(address);
    }

    /// Loads the page again.
    pub fn reload() {
        // Fails only in a sandboxed frame.
        let _ = window().location().reload();
    }

    /// Adds an entry for `address` to the browser's history without loading it.
    pub fn push_address(address: &str) {
        if let Ok(history) = window().history() {
            let _ = history.push_state_with_url(&JsValue::NULL, "", Some(address));
        }
    }

    /// Gives the current entry of the browser's history another address without loading it.
    pub fn replace_address(address: &str) {
        if let Ok(history) = window().history() {
            let state = history.state().unwrap_or(JsValue::NULL);
            let _ = history.replace_state_with_url(&state, "", Some(address));
        }
    }

    /// Goes back by one entry of the browser's history.
    pub fn go_back() {
        if let Ok(history) = window().history() {
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
        window().scroll_y().unwrap_or(0.0)
    }

    /// Scrolls the page to this vertical position, in CSS pixels, or as far as its height allows.
    pub fn scroll_to(offset: u32) {
        window().scroll_to_with_x_and_y(0.0, f64::from(offset));
    }

    /// Turns off the browser's own restoration of scroll positions, or on again.
    pub fn restore_scroll_by_script(is_by_script: bool) {
        if let Ok(history) = window().history() {
            let mode = if is_by_script { ScrollRestoration::Manual } else { ScrollRestoration::Auto };
            let _ = history.set_scroll_restoration(mode);
        }
    }

    /// Returns true if the browser's own restoration of scroll positions is off for this entry of the history.
    #[must_use]
    pub fn is_scroll_restored_by_script() -> bool {
        window().history().and_then(|history| history.scroll_restoration()) == Ok(ScrollRestoration::Manual)
    }
}

#[cfg(not(feature = "hydrate"))]
mod stub {
    use leptos::web_sys::Event;

    use crate::browser::FollowedLink;

    /// Returns an empty path; the server knows the address from the request.
    #[must_use]
    pub const fn current_path() -> String {
        String::new()
    }

    /// Returns `None`; a page being rendered receives no clicks.
    #[must_use]
    pub const fn followed_link(_event: &Event) -> Option<FollowedLink> {
        None
    }

    /// Does nothing on the server.
    pub const fn load(_address: &str) {}

    /// Does nothing on the server.
    pub const fn reload() {}

    /// Does nothing on the server.
    pub const fn push_address(_address: &str) {}

    /// Does nothing on the server.
    pub const fn replace_address(_address: &str) {}

    /// Does nothing on the server.
    pub const fn go_back() {}

    /// Returns `None`; a page being rendered receives no clicks.
    #[must_use]
    pub const fn list_heading(_event: &Event, _default: &str) -> Option<String> {
        None
    }

    /// Returns 0; a page being rendered is not scrolled.
    #[must_use]
    pub const fn scroll_offset() -> f64 {
        0.0
    }

    /// Does nothing on the server.
    pub const fn scroll_to(_offset: u32) {}

    /// Does nothing on the server.
    pub const fn restore_scroll_by_script(_is_by_script: bool) {}

    /// Returns false; a page being rendered is not scrolled.
    #[must_use]
    pub const fn is_scroll_restored_by_script() -> bool {
        false
    }
}
