//! The stream of live events, as server-sent events.
//!
//! `GET /events` sends all events, and with `?log=<occurrence>` also the log lines of that occurrence. Each frame
//! carries the id of its event, so that a browser that lost its connection can resume at this server or another one. If
//! the id is no longer in the replay buffer, the server sends a `resync` event and the browser reloads its data. Every
//! 15 seconds the server sends a `ping`, so that both sides notice a dead connection, and checks the session again. The
//! stream of a user who is no longer signed in ends.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::{Query, State},
    response::{
        IntoResponse, Response,
        sse::{Event as Frame, Sse},
    },
};
use futures::stream;
use http::{HeaderName, HeaderValue, StatusCode, request::Parts};
use milvaion_api::{events::LiveEvent, permissions::Permission};
use milvaion_app::error::AppError;
use milvaion_protocol::id::OccurrenceId;
use serde::Deserialize;
use tokio::sync::broadcast::{self, error::RecvError};

use super::{WebState, guard};
use crate::live::hub::{self, InitialReplay};

/// The time between two pings, and between two checks of the session.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// The most open streams of one server.
const MAX_LISTENERS: usize = 2_000;

/// The query of an event stream: the occurrence whose log lines are sent besides the common events.
#[derive(Debug, Deserialize)]
pub struct EventStreamQuery {
    log: Option<OccurrenceId>,
}

struct EventSubscriber {
    state: WebState,
    parts: Parts,
    log: Option<OccurrenceId>,
    first: VecDeque<Frame>,
    receiver: broadcast::Receiver<Arc<hub::EventFrame>>,
    ping: tokio::time::Interval,
}

/// Handles `GET /events`.
pub async fn events(State(state): State<WebState>, Query(query): Query<EventStreamQuery>, parts: Parts) -> Response {
    if let Err(error) = guard::authorize(&state.store, &state.clock, &state.config, &parts, Permission::Read).await {
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::FORBIDDEN);
        return (status, error.to_string()).into_response();
    }
    if state.hub.listeners() >= MAX_LISTENERS {
        let message = "This server has too many open event streams. Pages still load; reload them to see changes.";
        return (StatusCode::SERVICE_UNAVAILABLE, message).into_response();
    }
    let last = parts.headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let (start, receiver) = state.hub.listen(last);
    let mut first = VecDeque::new();
    match start {
        // Without an id the browser has received no event yet. Its connection may have been lost before the first one.
        _ if last.is_none() => first.push_back(resync()),
        InitialReplay::Replay(frames) => {
            first.extend(frames.iter().filter(|frame| wanted(frame, query.log)).map(|frame| encode(frame)))
        }
        InitialReplay::Resync => first.push_back(resync()),
    }
    // The first frame is sent at once, so that the browser knows that the stream is open.
    first.push_front(ping_frame(&state).retry(Duration::from_secs(1)));
    let mut ping = tokio::time::interval_at(tokio::time::Instant::now() + PING_INTERVAL, PING_INTERVAL);
    ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let listener = EventSubscriber { state, parts, log: query.log, first, receiver, ping };
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
        loop {
            tokio::select! {
                received = self.receiver.recv() => match received {
                    Ok(frame) if wanted(&frame, self.log) => return Some(encode(&frame)),
                    Ok(_) => {}
                    Err(RecvError::Lagged(_)) => return Some(resync()),
                    Err(RecvError::Closed) => return None,
                },
                _ = self.ping.tick() => {
                    let WebState { store, clock, config, .. } = &self.state;
                    let allowed = guard::authorize(store, clock, config, &self.parts, Permission::Read).await;
                    if matches!(allowed, Err(AppError::SignedOut | AppError::Denied(_))) {
                        return None;
                    }
                    return Some(ping_frame(&self.state));
                }
                () = self.state.stop.cancelled() => return None,
            }
        }
    }
}

/// Builds a ping. It carries the time of the server, because countdowns in the browser follow the server's clock.
fn ping_frame(state: &WebState) -> Frame {
    Frame::default().event("ping").data(state.clock.now().to_rfc3339())
}

fn wanted(frame: &hub::EventFrame, log: Option<OccurrenceId>) -> bool {
    match &frame.envelope.event {
        LiveEvent::Log { occurrence_id, .. } => log == Some(*occurrence_id),
        _ => true,
    }
}

fn encode(frame: &hub::EventFrame) -> Frame {
    Frame::default().id(frame.envelope.id.clone()).data(frame.json.clone())
}

/// Builds the event that makes a browser reload its data. It carries no id, because there is no event to resume at.
fn resync() -> Frame {
    Frame::default().data(r#"{"id":"","at":"1970-01-01T00:00:00Z","event":{"kind":"resync"}}"#)
}
