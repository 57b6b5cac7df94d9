//! What a job wants beside its schedule: when not to run, what to do about missed fires, about itself still running,
//! about others of its kind, and about failing.
//!
//! Every rule has a default that does, so that a job needs none of this to be useful; a definition that is stored or
//! sent leaves out what is as usual.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::id::CalendarId;

/// The longest jitter, in seconds: a day.
pub const MAX_JITTER_SECONDS: u32 = 86_400;
/// The most calendars one job may have.
pub const MAX_CALENDARS: usize = 10;
/// The most missed fires that `catch_up` repeats.
pub const MAX_CATCH_UP: u32 = 10_000;
/// The longest window of `catch_up`, in seconds: thirty days.
pub const MAX_CATCH_UP_WINDOW_SECONDS: u32 = 30 * 86_400;
/// The most occurrences a limit may allow at once.
pub const MAX_CONCURRENT: u16 = 10_000;
/// The most characters of a concurrency key.
pub const MAX_KEY_LENGTH: usize = 100;
/// The most failures a breaker may wait for.
pub const MAX_THRESHOLD: u16 = 100;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal, $says:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// All of them, the default first.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word in definitions, in the database and in forms.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            /// What it means, for people.
            #[must_use]
            pub const fn says(self) -> &'static str {
                match self { $(Self::$variant => $says,)+ }
            }

            /// The one behind a [`word`](Self::word).
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.word() == word)
            }

            fn is_usual(&self) -> bool {
                *self == Self::default()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

words! {
    /// What becomes of fires that were missed while no scheduler was there.
    Misfire {
        /// One occurrence stands for all of them.
        #[default]
        FireOnce = "fire_once", "Run once for all missed fires";
        /// None is made up for; a Skipped row says how many there were.
        Skip = "skip", "Skip what was missed";
        /// Each is made up for, as far as limit and window allow.
        CatchUp = "catch_up", "Run each missed fire";
    }
}

words! {
    /// What becomes of a fire while the previous occurrence is still open.
    Overlap {
        /// It runs beside it.
        #[default]
        Allow = "allow", "Run beside it";
        /// It does not run; a Skipped row says why.
        Skip = "skip", "Skip this fire";
        /// It waits until the previous one has ended.
        Queue = "queue", "Wait for it to end";
        /// The previous one is cancelled; this one starts when that has ended.
        Replace = "replace", "Cancel it and take its place";
    }
}

impl Overlap {
    /// The wire number, as the database keeps it.
    #[must_use]
    pub const fn code(self) -> i16 {
        match self {
            Self::Skip => 0,
            Self::Queue => 1,
            Self::Allow => 2,
            Self::Replace => 3,
        }
    }

    /// The policy of a number; unknown ones are `Allow`.
    #[must_use]
    pub const fn from_code(code: i16) -> Self {
        match code {
            0 => Self::Skip,
            1 => Self::Queue,
            3 => Self::Replace,
            _ => Self::Allow,
        }
    }
}

words! {
    /// What becomes of a fire that falls into a blackout of one of the job's calendars.
    Blackout {
        /// It is left out.
        #[default]
        Skip = "skip", "Leave the fire out";
        /// It runs when the blackout ends; several become one.
        Postpone = "postpone", "Run when the blackout ends";
    }
}

words! {
    /// What becomes of an occurrence whose worker fell silent.
    OnLost {
        /// It is queued again as the next attempt.
        #[default]
        Requeue = "requeue", "Run it again on another worker";
        /// It stays Unknown for a while, then counts as failed.
        Fail = "fail", "Do not run it again";
    }
}

/// When a job that keeps failing is disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AutoDisable {
    /// After how many failures in a row, 1 to [`MAX_THRESHOLD`].
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
pub struct KeyLimit {
    /// What is shared: a database, a tenant, an account. 1 to [`MAX_KEY_LENGTH`] characters.
    pub key: String,
    /// 1 to [`MAX_CONCURRENT`]. Where jobs disagree, each is held to its own number.
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
    #[serde(skip_serializing_if = "Blackout::is_usual")]
    pub blackout: Blackout,
    /// What becomes of missed fires.
    #[serde(skip_serializing_if = "Misfire::is_usual")]
    pub misfire: Misfire,
    /// How many missed fires `catch_up` repeats at most, 1 to [`MAX_CATCH_UP`].
    pub catch_up_limit: u32,
    /// How far back `catch_up` looks, in seconds, 1 to [`MAX_CATCH_UP_WINDOW_SECONDS`].
    pub catch_up_window_seconds: u32,
    /// What becomes of a fire while the previous occurrence is open.
    #[serde(skip_serializing_if = "Overlap::is_usual")]
    pub overlap: Overlap,
    /// At most so many occurrences of this job at once, 1 to [`MAX_CONCURRENT`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u16>,
    /// At most so many at once among all jobs with the same key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_limit: Option<KeyLimit>,
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
    pub zombie_timeout_seconds: Option<u32>,
    /// What becomes of a run that is lost.
    #[serde(skip_serializing_if = "OnLost::is_usual")]
    pub on_lost: OnLost,
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
            blackout: Blackout::default(),
            misfire: Misfire::default(),
            catch_up_limit: 100,
            catch_up_window_seconds: 3_600,
            overlap: Overlap::default(),
            max_concurrent: None,
            key_limit: None,
            max_retries: 0,
            base_retry_delay_seconds: 5,
            retry_jitter_percent: 0,
            zombie_timeout_seconds: None,
            on_lost: OnLost::default(),
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
        within("catch_up_limit", self.catch_up_limit, 1, MAX_CATCH_UP);
        within("catch_up_window_seconds", self.catch_up_window_seconds, 1, MAX_CATCH_UP_WINDOW_SECONDS);
        if let Some(limit) = self.max_concurrent {
            within("max_concurrent", limit.into(), 1, MAX_CONCURRENT.into());
        }
        if let Some(key) = &self.key_limit {
            within("concurrency_key_limit", key.limit.into(), 1, MAX_CONCURRENT.into());
        }
        within("max_retries", self.max_retries.into(), 0, 100);
        within("base_retry_delay_seconds", self.base_retry_delay_seconds, 1, 86_400);
        within("retry_jitter_percent", self.retry_jitter_percent.into(), 0, 100);
        if let Some(seconds) = self.zombie_timeout_seconds {
            within("zombie_timeout_seconds", seconds, 15, 86_400);
        }
        if let Some(breaker) = self.auto_disable {
            within("auto_disable_threshold", breaker.threshold.into(), 1, MAX_THRESHOLD.into());
            within("auto_disable_window_seconds", breaker.window_seconds, 1, MAX_CATCH_UP_WINDOW_SECONDS);
            if let Some(seconds) = breaker.cool_down_seconds {
                within("auto_disable_cool_down_seconds", seconds, 1, MAX_CATCH_UP_WINDOW_SECONDS);
            }
        }
        if let Some(key) = &self.key_limit
            && (key.key.trim().is_empty()
                || key.key.chars().count() > MAX_KEY_LENGTH
                || key.key.contains(char::is_control))
        {
            wrong.push(("concurrency_key", format!("takes 1 to {MAX_KEY_LENGTH} printable characters")));
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
        self.overlap != Overlap::Allow || self.max_concurrent.is_some() || self.key_limit.is_some()
    }

    /// How many occurrences of this job may be open at once; none means any number.
    #[must_use]
    pub fn job_limit(&self) -> Option<u16> {
        match self.overlap {
            Overlap::Queue | Overlap::Replace => Some(1),
            Overlap::Allow | Overlap::Skip => self.max_concurrent,
        }
    }
}

/// The longest pause between attempts, in seconds: a day. Doubling leads there from any base within 17 steps.
pub const LONGEST_PAUSE_SECONDS: u64 = 24 * 3_600;

/// How many pauses between attempts are named one by one.
const NAMED_PAUSES: u16 = 6;

/// What becomes of a failed attempt, in words: how many more there are, and after which pauses.
///
/// As in `Tried up to 3 times more: after 5 s, 10 s and 20 s, each up to 20 % sooner.`
#[must_use]
pub fn retry_words(max_retries: u16, base_retry_delay_seconds: u32, retry_jitter_percent: u16) -> String {
    let pause = |n: u16| {
        let doubled = u64::from(base_retry_delay_seconds) << n.min(17);
        pause_words(doubled.min(LONGEST_PAUSE_SECONDS))
    };
    let capped = |n: u16| u64::from(base_retry_delay_seconds) << n.min(17) > LONGEST_PAUSE_SECONDS;
    let sooner = match (retry_jitter_percent, max_retries) {
        (0, _) => String::new(),
        (percent, 1) => format!(", or up to {percent} % sooner"),
        (percent, _) => format!(", each up to {percent} % sooner"),
    };
    match max_retries {
        0 => "Not tried again: a failed attempt ends its occurrence.".into(),
        1 => format!("Tried once more: after {}{sooner}.", pause(0)),
        n if n <= NAMED_PAUSES => {
            let first: Vec<_> = (0..n - 1).map(pause).collect();
            format!("Tried up to {n} times more: after {} and {}{sooner}.", first.join(", "), pause(n - 1))
        }
        n => {
            let first: Vec<_> = (0..NAMED_PAUSES - 2).map(pause).collect();
            let last = pause(n - 1);
            let end = if capped(n - 1) { format!(", at most {last}") } else { format!("; before the last {last}") };
            format!(
                "Tried up to {n} times more: after {} and so on, each time twice as long{end}{sooner}.",
                first.join(", ")
            )
        }
    }
}

/// A pause in at most two units: `80 s`, `2 min 40 s`, `1 h`.
fn pause_words(seconds: u64) -> String {
    let two = |big: u64, unit: &str, small: u64, part: &str| {
        if small == 0 { format!("{big} {unit}") } else { format!("{big} {unit} {small} {part}") }
    };
    match seconds {
        s if s < 120 => format!("{s} s"),
        s if s < 7_200 => two(s / 60, "min", s % 60, "s"),
        s => two(s / 3_600, "h", s % 3_600 / 60, "min"),
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
    fn words_lead_back() {
        for misfire in Misfire::ALL {
            assert_eq!(Misfire::from_word(misfire.word()), Some(*misfire));
        }
        for overlap in Overlap::ALL {
            assert_eq!(Overlap::from_word(overlap.word()), Some(*overlap));
            assert_eq!(Overlap::from_code(overlap.code()), *overlap);
            let json = serde_json::to_string(overlap).expect("writes");
            assert_eq!(json, format!("{:?}", overlap.word()));
        }
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
    fn retries_are_told_by_their_pauses() {
        let told = [
            (0, 5, "Not tried again: a failed attempt ends its occurrence."),
            (1, 5, "Tried once more: after 5 s."),
            (3, 5, "Tried up to 3 times more: after 5 s, 10 s and 20 s."),
            (2, 90, "Tried up to 2 times more: after 90 s and 3 min."),
            (
                10,
                100,
                "Tried up to 10 times more: after 100 s, 3 min 20 s, 6 min 40 s, 13 min 20 s and so on, each time twice as \
                 long; before the last 14 h 13 min.",
            ),
        ];
        for (retries, base, words) in told {
            assert_eq!(retry_words(retries, base, 0), words);
        }
        assert!(
            retry_words(100, 86_400, 0)
                .ends_with("after 24 h, 24 h, 24 h, 24 h and so on, each time twice as long, at most 24 h.")
        );
        assert!(retry_words(40, 1, 0).ends_with("each time twice as long, at most 24 h."));
    }

    #[test]
    fn jitter_is_told_with_the_pauses_it_shortens() {
        let told = [
            (0, "Not tried again: a failed attempt ends its occurrence."),
            (1, "Tried once more: after 5 s, or up to 20 % sooner."),
            (3, "Tried up to 3 times more: after 5 s, 10 s and 20 s, each up to 20 % sooner."),
        ];
        for (retries, words) in told {
            assert_eq!(retry_words(retries, 5, 20), words);
        }
        assert!(retry_words(10, 100, 100).ends_with("before the last 14 h 13 min, each up to 100 % sooner."));
    }

    #[test]
    fn taking_turns_means_one_at_a_time() {
        let rules = Rules { overlap: Overlap::Queue, max_concurrent: Some(5), ..Rules::default() };
        assert_eq!(rules.job_limit(), Some(1));
        assert_eq!(Rules { max_concurrent: Some(5), ..Rules::default() }.job_limit(), Some(5));
    }
}
