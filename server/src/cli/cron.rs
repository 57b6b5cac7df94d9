//! `milvaion cron`: the meaning and the due times of a cron expression, computed by the code that the dispatcher and
//! the job form use.
//!
//! The command starts nothing and connects to no service, so that a shell script can call it. An invalid expression, an
//! unknown time zone and an invalid instant end with status 2 and one line on standard error.

use std::{
    io::{self, BufWriter, Write},
    process::ExitCode,
};

use chrono::{DateTime, Offset, SecondsFormat, Utc};
use chrono_tz::Tz;
use clap::Subcommand;
use milvaion_schedule::{
    cron::{CronExpression, foreign_expression},
    schedule::parse_zone,
};
use milvaion_server::clock::Clock;

use super::CliError;

/// Number of due times that `explain` prints.
const EXPLAINED_RUNS: usize = 3;

#[derive(Debug, Subcommand)]
pub(super) enum CronCommand {
    /// Print the next due times, one RFC 3339 instant per line; fewer than requested if the schedule ends.
    Next {
        /// Five fields (minute first) or six (second first), or a macro such as @daily.
        #[arg(value_name = "EXPR", allow_hyphen_values = true)]
        expression: String,
        /// The IANA time zone in which the expression is evaluated.
        #[arg(long, value_name = "ZONE", default_value = "UTC")]
        tz: String,
        /// Start here (RFC 3339) instead of now.
        #[arg(long, value_name = "INSTANT", allow_hyphen_values = true)]
        after: Option<String>,
        /// Number of due times.
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=10_000))]
        count: u16,
        /// Also print a due time that equals --after.
        #[arg(long)]
        inclusive: bool,
    },
    /// Print the meaning of an expression in words, warnings about surprising parts, and the next three due times.
    Explain {
        /// Five fields (minute first) or six (second first), or a macro such as @daily.
        #[arg(value_name = "EXPR", allow_hyphen_values = true)]
        expression: String,
        /// The IANA time zone in which the expression is evaluated.
        #[arg(long, value_name = "ZONE", default_value = "UTC")]
        tz: String,
    },
}

/// Prints the result on standard output. An invalid argument is printed on standard error and returns exit code 2.
pub(super) fn cron(command: CronCommand) -> Result<ExitCode, CliError> {
    let text = match evaluate(command, Clock::system().now()) {
        Ok(text) => text,
        Err(message) => {
            eprintln!("milvaion: {message}");
            return Ok(ExitCode::from(2));
        }
    };
    let mut out = BufWriter::new(io::stdout().lock());
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A program such as `head` closes the pipe once it has read enough; that is not an error.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CliError::Output(error)),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Returns the text to print, or a message that names the invalid argument.
fn evaluate(command: CronCommand, now: DateTime<Utc>) -> Result<String, String> {
    match command {
        CronCommand::Next { expression, tz, after, count, inclusive } => {
            let cron = CronExpression::parse(&expression).map_err(|error| error.to_string())?;
            let zone = parse_zone(&tz)?;
            let after = after.map_or(Ok(now), |text| instant(&text))?;
            let first = if inclusive { cron.next_from(zone, after) } else { cron.next_after(zone, after) };
            Ok(lines(&cron, zone, first, usize::from(count)))
        }
        CronCommand::Explain { expression, tz } => {
            let cron = CronExpression::parse(&expression).map_err(|error| error.to_string())?;
            let zone = parse_zone(&tz)?;
            let mut text = format!("{} Time zone: {zone}.\n", cron.describe());
            for warning in foreign_expression(&expression).into_iter().chain(cron.warnings()) {
                text += &format!("Warning: {warning}\n");
            }
            text += "Next:\n";
            Ok(text + &lines(&cron, zone, cron.next_after(zone, now), EXPLAINED_RUNS))
        }
    }
}

fn instant(text: &str) -> Result<DateTime<Utc>, String> {
    DateTime::parse_from_rfc3339(text).map(|at| at.to_utc()).map_err(|error| {
        let short: String = text.chars().take(60).collect();
        format!("--after takes an RFC 3339 instant such as 2026-10-25T00:00:00Z: got {short} ({error})")
    })
}

fn lines(cron: &CronExpression, zone: Tz, first: Option<DateTime<Utc>>, count: usize) -> String {
    std::iter::successors(first, |at| cron.next_after(zone, *at)).take(count).map(|at| line(at, zone) + "\n").collect()
}

/// Formats an instant with the offset of the zone. Until about 1900, zones used local mean time, whose offset contains
/// seconds. RFC 3339 cannot express such an offset, so these instants are formatted in UTC.
fn line(at: DateTime<Utc>, zone: Tz) -> String {
    let local = at.with_timezone(&zone);
    match local.offset().fix().local_minus_utc() % 60 {
        0 => local.to_rfc3339_opts(SecondsFormat::Secs, false),
        _ => at.to_rfc3339_opts(SecondsFormat::Secs, false),
    }
}
