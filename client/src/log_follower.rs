//! The log of an occurrence, followed while it is written.
//!
//! A run may take hours, and a connection of hours is lost sooner or later: a proxy ends it, a laptop sleeps, a server is
//! updated. The follower then connects again and asks for the lines after the last one that it returned. A line has a
//! sequence number, and one that was returned before is dropped, so that a caller receives each line exactly once.

use std::{collections::VecDeque, time::Duration};

use milvaion_api::rest::{LogQuery, Occurrence, OccurrenceDetail, StatusName};
use milvaion_protocol::{id::OccurrenceId, message::LogLine};
use serde::de::DeserializeOwned;

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

/// A sequence number after every line: the largest one that JSON numbers keep exactly.
pub(crate) const AFTER_ALL_LINES: i64 = (1 << 53) - 1;

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
    /// The occurrence has ended, and all its lines were returned.
    End,
}

/// A follower of the log of an occurrence.
#[derive(Debug)]
pub struct LogFollower {
    client: Client,
    occurrence: OccurrenceId,
    /// The sequence number of the last line.
    last_seq: i64,
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

impl Client {
    /// Waits for the end of an occurrence, and returns it with its result. The server sends the change of the status, so
    /// nothing is asked meanwhile. An end is *Completed*, *Failed*, *Cancelled*, *Timed out* or *Skipped*; none of them is an
    /// error of this method. Limit the wait with `tokio::time::timeout`.
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

    /// Follows the log of an occurrence, from the line after the sequence number `after`. 0 starts with the first line.
    #[must_use]
    pub fn follow_log(&self, occurrence: OccurrenceId, after: i64) -> LogFollower {
        LogFollower {
            client: self.clone(),
            occurrence,
            last_seq: after,
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
                if line.seq > self.last_seq {
                    self.last_seq = line.seq;
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
