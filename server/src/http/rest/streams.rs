//! The streams for programs: live events, and the log of an occurrence as it is written.
//!
//! Both are server-sent events. Log lines are read from PostgreSQL after those that were sent, and live events only say
//! when to read: no line is lost or repeated, whichever server stores it. A stream ends when its caller loses the right to
//! it. A client that reconnects sends the id of its last frame and gets what it missed. In the events of one occurrence,
//! that id also has the number of the last line before the frame.
//!
//! A worker sends the last lines of a run before its end, but over another queue, and they are stored by another consumer:
//! usually before the end, and rarely after it. The stream of a log therefore waits for them until `LAST_LINES_TIMEOUT`
//! after the end, and as long after each of them. A line that is stored later is in the log and not in the stream.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use axum::response::{
    IntoResponse, Response,
    sse::{Event as Frame, KeepAlive, Sse},
};
use chrono::{DateTime, Utc};
use futures::{Stream, stream};
use http::{HeaderName, HeaderValue, StatusCode, request::Parts};
use milvaion_api::{
    events::LiveEvent,
    permissions::Permission::Read,
    rest::{ApiEvent, EventQuery, Occurrence},
};
use milvaion_app::error::AppError;
use milvaion_protocol::{
    id::{JobId, OccurrenceId, UserId},
    message::LogLine,
    status::OccurrenceStatus,
};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::{sync::broadcast::error::RecvError, time::Instant};

use super::{
    ApiState,
    endpoint::{Call, Endpoint, Nothing},
    guard,
    log_tail::LogTail,
    occurrences::OccurrencePath,
    operation::{Operation, TagScope},
    problem::ApiError,
};
use crate::live::hub::{EventReceiver, InitialReplay};

/// The time between two pings.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// The time between two checks of the caller's right, and of a log without events.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The shortest time between two reads of a log after events that announce lines.
const LOG_READ_INTERVAL: Duration = Duration::from_millis(400);
/// The time after the end of an occurrence was stored in which its last lines may still arrive.
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(2);
/// The most open streams of one server.
const MAX_LISTENERS: usize = 2_000;
/// The number of lines that are read at once.
const MAX_LINES: i64 = 500;

/// The start of a stream of a log.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
struct LogStreamQuery {
    /// The sequence number of the last line that the caller has: the stream begins after it. The header `Last-Event-ID`
    /// takes precedence.
    #[schemars(range(min = 0))]
    after: Option<i64>,
}

/// Returns the operations.
pub(super) fn endpoints() -> Vec<Endpoint> {
    let events_operation = Operation {
        method: "GET",
        path: "/events",
        id: "streamEvents",
        group: "Events",
        summary: "Stream the changes of occurrences, jobs, calendars, workers and the cluster as server-sent events",
        permission: Read,
        scope: TagScope::Refused,
        success: 200,
        has_secret: false,
        is_versioned: false,
    };
    let log_operation = Operation {
        path: "/occurrences/{id}/log/stream",
        id: "streamLog",
        group: "Occurrences",
        summary: "Stream the log of an occurrence until it ends, as server-sent events named line, status and end",
        scope: TagScope::Occurrence,
        ..events_operation
    };
    vec![Endpoint::stream(events_operation, events), Endpoint::stream(log_operation, log)]
}

/// The right of a caller to an open stream.
struct StreamAccess {
    state: ApiState,
    head: Parts,
    user: UserId,
    /// The occurrence whose log is streamed.
    occurrence: Option<OccurrenceId>,
    next_check: Instant,
}

impl StreamAccess {
    fn new(state: &ApiState, head: Parts, user: UserId, occurrence: Option<OccurrenceId>) -> Self {
        Self { state: state.clone(), head, user, occurrence, next_check: Instant::now() + CHECK_INTERVAL }
    }

    /// Returns false if the caller has lost the right. While PostgreSQL fails, the right stays.
    async fn is_allowed(&mut self) -> bool {
        if Instant::now() < self.next_check {
            return true;
        }
        self.next_check = Instant::now() + CHECK_INTERVAL;
        guard::may_go_on(&self.state, &self.head, self.user, self.occurrence).await
    }
}

fn check_listeners(state: &ApiState) -> Result<(), ApiError> {
    if state.hub.listeners() < MAX_LISTENERS {
        return Ok(());
    }
    let detail = "This server has too many open streams. Close some, or use another server.";
    Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(30))
}

fn respond(frames: impl Stream<Item = Result<Frame, Infallible>> + Send + 'static) -> Response {
    let pings = KeepAlive::new().interval(PING_INTERVAL).text("ping");
    let mut response = Sse::new(frames).keep_alive(pings).into_response();
    // Tells proxies to forward each frame at once.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

fn last_event_id(head: &Parts) -> Option<&str> {
    head.headers.get("last-event-id").and_then(|value| value.to_str().ok()).filter(|id| !id.is_empty())
}

/// An open stream of events.
struct EventStream {
    access: StreamAccess,
    receiver: EventReceiver,
    ready: VecDeque<Frame>,
    job: Option<JobId>,
    occurrence: Option<OccurrenceId>,
    /// The lines of the occurrence that were sent.
    log: LogTail,
    /// The id of the event after which the log may have lines that were not sent.
    unread: Option<String>,
}

async fn events(state: ApiState, call: Call<Nothing, EventQuery, Nothing>) -> Result<Response, ApiError> {
    check_listeners(&state)?;
    let EventQuery { job_id: job, occurrence_id: occurrence, last } = call.query;
    let last = last_event_id(&call.head).map(str::to_owned).or(last);
    let (last, last_line) = match last.as_deref().map(frame_id_parts) {
        Some((event, line)) => (Some(event), line),
        None => (None, None),
    };
    let subscription = state.hub.subscribe(last);
    let log = match (occurrence, last_line) {
        (Some(_), Some(line)) => LogTail::after(line),
        // The stream begins with the next line.
        (Some(id), None) => {
            let newest = state.store.newest_log_lines(id, i64::MIN, i64::MAX, 1).await.map_err(AppError::from)?;
            LogTail::after(newest.last().map_or(0, |line| line.seq))
        }
        (None, _) => LogTail::default(),
    };
    let access = StreamAccess::new(&state, call.head, call.me.id, None);
    let ready = VecDeque::from([Frame::default().comment("open")]);
    let position = subscription.position.unwrap_or_default();
    let unread = last_line.map(|_| position.clone());
    let mut open = EventStream { access, receiver: subscription.receiver, ready, job, occurrence, log, unread };
    match subscription.replay {
        InitialReplay::Replay(missed) => {
            for frame in missed {
                open.push(&frame.envelope.event, &frame.envelope.id);
            }
        }
        InitialReplay::Resync => open.push(&LiveEvent::Resync, &position),
    }
    Ok(respond(stream::unfold(open, |mut open| async move {
        let frame = open.next().await?;
        Some((Ok(frame), open))
    })))
}

impl EventStream {
    async fn next(&mut self) -> Option<Frame> {
        let stop = self.access.state.stop.clone();
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(frame);
            }
            if !self.access.is_allowed().await {
                return None;
            }
            if let (Some(occurrence_id), Some(id)) = (self.occurrence, self.unread.take()) {
                self.read_lines(occurrence_id, id).await;
                continue;
            }
            tokio::select! {
                received = self.receiver.recv() => match received {
                    Ok(frame) => self.push(&frame.envelope.event, &frame.envelope.id),
                    Err(RecvError::Lagged(_)) => self.push(&LiveEvent::Resync, ""),
                    Err(RecvError::Closed) => return None,
                },
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = stop.cancelled() => return None,
            }
        }
    }

    /// Queues the frame of an event with an id, or the read of the lines that it is about.
    fn push(&mut self, event: &LiveEvent, id: &str) {
        if self.occurrence.is_some_and(|occurrence| event.concerns_log(occurrence)) {
            self.unread = Some(id.to_owned());
        } else if let Some(event) = ApiEvent::of(event, self.job, self.occurrence) {
            self.ready.extend(self.frame(&event, id));
        }
    }

    /// Reads the next lines that were not sent, and queues them with the id of an event.
    async fn read_lines(&mut self, occurrence_id: OccurrenceId, id: String) {
        let store = self.access.state.store.clone();
        let Ok(read) = store.oldest_log_lines(occurrence_id, self.log.read_start(), i64::MAX, MAX_LINES).await else {
            // The next event about the log reads these lines too.
            return self.ready.extend(self.frame(&ApiEvent::Resync, &id));
        };
        let has_more = read.len() as i64 >= MAX_LINES;
        let lines = self.log.unsent(read);
        if !lines.is_empty() {
            self.ready.extend(self.frame(&ApiEvent::Log { occurrence_id, lines }, &id));
        }
        self.unread = has_more.then_some(id);
    }

    /// Builds the frame of an event with an id. One without an id does not change where the client resumes.
    fn frame(&self, event: &ApiEvent, id: &str) -> Option<Frame> {
        let frame = Frame::default().event(event.kind()).data(serde_json::to_string(event).ok()?);
        Some(match self.occurrence {
            _ if id.is_empty() => frame,
            Some(_) => frame.id(format!("{id}.{}", self.log.last())),
            None => frame.id(id),
        })
    }
}

/// Splits the id of a frame into the id of its event and the number of the last line before the end of the frame.
fn frame_id_parts(id: &str) -> (&str, Option<i64>) {
    match id.split_once('.') {
        Some((event, line)) => (event, line.parse().ok()),
        None => (id, None),
    }
}

/// An open stream of a log.
struct LogStream {
    access: StreamAccess,
    receiver: EventReceiver,
    id: OccurrenceId,
    /// The lines that were sent.
    log: LogTail,
    ready: VecDeque<Frame>,
    shown: Option<(OccurrenceStatus, i32)>,
    /// The time at which no more lines are expected, once the occurrence has ended.
    ends_at: Option<Instant>,
    is_ended: bool,
}

async fn log(state: ApiState, call: Call<OccurrencePath, LogStreamQuery, Nothing>) -> Result<Response, ApiError> {
    check_listeners(&state)?;
    let id = call.path.id;
    if state.store.occurrence_status(id).await.map_err(AppError::from)?.is_none() {
        return Err(AppError::NotFound("This occurrence does not exist or was deleted by retention.".into()).into());
    }
    let resumed = last_event_id(&call.head).and_then(|id| id.parse().ok());
    let (_, receiver) = state.hub.listen(None);
    let open = LogStream {
        access: StreamAccess::new(&state, call.head, call.me.id, Some(id)),
        receiver,
        id,
        log: LogTail::after(resumed.or(call.query.after).unwrap_or(0)),
        ready: VecDeque::from([Frame::default().comment("open")]),
        shown: None,
        ends_at: None,
        is_ended: false,
    };
    Ok(respond(stream::unfold(open, |mut open| async move {
        let frame = open.next().await?;
        Some((Ok(frame), open))
    })))
}

impl LogStream {
    async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(frame);
            }
            if self.is_ended || !self.access.is_allowed().await {
                return None;
            }
            match self.read().await {
                Ok(true) => {}
                Ok(false) => self.wait().await?,
                Err(error) => {
                    tracing::debug!(occurrence.id = %self.id, error = %error, "a part of a log was not read; the stream tries again");
                    self.wait().await?;
                }
            }
        }
    }

    /// Reads the next lines and the status. Returns false if there is nothing new.
    async fn read(&mut self) -> Result<bool, AppError> {
        let (store, state) = (self.access.state.store.clone(), self.access.state.clone());
        // The status is read before the lines, so that an end is not reported before lines that were stored earlier.
        let alive_since = crate::domain::liveness::alive_since(state.clock.now());
        let found = store.occurrence_with_log(self.id, Some(i64::MAX - 1), 1, alive_since).await?;
        let read = store.oldest_log_lines(self.id, self.log.read_start(), i64::MAX, MAX_LINES).await?;
        let Some(view) = found else {
            self.is_ended = true;
            return Ok(true);
        };
        // The client resumes after the highest number that it has, also if its last line was stored late.
        let mut last = self.log.last();
        let lines = self.log.unsent(read);
        if !lines.is_empty() && self.ends_at.is_some() {
            // Lines are still arriving after the end, so others may follow.
            self.ends_at = Some(Instant::now() + LAST_LINES_TIMEOUT);
        }
        for line in &lines {
            last = last.max(line.seq);
            self.ready.extend(line_frame(line, last));
        }
        let (status, version) = (view.row.status, view.row.version);
        if self.shown != Some((status, version)) {
            self.shown = Some((status, version));
            let occurrence = Occurrence::from(view.row);
            let data = serde_json::to_string(&occurrence).unwrap_or_default();
            self.ready.push_back(Frame::default().event("status").data(data));
        }
        if status.is_final() && lines.is_empty() {
            let ends_at = match self.ends_at {
                Some(ends_at) => ends_at,
                None => {
                    let filed_at = store.occurrence_filed_at(self.id).await?;
                    let wait = filed_at.map_or(Duration::ZERO, |filed_at| last_lines_wait(filed_at, state.clock.now()));
                    *self.ends_at.insert(Instant::now() + wait)
                }
            };
            if Instant::now() >= ends_at {
                let name = milvaion_api::rest::StatusName::from(status).as_str();
                self.ready.push_back(Frame::default().event("end").data(name));
                self.is_ended = true;
            }
        }
        Ok(!self.ready.is_empty())
    }

    /// Waits until there may be something new. Returns none if the stream ends.
    async fn wait(&mut self) -> Option<()> {
        let (stop, id) = (self.access.state.stop.clone(), self.id);
        let (mut until, since) = (self.ends_at.unwrap_or_else(|| Instant::now() + CHECK_INTERVAL), Instant::now());
        loop {
            tokio::select! {
                received = self.receiver.recv() => match received {
                    Ok(frame) => {
                        let event = &frame.envelope.event;
                        if ApiEvent::of(event, None, Some(id)).is_some() {
                            return Some(());
                        }
                        // Each server announces log lines twice a second, and those of many runs without their ids.
                        if event.concerns_log(id) {
                            until = until.min(since + LOG_READ_INTERVAL);
                        }
                    }
                    Err(RecvError::Lagged(_)) => return Some(()),
                    Err(RecvError::Closed) => return None,
                },
                () = tokio::time::sleep_until(until) => return Some(()),
                () = stop.cancelled() => return None,
            }
        }
    }
}

/// Returns the time for which lines of an occurrence may still arrive whose end was stored at `filed_at`.
fn last_lines_wait(filed_at: DateTime<Utc>, now: DateTime<Utc>) -> Duration {
    // The end may have been stored by a server whose clock is ahead.
    let age = (now - filed_at).to_std().unwrap_or_default();
    LAST_LINES_TIMEOUT.saturating_sub(age)
}

/// Builds the frame of a line, whose id is the number after which the client resumes.
fn line_frame(line: &LogLine, last: i64) -> Option<Frame> {
    Some(Frame::default().event("line").id(last.to_string()).data(serde_json::to_string(line).ok()?))
}
