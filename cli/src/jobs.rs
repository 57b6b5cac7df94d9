//! `milvaion jobs`.

use std::{
    fs,
    io::{self, Read},
    time::Duration,
};

use chrono::{DateTime, Utc};
use clap::Subcommand;
use milvaion_api::{
    requests::parse_exact_json,
    rest::{
        CancelDelayed, CancelDelayedResult, Job, JobQuery, JobSummary, OccurrenceDetail, PauseRequest, RunJob, SkipDue,
        VersionQuery,
    },
    views::MAX_COUNTED_OPEN,
};
use milvaion_client::{Client, JobReference};
use serde_json::Value;

use super::{
    CliError, Console, ListOptions, OutputFormat, Yes, exit,
    follow::{self, Ending},
    session::Session,
    table::{Cell, Color, Details, Table, block},
    times::{self, parse_length},
};

/// A command on jobs.
#[derive(Debug, Subcommand)]
pub enum JobsCommand {
    /// Lists the jobs by name, with their next due times.
    List {
        /// Only jobs with this text in the name, the description, the job type or a tag.
        #[arg(long)]
        text: Option<String>,
        /// Only jobs with this tag.
        #[arg(long)]
        tag: Option<String>,
        /// Only active jobs.
        #[arg(long, conflicts_with = "paused")]
        active: bool,
        /// Only paused jobs.
        #[arg(long)]
        paused: bool,
        /// The length of the list.
        #[command(flatten)]
        list: ListOptions,
    },
    /// Prints a job with its schedule and its next due times.
    Get {
        /// The id or the key of the job.
        job: JobReference,
    },
    /// Runs a job now and prints the id of the occurrence.
    Run {
        /// The id or the key of the job.
        job: JobReference,
        /// Input of this occurrence instead of the job's own: JSON, `@file`, or `-` for standard input.
        #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
        input: Option<String>,
        /// Reason, for the audit log.
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
        /// Runs the job even if it or the cluster is paused, or its previous occurrence has not ended.
        #[arg(long)]
        force: bool,
        /// Waits for the end of the occurrence. The exit code is 0 only if it completes.
        #[arg(long)]
        wait: bool,
        /// Prints the log until the end of the occurrence, as `occurrences logs --follow` does. The exit code is as with
        /// --wait.
        #[arg(long)]
        follow: bool,
        /// Maximum time for --wait and --follow, such as 90s, 15m or 2h. The occurrence goes on afterwards.
        #[arg(long, value_name = "TIME", value_parser = parse_length)]
        timeout: Option<Duration>,
    },
    /// Pauses a job: it does not start until it is resumed.
    Pause {
        /// The id or the key of the job.
        job: JobReference,
        /// Reason, which the page of the job shows.
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
    },
    /// Resumes a paused job.
    Resume {
        /// The id or the key of the job.
        job: JobReference,
    },
    /// Skips the next due time of a job. The due times after it stay.
    SkipDue {
        /// The id or the key of the job.
        job: JobReference,
        /// Due time to skip; without it, the one that is the next now. A command that may be repeated names it, so that
        /// it skips no other one.
        #[arg(long, value_name = "TIME", value_parser = times::parse_time)]
        due_at: Option<DateTime<Utc>>,
    },
    /// Cancels all delayed occurrences of a job, oldest first.
    ///
    /// They wait for the time that the program that enqueued them has set, or for a retry. Those that are enqueued during
    /// the command are cancelled too. A failure on the way leaves the rest delayed; the command can be repeated.
    CancelDelayed {
        /// The id or the key of the job.
        job: JobReference,
        /// Reason, which the pages of the occurrences show.
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
        /// The consent.
        #[command(flatten)]
        yes: Yes,
    },
    /// Deletes a job. Its occurrences remain.
    Delete {
        /// The id or the key of the job.
        job: JobReference,
        /// The consent.
        #[command(flatten)]
        yes: Yes,
    },
    /// Lists the versions of a job with the fields that each one changed, newest first.
    History {
        /// The id or the key of the job.
        job: JobReference,
        /// The length of the list.
        #[command(flatten)]
        list: ListOptions,
    },
}

/// Runs a command on jobs.
pub(super) async fn run(command: JobsCommand, session: &mut Session<'_>) -> Result<u8, CliError> {
    match command {
        JobsCommand::List { text, tag, active, paused, list } => {
            let active = if active { Some(true) } else { paused.then_some(false) };
            let query = JobQuery { text, tag, active, ..JobQuery::default() };
            let jobs = session.list(&query, list, async |client, query| client.jobs(query).await).await?;
            session.print_list(&jobs, list, "jobs", jobs_table)
        }
        JobsCommand::Get { job } => {
            let job = session.client.find_job(&job).await?;
            session.print(&job, job_text)
        }
        JobsCommand::Run { job, input, reason, force, wait, follow, timeout } => {
            if timeout.is_some() && !wait && !follow {
                return Err(CliError::Usage("--timeout is the limit of --wait and --follow. Add one of them.".into()));
            }
            let input = input.map(|argument| read_input(&argument, session.console)).transpose()?;
            let id = session.client.find_job(&job).await?.summary.id;
            let occurrence = session.client.run_job(id, &RunJob { input, reason, force }).await?;
            started(&occurrence, wait, follow, timeout, session).await
        }
        JobsCommand::Pause { job, reason } => {
            let id = session.client.find_job(&job).await?.summary.id;
            let job = session.client.pause_job(id, &PauseRequest { reason }).await?;
            changed(session, &job, "is paused")
        }
        JobsCommand::Resume { job } => {
            let id = session.client.find_job(&job).await?.summary.id;
            let job = session.client.resume_job(id).await?;
            changed(session, &job, "is active")
        }
        JobsCommand::SkipDue { job, due_at } => {
            let found = session.client.find_job(&job).await?.summary;
            let Some(due_at) = due_at.or(found.next_due_at) else {
                return Err(CliError::Usage(format!("The job {job} has no next due time that could be skipped.")));
            };
            let job = session.client.skip_due(found.id, &SkipDue { due_at }).await?;
            let to_local = session.console.environment.to_local;
            let next = job.summary.next_due_at.map(|at| times::moment(at, session.now, to_local)).unwrap_or_default();
            changed(session, &job, &format!("is due next at {next}"))
        }
        JobsCommand::CancelDelayed { job, reason, yes } => {
            let found = session.client.find_job(&job).await?;
            cancel_delayed(session, &found, reason, yes).await
        }
        JobsCommand::Delete { job, yes } => {
            let found = session.client.find_job(&job).await?;
            let name = &found.summary.display_name;
            session.confirm(yes, &format!("Delete the job {name:?} ({job})?"))?;
            session.client.delete_job(found.summary.id, None).await?;
            session.console.message(&format!("The job {name:?} is deleted."));
            Ok(exit::SUCCESS)
        }
        JobsCommand::History { job, list } => {
            let id = session.client.find_job(&job).await?.summary.id;
            let page = async |client: &Client, query: &VersionQuery| client.job_versions(id, query).await;
            let steps = session.list(&VersionQuery::default(), list, page).await?;
            session.print_list(&steps, list, "versions", |session, steps| {
                Table::new(
                    ["VERSION", "CHANGED", "BY", "FIELDS"],
                    steps.iter().map(|step| {
                        let more = if step.more { ", …" } else { "" };
                        [
                            step.row.version.to_string().into(),
                            session.moment(step.row.changed_at),
                            Cell::plain(&step.row.changed_by),
                            Cell::plain(step.fields.join(", ") + more),
                        ]
                    }),
                )
            })
        }
    }
}

/// Prints a new occurrence, and waits for its end if asked to.
async fn started(
    occurrence: &OccurrenceDetail,
    wait: bool,
    follow: bool,
    timeout: Option<Duration>,
    session: &mut Session<'_>,
) -> Result<u8, CliError> {
    let id = occurrence.summary.id;
    if follow {
        session.console.message(&format!("Occurrence {id}"));
        return follow::print_log(session, id, timeout).await.map(Ending::exit_code);
    }
    let is_table = session.format == OutputFormat::Table;
    // A document is printed once: at the end, if that is waited for.
    if is_table || !wait {
        session.print(occurrence, |_, occurrence| format!("{}\n", occurrence.summary.id))?;
        session.console.flush()?;
    }
    if !wait {
        return Ok(exit::SUCCESS);
    }
    let ending = follow::wait(session, id, timeout).await?;
    ending.announce(session.console, id);
    if !is_table {
        let occurrence = session.client.occurrence(id).await?;
        session.print(&occurrence, |_, _| String::new())?;
    }
    Ok(ending.exit_code())
}

/// Reads the input of an occurrence: JSON, the file after `@`, or standard input.
pub(super) fn read_input(argument: &str, console: &mut Console) -> Result<Value, CliError> {
    let (name, text) = match argument.strip_prefix('@') {
        Some(path) => {
            let text = fs::read_to_string(path);
            (path.to_owned(), text.map_err(|source| CliError::Input { name: path.to_owned(), source })?)
        }
        None if argument == "-" => {
            let mut text = String::new();
            let outcome: io::Result<_> = console.input.read_to_string(&mut text);
            outcome.map_err(|source| CliError::Input { name: "Standard input".into(), source })?;
            ("Standard input".to_owned(), text)
        }
        None => ("--input".to_owned(), argument.to_owned()),
    };
    parse_exact_json("the input", &text).map_err(|error| {
        CliError::Usage(format!("{name}: {error}. A text needs quotation marks; a file needs an @ before its name."))
    })
}

/// Cancels the delayed occurrences of a job in as many requests as it takes.
async fn cancel_delayed(session: &mut Session<'_>, job: &Job, reason: String, yes: Yes) -> Result<u8, CliError> {
    let name = &job.summary.display_name;
    let count = delayed_count(job.delayed_occurrences);
    session.confirm(yes, &format!("Cancel {count} delayed occurrences of the job {name:?}?"))?;
    let request = CancelDelayed { reason };
    let mut total = CancelDelayedResult { cancelled: 0, more: true };
    while total.more {
        let result = session.client.cancel_delayed(job.summary.id, &request).await?;
        total = CancelDelayedResult { cancelled: total.cancelled.saturating_add(result.cancelled), more: result.more };
    }
    if session.format == OutputFormat::Table {
        session.console.message(&format!("{} delayed occurrences of the job {name:?} are cancelled.", total.cancelled));
        return Ok(exit::SUCCESS);
    }
    session.print(&total, |_, _| String::new())
}

/// Formats a number of delayed occurrences, which ends above [`MAX_COUNTED_OPEN`].
fn delayed_count(count: i64) -> String {
    if count > MAX_COUNTED_OPEN { format!("more than {MAX_COUNTED_OPEN}") } else { count.to_string() }
}

fn changed(session: &mut Session<'_>, job: &Job, state: &str) -> Result<u8, CliError> {
    if session.format == OutputFormat::Table {
        session.console.message(&format!("The job {:?} {state}.", job.summary.display_name));
        return Ok(exit::SUCCESS);
    }
    session.print(job, |_, _| String::new())
}

fn state(job: &JobSummary) -> Cell {
    match (job.is_active, job.worker_alive) {
        (false, _) => Cell::new("paused", Color::Yellow),
        (true, false) => Cell::new("no worker", Color::Red),
        (true, true) => Cell::new("active", Color::Green),
    }
}

fn jobs_table(session: &Session<'_>, jobs: &[JobSummary]) -> Table {
    Table::new(
        ["JOB", "NAME", "STATE", "SCHEDULE", "NEXT DUE", "LATEST"],
        jobs.iter().map(|job| {
            [
                job.key.clone().unwrap_or_else(|| job.id.to_string()).into(),
                Cell::plain(&job.display_name),
                state(job),
                Cell::plain(&job.schedule_words),
                session.moment_or(job.next_due_at, "-"),
                job.recent.first().map_or_else(|| Cell::faint("-"), |latest| follow::status_cell(latest.status)),
            ]
        }),
    )
}

fn job_text(session: &Session<'_>, job: &Job) -> String {
    let summary = &job.summary;
    let definition = &job.definition;
    let timeout = definition.timeout_seconds.map(|seconds| format!("{seconds} s"));
    let details = Details::default()
        .with("Id", summary.id.to_string())
        .with_some("Key", summary.key.as_ref())
        .with("Name", &summary.display_name)
        .with_some("Description", Some(&definition.description))
        .with("State", state(summary))
        .with_some("Paused because", job.paused_reason.as_ref())
        .with_some("File", job.source.file.as_ref())
        .with_some("Delayed", (job.delayed_occurrences > 0).then(|| delayed_count(job.delayed_occurrences)))
        .with_some("Unreadable", job.unreadable.as_ref())
        .with("Worker", &summary.worker_id)
        .with("Job type", &summary.job_type)
        .with_some("Tags", Some(summary.tags.join(", ")))
        .with("Schedule", &summary.schedule_words)
        .with("Next due", session.moment_or(summary.next_due_at, "-"))
        .with("Priority", definition.priority.to_string())
        .with_some("Timeout", timeout)
        .with("Version", job.version.to_string())
        .with("Created", session.moment(job.created_at))
        .with("Created by", &job.created_by)
        .with("Changed", session.moment(job.modified_at))
        .with("Changed by", &job.modified_by);
    let mut text = session.details(&details);
    if !definition.job_data.is_null() {
        text += &block("Input", serde_json::to_string_pretty(&definition.job_data).ok().as_deref());
    }
    text + &block("Warnings", Some(&job.warnings.join("\n")))
}
