//! The stream of events.
//!
//! `GET /events` sends every event, and with `?log=<occurrence>` also that occurrence's log lines. Each frame carries the
//! event's id, so that a browser which lost the line is told what it missed, by this server or another; if nobody knows
//! that id any more it is told to read again. Every fifteen seconds a `ping` shows both sides that the line is alive, and
//! the session is looked at again: who was signed out stops hearing.

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
use milvaion_protocol::id::OccurrenceId;
use serde::Deserialize;
use tokio::sync::broadcast::{self, error::RecvError};

use super::{WebState, guard};
use crate::live::hub::{self, InitialReplay};

/// How often both sides are shown that the line is alive.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// The most listeners one server has.
const MAX_LISTENERS: usize = 2_000;

/// What a listener wants beside the common events.
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

/// The handler.
pub async fn events(State(state): State<WebState>, Query(wishes): Query<EventStreamQuery>, parts: Parts) -> Response {
    if let Err(error) = guard::authorize(&state.store, &state.clock, &state.config, &parts, Permission::Read).await {
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::FORBIDDEN);
        return (status, error.to_string()).into_response();
    }
    if state.hub.listeners() >= MAX_LISTENERS {
        return (StatusCode::SERVICE_UNAVAILABLE, "Too many people listen to this server; pages still load.")
            .into_response();
    }
    let last = parts.headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let (start, receiver) = state.hub.listen(last);
    let mut first = VecDeque::new();
    match start {
        // Who cannot say where it stood has heard no event yet, perhaps on a line that was lost meanwhile.
        _ if last.is_none() => first.push_back(resync()),
        InitialReplay::Replay(frames) => {
            first.extend(frames.iter().filter(|frame| wanted(frame, wishes.log)).map(|frame| encode(frame)))
        }
        InitialReplay::Resync => first.push_back(resync()),
    }
    // Something is sent at once, so that a browser knows the stream is open.
    first.push_front(ping_frame(&state).retry(Duration::from_secs(1)));
    let mut ping = tokio::time::interval_at(tokio::time::Instant::now() + PING_INTERVAL, PING_INTERVAL);
    ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let listener = EventSubscriber { state, parts, log: wishes.log, first, receiver, ping };
    let frames = stream::unfold(listener, |mut listener| async move {
        let frame = listener.next().await?;
        Some((Ok::<_, Infallible>(frame), listener))
    });
    let mut response = Sse::new(frames).into_response();
    // Proxies must pass each frame on at once.
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
                    if matches!(allowed, Err(milvaion_app::error::AppError::SignedOut | milvaion_app::error::AppError::Denied(_))) {
                        return None;
                    }
                    return Some(ping_frame(&self.state));
                }
                () = self.state.stop.cancelled() => return None,
            }
        }
    }
}

/// Shows that the line is alive, and what time it is here: countdowns run on the server's clock.
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

/// Tells a browser to read again. It carries no id: there is nothing to resume at.
fn resync() -> Frame {
    Frame::default().data(r#"{"id":"","at":"1970-01-01T00:00:00Z","event":{"kind":"resync"}}"#)
}
