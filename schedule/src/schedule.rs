//! The schedule of a job.
//!
//! A schedule is a plain value: it reads no clock, and equal inputs give equal results. The preview in the form, the
//! description on the job's page and the dispatcher all use this module, so they agree.

use std::str::FromStr;

use chrono::{DateTime, Duration, Utc};
use chrono_tz::Tz;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    cron::{CronExpression, foreign_expression},
    instant,
};

/// The maximum interval of an `every` schedule, in seconds: 366 days.
pub const MAX_INTERVAL_SECONDS: u64 = 366 * 24 * 3600;

/// The schedule of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Schedule {
    /// The local times that an expression matches.
    Cron {
        /// Five or six fields; see [`crate::cron`].
        #[serde(deserialize_with = "read_trimmed")]
        expression: String,
        /// The IANA name of the time zone.
        #[serde(default = "utc", deserialize_with = "read_trimmed")]
        zone: String,
    },
    /// A fixed interval.
    Every {
        /// The interval, at least 1 second.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 31_622_400)))]
        seconds: u64,
        /// The start of the interval.
        #[serde(default, skip_serializing_if = "IntervalAnchor::is_from_fire")]
        from: IntervalAnchor,
    },
    /// A single instant.
    Once {
        /// The instant, in microseconds.
        #[serde(deserialize_with = "instant::read")]
        at: DateTime<Utc>,
        /// The IANA name of the time zone in which the instant is shown and edited.
        #[serde(default = "utc", skip_serializing_if = "is_utc", deserialize_with = "read_trimmed")]
        zone: String,
    },
    /// No due times: the job runs only on request.
    Manual,
}

/// The start of an `every` interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum IntervalAnchor {
    /// The previous due time. The interval is kept, however long a run takes.
    #[default]
    Fire,
    /// The end of the previous run. The pause between scheduled runs has a fixed length, and the schedule never starts a
    /// run while another one is open. A manual run may still overlap, unless the overlap policy excludes it.
    End,
}

impl IntervalAnchor {
    /// Returns the word in definitions and forms.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fire => "fire",
            Self::End => "end",
        }
    }

    /// Returns the value of an [`as_str`](Self::as_str) word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Fire, Self::End].into_iter().find(|anchor| anchor.as_str() == word)
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires a reference")]
    fn is_from_fire(&self) -> bool {
        *self == Self::Fire
    }
}

impl Schedule {
    /// Builds an interval that is counted from the previous due time.
    #[must_use]
    pub const fn every(seconds: u64) -> Self {
        Self::Every { seconds, from: IntervalAnchor::Fire }
    }

    /// Builds a single instant that is shown in UTC.
    #[must_use]
    pub fn once(at: DateTime<Utc>) -> Self {
        Self::Once { at, zone: utc() }
    }

    /// Returns the delay after the end of a run, in seconds, for an interval that is counted from there.
    #[must_use]
    pub const fn delay_after_end(&self) -> Option<u64> {
        match self {
            Self::Every { seconds, from: IntervalAnchor::End } => Some(*seconds),
            _ => None,
        }
    }

    /// Checks the constraints that the types do not express: the expression, the zone, the bounds.
    ///
    /// # Errors
    ///
    /// Returns the first invalid field (`cron`, `zone`, `every`, `once`) and a message about it.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        match self {
            Self::Cron { expression, zone } => {
                CronExpression::parse(expression).map_err(|error| ("cron", error.0))?;
                parse_zone(zone).map_err(|message| ("zone", message))?;
                Ok(())
            }
            Self::Every { seconds, .. } if *seconds < 1 => {
                Err(("every", "the interval must be at least 1 second".into()))
            }
            Self::Every { seconds, .. } if *seconds > MAX_INTERVAL_SECONDS => {
                Err(("every", "the interval must be at most 366 days: use a cron expression or a single date".into()))
            }
            Self::Once { at, .. } if !instant::is_in_range(*at) => Err(("once", instant::OUT_OF_RANGE.into())),
            Self::Once { zone, .. } => parse_zone(zone).map(|_| ()).map_err(|message| ("zone", message)),
            _ => Ok(()),
        }
    }

    /// Checks a schedule that a user or a program defines: like [`check`](Self::check), and it is written for no other
    /// scheduler. A stored schedule keeps its meaning.
    ///
    /// # Errors
    ///
    /// Returns the first invalid field and a message about it.
    pub fn check_new(&self) -> Result<(), (&'static str, String)> {
        self.check()?;
        match self {
            Self::Cron { expression, .. } => {
                foreign_expression(expression).map_or(Ok(()), |message| Err(("cron", message)))
            }
            _ => Ok(()),
        }
    }

    /// Returns the first due time strictly after `after`. For `Every`, `after` is the previous due time or the start.
    ///
    /// Returns none if no due time is left, or if the expression or the zone is no longer valid.
    #[must_use]
    pub fn next_after(&self, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self {
            Self::Cron { expression, zone } => {
                CronExpression::parse(expression).ok()?.next_after(parse_zone(zone).ok()?, after)
            }
            Self::Every { seconds, .. } => after.checked_add_signed(Duration::seconds(i64::try_from(*seconds).ok()?)),
            Self::Once { at, .. } => Some(*at).filter(|at| *at > after),
            Self::Manual => None,
        }
    }

    /// Returns the first due time after `now` that keeps the interval of the due time `previous`: for `Every` a whole
    /// number of intervals after it, otherwise simply the next one after `now`. A scheduler uses it after a misfire.
    #[must_use]
    pub fn next_from(&self, previous: DateTime<Utc>, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self {
            Self::Every { seconds, .. } => {
                let step = i64::try_from(*seconds).ok()?.checked_mul(1000)?;
                let late = (now - previous).num_milliseconds().max(0);
                let steps = late / step + 1;
                previous.checked_add_signed(Duration::milliseconds(steps.checked_mul(step)?))
            }
            _ => self.next_after(now.max(previous)),
        }
    }

    /// Describes the schedule for display.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Cron { expression, zone } => match CronExpression::parse(expression) {
                Ok(cron) => format!("{}, {zone}", cron.describe().trim_end_matches('.')),
                Err(error) => format!("Invalid: {error}"),
            },
            Self::Every { seconds, from: IntervalAnchor::Fire } => format!("Every {}", span(*seconds)),
            Self::Every { seconds, from: IntervalAnchor::End } => {
                format!("{} after the previous run ends", count(*seconds))
            }
            Self::Once { at, zone } => {
                let local = at.with_timezone(&parse_zone(zone).unwrap_or(Tz::UTC));
                format!("Once at {}, {zone}", local.format("%Y-%m-%d %H:%M:%S"))
            }
            Self::Manual => "Manual only".into(),
        }
    }
}

fn utc() -> String {
    "UTC".into()
}

fn is_utc(zone: &str) -> bool {
    zone == "UTC"
}

/// Reads a text without the blanks around it. A block scalar of YAML ends with a line break that no user sees.
pub(crate) fn read_trimmed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map(|text| text.trim().to_owned())
}

/// Parses an IANA zone name.
///
/// # Errors
///
/// Returns an error message with the remedy.
pub fn parse_zone(name: &str) -> Result<Tz, String> {
    let name = name.trim();
    Tz::from_str(name).map_err(|_| {
        let remedy = match zone_names().into_iter().find(|zone| zone.eq_ignore_ascii_case(name)) {
            Some(zone) => format!("write {zone}"),
            None => "use an IANA name such as Europe/Warsaw or UTC".to_owned(),
        };
        format!("{} is not a time zone: {remedy}", quote(name))
    })
}

/// Returns every zone name, sorted, for pickers.
#[must_use]
pub fn zone_names() -> Vec<&'static str> {
    chrono_tz::TZ_VARIANTS.iter().map(|zone| zone.name()).collect()
}

fn quote(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    if short.is_empty() { "nothing".into() } else { short }
}

/// Returns a number of seconds in the largest unit that divides it. A day is none: "every day" would mean a time of day, and
/// an interval of 24 hours is due an hour earlier or later after a clock change.
const fn unit(seconds: u64) -> (u64, &'static str) {
    match seconds {
        s if s % 3_600 == 0 => (s / 3_600, "hour"),
        s if s % 60 == 0 => (s / 60, "minute"),
        s => (s, "second"),
    }
}

/// Formats the words after "every": `second`, `2 minutes`.
fn span(seconds: u64) -> String {
    let (n, unit) = unit(seconds);
    if n == 1 { unit.to_owned() } else { format!("{n} {unit}s") }
}

/// Formats a number of seconds with its unit: `1 second`, `2 minutes`.
fn count(seconds: u64) -> String {
    let (n, unit) = unit(seconds);
    format!("{n} {unit}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().expect("a valid instant")
    }

    #[test]
    fn interval_is_kept_after_a_misfire() {
        let schedule = Schedule::every(10);
        let previous = at("2026-01-01T00:00:03Z");
        assert_eq!(schedule.next_from(previous, previous), Some(at("2026-01-01T00:00:13Z")));
        assert_eq!(schedule.next_from(previous, at("2026-01-01T00:00:44Z")), Some(at("2026-01-01T00:00:53Z")));
        assert_eq!(schedule.next_from(previous, at("2026-01-01T00:00:43Z")), Some(at("2026-01-01T00:00:53Z")));
    }

    #[test]
    fn once_is_due_once_and_manual_never() {
        let once = Schedule::once(at("2026-06-01T00:00:00Z"));
        assert_eq!(once.next_after(at("2026-01-01T00:00:00Z")), Some(at("2026-06-01T00:00:00Z")));
        assert_eq!(once.next_after(at("2026-06-01T00:00:00Z")), None);
        assert_eq!(Schedule::Manual.next_after(at("2026-06-01T00:00:00Z")), None);
    }

    #[test]
    fn instant_with_seven_decimals_is_due_once() {
        let json = r#"{"kind":"once","at":"2026-11-27T15:45:56.1234567Z"}"#;
        let once: Schedule = serde_json::from_str(json).expect("a valid schedule");
        assert_eq!(once, Schedule::once(at("2026-11-27T15:45:56.123456Z")));
        assert_eq!(once.next_after(at("2026-11-27T15:45:56.123456Z")), None);
    }

    #[test]
    fn instant_that_cannot_be_sent_back_is_refused() {
        let field = |text: &str| Schedule::once(at(text)).check().map_err(|(field, _)| field);
        assert_eq!(field("9999-12-31T23:59:59Z"), Ok(()));
        assert_eq!(field("9999-12-31T23:59:59-14:00"), Err("once"));
        assert_eq!(field("0000-01-01T00:00:00+14:00"), Err("once"));
    }

    #[test]
    fn invalid_field_is_named() {
        let invalid = Schedule::Cron { expression: "* * * * *".into(), zone: "Europe/Nowhere".into() };
        assert_eq!(invalid.check().map_err(|(field, _)| field), Err("zone"));
        assert_eq!(Schedule::every(0).check().map_err(|(field, _)| field), Err("every"));
        let aws = Schedule::Cron { expression: "0 10 * * ? *".into(), zone: "UTC".into() };
        assert_eq!((aws.check(), aws.check_new().map_err(|(field, _)| field)), (Ok(()), Err("cron")));
    }

    #[test]
    fn zone_is_utc_if_it_is_left_out_and_texts_have_no_blanks() {
        let read = |json: &str| match serde_json::from_str(json) {
            Ok(Schedule::Cron { expression, zone }) => (expression, zone),
            other => panic!("{other:?}"),
        };
        let nine = || "0 9 * * *".to_owned();
        assert_eq!(read(r#"{"kind":"cron","expression":"0 9 * * *"}"#), (nine(), "UTC".to_owned()));
        assert_eq!(
            read(r#"{"kind":"cron","expression":"0 9 * * *\n","zone":" Europe/Warsaw\n"}"#),
            (nine(), "Europe/Warsaw".to_owned())
        );
        assert_eq!(
            parse_zone("europe/warsaw").expect_err("refused"),
            "europe/warsaw is not a time zone: write Europe/Warsaw"
        );
    }

    #[test]
    fn schedules_are_described_in_words() {
        assert_eq!(Schedule::every(120).describe(), "Every 2 minutes");
        assert_eq!(Schedule::every(1).describe(), "Every second");
        assert_eq!(Schedule::every(3_600).describe(), "Every hour");
        assert_eq!(Schedule::every(86_400).describe(), "Every 24 hours", "no time of day");
        assert_eq!(Schedule::every(7 * 86_400).describe(), "Every 168 hours");
        let from_end = Schedule::Every { seconds: 90, from: IntervalAnchor::End };
        assert_eq!(from_end.describe(), "90 seconds after the previous run ends");
        assert_eq!(Schedule::Manual.describe(), "Manual only");
        let once = Schedule::Once { at: at("2026-06-01T07:00:05Z"), zone: "Europe/Warsaw".into() };
        assert_eq!(once.describe(), "Once at 2026-06-01 09:00:05, Europe/Warsaw");
        assert_eq!(Schedule::once(at("2026-06-01T07:00:05Z")).describe(), "Once at 2026-06-01 07:00:05, UTC");
        let daily = Schedule::Cron { expression: "0 9 * * *".into(), zone: "UTC".into() };
        assert!(daily.describe().ends_with(", UTC"), "{}", daily.describe());
    }
}
