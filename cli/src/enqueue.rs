//! `milvaion enqueue`: an occurrence from a shell.
//!
//! The id of the occurrence is made here, as by every producer, so a request that is repeated after a lost answer creates
//! nothing twice. The server names the field of a value that it refuses; the command names the option instead.

use std::{str::FromStr, time::Duration};

use chrono::{DateTime, Utc};
use clap::{ArgGroup, Args};
use milvaion_api::rest::EnqueueOccurrences;
use milvaion_client::{Enqueue, JobReference};
use milvaion_protocol::{
    message::{IngestOutcome, IngestResult, MAX_UNIQUENESS_KEY_CHARS},
    topology::MAX_PRIORITY,
};

use super::{CliError, Console, GlobalOptions, OutputFormat, exit, follow, jobs::read_input, session::Session, times};

/// The options of a new occurrence.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("target").required(true).args(["job", "job_type"])))]
pub struct EnqueueOptions {
    /// The key of the job, or the id of one that has a key.
    pub job: Option<JobReference>,
    /// A worker and its job type instead of a job, such as `mail/send`.
    #[arg(long = "type", value_name = "WORKER/TYPE")]
    pub job_type: Option<TypeReference>,
    /// Input instead of the job's own: JSON, `@file`, or `-` for standard input.
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub input: Option<String>,
    /// Delays the occurrence until a time, such as 2026-12-24T08:00:00Z, at most 366 days ahead.
    #[arg(long, value_name = "TIME", value_parser = times::parse_time, conflicts_with = "after")]
    pub at: Option<DateTime<Utc>>,
    /// Delays the occurrence by a length of time, such as 90s, 15m or 2h, at most 365d.
    #[arg(long, value_name = "DURATION", value_parser = times::parse_length)]
    pub after: Option<Duration>,
    /// Priority, from 1 (idle) to 5 (critical), instead of the job's own.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_PRIORITY)))]
    pub priority: Option<u8>,
    /// Uniqueness key, 1 to 200 characters: nothing is created while an occurrence of the job with the same key is open.
    #[arg(long, value_name = "KEY", value_parser = parse_key)]
    pub unique: Option<String>,
    /// Length of time, such as 1h, for which the key of --unique applies even if its occurrence has ended, at most 30d.
    #[arg(long, value_name = "DURATION", value_parser = times::parse_length, requires = "unique")]
    pub unique_for: Option<Duration>,
    /// Waits for the end of the occurrence. The exit code is 0 only if it completes.
    #[arg(long)]
    pub wait: bool,
    /// Maximum time for --wait, such as 90s, 15m or 2h. The occurrence goes on afterwards.
    #[arg(long, value_name = "TIME", value_parser = times::parse_length, requires = "wait")]
    pub timeout: Option<Duration>,
    /// The options of all commands.
    #[command(flatten)]
    pub globals: GlobalOptions,
}

/// A job type of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeReference {
    /// The worker.
    worker_id: String,
    /// The job type.
    job_type: String,
}

impl FromStr for TypeReference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((worker_id, job_type)) if !worker_id.is_empty() && !job_type.is_empty() => {
                Ok(Self { worker_id: worker_id.to_owned(), job_type: job_type.to_owned() })
            }
            _ => Err("give the worker and its job type, such as mail/send".into()),
        }
    }
}

/// Creates an occurrence, prints its id, and waits for its end if asked to.
pub(super) async fn enqueue(options: &EnqueueOptions, console: &mut Console) -> Result<u8, CliError> {
    let input = options.input.as_deref().map(|argument| read_input(argument, console)).transpose()?;
    let mut session = Session::open(&options.globals, console)?;
    let mut occurrence = match (&options.job, &options.job_type) {
        (Some(job), _) => Enqueue::job(key_of(&session, job).await?),
        (None, Some(target)) => Enqueue::job_type(&target.worker_id, &target.job_type),
        (None, None) => return Err(CliError::Usage("Name a job by its key, or a job type with --type.".into())),
    };
    if let Some(input) = input {
        occurrence = occurrence.input(input);
    }
    if let Some(at) = options.at.or_else(|| options.after.map(|after| session.now + after)) {
        occurrence = occurrence.at(at);
    }
    if let Some(priority) = options.priority {
        occurrence = occurrence.priority(priority);
    }
    if let Some(key) = &options.unique {
        occurrence = occurrence.unique(key);
    }
    if let Some(time) = options.unique_for {
        occurrence = occurrence.unique_for(time);
    }
    let occurrence = occurrence.build().map_err(|error| CliError::Usage(error.to_string()))?;
    // One request, whose error has an exit code of its own.
    let request = EnqueueOccurrences { occurrences: vec![occurrence.into()] };
    let answer = session.client.enqueue_occurrences(&request).await.map_err(CliError::Client)?;
    let Some(result) = answer.results.into_iter().next() else {
        return Err(CliError::Rejected("The answer contains no result. Update this program or the server.".into()));
    };
    report(&mut session, options, result).await
}

/// Prints the result, and waits for the end of the occurrence if asked to.
async fn report(session: &mut Session<'_>, options: &EnqueueOptions, result: IngestResult) -> Result<u8, CliError> {
    let id = match result.outcome {
        IngestOutcome::Accepted => result.id,
        IngestOutcome::Duplicate => {
            let existing = result.existing_id.unwrap_or(result.id);
            session
                .console
                .message(&format!("Occurrence {existing} has the same uniqueness key, so none was created."));
            existing
        }
        // Rejected, or a word of a newer server.
        _ => {
            let reason = result.reason.as_deref().unwrap_or("the server gave no reason");
            return Err(CliError::Rejected(format!("The occurrence was rejected. {}", with_option(reason))));
        }
    };
    let is_table = session.format == OutputFormat::Table;
    // A document is printed once: at the end, if that is waited for.
    if is_table || !options.wait {
        session.print(&result, |_, _| format!("{id}\n"))?;
        session.console.flush()?;
    }
    if !options.wait {
        return Ok(exit::SUCCESS);
    }
    let ending = follow::wait(session, id, options.timeout).await?;
    ending.announce(session.console, id);
    if !is_table {
        let occurrence = session.client.occurrence(id).await?;
        session.print(&occurrence, |_, _| String::new())?;
    }
    Ok(ending.exit_code())
}

/// Returns the key of a job.
async fn key_of(session: &Session<'_>, job: &JobReference) -> Result<String, CliError> {
    let JobReference::Id(id) = job else { return Ok(job.to_string()) };
    let found = session.client.find_job(job).await?;
    found.summary.key.ok_or_else(|| {
        CliError::Usage(format!(
            "The job {id} has no key, by which occurrences are enqueued. Create it with a key, or use `milvaion jobs run {id}`."
        ))
    })
}

/// Replaces the field at the start of a reason by the option that sets it.
fn with_option(reason: &str) -> String {
    let (place, text) = reason.split_once(": ").unwrap_or(("", reason));
    let (field, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    let option = match field {
        "jobKey" => "JOB",
        "workerId" | "jobType" => "--type",
        "input" => "--input",
        "notBefore" => "--at or --after",
        "priority" => "--priority",
        "uniquenessKey" => "--unique",
        "uniqueForSeconds" => "--unique-for",
        _ => return reason.to_owned(),
    };
    let path = if path.is_empty() { String::new() } else { format!(" at {path}") };
    format!("{option}{path}: {text}")
}

fn parse_key(text: &str) -> Result<String, String> {
    if (1..=MAX_UNIQUENESS_KEY_CHARS).contains(&text.chars().count()) {
        return Ok(text.to_owned());
    }
    Err(format!("give a key with 1 to {MAX_UNIQUENESS_KEY_CHARS} characters"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_field_is_named_by_its_option() {
        assert_eq!(
            with_option("jobKey: no job has the key x. Create the job."),
            "JOB: no job has the key x. Create the job."
        );
        assert_eq!(with_option("input/to: \"x\" is not a number"), "--input at /to: \"x\" is not a number");
        assert_eq!(
            with_option("notBefore: is more than 366 days ahead."),
            "--at or --after: is more than 366 days ahead."
        );
        assert_eq!(with_option("The job is paused. Resume it."), "The job is paused. Resume it.");
        assert_eq!(with_option("new: a field"), "new: a field");
    }

    #[test]
    fn type_has_a_worker() {
        let target = "mail/send/all".parse::<TypeReference>().expect("a type");
        assert_eq!((target.worker_id.as_str(), target.job_type.as_str()), ("mail", "send/all"));
        for text in ["send", "/send", "mail/", ""] {
            assert!(text.parse::<TypeReference>().is_err(), "{text}");
        }
    }
}
