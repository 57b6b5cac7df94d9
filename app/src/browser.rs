//! Direct calls to browser APIs.
//!
//! The server has no window and no document, so each function does nothing there or returns an empty value, and pages
//! need no conditional compilation: pages use these values only in effects, and effects do not run on the server. Only
//! [`zone_offset`] works on both sides, with the same result.

mod clock;
mod document;
mod focus;
mod forms;
mod navigation;
mod storage;
mod timers;

use web_sys::{Document, Window};

pub use self::{clock::*, document::*, focus::*, forms::*, navigation::*, storage::*, timers::*};

/// True in the browser, false on the server.
const IN_BROWSER: bool = cfg!(feature = "hydrate");

/// The name of the `<meta>` element that names the build of the browser side.
pub const BUILD_META: &str = "milvaion-build";
/// The id of a page's heading.
pub const PAGE_TITLE_ID: &str = "page-title";
/// The lifetime of a cookie with a preference, in seconds: one year.
pub const PREFERENCE_SECONDS: u32 = 31_536_000;
/// The cookie that stores the theme; the HTML shell reads it.
pub const THEME_COOKIE: &str = "theme";
/// The cookie that stores whether the keyboard shortcuts are `on` or `off`.
pub const SHORTCUTS_COOKIE: &str = "shortcuts";
/// The cookie that stores whether times are shown in UTC or in a zone: `utc` or `local`.
pub const ZONE_MODE_COOKIE: &str = "zone_mode";
/// The cookie with the zone of the browser, which its script sets.
pub const ZONE_COOKIE: &str = "zone";
/// The cookie with the zone that the user has chosen instead of the browser's; absent without a choice.
pub const CHOSEN_ZONE_COOKIE: &str = "zone_chosen";
/// The cookie that stores whether times are relative where a page has room for one form only: `relative` or `exact`.
pub const TIME_STYLE_COOKIE: &str = "time_style";
/// The cookie that stores the number of hours on the clock: `24` or `12`.
pub const CLOCK_COOKIE: &str = "clock";

/// A link to another address of this server, as followed by a plain click.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedLink {
    /// The path and query.
    pub address: String,
    /// The fragment with its `#`; empty without one.
    pub fragment: String,
    /// True if the link needs a full page load.
    pub is_external: bool,
}

/// Returns the document; `None` on the server.
fn document() -> Option<Document> {
    IN_BROWSER.then(leptos::prelude::document)
}

/// Returns the window; `None` on the server.
fn window() -> Option<Window> {
    IN_BROWSER.then(leptos::prelude::window)
}
