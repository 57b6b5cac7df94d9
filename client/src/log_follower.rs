//! The log of an occurrence, followed while it is written.
//!
//! A run may take hours, and a connection of hours is lost sooner or later: a proxy ends it, a laptop sleeps, a server is
//! updated. The follower then connects again and asks for the lines after the last one that it returned. A line has a
//! sequence number, and one that was returned before is dropped, so that a caller receives each line once. Servers may
//! store lines in another order, so a line may follow one with a higher number.

use std::{collections::VecDeque, time::Duration};

use milvaion_api::rest::{LogQuery, Occurrence, OccurrenceDetail, StatusName};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLine, MAX_RESULT_BYTES},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    Client, ClientError,
    retry::backoff,
    sse::{Frame, FrameParser},
};

/// The number of connections in a row without an event after which a follower gives up.
const MAX_FAILURES: u32 = 10;
/// The doublings of the first wait before a new connection. It is longer than between requests, because a server that
/// ends each stream at once would otherwise be asked several times a second.
const RECONNECT_DOUBLINGS: u32 = 3;

/// The number of characters of an unreadable result in its error.
const EXCERPT_CHARS: usize = 80;

/// A sequence number after every line: [`Client::follow_log`] then returns the changes of the status only. It is the largest
/// one that JSON numbers keep exactly.
pub const AFTER_ALL_LINES: i64 = (1 << 53) - 1;

/// An event of the log.
#[derive(Debug)]
#[non_exhaustive]
pub enum LogEvent {
    /// A line.
    Line(LogLine),
    /// The occurrence, at the start and after each change.
    Status(Box<Occurrence>),
    /// The connection was lost for this reason. The next event comes from a new connection.
    Lost(ClientError),
    /// The occurrence has ended, and its lines were returned. The last lines may be stored after the end, so the server waits
    /// for them until two seconds after the end, and two seconds after each of them. A later one is only in the stored log.
    End,
}

/// The reason why an occurrence has no result of the expected type.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResultError {
    /// The occurrence could not be waited for.
    #[error(transparent)]
    Client(#[from] ClientError),

    /// The occurrence ended with another status than *Completed*.
    #[error("Occurrence {} has no result, because it {}", .0.summary.id, describe_end(.0))]
    NotCompleted(Box<OccurrenceDetail>),

    /// The result is not JSON of the expected type.
    #[error(
        "The result of occurrence {occurrence} is not JSON of the type {expected}: it {}. Wait for the type that the job \
         returns. The server truncates a result of more than {} KiB.", describe_result(.text.as_deref()), MAX_RESULT_BYTES / 1024
    )]
    Unreadable {
        /// The occurrence.
        occurrence: OccurrenceId,
        /// The name of the expected type.
        expected: &'static str,
        /// The result as it is stored.
        text: Option<String>,
        /// The error of the parser.
        source: serde_json::Error,
    },
}

/// A follower of the log of an occurrence.
#[derive(Debug)]
pub struct LogFollower {
    client: Client,
    occurrence: OccurrenceId,
    /// The highest sequence number so far.
    last_seq: i64,
    /// The same when the present connection began, which repeats no line of its own.
    connected_after: i64,
    connection: Option<Connection>,
    events: VecDeque<LogEvent>,
    /// The number of connections in a row that were lost without an event.
    failures: u32,
    /// The wait before the next connection.
    wait: Duration,
    has_ended: bool,
}

#[derive(Debug)]
struct Connection {
    response: reqwest::Response,
    parser: FrameParser,
}

/// Returns true if a status never changes again.
const fn is_final(status: StatusName) -> bool {
    !matches!(status, StatusName::Queued | StatusName::Running | StatusName::Unknown)
}

/// Returns the end of an occurrence that did not complete, with its reason.
fn describe_end(occurrence: &OccurrenceDetail) -> String {
    let status = occurrence.summary.status.as_str().replace('_', " ");
    let reason = occurrence.summary.note.as_deref().or(occurrence.exception.as_deref());
    match reason.and_then(|text| text.lines().next()) {
        Some(reason) => format!("ended as {status}: {reason}"),
        None => format!("ended as {status}."),
    }
}

fn describe_result(text: Option<&str>) -> String {
    match text {
        Some(text) => format!("begins with {:?}", text.chars().take(EXCERPT_CHARS).collect::<String>()),
        None => "is empty".to_owned(),
    }
}

/// Reads a result. It is JSON, except that a string is stored without its quotation marks, and `null` not at all.
fn read_result<T: DeserializeOwned>(text: Option<&str>) -> Result<T, serde_json::Error> {
    let Some(text) = text else { return serde_json::from_value(Value::Null) };
    // Of two errors, the one about the JSON is returned.
    serde_json::from_str(text).or_else(|error| serde_json::from_value(text.into()).map_err(|_| error))
}

impl Client {
    /// Waits for the end of an occurrence, and returns it with its result. The server sends the change of the status, so
    /// nothing is asked meanwhile. An end is *Completed*, *Failed*, *Cancelled*, *Timed out* or *Skipped*; none of them is an
    /// error of this method. Limit the wait with `tokio::time::timeout`. The wait is over when the end is stored, which may be
    /// a moment before the last lines of the log are; a [follower](Self::follow_log) waits for them.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such occurrence, or if the server cannot be reached for about a minute.
    pub async fn wait(&self, occurrence: OccurrenceId) -> Result<OccurrenceDetail, ClientError> {
        let mut follower = self.follow_log(occurrence, AFTER_ALL_LINES);
        while let Some(event) = follower.next().await? {
            if matches!(&event, LogEvent::Status(now) if is_final(now.status)) {
                break;
            }
        }
        self.occurrence(occurrence).await
    }

    /// Waits for the end of an occurrence like [`wait`](Self::wait), and returns its result as a value of the type that its
    /// job returns. A job that returns nothing has the result `()`, and `serde_json::Value` is a type for every result, with
    /// one exception: a string is stored without its quotation marks, so one that reads as JSON, such as `42`, becomes that
    /// value. Wait for a `String` if the job returns one.
    ///
    /// ```no_run
    /// # use milvaion_client::{Client, Enqueue, EnqueueClient};
    /// # async fn example(client: Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let greeting = Enqueue::job_type("hello", "hello").input(serde_json::json!({ "name": "Grace" }));
    /// let occurrence = EnqueueClient::new(client.clone()).enqueue(greeting).await?.id();
    /// let text: String = client.wait_for_result(occurrence).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`wait`](Self::wait), and an error if the occurrence ended with another status than *Completed*,
    /// or if its result is not JSON of the type.
    pub async fn wait_for_result<T: DeserializeOwned>(&self, occurrence: OccurrenceId) -> Result<T, ResultError> {
        let ended = self.wait(occurrence).await?;
        if ended.summary.status != StatusName::Completed {
            return Err(ResultError::NotCompleted(Box::new(ended)));
        }
        let text = ended.result;
        read_result(text.as_deref()).map_err(|source| ResultError::Unreadable {
            occurrence,
            expected: std::any::type_name::<T>(),
            text,
            source,
        })
    }

    /// Follows the log of an occurrence, from the line after the sequence number `after`. 0 starts with the first line, and
    /// [`AFTER_ALL_LINES`] returns no lines.
    #[must_use]
    pub fn follow_log(&self, occurrence: OccurrenceId, after: i64) -> LogFollower {
        LogFollower {
            client: self.clone(),
            occurrence,
            last_seq: after,
            connected_after: after,
            connection: None,
            events: VecDeque::new(),
            failures: 0,
            wait: Duration::ZERO,
            has_ended: false,
        }
    }
}

impl LogFollower {
    /// Returns the id of the occurrence.
    #[must_use]
    pub const fn occurrence(&self) -> OccurrenceId {
        self.occurrence
    }

    /// Returns the next event; none after [`LogEvent::End`].
    ///
    /// # Errors
    ///
    /// Returns an error if the server refuses the stream, or if it cannot be reached for about a minute.
    pub async fn next(&mut self) -> Result<Option<LogEvent>, ClientError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if self.has_ended {
                return Ok(None);
            }
            match self.connection.take() {
                None => self.connect().await?,
                Some(connection) => self.read(connection).await?,
            }
        }
    }

    async fn connect(&mut self) -> Result<(), ClientError> {
        tokio::time::sleep(std::mem::take(&mut self.wait)).await;
        let id = self.occurrence.to_string();
        let query = LogQuery { after: Some(self.last_seq), before: None };
        let path = ["occurrences", &id, "log", "stream"];
        match self.client.open_stream(&path, &query, self.failures + RECONNECT_DOUBLINGS).await {
            Ok(response) => {
                self.connection = Some(Connection { response, parser: FrameParser::default() });
                self.connected_after = self.last_seq;
                Ok(())
            }
            Err((error, Some(wait))) => self.lose(error, wait),
            Err((error, None)) => Err(error),
        }
    }

    /// Reads the next piece of the stream.
    async fn read(&mut self, mut connection: Connection) -> Result<(), ClientError> {
        let limit = self.client.options().stream_idle_timeout;
        let wait = backoff(self.failures + RECONNECT_DOUBLINGS, self.client.options().retry_delay);
        let bytes = match tokio::time::timeout(limit, connection.response.chunk()).await {
            Ok(Ok(Some(bytes))) => bytes,
            // The server has closed the stream without its end: it is being stopped.
            Ok(Ok(None)) => {
                let reason = "it ended before the log did".to_owned();
                return self.lose(ClientError::UnreadableStream { address: self.address(), reason }, wait);
            }
            Ok(Err(error)) => return self.lose(self.client.transport(error), wait),
            Err(_) => return self.lose(self.client.timeout(limit), wait),
        };
        let frames = connection
            .parser
            .push(&bytes)
            .map_err(|reason| ClientError::UnreadableStream { address: self.address(), reason })?;
        self.connection = Some(connection);
        for frame in frames {
            self.accept(&frame)?;
        }
        Ok(())
    }

    /// Turns a frame into an event. Unknown frames are those of newer servers.
    fn accept(&mut self, frame: &Frame) -> Result<(), ClientError> {
        match frame.event.as_str() {
            "line" => {
                let line: LogLine = self.parse(frame)?;
                if line.seq > self.connected_after {
                    self.last_seq = self.last_seq.max(line.seq);
                    self.events.push_back(LogEvent::Line(line));
                }
            }
            "status" => {
                let occurrence = self.parse(frame)?;
                self.events.push_back(LogEvent::Status(Box::new(occurrence)));
            }
            "end" => {
                self.has_ended = true;
                self.connection = None;
                self.events.push_back(LogEvent::End);
            }
            _ => return Ok(()),
        }
        self.failures = 0;
        Ok(())
    }

    fn parse<T: DeserializeOwned>(&self, frame: &Frame) -> Result<T, ClientError> {
        serde_json::from_str(&frame.data)
            .map_err(|source| ClientError::UnreadableAnswer { address: self.address(), source })
    }

    /// Counts a lost connection. Returns its error if there were too many in a row.
    fn lose(&mut self, error: ClientError, wait: Duration) -> Result<(), ClientError> {
        self.connection = None;
        self.failures += 1;
        self.wait = wait;
        if self.failures >= MAX_FAILURES {
            return Err(error);
        }
        self.events.push_back(LogEvent::Lost(error));
        Ok(())
    }

    fn address(&self) -> String {
        format!("the log of occurrence {}", self.occurrence)
    }
}
