//! The messages between the tabs of one user.
//!
//! A message is text with one field per line. Most messages relay a frame of the stream unchanged, so a tab that follows
//! parses the same JSON as the tab that leads, and the messages need no serializer of their own. Each relayed frame
//! carries the position before it, by which a tab detects that it missed a frame.

use milvaion_api::events::{BUILD_FRAME, SESSION_END_FRAME, SESSION_FRAME};

use super::LiveState;

/// The kind of a frame of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// An event, as the JSON of its envelope.
    Event,
    /// The server's time.
    Ping,
    /// The name of the server's build of the dashboard.
    Build,
    /// The signed-in user, as JSON.
    Session,
    /// The reason for which the session ended.
    SessionEnd,
}

impl FrameKind {
    /// Returns the name of the browser's event for this kind.
    pub(crate) const fn event_name(self) -> &'static str {
        match self {
            Self::Event => "message",
            Self::Ping => "ping",
            Self::Build => BUILD_FRAME,
            Self::Session => SESSION_FRAME,
            Self::SessionEnd => SESSION_END_FRAME,
        }
    }

    /// All kinds.
    pub(crate) const ALL: [Self; 5] = [Self::Event, Self::Ping, Self::Build, Self::Session, Self::SessionEnd];
}

/// One frame of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamFrame {
    /// The kind.
    pub(crate) kind: FrameKind,
    /// The position after the frame; empty if the frame does not change it.
    pub(crate) id: String,
    /// The content.
    pub(crate) data: String,
}

/// A message from one tab to all others of the same user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TabMessage {
    /// A tab was opened or became visible. The leading tab responds with its state.
    Hello,
    /// The leading tab received a frame.
    Frame {
        /// The position before the frame.
        before: String,
        /// The frame.
        frame: StreamFrame,
    },
    /// The state of the leading tab.
    State {
        /// The state of its connection.
        state: LiveState,
        /// Its position; `None` if its own page may be older than the stream.
        position: Option<String>,
    },
}

impl TabMessage {
    /// Returns the message as text.
    pub(crate) fn to_text(&self) -> String {
        match self {
            Self::Hello => "hello".to_owned(),
            Self::Frame { before, frame } => lines(&["frame", frame.kind.event_name(), before, &frame.id, &frame.data]),
            Self::State { state, position } => {
                let known = if position.is_some() { "known" } else { "unknown" };
                lines(&["state", state.slug(), known, position.as_deref().unwrap_or_default()])
            }
        }
    }

    /// Parses [`TabMessage::to_text`]. Returns `None` for a message of another version of the dashboard.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        // Only the last field, the data, may contain line breaks.
        let mut fields = text.splitn(5, '\n');
        Some(match fields.next()? {
            "hello" => Self::Hello,
            "frame" => {
                let name = fields.next()?;
                let kind = FrameKind::ALL.into_iter().find(|kind| kind.event_name() == name)?;
                let before = fields.next()?.to_owned();
                let id = fields.next()?.to_owned();
                Self::Frame { before, frame: StreamFrame { kind, id, data: fields.next()?.to_owned() } }
            }
            "state" => {
                let state = match fields.next()? {
                    "live" => LiveState::Live,
                    "offline" => LiveState::Offline,
                    _ => LiveState::Reconnecting,
                };
                let is_known = fields.next()? == "known";
                let position = fields.next()?.to_owned();
                Self::State { state, position: is_known.then_some(position) }
            }
            _ => return None,
        })
    }
}

fn lines(fields: &[&str]) -> String {
    fields.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_their_text() {
        let frame = |kind, data: &str| TabMessage::Frame {
            before: "a-1".into(),
            frame: StreamFrame { kind, id: String::new(), data: data.into() },
        };
        for message in [
            TabMessage::Hello,
            frame(FrameKind::Event, "{\n\"id\":\"\"}\n"),
            frame(FrameKind::Ping, "2026-11-23T09:00:00Z"),
            frame(FrameKind::Build, "0123456789abcdef"),
            frame(FrameKind::Session, "{}"),
            frame(FrameKind::SessionEnd, "expired"),
            TabMessage::State { state: LiveState::Live, position: Some("b-2".into()) },
            TabMessage::State { state: LiveState::Offline, position: Some(String::new()) },
            TabMessage::State { state: LiveState::Reconnecting, position: None },
        ] {
            assert_eq!(TabMessage::parse(&message.to_text()), Some(message));
        }
    }

    #[test]
    fn message_of_another_version_is_ignored() {
        for text in ["", "shout", "frame\nmessage\na", "frame\nquery\na\nb\nc", "state\nlive"] {
            assert_eq!(TabMessage::parse(text), None, "{text:?}");
        }
    }
}
