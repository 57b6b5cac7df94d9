//! One tab's part in the event stream that all tabs of a user share.
//!
//! A visible tab waits for the lock of its user. The tab that holds it leads: it opens the connection and relays each
//! frame to the others. The lock and the channel carry the user's id in their names, so the tabs of two users who
//! signed in one after the other in the same browser share nothing.
//!
//! Every tab keeps the position of the last frame it has applied. A tab that takes over opens its connection at that
//! position, and the server replays what was missed. A tab that begins to follow compares its position with that of the
//! leading tab, and reads its page again if they differ. The first position is that of the document, which the server
//! took before it read the page's data. A page that may be older than the stream, as after a pause, has no position and
//! reads again once.
//!
//! The state of the tab decides and the browser only acts: `effects` turns what happens in the browser into inputs of
//! `state`, and performs the effects that it returns.
//!
//! Pages and components receive what the stream delivers through [`live`](crate::live). The stream itself acts on the
//! page around it: its user, its notices and its unsaved changes. It is therefore above the components, and the layout
//! starts it.

#[cfg(feature = "hydrate")]
mod connection;
#[cfg(feature = "hydrate")]
mod effects;
mod inputs;
mod state;
#[cfg(feature = "hydrate")]
mod tabs;

#[cfg(feature = "hydrate")]
pub(crate) use self::effects::run;
