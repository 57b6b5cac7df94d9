//! The frames, received by this tab's connection or relayed by another tab, and their delivery to the page.

use std::time::Duration;

use chrono::{DateTime, Utc};
use milvaion_api::events::{EventEnvelope, LiveEvent};

use super::{TabTransition, user};
use crate::{
    live::{
        is_resync,
        tab_message::{FrameKind, StreamFrame},
    },
    stream::inputs::TabEffect,
};

/// The delivery interval of a hidden tab, which paints no frames.
const HIDDEN_DELIVERY_INTERVAL: Duration = Duration::from_millis(250);
/// The maximum number of events that wait for a frame. A page that is further behind reads everything again.
const MAX_PENDING_EVENTS: usize = 500;

impl TabTransition<'_> {
    pub(super) fn apply_frame(&mut self, frame: StreamFrame) {
        self.state.heard_at = self.tab.now;
        let StreamFrame { kind, id, data } = frame;
        let mut is_resync_frame = false;
        match kind {
            FrameKind::Event => {
                // An event that this build cannot parse comes from a newer server; reading again shows its effect.
                let envelope = serde_json::from_str(&data).unwrap_or_else(|_| self.resync_now());
                is_resync_frame = is_resync(&envelope);
                if !self.tab.is_paused {
                    self.queue(envelope);
                }
            }
            FrameKind::Ping => self.effects.extend(data.parse::<DateTime<Utc>>().ok().map(TabEffect::SyncClock)),
            FrameKind::Build => {
                self.state.build = Some(data.clone());
                self.effects.push(TabEffect::ShowBuild(data));
            }
            FrameKind::Session => {
                if let Ok(me) = serde_json::from_str(&data) {
                    self.user_changed(me);
                }
            }
            FrameKind::SessionEnd => return self.session_ended(user::end_reason(&data)),
        }
        // A page that may be older than the stream gets its first position from a resync only.
        let is_known = self.state.position.is_some() && !id.is_empty();
        if !self.tab.is_paused && (is_resync_frame || is_known) {
            self.state.position = Some(id);
        }
    }

    fn queue(&mut self, envelope: EventEnvelope) {
        if self.state.waiting.len() >= MAX_PENDING_EVENTS {
            self.state.waiting = vec![self.resync_now()];
            return;
        }
        self.state.waiting.push(envelope);
        if self.state.waiting.len() == 1 {
            // A hidden page paints no frames.
            let is_hidden = self.tab.is_hidden;
            let hidden = TabEffect::FlushAfter(HIDDEN_DELIVERY_INTERVAL);
            self.effects.push(if is_hidden { hidden } else { TabEffect::FlushOnFrame });
        }
    }

    pub(super) fn flush(&mut self) {
        let waiting = std::mem::take(&mut self.state.waiting);
        // Events received before a pause are dropped; a resync replaces them when the user resumes.
        if !self.tab.is_paused && !waiting.is_empty() {
            self.effects.push(TabEffect::Deliver(waiting));
        }
    }

    pub(super) fn resync(&mut self) {
        if !self.tab.is_paused {
            self.queue(self.resync_now());
        }
    }

    fn resync_now(&self) -> EventEnvelope {
        let at = DateTime::from_timestamp_millis(self.tab.now).unwrap_or_default();
        EventEnvelope { id: String::new(), at, event: LiveEvent::Resync }
    }
}
