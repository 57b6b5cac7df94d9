//! The stream of live events, as server-sent events.
//!
//! `GET /events` sends all events. Each frame carries the id of its event, so that a browser that lost its connection can
//! resume at this server or another one. A browser that opens a new connection on purpose, such as a tab that takes over,
//! sends that id as `last=`, because only the browser's own reconnect can set the header `Last-Event-ID`. If the id is no
//! longer in the replay buffer, the server sends a `resync` event and the browser reloads its data. A replay needs no
//! resync.
//!
//! Every 15 seconds the server sends a `ping`, so that both sides notice a dead connection. A ping carries the id of
//! the last event that the stream has passed, including those that were not meant for this browser, so that a quiet
//! page can resume too.
//!
//! The second frame names the server's build of the dashboard. After an update the browsers reconnect, so every page
//! that is still open receives the new build.
//!
//! The user of the stream is checked when a server reports a change of one of the user's sessions, and every five
//! seconds for changes that no server reports. A changed user is sent in a `session` frame. A stream whose session has
//! ended sends the reason in a `session-end` frame and ends.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use axum::{
    extract::{Query, State},
    response::{
        IntoResponse, Response,
        sse::{Event as Frame, Sse},
    },
};
use chrono::DateTime;
use futures::stream;
use http::{HeaderName, HeaderValue, StatusCode, request::Parts};
use milvaion_api::{
    events::{BUILD_FRAME, EventEnvelope, LiveEvent, SESSION_END_FRAME, SESSION_FRAME, StreamEndReason},
    permissions::Permission,
    views::CurrentUser,
};
use serde::Deserialize;
use tokio::{
    sync::broadcast::error::RecvError,
    time::{Instant, Interval, MissedTickBehavior},
};

use super::{
    WebState,
    guard::{self, StreamUser},
};
use crate::live::hub::{self, InitialReplay};

/// The time between two pings.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// The time between two checks of the session.
const SESSION_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The most open streams of one server.
const MAX_LISTENERS: usize = 2_000;

/// The query of an event stream.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct EventStreamQuery {
    /// The id of the last event that the browser received on an earlier connection, or that its document names.
    last: Option<String>,
}

struct EventSubscriber {
    state: WebState,
    parts: Parts,
    me: CurrentUser,
    first: VecDeque<Frame>,
    position: Option<String>,
    receiver: hub::EventReceiver,
    ping: Interval,
    session_check: Interval,
    is_ended: bool,
}

/// Handles `GET /events`.
pub async fn events(State(state): State<WebState>, Query(query): Query<EventStreamQuery>, parts: Parts) -> Response {
    let me = match guard::authorize(&state.store, &state.clock, &state.config, &parts, Permission::Read).await {
        Ok(me) => me,
        Err(error) => {
            let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::FORBIDDEN);
            return (status, error.to_string()).into_response();
        }
    };
    if state.hub.listeners() >= MAX_LISTENERS {
        let message = "This server has too many open event streams. Pages still load; reload them to see changes.";
        return (StatusCode::SERVICE_UNAVAILABLE, message).into_response();
    }
    // The browser's own reconnect sends the header, which is newer than the address of the connection.
    let header = parts.headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let last = header.or(query.last.as_deref()).filter(|last| !last.is_empty());
    let subscription = state.hub.subscribe(last);
    let mut replay = VecDeque::new();
    match subscription.replay {
        InitialReplay::Replay(frames) if last.is_some() => {
            replay.extend(frames.iter().filter(|frame| is_for_browsers(frame)).map(|frame| encode(frame)));
        }
        // Without an id the page may be older than the stream, as after a pause.
        InitialReplay::Replay(_) | InitialReplay::Resync => replay.push_back(resync(subscription.position.as_deref())),
    }
    // The first frame is sent at once, so that the browser detects that the stream is open. It carries no id, because
    // the replay follows it.
    let mut first = VecDeque::from([ping_frame(&state, None).retry(Duration::from_secs(1))]);
    // A browser drops a frame without data.
    if !state.build.is_empty() {
        first.push_back(Frame::default().event(BUILD_FRAME).data(&*state.build));
    }
    first.push_back(session_frame(&me));
    first.append(&mut replay);
    let listener = EventSubscriber {
        state,
        parts,
        me,
        first,
        position: subscription.position,
        receiver: subscription.receiver,
        ping: interval(PING_INTERVAL),
        session_check: interval(SESSION_CHECK_INTERVAL),
        is_ended: false,
    };
    let frames = stream::unfold(listener, |mut listener| async move {
        let frame = listener.next().await?;
        Some((Ok::<_, Infallible>(frame), listener))
    });
    let mut response = Sse::new(frames).into_response();
    // Tells proxies to forward each frame at once.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

impl EventSubscriber {
    async fn next(&mut self) -> Option<Frame> {
        if let Some(frame) = self.first.pop_front() {
            return Some(frame);
        }
        while !self.is_ended {
            tokio::select! {
                received = self.receiver.recv() => match received {
                    Ok(frame) => {
                        self.position = Some(frame.envelope.id.clone());
                        if frame.envelope.event == (LiveEvent::Session { user_id: self.me.id }) {
                            if let Some(frame) = self.check_session().await {
                                return Some(frame);
                            }
                        } else if is_for_browsers(&frame) {
                            return Some(encode(&frame));
                        }
                    }
                    Err(RecvError::Lagged(_)) => return Some(resync(None)),
                    Err(RecvError::Closed) => return None,
                },
                _ = self.session_check.tick() => {
                    if let Some(frame) = self.check_session().await {
                        return Some(frame);
                    }
                }
                _ = self.ping.tick() => return Some(ping_frame(&self.state, self.position.as_deref())),
                () = self.state.stop.cancelled() => return None,
            }
        }
        None
    }

    /// Returns a frame if the user has changed or the session has ended. The stream stays open while PostgreSQL fails,
    /// because an outage must not sign users out.
    async fn check_session(&mut self) -> Option<Frame> {
        match guard::stream_user(&self.state.store, &self.state.clock, &self.parts, self.me.id).await {
            Ok(StreamUser::Active(me)) if me == self.me => None,
            Ok(StreamUser::Active(me)) => {
                self.me = me;
                Some(session_frame(&self.me))
            }
            Ok(StreamUser::Ended(reason)) => {
                self.is_ended = true;
                Some(session_end_frame(reason))
            }
            // The stream ends without a frame, and the browser reconnects with its new cookie.
            Ok(StreamUser::Replaced) => {
                self.is_ended = true;
                None
            }
            Err(_) => None,
        }
    }
}

fn interval(period: Duration) -> Interval {
    let mut interval = tokio::time::interval_at(Instant::now() + period, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Builds a ping. It carries the time of the server, because countdowns in the browser follow the server's clock.
fn ping_frame(state: &WebState, position: Option<&str>) -> Frame {
    with_id(Frame::default().event("ping").data(state.clock.now().to_rfc3339()), position)
}

fn session_frame(me: &CurrentUser) -> Frame {
    Frame::default().event(SESSION_FRAME).data(serde_json::to_string(me).unwrap_or_default())
}

fn session_end_frame(reason: StreamEndReason) -> Frame {
    Frame::default().event(SESSION_END_FRAME).data(reason.slug())
}

fn is_for_browsers(frame: &hub::EventFrame) -> bool {
    !matches!(frame.envelope.event, LiveEvent::Session { .. })
}

fn with_id(frame: Frame, id: Option<&str>) -> Frame {
    match id {
        Some(id) => frame.id(id),
        None => frame,
    }
}

fn encode(frame: &hub::EventFrame) -> Frame {
    with_id(Frame::default().data(frame.json.clone()), Some(&frame.envelope.id))
}

/// Builds the event that makes a browser reload its data. It belongs to this stream only. The browser resumes at `position`
/// afterwards.
fn resync(position: Option<&str>) -> Frame {
    let envelope = EventEnvelope { id: String::new(), at: DateTime::UNIX_EPOCH, event: LiveEvent::Resync };
    with_id(Frame::default().data(serde_json::to_string(&envelope).unwrap_or_default()), position)
}
