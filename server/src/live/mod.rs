//! Live updates: pushes changes to open pages.
//!
//! An event is published after its change is committed. It goes through Redis to every server in one order, and from
//! there to the browsers. Correctness does not depend on its delivery. When a browser has fallen behind, or a server
//! has lost Redis for a moment, the server sends `resync` and the page reloads its data. This is the only recovery, and
//! it is always correct.
//!
//! An event about log lines has none of them: the page reads its log after the last line that it has.

pub mod bridge;
mod event_size;
pub mod hub;

pub use hub::Hub;
