//! `milvaion cron`: what an expression means and when it fires, by the very code the dispatcher and the form use.
//!
//! Nothing is started and nothing is asked of a service, so that a shell script can call it. A refused expression, an
//! unknown zone and an unreadable instant end with status 2 and a sentence on standard error.

use std::{
    io::{self, BufWriter, Write},
    process::ExitCode,
};

use chrono::{DateTime, Offset, SecondsFormat, Utc};
use chrono_tz::Tz;
use clap::Subcommand;
use milvaion_schedule::{cron::CronExpression, schedule::parse_zone};
use milvaion_server::clock::Clock;

/// How many coming runs `explain` shows.
const EXPLAINED_RUNS: usize = 3;

#[derive(Debug, Subcommand)]
pub(super) enum CronCommand {
    /// Print the coming fires, one RFC 3339 instant a line; fewer when the schedule ends.
    Next {
        /// Five fields (minute first) or six (second first), or a macro such as @daily.
        #[arg(value_name = "EXPR", allow_hyphen_values = true)]
        expression: String,
        /// The IANA time zone whose wall clock counts.
        #[arg(long, value_name = "ZONE", default_value = "UTC")]
        tz: String,
        /// Start here (RFC 3339) instead of now.
        #[arg(long, value_name = "INSTANT", allow_hyphen_values = true)]
        after: Option<String>,
        /// How many fires.
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=10_000))]
        count: u16,
        /// Let a fire at the very instant of --after count.
        #[arg(long)]
        inclusive: bool,
    },
    /// Say in words what an expression means, warn of surprises, and print the next three fires.
    Explain {
        /// Five fields (minute first) or six (second first), or a macro such as @daily.
        #[arg(value_name = "EXPR", allow_hyphen_values = true)]
        expression: String,
        /// The IANA time zone whose wall clock counts.
        #[arg(long, value_name = "ZONE", default_value = "UTC")]
        tz: String,
    },
}

/// Answers on standard output. A refusal is status 2; an error is a sentence for people.
pub(super) fn cron(question: CronCommand) -> Result<ExitCode, String> {
    let text = match answer(question, Clock::system().now()) {
        Ok(text) => text,
        Err(refusal) => {
            eprintln!("milvaion: {refusal}");
            return Ok(ExitCode::from(2));
        }
    };
    let mut out = BufWriter::new(io::stdout().lock());
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A reader such as `head` that has seen enough is no trouble.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("The answer cannot be written: {error}."))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn answer(question: CronCommand, now: DateTime<Utc>) -> Result<String, String> {
    match question {
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
            for warning in cron.warnings() {
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

/// The instant with the zone's offset, or in UTC where RFC 3339 cannot write the offset: local mean time, which zones
/// kept until about 1900, has seconds in it.
fn line(at: DateTime<Utc>, zone: Tz) -> String {
    let local = at.with_timezone(&zone);
    match local.offset().fix().local_minus_utc() % 60 {
        0 => local.to_rfc3339_opts(SecondsFormat::Secs, false),
        _ => at.to_rfc3339_opts(SecondsFormat::Secs, false),
    }
}
