//! The decisions of one tab about the shared stream, without a browser.
//!
//! [`TabState::step`] takes one input and returns what the browser must do. It calls no browser API and reads no clock,
//! so its tests run natively, with several tabs at once.

mod connection;
mod frames;
mod user;

use std::time::Duration;

use milvaion_api::{events::EventEnvelope, views::CurrentUser};
use milvaion_protocol::backoff::Backoff;

use super::inputs::{TabEffect, TabFacts, TabInput};
use crate::{
    api::session::SessionEndReason,
    live::{
        LiveState,
        tab_message::{FrameKind, StreamFrame, TabMessage},
    },
};

/// The backoff before a connection that the browser has given up is opened again.
const REOPEN_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(16));

/// The part of a tab among the tabs of its user.
#[derive(Clone, Copy, Debug)]
enum TabRole {
    /// Neither holds the lock nor waits for it.
    Apart,
    /// Waits for the lock.
    Waiting,
    /// Holds the lock, or shares the stream with no other tab.
    Leading { connection: LeaderConnection, backoff: Backoff },
}

/// The connection of the leading tab.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LeaderConnection {
    /// There is none.
    Missing,
    /// It is open, or the browser is opening it.
    Open,
    /// The browser has given it up, and it is opened again at this time.
    ReopenAt(i64),
}

/// The state of a tab.
#[derive(Debug)]
pub(super) struct TabState {
    /// The user whose tabs share the stream.
    user: Option<CurrentUser>,
    /// True while the channel to the other tabs is open.
    is_shared: bool,
    role: TabRole,
    /// True after the end of the session or while the page is in the browser's history.
    is_left: bool,
    /// The state of the stream, which a pause hides.
    link: LiveState,
    /// The state that the page shows.
    shown: LiveState,
    /// The id of the last applied frame; `None` if the page may be older than the stream.
    position: Option<String>,
    /// The events that wait for a frame.
    waiting: Vec<EventEnvelope>,
    heard_at: i64,
    lost_since: Option<i64>,
    /// The server's build of the dashboard, once it is known.
    build: Option<String>,
    /// True if the page still shows what the user could do before the last change of the user.
    is_user_held: bool,
    user_checked_at: i64,
}

impl TabState {
    /// Creates the state of a page that was read at this position.
    pub(super) fn new(position: Option<String>) -> Self {
        Self {
            user: None,
            is_shared: false,
            role: TabRole::Apart,
            is_left: false,
            link: LiveState::Connecting,
            shown: LiveState::Connecting,
            position,
            waiting: Vec::new(),
            heard_at: 0,
            lost_since: None,
            build: None,
            is_user_held: false,
            user_checked_at: 0,
        }
    }

    /// Applies an input. Returns what the browser must do.
    pub(super) fn step(&mut self, input: TabInput, tab: &TabFacts<'_>) -> Vec<TabEffect> {
        let mut transition = TabTransition { state: self, tab, effects: Vec::new() };
        transition.apply_input(input);
        transition.effects
    }
}

/// One step of the state.
struct TabTransition<'a> {
    state: &'a mut TabState,
    tab: &'a TabFacts<'a>,
    effects: Vec<TabEffect>,
}

impl TabTransition<'_> {
    fn apply_input(&mut self, input: TabInput) {
        match input {
            TabInput::UserKnown(me) => self.user_known(me),
            TabInput::UserRead(Some(me)) => self.user_changed(me),
            TabInput::UserRead(None) => self.session_missing(),
            TabInput::SignedInAgain(me) | TabInput::RenewalRead(Some(me)) => self.rejoin(me),
            TabInput::RenewalRead(None) => self.report_end(SessionEndReason::PassphraseChanged),
            TabInput::SignedOutHere => self.signed_out_here(),
            TabInput::PageChanged => {
                self.redraw_for_user();
            }
            TabInput::PauseChanged => self.pause_changed(),
            TabInput::PageLeft => {
                self.state.is_left = true;
                self.choose_role();
                // A page that waits in the browser's history must not hold a channel.
                self.state.is_shared = false;
                self.effects.push(TabEffect::CloseChannel);
            }
            TabInput::PageRestored => {
                self.state.is_left = false;
                self.join();
            }
            TabInput::VisibilityChanged => {
                if !self.tab.is_hidden {
                    self.greet();
                }
                self.choose_role();
            }
            // The browser reports a lost network at once; the ping timeout would show "Live" for up to 40 s more.
            TabInput::NetworkLost => {
                if self.has_connection() {
                    self.set_connection(LeaderConnection::Missing);
                    self.effects.push(TabEffect::Disconnect);
                }
                self.state.lost_since = Some(self.tab.now);
                self.set_link(LiveState::Offline);
            }
            TabInput::NetworkRestored => {
                self.send(TabMessage::Hello);
                self.connect();
            }
            TabInput::Tick { is_online } => self.check_timeouts(is_online),
            TabInput::ReopenDue => self.reopen_if_due(),
            TabInput::FlushDue => self.flush(),
            TabInput::ChannelOpened(is_shared) => {
                self.state.is_shared = is_shared;
                self.greet();
                self.choose_role();
            }
            TabInput::Message(message) => self.received_message(message),
            TabInput::LockGranted if matches!(self.state.role, TabRole::Waiting) => self.lead(),
            TabInput::LockRefused => self.state.role = TabRole::Apart,
            // A late report about a lock that is released or a connection that is closed.
            TabInput::LockGranted => {}
            _ if !self.has_connection() => {}
            TabInput::Connected => self.connected(),
            TabInput::ConnectRefused => self.set_connection(LeaderConnection::Missing),
            TabInput::ConnectionLost { is_closed, is_online, random } => {
                self.connection_lost(is_closed, is_online, random);
            }
            TabInput::Received(frame) => {
                self.relay(frame.clone());
                self.apply_frame(frame);
            }
        }
    }
}

/// Joining the other tabs, leading and following.
impl TabTransition<'_> {
    fn shared_name(&self) -> Option<String> {
        self.state.user.as_ref().map(|me| format!("milvaion-events-{}", me.id))
    }

    fn join(&mut self) {
        let name = self.shared_name();
        self.effects.extend(name.map(TabEffect::OpenChannel));
    }

    fn send(&mut self, message: TabMessage) {
        if self.state.is_shared {
            self.effects.push(TabEffect::Send(message));
        }
    }

    /// Asks the leading tab for its state, and waits for it as long as for a new connection.
    fn greet(&mut self) {
        self.state.heard_at = self.tab.now;
        self.send(TabMessage::Hello);
    }

    /// Waits for the lock if this tab may lead, and releases it otherwise.
    fn choose_role(&mut self) {
        let Some(name) = self.shared_name() else { return };
        if self.state.is_left || self.tab.is_paused || self.tab.is_hidden {
            return self.step_down();
        }
        if !matches!(self.state.role, TabRole::Apart) {
            return;
        }
        if self.state.is_shared {
            self.state.role = TabRole::Waiting;
            self.effects.push(TabEffect::RequestLock(name));
        } else {
            // Without locks every visible tab leads alone.
            self.lead();
        }
    }

    fn lead(&mut self) {
        self.state.role = TabRole::Leading { connection: LeaderConnection::Missing, backoff: REOPEN_BACKOFF };
        self.connect();
    }

    fn step_down(&mut self) {
        let role = std::mem::replace(&mut self.state.role, TabRole::Apart);
        // The lock is released after the connection is closed, so that there are never two.
        match role {
            TabRole::Apart => {}
            TabRole::Waiting => self.effects.push(TabEffect::ReleaseLock),
            TabRole::Leading { .. } => {
                self.effects.extend([TabEffect::Disconnect, TabEffect::ReleaseLock]);
                self.state.lost_since = None;
                self.set_link(LiveState::Reconnecting);
            }
        }
    }

    fn pause_changed(&mut self) {
        if self.tab.is_paused {
            // What happens from now on is not applied, so the page must read again afterwards.
            self.state.position = None;
            self.state.user_checked_at = self.tab.now;
            self.show(LiveState::Paused);
        } else {
            self.show(self.state.link);
            self.greet();
            if !self.is_page_in_use() && self.redraw_for_user() {
                self.effects.push(TabEffect::ClearNotice);
            }
        }
        self.choose_role();
    }

    fn received_message(&mut self, message: TabMessage) {
        let is_leading = self.is_leading();
        match message {
            TabMessage::Hello if is_leading => {
                self.send_state();
                // The new tab may have been rendered before the last change of the user.
                if let Some(data) = self.state.user.as_ref().and_then(|me| serde_json::to_string(me).ok()) {
                    self.relay(StreamFrame { kind: FrameKind::Session, id: String::new(), data });
                }
                // A tab that was frozen has missed the frame that named the build.
                if let Some(data) = self.state.build.clone() {
                    self.relay(StreamFrame { kind: FrameKind::Build, id: String::new(), data });
                }
            }
            TabMessage::Hello => {}
            // A late message of a tab that has just lost the lock.
            TabMessage::Frame { .. } | TabMessage::State { .. } if is_leading => {}
            TabMessage::Frame { before, frame } => {
                // Every tab may relay the end of the session, whatever its position is.
                let is_at_known = self.state.position.as_ref().is_none_or(|known| *known == before);
                if frame.kind != FrameKind::SessionEnd && !is_at_known {
                    self.state.position = Some(before);
                    self.resync();
                }
                self.apply_frame(frame);
            }
            TabMessage::State { state, position } => {
                self.state.heard_at = self.tab.now;
                self.state.lost_since = None;
                self.set_link(state);
                // Without a position, the leading tab waits for a resync of the server and relays it.
                let is_elsewhere = position.is_some() && self.state.position != position;
                if state == LiveState::Live && is_elsewhere && !self.tab.is_paused {
                    self.state.position = position;
                    self.resync();
                }
            }
        }
    }

    fn send_state(&mut self) {
        self.send(TabMessage::State { state: self.state.link, position: self.state.position.clone() });
    }

    fn relay(&mut self, frame: StreamFrame) {
        let before = self.state.position.clone().unwrap_or_default();
        self.send(TabMessage::Frame { before, frame });
    }

    /// Sets the state of the stream. The leading tab reports it to the others.
    fn set_link(&mut self, link: LiveState) {
        self.state.link = link;
        if !self.tab.is_paused {
            self.show(link);
        }
        if self.is_leading() {
            self.send_state();
        }
    }

    fn show(&mut self, state: LiveState) {
        if self.state.shown != state {
            self.state.shown = state;
            self.effects.push(TabEffect::ShowState(state));
        }
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod model_tests;
