//! `milvaion failures`.
//!
//! Retry and resolve act on the named failures, or on all open ones that match conditions. The latter are counted first
//! and the number is sent along, so that the server changes nothing if many more failures match by then.

use clap::{Args, Subcommand};
use milvaion_api::{
    failures::{FailureCause, FailureFilter, FailureGroup, FailureRow, FailureSelection, MAX_FAILURE_SELECTION},
    rest::{BulkResult, FailureQuery, ResolveFailures, RetryFailures, RetryResult},
};
use milvaion_client::{JobReference, collect};
use milvaion_protocol::id::OccurrenceId;
use serde::Serialize;

use super::{
    CliError, ListOptions, OutputFormat, Yes,
    arguments::{MAX_ITEMS, words},
    exit,
    session::Session,
    table::{Cell, Color, Details, Table, block},
    times::{Since, parse_since},
};

/// The conditions of a filter. All that are given must match.
#[derive(Clone, Debug, Default, Args)]
pub struct FailureConditions {
    /// Only failures of this job: its id or key.
    #[arg(long)]
    pub job: Option<JobReference>,
    /// Only failures with this fingerprint, which failures of the same kind share.
    #[arg(long)]
    pub fingerprint: Option<String>,
    /// Only failures with this cause.
    #[arg(long, value_parser = words::<FailureCause>(FailureCause::ALL.map(FailureCause::as_str)))]
    pub cause: Option<FailureCause>,
    /// Only failures with this text in the job's name or in the exception.
    #[arg(long)]
    pub text: Option<String>,
    /// Only failures since then: a time such as 2026-10-25T00:00:00Z, or a length of time such as 2h.
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    pub since: Option<Since>,
}

/// A command on failures.
#[derive(Debug, Subcommand)]
pub enum FailuresCommand {
    /// Lists the open failures, newest first.
    List {
        /// The conditions.
        #[command(flatten)]
        conditions: FailureConditions,
        /// Lists resolved failures instead.
        #[arg(long)]
        resolved: bool,
        /// The length of the list.
        #[command(flatten)]
        list: ListOptions,
    },
    /// Prints a failure with its exception and its input.
    Get {
        /// The id of the failed occurrence.
        id: OccurrenceId,
    },
    /// Lists the open failures by kind, the most frequent first.
    Groups {
        /// The conditions.
        #[command(flatten)]
        conditions: FailureConditions,
        /// The length of the list.
        #[command(flatten)]
        list: ListOptions,
    },
    /// Retries failures, each as a new occurrence: the named ones, or all open ones that match the conditions.
    Retry {
        /// The ids of the failed occurrences, at most 1,000.
        ids: Vec<OccurrenceId>,
        /// The conditions.
        #[command(flatten)]
        conditions: FailureConditions,
        /// Reason, for the audit log.
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
        /// The consent.
        #[command(flatten)]
        yes: Yes,
    },
    /// Resolves failures with a note: the named ones, or all open ones that match the conditions.
    Resolve {
        /// The ids of the failed occurrences, at most 1,000.
        ids: Vec<OccurrenceId>,
        /// The conditions.
        #[command(flatten)]
        conditions: FailureConditions,
        /// Note, at most 2,000 characters.
        #[arg(long, default_value = "", hide_default_value = true)]
        note: String,
        /// The consent.
        #[command(flatten)]
        yes: Yes,
    },
}

/// Runs a command on failures.
pub(super) async fn run(command: FailuresCommand, session: &mut Session<'_>) -> Result<u8, CliError> {
    match command {
        FailuresCommand::List { conditions, resolved, list } => {
            let query = FailureQuery { resolved: Some(resolved), ..query(&conditions, session).await? };
            let found = session.list(&query, list, async |client, query| client.failures(query).await).await?;
            session.print_list(&found, list, "failures", failures_table)
        }
        FailuresCommand::Get { id } => {
            let failure = session.client.failure(id).await?;
            session.print(&failure, failure_text)
        }
        FailuresCommand::Groups { conditions, list } => {
            let query = FailureQuery { resolved: Some(false), ..query(&conditions, session).await? };
            let found = session.list(&query, list, async |client, query| client.failure_groups(query).await).await?;
            session.print_list(&found, list, "failures", groups_table)
        }
        FailuresCommand::Retry { ids, conditions, reason, yes } => {
            let Some((selection, expected)) = select(ids, &conditions, "Retry", yes, session).await? else {
                return Ok(exit::SUCCESS);
            };
            let mut total = RetryResult::default();
            loop {
                let request =
                    RetryFailures { selection: selection.clone(), expected: Some(expected), reason: reason.clone() };
                let part = session.client.retry_failures(&request).await?;
                total.retried.extend(part.retried.iter().cloned());
                if !add(&mut total.result, part.result) {
                    break;
                }
            }
            let result = total.result.clone();
            report(session, &total, &result, "retried")
        }
        FailuresCommand::Resolve { ids, conditions, note, yes } => {
            let Some((selection, expected)) = select(ids, &conditions, "Resolve", yes, session).await? else {
                return Ok(exit::SUCCESS);
            };
            let mut total = BulkResult::default();
            loop {
                let request =
                    ResolveFailures { selection: selection.clone(), expected: Some(expected), note: note.clone() };
                let part = session.client.resolve_failures(&request).await?;
                if !add(&mut total, part) {
                    break;
                }
            }
            let result = total.clone();
            report(session, &total, &result, "resolved")
        }
    }
}

async fn query(conditions: &FailureConditions, session: &Session<'_>) -> Result<FailureQuery, CliError> {
    let job_id = match &conditions.job {
        Some(JobReference::Id(id)) => Some(*id),
        Some(reference) => Some(session.client.find_job(reference).await?.summary.id),
        None => None,
    };
    Ok(FailureQuery {
        resolved: None,
        job_id,
        fingerprint: conditions.fingerprint.clone(),
        cause: conditions.cause,
        text: conditions.text.clone(),
        since: conditions.since.map(|since| since.resolve(session.now)),
        after: None,
        limit: None,
    })
}

/// Returns the failures to change and the number of those that a filter matches, once the user agrees to a change by a
/// filter; none if the filter matches nothing.
async fn select(
    ids: Vec<OccurrenceId>,
    conditions: &FailureConditions,
    verb: &str,
    yes: Yes,
    session: &mut Session<'_>,
) -> Result<Option<(FailureSelection, u32)>, CliError> {
    let query = FailureQuery { resolved: Some(false), ..query(conditions, session).await? };
    let has_scope =
        query.job_id.is_some() || query.fingerprint.is_some() || query.cause.is_some() || query.text.is_some();
    match (ids.is_empty(), has_scope || query.since.is_some()) {
        (false, true) => {
            return Err(CliError::Usage("Give the ids of failures or conditions, not both.".into()));
        }
        (false, false) if ids.len() > MAX_FAILURE_SELECTION => {
            return Err(CliError::Usage("Give at most 1,000 ids, or use conditions.".into()));
        }
        (false, false) => return Ok(Some((FailureSelection::Ids(ids), 0))),
        (true, _) if !has_scope => {
            return Err(CliError::Usage(
                "Give the ids of failures, or at least one of --job, --fingerprint, --cause and --text.".into(),
            ));
        }
        (true, _) => {}
    }
    let client = &session.client;
    let matching = collect(&query, MAX_ITEMS, async |query: &FailureQuery| client.failures(query).await).await?;
    let count = matching.items.len();
    if count == 0 {
        session.console.message("No open failure matches the conditions.");
        return Ok(None);
    }
    let (at_least, noun) =
        (if matching.has_more { "at least " } else { "" }, if count == 1 { "failure" } else { "failures" });
    session.confirm(yes, &format!("{verb} {at_least}{count} open {noun}?"))?;
    let filter = FailureFilter {
        resolved: Some(false),
        job_id: query.job_id,
        fingerprint: query.fingerprint,
        cause: query.cause,
        text: query.text,
        since: query.since,
        after: None,
        limit: 0,
    };
    Ok(Some((FailureSelection::Filter(filter), u32::try_from(count).unwrap_or(u32::MAX))))
}

/// Adds the result of one request. Returns true if there is more to do and the request did something.
fn add(total: &mut BulkResult, part: BulkResult) -> bool {
    total.done += part.done;
    total.skipped += part.skipped;
    total.skip_reason = part.skip_reason.or(total.skip_reason.take());
    total.more = part.more;
    part.more && part.done > 0
}

fn report<T: Serialize>(
    session: &mut Session<'_>,
    document: &T,
    result: &BulkResult,
    done: &str,
) -> Result<u8, CliError> {
    if session.format != OutputFormat::Table {
        return session.print(document, |_, _| String::new());
    }
    session.console.message(&summary(result, "failures", done));
    Ok(exit::SUCCESS)
}

/// Returns the result of an action on many objects as a sentence.
pub(super) fn summary(result: &BulkResult, noun: &str, done: &str) -> String {
    let mut text = format!("{} {noun} {done}", result.done);
    if result.skipped > 0 {
        let reason = result.skip_reason.as_deref().unwrap_or("they do not allow it");
        text.push_str(&format!(", {} left as they are: {reason}", result.skipped));
    }
    text + "."
}

fn failures_table(session: &Session<'_>, failures: &[FailureRow]) -> Table {
    Table::new(
        ["OCCURRENCE", "JOB", "FAILED", "CAUSE", "FINGERPRINT", "EXCEPTION"],
        failures.iter().map(|failure| {
            let first = failure.exception.as_deref().and_then(|text| text.lines().next()).unwrap_or_default();
            [
                failure.occurrence_id.to_string().into(),
                Cell::plain(&failure.job_name),
                session.moment(failure.failed_at),
                cause(failure.cause),
                Cell::plain(&failure.fingerprint),
                Cell::plain(first),
            ]
        }),
    )
}

fn groups_table(session: &Session<'_>, groups: &[FailureGroup]) -> Table {
    Table::new(
        ["FINGERPRINT", "OPEN", "ALL", "JOBS", "LATEST", "JOB", "CAUSE", "EXCEPTION"],
        groups.iter().map(|group| {
            [
                Cell::plain(&group.fingerprint),
                group.open.to_string().into(),
                group.count.to_string().into(),
                group.jobs.to_string().into(),
                session.moment(group.last_at),
                Cell::plain(&group.job_name),
                cause(group.cause),
                Cell::plain(&group.note),
            ]
        }),
    )
}

fn cause(cause: FailureCause) -> Cell {
    Cell::new(cause.as_str().replace('_', " "), Color::Red)
}

fn failure_text(session: &Session<'_>, failure: &FailureRow) -> String {
    let details = Details::default()
        .with("Occurrence", failure.occurrence_id.to_string())
        .with("Job", format!("{} ({})", failure.job_name, failure.job_id))
        .with("Failed", session.moment(failure.failed_at))
        .with("Cause", cause(failure.cause))
        .with("Attempt", failure.attempt.to_string())
        .with("Worker", format!("{} / {}", failure.worker_id, failure.job_type))
        .with("Fingerprint", &failure.fingerprint)
        .with_some("Resolved", failure.resolved_at.map(|at| session.moment(at)))
        .with_some("Resolved by", failure.resolved_by.as_ref())
        .with_some("Note", failure.resolution_note.as_ref())
        .with_some("Retried as", failure.retried_as.map(|id| id.to_string()));
    let input = serde_json::to_string_pretty(&failure.job_data).ok();
    session.details(&details) + &block("Input", input.as_deref()) + &block("Exception", failure.exception.as_deref())
}
