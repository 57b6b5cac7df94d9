//! The rules of a job beside its schedule: blackouts, misfires, start limit, overlap, concurrency limits, retries and
//! lost runs.
//!
//! Every rule has a usable default, so that a job needs none of them. A stored or sent definition leaves out the rules
//! that have their default.

use chrono::{DateTime, Duration, Utc};
use serde::{Deserialize, Serialize};

use milvaion_protocol::id::CalendarId;

use crate::{instant, printable::check_printable};

mod policies;
mod retries;

pub use policies::{BlackoutPolicy, LostRunPolicy, MisfirePolicy, OverlapPolicy};
pub use retries::MAX_RETRY_DELAY_SECONDS;

/// The maximum jitter, in seconds: one day.
pub const MAX_JITTER_SECONDS: u32 = 86_400;
/// The maximum number of calendars of a job.
pub const MAX_CALENDARS: usize = 10;
/// The maximum number of misfires that `catch_up` runs.
pub const MAX_CATCH_UP_RUNS: u32 = 10_000;
/// The maximum window of `catch_up`, in seconds: 30 days.
pub const MAX_CATCH_UP_WINDOW_SECONDS: u32 = 30 * 86_400;
/// The maximum start limit, in seconds: 30 days.
pub const MAX_START_WITHIN_SECONDS: u32 = 30 * 86_400;
/// The maximum value of a concurrency limit.
pub const MAX_CONCURRENCY_LIMIT: u16 = 10_000;
/// The maximum length of a concurrency key, in characters.
pub const MAX_CONCURRENCY_KEY_CHARS: usize = 100;
/// The maximum number of failures before a job is disabled automatically.
pub const MAX_AUTO_DISABLE_THRESHOLD: u16 = 100;

/// The condition under which a failing job is disabled automatically.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AutoDisable {
    /// The number of consecutive failures, 1 to [`MAX_AUTO_DISABLE_THRESHOLD`].
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub threshold: u16,
    /// The window in which these failures must have ended, in seconds, at most 30 days.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 2_592_000)))]
    pub window_seconds: u32,
    /// The time after which the job is enabled again automatically, in seconds, at most 30 days. None means that a user
    /// must resume it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 2_592_000)))]
    pub cool_down_seconds: Option<u32>,
}

/// A concurrency limit that all jobs with the same key share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ConcurrencyKeyLimit {
    /// The name of the shared resource, such as a database, a tenant or an account, 1 to [`MAX_CONCURRENCY_KEY_CHARS`]
    /// characters.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100)))]
    pub key: String,
    /// The maximum number of open occurrences, 1 to [`MAX_CONCURRENCY_LIMIT`]. If jobs with the same key set different
    /// limits, each job is subject to its own.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 10_000)))]
    pub limit: u16,
}

/// The effect of the start limit on an occurrence that has passed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissedStart {
    /// The reason for the skip, as the note of the occurrence.
    pub note: String,
    /// The earliest due time that has not passed the limit.
    pub earliest: DateTime<Utc>,
}

/// The rules of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Rules {
    /// The start: the job is not due before it. An interval is counted from it.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "instant::read_optional")]
    pub start_at: Option<DateTime<Utc>>,
    /// The end: the job is not due at it or later.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "instant::read_optional")]
    pub end_at: Option<DateTime<Utc>>,
    /// The maximum jitter, in seconds, 0 to [`MAX_JITTER_SECONDS`]. The delay of one job is always the same.
    #[serde(skip_serializing_if = "is_zero")]
    #[cfg_attr(feature = "schema", schemars(range(max = 86_400)))]
    pub jitter_seconds: u32,
    /// The blackout calendars, at most [`MAX_CALENDARS`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 10)))]
    pub calendars: Vec<CalendarId>,
    /// The policy for a due time in a blackout.
    #[serde(skip_serializing_if = "BlackoutPolicy::is_default")]
    pub blackout: BlackoutPolicy,
    /// The policy for misfires.
    #[serde(skip_serializing_if = "MisfirePolicy::is_default")]
    pub misfire: MisfirePolicy,
    /// The maximum number of misfires that `catch_up` runs, 1 to [`MAX_CATCH_UP_RUNS`].
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 10_000)))]
    pub catch_up_limit: u32,
    /// The maximum age of the misfires that `catch_up` runs, in seconds, 1 to [`MAX_CATCH_UP_WINDOW_SECONDS`].
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 2_592_000)))]
    pub catch_up_window_seconds: u32,
    /// The start limit, in seconds, 1 to [`MAX_START_WITHIN_SECONDS`]: an occurrence that no worker has begun within this
    /// time of its due time is skipped. A later attempt has no start limit. None means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 2_592_000)))]
    pub start_within_seconds: Option<u32>,
    /// The policy for a due time while an earlier occurrence is open.
    #[serde(skip_serializing_if = "OverlapPolicy::is_default")]
    pub overlap: OverlapPolicy,
    /// The maximum number of concurrent occurrences of this job, 1 to [`MAX_CONCURRENCY_LIMIT`].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 10_000)))]
    pub max_concurrent: Option<u16>,
    /// The concurrency limit shared with other jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_limit: Option<ConcurrencyKeyLimit>,
    /// The maximum number of attempts after the first, 0 to 100.
    #[serde(skip_serializing_if = "is_zero_u16")]
    #[cfg_attr(feature = "schema", schemars(range(max = 100)))]
    pub max_retries: u16,
    /// The delay before the second attempt, in seconds, 1 to 86,400. It doubles for each further attempt.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 86_400)))]
    pub base_retry_delay_seconds: u32,
    /// The retry jitter, 0 to 100: the share of a retry delay, in percent, that may be removed at random, so that
    /// attempts that failed together do not retry together. A delay that a worker asked for has no jitter.
    #[serde(skip_serializing_if = "is_zero_u16")]
    #[cfg_attr(feature = "schema", schemars(range(max = 100)))]
    pub retry_jitter_percent: u16,
    /// The heartbeat timeout of a run, in seconds, 15 to 86,400. None means the installation's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 15, max = 86_400)))]
    pub heartbeat_timeout_seconds: Option<u32>,
    /// The time in seconds, 15 to 86,400, after which a run is revoked from an instance that is alive and sends nothing over
    /// the broker. None means the installation's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 15, max = 86_400)))]
    pub unreachable_timeout_seconds: Option<u32>,
    /// The policy for lost runs.
    #[serde(skip_serializing_if = "LostRunPolicy::is_default")]
    pub on_lost: LostRunPolicy,
    /// The auto-disable rule. None means the installation's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_disable: Option<AutoDisable>,
}

/// A stored job leaves out most rules that have their default, and a column of `jobs` may have the old one. So a changed
/// default needs a migration.
impl Default for Rules {
    fn default() -> Self {
        Self {
            start_at: None,
            end_at: None,
            jitter_seconds: 0,
            calendars: Vec::new(),
            blackout: BlackoutPolicy::default(),
            misfire: MisfirePolicy::default(),
            catch_up_limit: 100,
            catch_up_window_seconds: 3_600,
            start_within_seconds: None,
            overlap: OverlapPolicy::default(),
            max_concurrent: None,
            key_limit: None,
            max_retries: 0,
            base_retry_delay_seconds: 5,
            retry_jitter_percent: 0,
            heartbeat_timeout_seconds: None,
            unreachable_timeout_seconds: None,
            on_lost: LostRunPolicy::default(),
            auto_disable: None,
        }
    }
}

impl Rules {
    /// Checks the bounds.
    ///
    /// # Errors
    ///
    /// Returns the invalid fields, each with a message that names the remedy.
    pub fn check(&self) -> Result<(), Vec<(&'static str, String)>> {
        let mut errors = Vec::new();
        let mut check_range = |field: &'static str, value: u32, low: u32, high: u32| {
            if !(low..=high).contains(&value) {
                errors.push((field, format!("must be a whole number from {low} to {high}: got {value}")));
            }
        };
        check_range("jitter_seconds", self.jitter_seconds, 0, MAX_JITTER_SECONDS);
        check_range("catch_up_limit", self.catch_up_limit, 1, MAX_CATCH_UP_RUNS);
        check_range("catch_up_window_seconds", self.catch_up_window_seconds, 1, MAX_CATCH_UP_WINDOW_SECONDS);
        if let Some(seconds) = self.start_within_seconds {
            check_range("start_within_seconds", seconds, 1, MAX_START_WITHIN_SECONDS);
        }
        if let Some(limit) = self.max_concurrent {
            check_range("max_concurrent", limit.into(), 1, MAX_CONCURRENCY_LIMIT.into());
        }
        if let Some(key) = &self.key_limit {
            check_range("concurrency_key_limit", key.limit.into(), 1, MAX_CONCURRENCY_LIMIT.into());
        }
        check_range("max_retries", self.max_retries.into(), 0, 100);
        check_range("base_retry_delay_seconds", self.base_retry_delay_seconds, 1, 86_400);
        check_range("retry_jitter_percent", self.retry_jitter_percent.into(), 0, 100);
        if let Some(seconds) = self.heartbeat_timeout_seconds {
            check_range("heartbeat_timeout_seconds", seconds, 15, 86_400);
        }
        if let Some(seconds) = self.unreachable_timeout_seconds {
            check_range("unreachable_timeout_seconds", seconds, 15, 86_400);
        }
        if let Some(auto_disable) = self.auto_disable {
            check_range("auto_disable_threshold", auto_disable.threshold.into(), 1, MAX_AUTO_DISABLE_THRESHOLD.into());
            check_range("auto_disable_window_seconds", auto_disable.window_seconds, 1, MAX_CATCH_UP_WINDOW_SECONDS);
            if let Some(seconds) = auto_disable.cool_down_seconds {
                check_range("auto_disable_cool_down_seconds", seconds, 1, MAX_CATCH_UP_WINDOW_SECONDS);
            }
        }
        if let Some(ConcurrencyKeyLimit { key, .. }) = &self.key_limit {
            if key.trim().is_empty() || key.chars().count() > MAX_CONCURRENCY_KEY_CHARS {
                errors.push(("concurrency_key", format!("must have 1 to {MAX_CONCURRENCY_KEY_CHARS} characters")));
            } else if let Err(message) = check_printable(key) {
                errors.push(("concurrency_key", message));
            }
        }
        if self.calendars.len() > MAX_CALENDARS {
            errors.push(("calendars", format!("at most {MAX_CALENDARS} calendars are allowed")));
        }
        for (field, at) in [("start_at", self.start_at), ("end_at", self.end_at)] {
            if at.is_some_and(|at| !instant::is_in_range(at)) {
                errors.push((field, instant::OUT_OF_RANGE.into()));
            }
        }
        if let (Some(start), Some(end)) = (self.start_at, self.end_at)
            && start >= end
        {
            errors
                .push(("end_at", "must be after the start: enter a later time, or remove the start or the end".into()));
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// Returns the effect of the start limit on an occurrence that is due at `due` and that no worker has begun at
    /// `now`; none while it may start.
    #[must_use]
    pub fn missed_start(&self, due: DateTime<Utc>, now: DateTime<Utc>) -> Option<MissedStart> {
        let limit = Duration::seconds(self.start_within_seconds?.into());
        let earliest = now - limit;
        (due < earliest).then(|| MissedStart { note: missed_start_note(due, due + limit), earliest })
    }

    /// Returns true if a concurrency limit applies to the occurrences of the job, so that each must wait for a slot.
    #[must_use]
    pub fn needs_slot(&self) -> bool {
        self.overlap != OverlapPolicy::Allow || self.max_concurrent.is_some() || self.key_limit.is_some()
    }

    /// Returns the maximum number of open occurrences of this job; none means no limit.
    #[must_use]
    pub fn job_limit(&self) -> Option<u16> {
        match self.overlap {
            OverlapPolicy::Queue | OverlapPolicy::Replace => Some(1),
            OverlapPolicy::Allow | OverlapPolicy::Skip => self.max_concurrent,
        }
    }
}

/// Returns the note of an occurrence that is skipped because no worker has begun it by `start_before`.
#[must_use]
pub fn missed_start_note(due: DateTime<Utc>, start_before: DateTime<Utc>) -> String {
    let seconds = u32::try_from((start_before - due).num_seconds()).unwrap_or_default();
    format!("Skipped: no worker began it within {} of its due time.", in_words(seconds))
}

/// Formats a length of time in words, in the largest unit that divides it.
#[must_use]
pub fn in_words(seconds: u32) -> String {
    let (n, unit) = match seconds {
        s if s % 86_400 == 0 => (s / 86_400, "day"),
        s if s % 3_600 == 0 => (s / 3_600, "hour"),
        s if s % 60 == 0 => (s / 60, "minute"),
        s => (s, "second"),
    };
    if n == 1 { format!("1 {unit}") } else { format!("{n} {unit}s") }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires a reference")]
const fn is_zero(n: &u32) -> bool {
    *n == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires a reference")]
const fn is_zero_u16(n: &u16) -> bool {
    *n == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_without_rules_has_the_defaults() {
        let rules: Rules = serde_json::from_str("{}").expect("valid JSON");
        assert_eq!(rules, Rules::default());
        assert!(rules.check().is_ok());
        assert!(!rules.needs_slot());
        // A server before the one that adds a rule cannot read a job that names it, so a default is left out.
        let stored = serde_json::to_value(rules).expect("rules are serializable");
        let named: Vec<_> = stored.as_object().expect("an object").keys().cloned().collect();
        assert_eq!(named, ["catchUpLimit", "catchUpWindowSeconds", "baseRetryDelaySeconds"]);
    }

    #[test]
    fn invalid_rules_are_named() {
        let rules = Rules { jitter_seconds: 90_000, catch_up_limit: 0, retry_jitter_percent: 101, ..Rules::default() };
        let fields: Vec<_> = rules.check().expect_err("invalid").into_iter().map(|(field, _)| field).collect();
        assert_eq!(fields, ["jitter_seconds", "catch_up_limit", "retry_jitter_percent"]);
        let at = DateTime::UNIX_EPOCH;
        let rules = Rules { start_at: Some(at), end_at: Some(at), ..Rules::default() };
        assert_eq!(rules.check().expect_err("invalid")[0].0, "end_at");
        let rules = Rules { start_at: Some(DateTime::<Utc>::MIN_UTC), ..Rules::default() };
        assert_eq!(rules.check().expect_err("invalid")[0].0, "start_at");
        for seconds in [0, MAX_START_WITHIN_SECONDS + 1] {
            let rules = Rules { start_within_seconds: Some(seconds), ..Rules::default() };
            let message = format!("must be a whole number from 1 to 2592000: got {seconds}");
            assert_eq!(rules.check(), Err(vec![("start_within_seconds", message)]));
        }
    }

    #[test]
    fn occurrence_past_the_start_limit_is_skipped() {
        let due = DateTime::UNIX_EPOCH;
        for (limit, late_ms, skipped) in [
            (None, 1_000_000_000, None),
            (Some(30), -1_000, None),
            (Some(30), 0, None),
            (Some(30), 30_000, None),
            (Some(30), 30_001, Some("30 seconds")),
            (Some(1), 1_001, Some("1 second")),
            (Some(90), 120_000, Some("90 seconds")),
            (Some(1_800), 1_800_001, Some("30 minutes")),
            (Some(3_600), 1_800_001, None),
            (Some(MAX_START_WITHIN_SECONDS), 2_592_000_001, Some("30 days")),
        ] {
            let rules = Rules { start_within_seconds: limit, ..Rules::default() };
            let missed = rules.missed_start(due, due + Duration::milliseconds(late_ms));
            let note = skipped.map(|time| format!("Skipped: no worker began it within {time} of its due time."));
            assert_eq!(missed.as_ref().map(|missed| &missed.note), note.as_ref(), "{limit:?} {late_ms}");
            let now = due + Duration::milliseconds(late_ms);
            assert!(missed.is_none_or(|missed| rules.missed_start(missed.earliest, now).is_none()));
        }
    }

    #[test]
    fn queue_overlap_policy_limits_the_job_to_one() {
        let rules = Rules { overlap: OverlapPolicy::Queue, max_concurrent: Some(5), ..Rules::default() };
        assert_eq!(rules.job_limit(), Some(1));
        assert_eq!(Rules { max_concurrent: Some(5), ..Rules::default() }.job_limit(), Some(5));
    }
}
