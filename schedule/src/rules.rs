//! What a job wants beside its schedule: when not to run, what to do about missed fires, about itself still running,
//! about others of its kind, and about failing.
//!
//! Every rule has a default that does, so that a job needs none of this to be useful; a definition that is stored or
//! sent leaves out what is as usual.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use milvaion_protocol::id::CalendarId;

mod policies;
mod retries;

pub use policies::{BlackoutPolicy, LostRunPolicy, MisfirePolicy, OverlapPolicy};
pub use retries::{MAX_RETRY_DELAY_SECONDS, describe_retries};

/// The longest jitter, in seconds: a day.
pub const MAX_JITTER_SECONDS: u32 = 86_400;
/// The most calendars one job may have.
pub const MAX_CALENDARS: usize = 10;
/// The most missed fires that `catch_up` repeats.
pub const MAX_CATCH_UP_RUNS: u32 = 10_000;
/// The longest window of `catch_up`, in seconds: thirty days.
pub const MAX_CATCH_UP_WINDOW_SECONDS: u32 = 30 * 86_400;
/// The most occurrences a limit may allow at once.
pub const MAX_CONCURRENCY_LIMIT: u16 = 10_000;
/// The most characters of a concurrency key.
pub const MAX_CONCURRENCY_KEY_CHARS: usize = 100;
/// The most failures a breaker may wait for.
pub const MAX_AUTO_DISABLE_THRESHOLD: u16 = 100;

/// When a job that keeps failing is disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AutoDisable {
    /// After how many failures in a row, 1 to [`MAX_AUTO_DISABLE_THRESHOLD`].
    pub threshold: u16,
    /// Within how many seconds they must have ended, 1 to 30 days.
    pub window_seconds: u32,
    /// After how many seconds it is enabled again by itself; none means by hand only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cool_down_seconds: Option<u32>,
}

/// At most so many open occurrences, over all jobs that name the same key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConcurrencyKeyLimit {
    /// What is shared: a database, a tenant, an account. 1 to [`MAX_CONCURRENCY_KEY_CHARS`] characters.
    pub key: String,
    /// 1 to [`MAX_CONCURRENCY_LIMIT`]. Where jobs disagree, each is held to its own number.
    pub limit: u16,
}

/// The rules of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rules {
    /// Not due before this instant; an `every` rhythm is counted from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_at: Option<DateTime<Utc>>,
    /// Not due from this instant on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_at: Option<DateTime<Utc>>,
    /// Every fire comes this many seconds later at most, always the same for one job. 0 to [`MAX_JITTER_SECONDS`].
    #[serde(skip_serializing_if = "is_zero")]
    pub jitter_seconds: u32,
    /// Blackouts it keeps to, at most [`MAX_CALENDARS`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calendars: Vec<CalendarId>,
    /// What becomes of a fire in a blackout.
    #[serde(skip_serializing_if = "BlackoutPolicy::is_default")]
    pub blackout: BlackoutPolicy,
    /// What becomes of missed fires.
    #[serde(skip_serializing_if = "MisfirePolicy::is_default")]
    pub misfire: MisfirePolicy,
    /// How many missed fires `catch_up` repeats at most, 1 to [`MAX_CATCH_UP_RUNS`].
    pub catch_up_limit: u32,
    /// How far back `catch_up` looks, in seconds, 1 to [`MAX_CATCH_UP_WINDOW_SECONDS`].
    pub catch_up_window_seconds: u32,
    /// What becomes of a fire while the previous occurrence is open.
    #[serde(skip_serializing_if = "OverlapPolicy::is_default")]
    pub overlap: OverlapPolicy,
    /// At most so many occurrences of this job at once, 1 to [`MAX_CONCURRENCY_LIMIT`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u16>,
    /// At most so many at once among all jobs with the same key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_limit: Option<ConcurrencyKeyLimit>,
    /// Attempts after the first, 0 to 100.
    #[serde(skip_serializing_if = "is_zero_u16")]
    pub max_retries: u16,
    /// Seconds before the second attempt; doubled for each further one. 1 to 86,400.
    pub base_retry_delay_seconds: u32,
    /// How much of the pause before a retry may be taken off at random, in percent of it, so that what failed together
    /// does not come back together. 0 to 100. A pause that a worker asked for stays as it is.
    #[serde(skip_serializing_if = "is_zero_u16")]
    pub retry_jitter_percent: u16,
    /// After how many seconds without a heartbeat a run counts as lost, 15 to 86,400; none means the installation's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat_timeout_seconds: Option<u32>,
    /// What becomes of a run that is lost.
    #[serde(skip_serializing_if = "LostRunPolicy::is_default")]
    pub on_lost: LostRunPolicy,
    /// When the job is disabled for failing; none means that the installation's rule holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_disable: Option<AutoDisable>,
}

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
            overlap: OverlapPolicy::default(),
            max_concurrent: None,
            key_limit: None,
            max_retries: 0,
            base_retry_delay_seconds: 5,
            retry_jitter_percent: 0,
            heartbeat_timeout_seconds: None,
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
    /// The fields at fault, each with a sentence that names the remedy.
    pub fn check(&self) -> Result<(), Vec<(&'static str, String)>> {
        let mut wrong = Vec::new();
        let mut within = |field: &'static str, value: u32, low: u32, high: u32| {
            if !(low..=high).contains(&value) {
                wrong.push((field, format!("takes a whole number from {low} to {high}: got {value}")));
            }
        };
        within("jitter_seconds", self.jitter_seconds, 0, MAX_JITTER_SECONDS);
        within("catch_up_limit", self.catch_up_limit, 1, MAX_CATCH_UP_RUNS);
        within("catch_up_window_seconds", self.catch_up_window_seconds, 1, MAX_CATCH_UP_WINDOW_SECONDS);
        if let Some(limit) = self.max_concurrent {
            within("max_concurrent", limit.into(), 1, MAX_CONCURRENCY_LIMIT.into());
        }
        if let Some(key) = &self.key_limit {
            within("concurrency_key_limit", key.limit.into(), 1, MAX_CONCURRENCY_LIMIT.into());
        }
        within("max_retries", self.max_retries.into(), 0, 100);
        within("base_retry_delay_seconds", self.base_retry_delay_seconds, 1, 86_400);
        within("retry_jitter_percent", self.retry_jitter_percent.into(), 0, 100);
        if let Some(seconds) = self.heartbeat_timeout_seconds {
            within("heartbeat_timeout_seconds", seconds, 15, 86_400);
        }
        if let Some(breaker) = self.auto_disable {
            within("auto_disable_threshold", breaker.threshold.into(), 1, MAX_AUTO_DISABLE_THRESHOLD.into());
            within("auto_disable_window_seconds", breaker.window_seconds, 1, MAX_CATCH_UP_WINDOW_SECONDS);
            if let Some(seconds) = breaker.cool_down_seconds {
                within("auto_disable_cool_down_seconds", seconds, 1, MAX_CATCH_UP_WINDOW_SECONDS);
            }
        }
        if let Some(key) = &self.key_limit
            && (key.key.trim().is_empty()
                || key.key.chars().count() > MAX_CONCURRENCY_KEY_CHARS
                || key.key.contains(char::is_control))
        {
            wrong.push(("concurrency_key", format!("takes 1 to {MAX_CONCURRENCY_KEY_CHARS} printable characters")));
        }
        if self.calendars.len() > MAX_CALENDARS {
            wrong.push(("calendars", format!("takes at most {MAX_CALENDARS} calendars")));
        }
        if let (Some(start), Some(end)) = (self.start_at, self.end_at)
            && start >= end
        {
            wrong.push(("end_at", "must come after the start: choose a later moment or leave one of them out".into()));
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    /// Whether occurrences of the job are counted against each other or against others', so that each needs a slot.
    #[must_use]
    pub fn needs_slot(&self) -> bool {
        self.overlap != OverlapPolicy::Allow || self.max_concurrent.is_some() || self.key_limit.is_some()
    }

    /// How many occurrences of this job may be open at once; none means any number.
    #[must_use]
    pub fn job_limit(&self) -> Option<u16> {
        match self.overlap {
            OverlapPolicy::Queue | OverlapPolicy::Replace => Some(1),
            OverlapPolicy::Allow | OverlapPolicy::Skip => self.max_concurrent,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
const fn is_zero(n: &u32) -> bool {
    *n == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
const fn is_zero_u16(n: &u16) -> bool {
    *n == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_without_rules_has_the_usual_ones() {
        let rules: Rules = serde_json::from_str("{}").expect("reads");
        assert_eq!(rules, Rules::default());
        assert!(rules.check().is_ok());
        assert!(!rules.needs_slot());
    }

    #[test]
    fn a_wrong_rule_is_named() {
        let rules = Rules { jitter_seconds: 90_000, catch_up_limit: 0, retry_jitter_percent: 101, ..Rules::default() };
        let fields: Vec<_> = rules.check().expect_err("wrong").into_iter().map(|(field, _)| field).collect();
        assert_eq!(fields, ["jitter_seconds", "catch_up_limit", "retry_jitter_percent"]);
        let at = DateTime::UNIX_EPOCH;
        let rules = Rules { start_at: Some(at), end_at: Some(at), ..Rules::default() };
        assert_eq!(rules.check().expect_err("wrong")[0].0, "end_at");
    }

    #[test]
    fn taking_turns_means_one_at_a_time() {
        let rules = Rules { overlap: OverlapPolicy::Queue, max_concurrent: Some(5), ..Rules::default() };
        assert_eq!(rules.job_limit(), Some(1));
        assert_eq!(Rules { max_concurrent: Some(5), ..Rules::default() }.job_limit(), Some(5));
    }
}
