//! The rules that code may declare for a job type and for one of its schedules.
//!
//! Both declare the same rules with the same words, so the functions that set them are written once. A schedule announces only
//! what differs from its job type; the server joins the two.

use std::time::Duration;

use milvaion_protocol::message::JobDefaults;

/// Upper bound of the number of retries.
const MAX_RETRIES: u16 = 100;
/// Upper bound of the base of the retry delay.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(86_400);
/// Upper bound of the start limit.
const MAX_START_WITHIN: Duration = Duration::from_secs(30 * 86_400);
/// Upper bound of a concurrency limit over the whole fleet.
const MAX_CONCURRENT: u16 = 10_000;
/// Upper bound of the number of tags.
pub(crate) const MAX_TAGS: usize = 20;
/// Upper bound of the length of a tag, in characters.
const MAX_TAG_CHARS: usize = 50;

/// The policy for a due time while the previous occurrence of the job is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overlap {
    /// Both run.
    #[default]
    Allow,
    /// The new occurrence is skipped.
    Skip,
    /// The new occurrence waits for the end of the previous one.
    Queue,
    /// The previous occurrence is cancelled.
    Replace,
}

impl Overlap {
    /// Returns the word of the protocol.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Skip => "skip",
            Self::Queue => "queue",
            Self::Replace => "replace",
        }
    }
}

/// The policy for due times that passed while no scheduler was running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misfire {
    /// One occurrence runs for all of them.
    #[default]
    FireOnce,
    /// None of them runs.
    Skip,
    /// Each of them runs, within the server's limits.
    CatchUp,
}

impl Misfire {
    /// Returns the word of the protocol.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::FireOnce => "fire_once",
            Self::Skip => "skip",
            Self::CatchUp => "catch_up",
        }
    }
}

/// The policy for an attempt that was lost with its worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLost {
    /// The occurrence runs again, as the next attempt.
    #[default]
    Requeue,
    /// The occurrence fails, for effects that must not happen twice.
    Fail,
}

impl OnLost {
    /// Returns the word of the protocol.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Requeue => "requeue",
            Self::Fail => "fail",
        }
    }
}

/// The declared rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    /// The rules as they are announced, without those below.
    pub(crate) wire: JobDefaults,
    /// The delay before the first retry.
    pub(crate) backoff: Option<Duration>,
    /// The start limit.
    pub(crate) start_within: Option<Duration>,
}

impl Rules {
    /// Calls `refuse` with each rule outside its bounds, and with the remedy.
    pub(crate) fn check(&self, refuse: &mut impl FnMut(String)) {
        let wire = &self.wire;
        let is_invalid =
            |time: Duration, most| time.subsec_nanos() != 0 || !(Duration::from_secs(1)..=most).contains(&time);
        if let Some(retries) = wire.max_retries.filter(|retries| *retries > MAX_RETRIES) {
            refuse(format!("{retries} retries: give a number from 0 to {MAX_RETRIES}"));
        }
        if let Some(base) = self.backoff.filter(|base| is_invalid(*base, MAX_RETRY_DELAY)) {
            refuse(format!("a backoff of {base:?}: give whole seconds, 1 second to 1 day"));
        }
        if let Some(limit) = self.start_within.filter(|limit| is_invalid(*limit, MAX_START_WITHIN)) {
            refuse(format!("a start limit of {limit:?}: give whole seconds, 1 second to 30 days"));
        }
        if let Some(percent) = wire.retry_jitter_percent.filter(|percent| *percent > 100) {
            refuse(format!("a retry jitter of {percent}: give a number from 0 to 100"));
        }
        if let Some(priority) = wire.priority.filter(|priority| !(1..=5).contains(priority)) {
            refuse(format!("priority {priority}: give a number from 1 to 5"));
        }
        if let Some(limit) = wire.max_concurrent.filter(|limit| !(1..=MAX_CONCURRENT).contains(limit)) {
            refuse(format!("a limit of {limit} concurrent occurrences: give a number from 1 to {MAX_CONCURRENT}"));
        }
        if wire.tags.len() > MAX_TAGS {
            refuse(format!("{} tags: give at most {MAX_TAGS}", wire.tags.len()));
        }
        for tag in &wire.tags {
            if tag.trim().is_empty() || tag.contains(',') || tag.chars().count() > MAX_TAG_CHARS {
                refuse(format!("the tag {tag:?}: give 1 to {MAX_TAG_CHARS} characters without a comma"));
            }
        }
    }

    /// Returns the rules as the registration announces them.
    pub(crate) fn into_wire(self) -> JobDefaults {
        JobDefaults {
            base_retry_delay_seconds: self.backoff.map(whole_seconds),
            start_within_seconds: self.start_within.map(whole_seconds),
            ..self.wire
        }
    }
}

/// Returns a duration in seconds, as the protocol counts it.
pub(crate) fn whole_seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)
}

/// Writes the functions that set a rule, for a type with a field `rules`.
macro_rules! rule_setters {
    () => {
        /// Sets the maximum number of retries after a failure, 0 to 100. A job type without this rule has 0.
        #[must_use]
        pub fn retries(mut self, retries: u16) -> Self {
            self.rules.wire.max_retries = Some(retries);
            self
        }

        /// Sets the delay before the first retry, whole seconds from 1 second to 1 day. It doubles for each further retry, up
        /// to one day. A job type without this rule has 5 seconds.
        #[must_use]
        pub fn backoff(mut self, base: Duration) -> Self {
            self.rules.backoff = Some(base);
            self
        }

        /// Sets the share of a retry delay that may be removed at random, 0 to 100 percent, so that occurrences that failed
        /// together do not retry together. A job type without this rule has 0.
        #[must_use]
        pub fn retry_jitter(mut self, percent: u16) -> Self {
            self.rules.wire.retry_jitter_percent = Some(percent);
            self
        }

        /// Sets the priority, 1 (idle) to 5 (critical). A job type without this rule has 3.
        #[must_use]
        pub fn priority(mut self, priority: u8) -> Self {
            self.rules.wire.priority = Some(priority);
            self
        }

        /// Sets the maximum number of concurrent occurrences of each job with these rules in the whole fleet, 1 to 10,000. A
        /// job type without this rule has no limit.
        #[must_use]
        pub fn max_concurrent(mut self, limit: u16) -> Self {
            self.rules.wire.max_concurrent = Some(limit);
            self
        }

        /// Sets the policy for a due time while the previous occurrence is open.
        #[must_use]
        pub fn overlap(mut self, overlap: Overlap) -> Self {
            self.rules.wire.overlap = Some(overlap.word().to_owned());
            self
        }

        /// Sets the policy for due times that passed while no scheduler was running.
        #[must_use]
        pub fn misfire(mut self, misfire: Misfire) -> Self {
            self.rules.wire.misfire = Some(misfire.word().to_owned());
            self
        }

        /// Sets the policy for an attempt that was lost with its worker.
        #[must_use]
        pub fn on_lost(mut self, on_lost: OnLost) -> Self {
            self.rules.wire.on_lost = Some(on_lost.word().to_owned());
            self
        }

        /// Sets the start limit, whole seconds from 1 second to 30 days: an occurrence that no worker has begun within this
        /// time of its due time is skipped. A job type without this rule has no limit.
        #[must_use]
        pub fn start_within(mut self, limit: Duration) -> Self {
            self.rules.start_within = Some(limit);
            self
        }

        /// Adds a tag, 1 to 50 characters without a comma. At most 20.
        #[must_use]
        pub fn tag(mut self, tag: impl Into<String>) -> Self {
            self.rules.wire.tags.push(tag.into());
            self
        }
    };
}

pub(crate) use rule_setters;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_limit_is_announced_in_seconds() {
        let rules = Rules { start_within: Some(Duration::from_secs(90)), ..Rules::default() };
        assert_eq!(rules.into_wire(), JobDefaults { start_within_seconds: Some(90), ..JobDefaults::default() });
    }
}
