//! The inputs of a tab's state, and the effects of each.

use std::time::Duration;

use chrono::{DateTime, Utc};
use milvaion_api::{events::EventEnvelope, views::CurrentUser};

use crate::{
    api::session::SessionEndReason,
    live::{
        LiveState,
        tab_message::{StreamFrame, TabMessage},
    },
};

/// The properties of the tab at the time of an input.
pub(super) struct TabFacts<'a> {
    /// The browser's clock, in milliseconds since 1970.
    pub(super) now: i64,
    /// True if the tab is hidden.
    pub(super) is_hidden: bool,
    /// True while the user has paused live updates.
    pub(super) is_paused: bool,
    /// True while this tab itself is ending the session.
    pub(super) is_sign_out_expected: bool,
    /// Returns true while drawing the page again would discard what the user typed, opened or selected. Called only
    /// where the answer counts, because it searches the document.
    pub(super) is_in_use: &'a dyn Fn() -> bool,
}

/// An input of [`TabState::step`](super::state::TabState::step).
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TabInput {
    /// The user of the page is known, or has changed.
    UserKnown(CurrentUser),
    /// The user has signed in again after the session had ended.
    SignedInAgain(CurrentUser),
    /// The answer to [`TabEffect::AskUser`]; `None` without a session.
    UserRead(Option<CurrentUser>),
    /// The answer to [`TabEffect::CheckRenewal`]; `None` without a session or without an answer.
    RenewalRead(Option<CurrentUser>),
    /// This tab has ended the session.
    SignedOutHere,
    /// The user has opened another page in this tab.
    PageChanged,
    /// The user has paused or resumed live updates.
    PauseChanged,
    /// The page has moved to the browser's history.
    PageLeft,
    /// The page has come back from the browser's history.
    PageRestored,
    /// The tab was hidden or shown.
    VisibilityChanged,
    /// The browser has lost the network.
    NetworkLost,
    /// The browser has found the network again.
    NetworkRestored,
    /// The timeouts must be checked, which no event reports.
    Tick {
        /// True if the browser reports a network connection.
        is_online: bool,
    },
    /// The delay of [`TabEffect::ReopenAfter`] has passed.
    ReopenDue,
    /// The page is about to be painted, or the delay of [`TabEffect::FlushAfter`] has passed.
    FlushDue,
    /// [`TabEffect::OpenChannel`] was performed. False if the browser cannot share a stream here.
    ChannelOpened(bool),
    /// Another tab sent a message.
    Message(TabMessage),
    /// This tab holds the lock.
    LockGranted,
    /// The browser refused [`TabEffect::RequestLock`].
    LockRefused,
    /// The connection is open.
    Connected,
    /// The browser refused [`TabEffect::Connect`].
    ConnectRefused,
    /// The connection has failed.
    ConnectionLost {
        /// True if the browser no longer reconnects by itself.
        is_closed: bool,
        /// True if the browser reports a network connection.
        is_online: bool,
        /// A random number from 0 to 1, for the jitter.
        random: f64,
    },
    /// The connection received a frame.
    Received(StreamFrame),
}

/// An effect of [`TabState::step`](super::state::TabState::step). The browser performs those of a step in their order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TabEffect {
    /// Opens the channel of this name in place of a present one, and reports [`TabInput::ChannelOpened`].
    OpenChannel(String),
    /// Closes the channel.
    CloseChannel,
    /// Sends a message to the other tabs.
    Send(TabMessage),
    /// Waits for the lock of this name.
    RequestLock(String),
    /// Releases the lock, or stops waiting for it.
    ReleaseLock,
    /// Opens a connection with this query in place of a present one.
    Connect(String),
    /// Closes the connection.
    Disconnect,
    /// Reports [`TabInput::ReopenDue`] after this time.
    ReopenAfter(Duration),
    /// Reports [`TabInput::FlushDue`] before the page is painted.
    FlushOnFrame,
    /// Reports [`TabInput::FlushDue`] after this time.
    FlushAfter(Duration),
    /// Delivers events to the page.
    Deliver(Vec<EventEnvelope>),
    /// Shows the state of the stream.
    ShowState(LiveState),
    /// Compares the build of the server with that of the page.
    ShowBuild(String),
    /// Sets the page's clock to the server's time.
    SyncClock(DateTime<Utc>),
    /// Loads the page again.
    Reload,
    /// Shows the new name of the user.
    RenameUser(CurrentUser),
    /// Requests the user again and draws the page for what it may do now.
    RefetchUser,
    /// Shows a toast.
    ShowToast(String),
    /// Shows a notice until the user leaves the page.
    ShowNotice(String),
    /// Removes the notice.
    ClearNotice,
    /// Asks the server for the user, and reports an answer as [`TabInput::UserRead`].
    AskUser,
    /// Asks the server a moment later whether this browser has a new session, and reports [`TabInput::RenewalRead`].
    CheckRenewal,
    /// Reports to the page that the session has ended.
    ReportEnd(SessionEndReason),
}
