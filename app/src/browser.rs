//! Direct calls to browser APIs.
//!
//! Each function has a counterpart on the server that returns an empty value, so that pages need no conditional
//! compilation: pages use these values only in effects, and effects do not run on the server. Only [`zone_offset`] works
//! on both sides, with the same result.

mod clock;
mod document;
mod focus;
mod forms;
mod navigation;
mod storage;

pub use self::{clock::*, document::*, focus::*, forms::*, navigation::*, storage::*};

/// The name of the `<meta>` element that names the build of the browser side.
pub const BUILD_META: &str = "milvaion-build";
/// The lifetime of a cookie with a preference, in seconds: one year.
pub const PREFERENCE_SECONDS: u32 = 31_536_000;

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
