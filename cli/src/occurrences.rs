//! `milvaion occurrences`.

use std::time::Duration;

use clap::Subcommand;
use milvaion_api::{
    page::TimeWindow,
    rest::{CancelOccurrence, LogQuery, Occurrence, OccurrenceDetail, OccurrenceQuery, RetryOccurrence, StatusName},
};
use milvaion_client::JobReference;
use milvaion_protocol::id::OccurrenceId;

use super::{
    CliError, ListOptions, OutputFormat,
    arguments::words,
    exit, follow,
    session::Session,
    table::{Cell, Details, Table, block},
    times::{Since, duration, parse_length, parse_since},
};

/// The words of the statuses.
const STATUSES: [&str; 8] =
    ["queued", "running", "completed", "failed", "cancelled", "timed_out", "unknown", "skipped"];

/// A command on occurrences.
#[derive(Debug, Subcommand)]
pub enum OccurrencesCommand {
    /// Lists the occurrences, newest first.
    List {
        /// Only occurrences of this job: its id or key.
        #[arg(long)]
        job: Option<JobReference>,
        /// Only occurrences with this status.
        #[arg(long, value_parser = words::<StatusName>(STATUSES))]
        status: Option<StatusName>,
        /// Only occurrences that are open or ended in the last hour, day or week.
        #[arg(long, value_parser = words::<TimeWindow>(TimeWindow::ALL.map(TimeWindow::slug)))]
        window: Option<TimeWindow>,
        /// Only occurrences created since then: a time such as 2026-10-25T00:00:00Z, or a length of time such as 2h.
        #[arg(long, value_name = "TIME", value_parser = parse_since)]
        since: Option<Since>,
        /// The length of the list.
        #[command(flatten)]
        list: ListOptions,
    },
    /// Prints an occurrence with its input, its status changes, and its result or exception.
    Get {
        /// The id of the occurrence.
        id: OccurrenceId,
    },
    /// Prints the log of an occurrence.
    Logs {
        /// The id of the occurrence.
        id: OccurrenceId,
        /// Prints new lines until the occurrence ends, and for about two more seconds, because the last lines may be stored after
        /// the end. The exit code is then that of `wait`.
        #[arg(long, short)]
        follow: bool,
    },
    /// Cancels an occurrence. A running one ends when its worker has stopped the run.
    Cancel {
        /// The id of the occurrence.
        id: OccurrenceId,
        /// Reason, for the audit log.
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
    },
    /// Retries a failed occurrence as a new one and prints the id of the new one.
    Retry {
        /// The id of the occurrence.
        id: OccurrenceId,
        /// Reason, for the audit log.
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
        /// Retries an occurrence that was retried before.
        #[arg(long)]
        force: bool,
    },
    /// Waits for the end of an occurrence.
    ///
    /// The exit code is 0 if it completes, 10 if it fails, 11 if it exceeds its timeout, 12 if it is cancelled, 13 if it
    /// is skipped, and 14 if the wait takes too long.
    Wait {
        /// The id of the occurrence.
        id: OccurrenceId,
        /// Maximum time, such as 90s, 15m or 2h. The occurrence goes on afterwards.
        #[arg(long, value_name = "TIME", value_parser = parse_length)]
        timeout: Option<Duration>,
    },
}

/// Runs a command on occurrences.
pub(super) async fn run(command: OccurrencesCommand, session: &mut Session<'_>) -> Result<u8, CliError> {
    match command {
        OccurrencesCommand::List { job, status, window, since, list } => {
            let job_id = match job {
                Some(JobReference::Id(id)) => Some(id),
                Some(reference) => Some(session.client.find_job(&reference).await?.summary.id),
                None => None,
            };
            let since = since.map(|since| since.resolve(session.now));
            let query = OccurrenceQuery { job_id, status, window, since, ..OccurrenceQuery::default() };
            let found = session.list(&query, list, async |client, query| client.occurrences(query).await).await?;
            session.print_list(&found, list, "occurrences", occurrences_table)
        }
        OccurrencesCommand::Get { id } => {
            let occurrence = session.client.occurrence(id).await?;
            session.print(&occurrence, occurrence_text)
        }
        OccurrencesCommand::Logs { id, follow: true } => Ok(follow::print_log(session, id, None).await?.exit_code()),
        OccurrencesCommand::Logs { id, follow: false } => print_stored_log(session, id).await,
        OccurrencesCommand::Cancel { id, reason } => {
            let occurrence = session.client.cancel_occurrence(id, &CancelOccurrence { reason }).await?;
            if session.format != OutputFormat::Table {
                return session.print(&occurrence, |_, _| String::new());
            }
            session.console.message(&match exit::of_status(occurrence.summary.status) {
                Some(_) => format!("Occurrence {id} is cancelled."),
                None => format!("Occurrence {id} ends when its worker has stopped the run."),
            });
            Ok(exit::SUCCESS)
        }
        OccurrencesCommand::Retry { id, reason, force } => {
            let retry = RetryOccurrence { input: None, reason, force };
            let occurrence = session.client.retry_occurrence(id, &retry).await?;
            session.print(&occurrence, |_, occurrence| format!("{}\n", occurrence.summary.id))
        }
        OccurrencesCommand::Wait { id, timeout } => {
            let ending = follow::wait(session, id, timeout).await?;
            ending.announce(session.console, id);
            if session.format != OutputFormat::Table {
                let occurrence = session.client.occurrence(id).await?;
                session.print(&occurrence, |_, _| String::new())?;
            }
            Ok(ending.exit_code())
        }
    }
}

/// Prints the lines that are stored now, the oldest first.
async fn print_stored_log(session: &mut Session<'_>, id: OccurrenceId) -> Result<u8, CliError> {
    let mut after = 0;
    loop {
        let page = session.client.log(id, &LogQuery { after: Some(after), before: None }).await?;
        let Some(last) = page.lines.last().map(|line| line.seq).filter(|last| *last > after) else {
            if after == 0 {
                session.console.message("The log has no lines yet.");
            }
            return Ok(exit::SUCCESS);
        };
        after = last;
        for line in &page.lines {
            follow::print_line(session, line)?;
        }
    }
}

fn occurrences_table(session: &Session<'_>, occurrences: &[Occurrence]) -> Table {
    Table::new(
        ["ID", "JOB", "STATUS", "DUE", "DURATION", "NOTE"],
        occurrences.iter().map(|occurrence| {
            [
                occurrence.id.to_string().into(),
                Cell::plain(&occurrence.job_name),
                status(occurrence),
                session.moment(occurrence.scheduled_for),
                occurrence.duration_ms.map(duration).unwrap_or_default().into(),
                occurrence.note.clone().unwrap_or_default().into(),
            ]
        }),
    )
}

/// Returns the status with the progress of a run.
fn status(occurrence: &Occurrence) -> Cell {
    match (&occurrence.progress, occurrence.status) {
        (Some(progress), StatusName::Running) => Cell::plain(format!("running {} %", progress.percent)),
        (_, status) => follow::status_cell(status),
    }
}

fn occurrence_text(session: &Session<'_>, occurrence: &OccurrenceDetail) -> String {
    let summary = &occurrence.summary;
    let moment = |at| session.moment_or(at, "");
    let details = Details::default()
        .with("Id", summary.id.to_string())
        .with("Job", format!("{} ({})", summary.job_name, summary.job_id))
        .with("Status", status(summary))
        .with_some("Waits for", occurrence.waits_for_slot.then_some("a slot"))
        .with_some("Note", summary.note.as_ref())
        .with("Trigger", summary.trigger.as_str())
        .with_some("Run by", occurrence.triggered_by.as_ref())
        .with_some("Token", occurrence.trigger_token.as_ref())
        .with_some("Reason", occurrence.trigger_reason.as_ref())
        .with_some("Retry of", occurrence.retry_of.map(|id| id.to_string()))
        .with("Attempt", summary.attempt.to_string())
        .with("Worker", format!("{} / {}", occurrence.worker_id, occurrence.job_type))
        .with_some("Instance", summary.instance_id.as_ref())
        .with("Due", session.moment(summary.scheduled_for))
        .with_some("Delayed until", summary.delayed_until.map(|at| moment(Some(at))))
        .with_some("Started", summary.started_at.map(|at| moment(Some(at))))
        .with_some("Ended", summary.ended_at.map(|at| moment(Some(at))))
        .with_some("Duration", summary.duration_ms.map(duration))
        .with_some("Trace", Some(occurrence.trace_id.as_str()))
        .with_some("Cancel requested", summary.cancel_requested_at.map(|at| moment(Some(at))));
    let mut text = session.details(&details);
    if !occurrence.input.is_null() {
        text += &block("Input", serde_json::to_string_pretty(&occurrence.input).ok().as_deref());
    }
    text += &block("Result", occurrence.result.as_deref());
    text += &block("Exception", occurrence.exception.as_deref());
    if !occurrence.changes.is_empty() {
        let rows = occurrence.changes.iter().map(|change| {
            [
                session.moment(change.at),
                follow::status_cell(change.status),
                change.attempt.to_string().into(),
                change.by.clone().unwrap_or_default().into(),
                change.note.clone().unwrap_or_default().into(),
            ]
        });
        text += "\n";
        text += &session.table(&Table::new(["CHANGED", "STATUS", "ATTEMPT", "BY", "NOTE"], rows));
    }
    text
}
