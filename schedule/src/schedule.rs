//! When a job is due.
//!
//! A schedule is a value: it knows no clock, and asked twice it answers the same. The preview beside the form, the words
//! on the job's page and the dispatcher all come through here, which is why they agree.

use std::str::FromStr;

use chrono::{DateTime, Duration, Utc};
use chrono_tz::Tz;
use serde::{Deserialize, Serialize};

use crate::cron::CronExpression;

/// The longest pause between two fires of an `every` schedule: a year, in seconds.
pub const MAX_INTERVAL_SECONDS: u64 = 366 * 24 * 3600;

/// When a job is due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Schedule {
    /// At the local times an expression matches.
    Cron {
        /// Five or six fields; see [`crate::cron`].
        expression: String,
        /// An IANA name.
        zone: String,
    },
    /// In a fixed rhythm.
    Every {
        /// At least 1.
        seconds: u64,
        /// What the seconds are counted from.
        #[serde(default, skip_serializing_if = "IntervalAnchor::is_from_fire")]
        from: IntervalAnchor,
    },
    /// At one instant.
    Once {
        /// That instant.
        at: DateTime<Utc>,
    },
    /// Only when somebody or something asks.
    Manual,
}

/// What an `every` schedule counts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum IntervalAnchor {
    /// The last fire: the rhythm is kept however long a run takes.
    #[default]
    Fire,
    /// The end of the last run: there is always that long a pause, and never two runs at once.
    End,
}

impl IntervalAnchor {
    /// The word in definitions and forms.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fire => "fire",
            Self::End => "end",
        }
    }

    /// The one behind a [`as_str`](Self::as_str).
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Fire, Self::End].into_iter().find(|rhythm| rhythm.as_str() == word)
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
    fn is_from_fire(&self) -> bool {
        *self == Self::Fire
    }
}

impl Schedule {
    /// Every so many seconds, counted from the last fire.
    #[must_use]
    pub const fn every(seconds: u64) -> Self {
        Self::Every { seconds, from: IntervalAnchor::Fire }
    }

    /// The pause after the end of a run, for a rhythm that is counted from there.
    #[must_use]
    pub const fn delay_after_end(&self) -> Option<u64> {
        match self {
            Self::Every { seconds, from: IntervalAnchor::End } => Some(*seconds),
            _ => None,
        }
    }

    /// Checks the parts that a type cannot: the expression, the zone, the bounds. Says the field at fault first.
    ///
    /// # Errors
    ///
    /// The field (`cron`, `zone`, `every`) and a sentence about it.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        match self {
            Self::Cron { expression, zone } => {
                CronExpression::parse(expression).map_err(|error| ("cron", error.0))?;
                parse_zone(zone).map_err(|message| ("zone", message))?;
                Ok(())
            }
            Self::Every { seconds, .. } if *seconds < 1 => Err(("every", "a rhythm takes at least 1 second".into())),
            Self::Every { seconds, .. } if *seconds > MAX_INTERVAL_SECONDS => {
                Err(("every", "a rhythm takes at most 366 days: use a cron expression or a date".into()))
            }
            _ => Ok(()),
        }
    }

    /// The first instant strictly after `after`. For `Every`, `after` is the last fire (or the start).
    ///
    /// None when the schedule has nothing left, or holds an expression or zone that is no longer valid.
    #[must_use]
    pub fn next_after(&self, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self {
            Self::Cron { expression, zone } => {
                CronExpression::parse(expression).ok()?.next_after(parse_zone(zone).ok()?, after)
            }
            Self::Every { seconds, .. } => after.checked_add_signed(Duration::seconds(i64::try_from(*seconds).ok()?)),
            Self::Once { at } => Some(*at).filter(|at| *at > after),
            Self::Manual => None,
        }
    }

    /// The first fire after `now` that keeps the rhythm of `fired`: for `Every`, a whole number of steps later; for the
    /// others, simply the next after `now`. This is what a scheduler that slept asks.
    #[must_use]
    pub fn next_from(&self, fired: DateTime<Utc>, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self {
            Self::Every { seconds, .. } => {
                let step = i64::try_from(*seconds).ok()?.checked_mul(1000)?;
                let late = (now - fired).num_milliseconds().max(0);
                let steps = late / step + 1;
                fired.checked_add_signed(Duration::milliseconds(steps.checked_mul(step)?))
            }
            _ => self.next_after(now.max(fired)),
        }
    }

    /// The schedule as a sentence.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Cron { expression, zone } => match CronExpression::parse(expression) {
                Ok(cron) => format!("{}, {zone}", cron.describe().trim_end_matches('.')),
                Err(error) => format!("Invalid: {error}"),
            },
            Self::Every { seconds, from: IntervalAnchor::Fire } => format!("Every {}", span(*seconds)),
            Self::Every { seconds, from: IntervalAnchor::End } => {
                format!("{} after the end of the last run", count(*seconds))
            }
            Self::Once { at } => format!("Once at {}", at.format("%Y-%m-%d %H:%M:%S UTC")),
            Self::Manual => "Only when somebody runs it".into(),
        }
    }
}

/// The zone of an IANA name.
///
/// # Errors
///
/// A sentence with the remedy.
pub fn parse_zone(name: &str) -> Result<Tz, String> {
    Tz::from_str(name.trim())
        .map_err(|_| format!("{} is not a time zone: use an IANA name such as Europe/Warsaw or UTC", quote(name)))
}

/// Every zone name, sorted, for pickers.
#[must_use]
pub fn zone_names() -> Vec<&'static str> {
    chrono_tz::TZ_VARIANTS.iter().map(|zone| zone.name()).collect()
}

fn quote(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    if short.is_empty() { "nothing".into() } else { short }
}

/// A number of seconds in the largest unit that divides it.
const fn unit(seconds: u64) -> (u64, &'static str) {
    match seconds {
        s if s % 86_400 == 0 => (s / 86_400, "day"),
        s if s % 3_600 == 0 => (s / 3_600, "hour"),
        s if s % 60 == 0 => (s / 60, "minute"),
        s => (s, "second"),
    }
}

/// `second`, `2 minutes`: what follows "every".
fn span(seconds: u64) -> String {
    let (n, unit) = unit(seconds);
    if n == 1 { unit.to_owned() } else { format!("{n} {unit}s") }
}

/// `1 second`, `2 minutes`.
fn count(seconds: u64) -> String {
    let (n, unit) = unit(seconds);
    format!("{n} {unit}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().expect("instant")
    }

    #[test]
    fn every_keeps_its_rhythm_after_a_sleep() {
        let schedule = Schedule::every(10);
        let fired = at("2026-01-01T00:00:03Z");
        assert_eq!(schedule.next_from(fired, fired), Some(at("2026-01-01T00:00:13Z")));
        assert_eq!(schedule.next_from(fired, at("2026-01-01T00:00:44Z")), Some(at("2026-01-01T00:00:53Z")));
        assert_eq!(schedule.next_from(fired, at("2026-01-01T00:00:43Z")), Some(at("2026-01-01T00:00:53Z")));
    }

    #[test]
    fn once_fires_once_and_manual_never() {
        let once = Schedule::Once { at: at("2026-06-01T00:00:00Z") };
        assert_eq!(once.next_after(at("2026-01-01T00:00:00Z")), Some(at("2026-06-01T00:00:00Z")));
        assert_eq!(once.next_after(at("2026-06-01T00:00:00Z")), None);
        assert_eq!(Schedule::Manual.next_after(at("2026-06-01T00:00:00Z")), None);
    }

    #[test]
    fn a_wrong_part_is_named() {
        let wrong = Schedule::Cron { expression: "* * * * *".into(), zone: "Europe/Nowhere".into() };
        assert_eq!(wrong.check().map_err(|(field, _)| field), Err("zone"));
        assert_eq!(Schedule::every(0).check().map_err(|(field, _)| field), Err("every"));
    }

    #[test]
    fn words_are_for_people() {
        assert_eq!(Schedule::every(120).describe(), "Every 2 minutes");
        assert_eq!(Schedule::every(1).describe(), "Every second");
        let pausing = Schedule::Every { seconds: 90, from: IntervalAnchor::End };
        assert_eq!(pausing.describe(), "90 seconds after the end of the last run");
        let daily = Schedule::Cron { expression: "0 9 * * *".into(), zone: "UTC".into() };
        assert!(daily.describe().ends_with(", UTC"), "{}", daily.describe());
    }
}
