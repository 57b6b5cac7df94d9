//! Waiting for the end of an occurrence, with or without its log.
//!
//! Both read the same stream: a wait asks for no lines and only receives the changes of the status, so that it asks the
//! server nothing meanwhile. It ends with the final status. A log ends when no more lines are expected, which may be two
//! seconds later.

use std::time::Duration;

use milvaion_api::{log_fields::log_fields_text, rest::StatusName};
use milvaion_client::{AFTER_ALL_LINES, LogEvent, LogFollower};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLevel, LogLine},
};

use super::{
    CliError, Console, OutputFormat, exit,
    output::to_stream_document,
    session::Session,
    table::{Cell, Color, printable_lines, printable_output},
};

/// The event after which a follower is read no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastEvent {
    /// The final status.
    FinalStatus,
    /// The end of the log.
    EndOfLog,
}

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The occurrence has ended with this status.
    Ended(StatusName),
    /// The wait took too long.
    TimedOut,
}

impl Ending {
    /// Returns the exit code.
    pub(super) fn exit_code(self) -> u8 {
        match self {
            Self::Ended(status) => exit::of_status(status).unwrap_or(exit::FAILED),
            Self::TimedOut => exit::WAIT_TIMED_OUT,
        }
    }

    /// Writes the ending as a message.
    pub(super) fn announce(self, console: &mut Console, id: OccurrenceId) {
        console.message(&match self {
            Self::Ended(status) => format!("Occurrence {id} ended: {}.", status_word(status)),
            Self::TimedOut => format!("Occurrence {id} has not ended within the time of --timeout. It goes on."),
        });
    }
}

/// Returns a status in words.
pub(super) fn status_word(status: StatusName) -> &'static str {
    match status {
        StatusName::TimedOut => "timed out",
        status => status.as_str(),
    }
}

/// Returns a status as a cell.
pub(super) fn status_cell(status: StatusName) -> Cell {
    let color = match status {
        StatusName::Completed => Color::Green,
        StatusName::Failed | StatusName::TimedOut => Color::Red,
        StatusName::Unknown | StatusName::Cancelled => Color::Yellow,
        StatusName::Running => Color::Blue,
        StatusName::Queued => Color::Plain,
        StatusName::Skipped => Color::Faint,
    };
    Cell::new(status_word(status), color)
}

/// Waits for the end of an occurrence.
pub(super) async fn wait(
    session: &mut Session<'_>,
    id: OccurrenceId,
    timeout: Option<Duration>,
) -> Result<Ending, CliError> {
    let follower = session.client.follow_log(id, AFTER_ALL_LINES);
    until(LastEvent::FinalStatus, session, follower, timeout).await
}

/// Prints the log of an occurrence until its end.
pub(super) async fn print_log(
    session: &mut Session<'_>,
    id: OccurrenceId,
    timeout: Option<Duration>,
) -> Result<Ending, CliError> {
    let follower = session.client.follow_log(id, 0);
    let ending = until(LastEvent::EndOfLog, session, follower, timeout).await?;
    ending.announce(session.console, id);
    Ok(ending)
}

/// Reads a follower to an event, the timeout or Ctrl-C, and prints its lines.
async fn until(
    last: LastEvent,
    session: &mut Session<'_>,
    mut follower: LogFollower,
    timeout: Option<Duration>,
) -> Result<Ending, CliError> {
    let interrupt = session.console.interrupt.clone();
    let limit = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    let read = async {
        let mut ended = None;
        while let Some(event) = follower.next().await? {
            match event {
                LogEvent::Line(line) => {
                    print_line(session, &line)?;
                    session.console.flush()?;
                }
                LogEvent::Status(occurrence) => {
                    ended = exit::of_status(occurrence.status).map(|_| occurrence.status).or(ended);
                    if ended.is_some() && last == LastEvent::FinalStatus {
                        break;
                    }
                }
                LogEvent::Lost(error) => session.console.message(&format!("{error} Connecting again.")),
                LogEvent::End => break,
                // An event of a later client.
                _ => {}
            }
        }
        Ok::<_, CliError>(ended)
    };
    let ended = tokio::select! {
        // An interrupt comes before a line, so that a fast log does not delay it.
        biased;
        () = interrupt => return Err(CliError::Interrupted),
        ended = read => ended?,
        () = limit => return Ok(Ending::TimedOut),
    };
    match ended {
        Some(status) => Ok(Ending::Ended(status)),
        // The stream has ended before it sent the last change.
        None => {
            let status = session.client.occurrence(follower.occurrence()).await?.summary.status;
            Ok(Ending::Ended(status))
        }
    }
}

/// Prints a line of a log.
pub(super) fn print_line(session: &mut Session<'_>, line: &LogLine) -> Result<(), CliError> {
    let text = match to_stream_document(session.format, line)? {
        Some(document) => document,
        None => line_text(session, line),
    };
    session.console.write(text.as_bytes())
}

fn line_text(session: &Session<'_>, line: &LogLine) -> String {
    debug_assert_eq!(session.format, OutputFormat::Table, "documents are formatted elsewhere");
    let at = (session.console.environment.to_local)(line.at).format("%Y-%m-%d %H:%M:%S%.3f");
    let color = match line.level {
        LogLevel::Debug => Color::Faint,
        LogLevel::Info => Color::Plain,
        LogLevel::Warn => Color::Yellow,
        LogLevel::Error => Color::Red,
    };
    let level = session.paint(&format!("{:<5}", line.level.as_str()), color);
    let data = line.data.as_ref().map(log_fields_text).unwrap_or_default();
    format!("{at} {level} {}{}\n", printable_output(&line.message), printable_lines(&data))
}
