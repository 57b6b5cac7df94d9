//! The connection of the leading tab, and the timeouts.
//!
//! After a network failure the browser reconnects by itself. It gives up if the response is not a stream at all, such as
//! a proxy's error page, a full server, or the response to an ended session. The connection is then opened again with
//! exponential backoff. A connection that dies silently is detected by missing pings.

use super::{LeaderConnection, TabRole, TabTransition};
use crate::{
    api::session::query_value,
    live::{LiveState, tab_message::TabMessage},
    stream::inputs::TabEffect,
};

/// The timeout of a silent stream. The server pings every 15 s, so this is two missed pings plus 10 s.
const PING_TIMEOUT_MILLIS: i64 = 40_000;
/// The time after which a lost connection is shown as offline.
const OFFLINE_AFTER_MILLIS: i64 = 20_000;

impl TabTransition<'_> {
    pub(super) fn is_leading(&self) -> bool {
        matches!(self.state.role, TabRole::Leading { .. })
    }

    pub(super) fn has_connection(&self) -> bool {
        matches!(self.state.role, TabRole::Leading { connection: LeaderConnection::Open, .. })
    }

    pub(super) fn set_connection(&mut self, new: LeaderConnection) {
        if let TabRole::Leading { connection, .. } = &mut self.state.role {
            *connection = new;
        }
    }

    pub(super) fn connect(&mut self) {
        if !self.is_leading() {
            return;
        }
        self.set_connection(LeaderConnection::Open);
        self.state.heard_at = self.tab.now;
        if self.state.link != LiveState::Live {
            // A connection that is never answered, because the browser has too many, is shown as offline too.
            self.state.lost_since.get_or_insert(self.tab.now);
        }
        // The query names the position, because only the browser's own reconnect can send it as a header.
        let position = self.state.position.as_ref().filter(|position| !position.is_empty());
        let query = position.map(|position| format!("?last={}", query_value(position))).unwrap_or_default();
        self.effects.push(TabEffect::Connect(query));
    }

    pub(super) fn connected(&mut self) {
        if let TabRole::Leading { backoff, .. } = &mut self.state.role {
            backoff.reset();
        }
        self.state.lost_since = None;
        self.state.heard_at = self.tab.now;
        self.set_link(LiveState::Live);
    }

    /// Handles a connection error. The browser is already reconnecting unless it gave up.
    pub(super) fn connection_lost(&mut self, is_closed: bool, is_online: bool, random: f64) {
        let now = self.tab.now;
        let since = *self.state.lost_since.get_or_insert(now);
        let is_offline = !is_online || now - since > OFFLINE_AFTER_MILLIS;
        self.set_link(if is_offline { LiveState::Offline } else { LiveState::Reconnecting });
        if let TabRole::Leading { connection, backoff } = &mut self.state.role
            && is_closed
        {
            let wait = backoff.next_delay(random);
            *connection = LeaderConnection::ReopenAt(now + i64::try_from(wait.as_millis()).unwrap_or_default());
            self.effects.extend([TabEffect::ReopenAfter(wait), TabEffect::AskUser]);
        }
    }

    pub(super) fn reopen_if_due(&mut self) {
        if let TabRole::Leading { connection: LeaderConnection::ReopenAt(at), .. } = self.state.role
            && self.tab.now >= at
        {
            self.connect();
        }
    }

    pub(super) fn check_timeouts(&mut self, is_online: bool) {
        if self.state.is_left || self.tab.is_hidden {
            return;
        }
        if self.tab.is_paused {
            return self.check_paused_user();
        }
        let (now, link) = (self.tab.now, self.state.link);
        if link == LiveState::Live && now - self.state.heard_at > PING_TIMEOUT_MILLIS {
            self.state.lost_since = Some(now);
            self.set_link(LiveState::Reconnecting);
            self.send(TabMessage::Hello);
            return self.connect();
        }
        if link != LiveState::Live {
            let since = *self.state.lost_since.get_or_insert(now);
            if link != LiveState::Offline && now - since > OFFLINE_AFTER_MILLIS {
                self.set_link(LiveState::Offline);
            }
        }
        match self.state.role {
            TabRole::Leading { connection: LeaderConnection::ReopenAt(_), .. } => self.reopen_if_due(),
            TabRole::Leading { connection: LeaderConnection::Missing, .. } if is_online => self.connect(),
            _ => {}
        }
    }
}
