//! What the server tells people while they look.
//!
//! An event is published after its change is committed, goes through Redis to every server in one order, and from there
//! to the browsers. Nothing depends on it arriving. A browser that fell behind, or a server that lost Redis for a moment,
//! says `resync`, and the page reads again; that is the only recovery there is, and it is always right.

pub mod alerts;
pub mod bridge;
pub mod hub;

pub use hub::Hub;
