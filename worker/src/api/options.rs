//! The rules and schedules that code declares beside a job.
//!
//! They are announced with the job type when the worker registers. The server applies the rules to the jobs that it keeps
//! for the schedules and for enqueued occurrences; a job that a user defines has its own. So a deployment brings its
//! schedules along, and the pages show which jobs come from code. What this process alone decides, the concurrency limit
//! of one process and the time for cleanup, stands here too, because a declaration has one place.
//!
//! Bounds are checked when the worker is built, and again by the server, which answers a registration.

use std::{fmt, marker::PhantomData, time::Duration};

use milvaion_protocol::{
    message::{DeclaredSchedule, JobDefaults, MAX_BUNDLE_RUNS, UniqueRule},
    topology::is_valid_name,
};
use serde::Serialize;
use serde_json::Value;

use crate::api::{
    config::{MAX_CONCURRENCY, MAX_TIMEOUT},
    error::ConfigErrors,
    rules::{Misfire, OnLost, Overlap, Rules, rule_setters, whole_seconds},
    timing::Timing,
};

/// Upper bound of the time for cleanup of a run. The user who cancelled the run waits for it.
const MAX_JOB_GRACE: Duration = Duration::from_secs(60);
/// Upper bound of the length of the name of a schedule's job, in characters.
const MAX_DISPLAY_NAME_CHARS: usize = 200;
/// Upper bound of the timeout of a schedule's job, that of every job of the server.
const MAX_SCHEDULE_TIMEOUT: Duration = Duration::from_secs(86_400);
/// Upper bound of the number of schedules of a job type.
const MAX_SCHEDULES: usize = 100;
/// Upper bound of the time for which a uniqueness key applies.
const MAX_UNIQUE_PERIOD: Duration = Duration::from_secs(30 * 86_400);

/// The uniqueness of occurrences that are enqueued: a second one with the same key creates nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unique {
    period: Option<Duration>,
}

impl Unique {
    /// Makes the input the key: while an occurrence with an equal input is open, a second one creates nothing.
    #[must_use]
    pub const fn by_input() -> Self {
        Self { period: None }
    }

    /// Keeps the key for `period` after the creation, even if the occurrence has ended, at most 30 days. Whole seconds.
    #[must_use]
    pub const fn within(mut self, period: Duration) -> Self {
        self.period = Some(period);
        self
    }

    /// Returns the time for which the key applies after the creation.
    pub(crate) const fn period(self) -> Option<Duration> {
        self.period
    }
}

/// The rules and schedules of one job type, declared in code.
///
/// [`Job::options`](crate::Job::options) declares them beside the job, and
/// [`WorkerBuilder::job_with`](crate::WorkerBuilder::job_with) where it is registered; the second has precedence.
///
/// ```
/// use milvaion_worker::{Cron, JobOptions};
/// use std::time::Duration;
///
/// let options = JobOptions::<String>::default()
///     .retries(5)
///     .backoff(Duration::from_secs(10))
///     .timeout(Duration::from_secs(300))
///     .tag("billing")
///     .schedule("nightly", Cron::new("0 2 * * *").zone("Europe/Berlin"), "invoices".to_owned());
/// ```
pub struct JobOptions<Input> {
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) concurrency: Option<u16>,
    pub(crate) bundle: Option<u16>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) grace: Option<Duration>,
    pub(crate) unique: Option<Unique>,
    rules: Rules,
    schedules: Vec<NewSchedule>,
    input: PhantomData<fn(Input)>,
}

struct NewSchedule {
    name: String,
    timing: Timing,
    /// The input as JSON, or the reason why it has none.
    input: Result<Value, String>,
    options: ScheduleOptions,
}

/// The name of one schedule on the pages, and its rules where they differ from those of its job type; see
/// [`JobOptions::schedule_with`]. A rule that is not set here is that of the job type. Tags take the place of those of the job
/// type.
#[derive(Clone, Debug, Default)]
pub struct ScheduleOptions {
    display_name: Option<String>,
    timeout: Option<Duration>,
    rules: Rules,
}

impl ScheduleOptions {
    rule_setters!();

    /// Sets the name of the job on the pages, 1 to 200 characters. Default the job type and the name of the schedule.
    #[must_use]
    pub fn display_name(mut self, name: impl Into<String>) -> Self {
        self.display_name = Some(name.into());
        self
    }

    /// Sets the timeout of a run, whole seconds from 1 second to 1 day. Default that of the job type.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    fn check(&self, refuse: &mut impl FnMut(String)) {
        if let Some(name) = &self.display_name
            && (name.trim().is_empty() || name.chars().count() > MAX_DISPLAY_NAME_CHARS)
        {
            refuse(format!("the display name {name:?}: give 1 to {MAX_DISPLAY_NAME_CHARS} characters"));
        }
        if let Some(timeout) = self.timeout
            && (timeout.subsec_nanos() != 0 || !(Duration::from_secs(1)..=MAX_SCHEDULE_TIMEOUT).contains(&timeout))
        {
            refuse(format!("a timeout of {timeout:?}: give whole seconds, 1 second to 1 day"));
        }
        self.rules.check(refuse);
    }
}

impl<Input> Default for JobOptions<Input> {
    fn default() -> Self {
        Self {
            name: None,
            description: None,
            concurrency: None,
            bundle: None,
            timeout: None,
            grace: None,
            unique: None,
            rules: Rules::default(),
            schedules: Vec::new(),
            input: PhantomData,
        }
    }
}

impl<Input> fmt::Debug for JobOptions<Input> {
    /// Writes the rules and the names of the schedules, without the inputs, which may be confidential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobOptions")
            .field("name", &self.name)
            .field("concurrency", &self.concurrency)
            .field("bundle", &self.bundle)
            .field("timeout", &self.timeout)
            .field("grace", &self.grace)
            .field("unique", &self.unique)
            .field("rules", &self.rules)
            .field("schedules", &self.schedules.iter().map(|schedule| &schedule.name).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl<Input> JobOptions<Input> {
    rule_setters!();

    /// Sets the name of the job type, in place of [`Job::TYPE`](crate::Job::TYPE): 1 to 100 letters, digits, `-`, `_` and
    /// `.`. So one Rust type can be registered more than once, such as once for each tenant.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the description of one sentence, for users who define a job of this type.
    #[must_use]
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// Sets the timeout of a run, 1 second to 7 days. Default [`Job::TIMEOUT`](crate::Job::TIMEOUT), else that of the worker.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the time for cleanup of a run that must end, at most 60 s. Default [`Job::GRACE`](crate::Job::GRACE).
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Sets the maximum number of concurrent runs in this process, 1 to 1,000. The configuration of the worker has
    /// precedence. Default [`Job::CONCURRENCY`](crate::Job::CONCURRENCY).
    #[must_use]
    pub fn concurrency(mut self, concurrency: u16) -> Self {
        self.concurrency = Some(concurrency);
        self
    }

    /// Sets the maximum number of runs that one message may bring, 1 to 10. Runs that are due at once share messages, which
    /// makes many short runs several times as cheap for the broker; 1 gives each a message of its own. Default 10, and never
    /// more than the process runs at once.
    #[must_use]
    pub fn bundle(mut self, runs: u16) -> Self {
        self.bundle = Some(runs);
        self
    }

    /// Makes the occurrences that are enqueued by this job type unique, whichever program enqueues them; see [`Unique`]. A
    /// uniqueness key of the occurrence itself takes its place.
    #[must_use]
    pub fn unique(mut self, unique: Unique) -> Self {
        self.unique = Some(unique);
        self
    }

    /// Adds a schedule like [`schedule`](Self::schedule), with a name for the pages or with rules that differ from those of the
    /// job type.
    ///
    /// ```
    /// use milvaion_worker::{Cron, JobOptions, Misfire};
    ///
    /// let options = JobOptions::<u8>::default().schedule_with("weekly", Cron::new("0 6 * * 1"), 7, |schedule| {
    ///     schedule.display_name("Weekly report").misfire(Misfire::Skip).retries(10)
    /// });
    /// ```
    #[must_use]
    pub fn schedule_with(
        self,
        name: impl Into<String>,
        timing: impl Into<Timing>,
        input: Input,
        change: impl FnOnce(ScheduleOptions) -> ScheduleOptions,
    ) -> Self
    where
        Input: Serialize,
    {
        let mut options = self.schedule(name, timing, input);
        if let Some(added) = options.schedules.last_mut() {
            added.options = change(ScheduleOptions::default());
        }
        options
    }

    /// Adds a schedule: the server keeps a job for it, runs it with `input` at its due times, and pauses the job when the
    /// code no longer declares the schedule. `name` is unique within the job type, 1 to 100 letters, digits, `-`, `_` and
    /// `.`. At most 100.
    ///
    /// The same schedule of several instances is one job. If their declarations differ, that of the highest
    /// [version](crate::WorkerBuilder::version) applies. A change in the dashboard detaches the job from the code until a
    /// user attaches it again.
    #[must_use]
    pub fn schedule(mut self, name: impl Into<String>, timing: impl Into<Timing>, input: Input) -> Self
    where
        Input: Serialize,
    {
        let input = serde_json::to_value(input).map_err(|error| error.to_string());
        let options = ScheduleOptions::default();
        self.schedules.push(NewSchedule { name: name.into(), timing: timing.into(), input, options });
        self
    }

    /// Adds an error for each declaration outside its bounds.
    pub(crate) fn check(&self, job_type: &str, errors: &mut ConfigErrors) {
        let mut refuse = |what: String| errors.add(format!("Job type {job_type:?} has {what}."));
        if !is_valid_name(job_type, 100) {
            refuse("an invalid name: give 1 to 100 letters, digits, '-', '_' and '.'".to_owned());
        }
        if let Some(concurrency) = self.concurrency.filter(|limit| !(1..=MAX_CONCURRENCY).contains(limit)) {
            refuse(format!("a concurrency limit of {concurrency}: give a number from 1 to {MAX_CONCURRENCY}"));
        }
        if let Some(runs) = self.bundle.filter(|runs| !(1..=MAX_BUNDLE_RUNS).contains(&usize::from(*runs))) {
            refuse(format!("bundles of {runs} runs: give a number from 1 to {MAX_BUNDLE_RUNS}"));
        }
        if self.timeout.is_some_and(|timeout| !(Duration::from_secs(1)..=MAX_TIMEOUT).contains(&timeout)) {
            refuse("a timeout outside its bounds: give 1 second to 7 days".to_owned());
        }
        if self.grace.is_some_and(|grace| grace > MAX_JOB_GRACE) {
            refuse("a grace outside its bounds: give at most 60 seconds".to_owned());
        }
        self.rules.check(&mut refuse);
        if let Some(period) = self.unique.and_then(Unique::period)
            && (period.subsec_nanos() != 0 || !(Duration::from_secs(1)..=MAX_UNIQUE_PERIOD).contains(&period))
        {
            refuse(format!("a uniqueness period of {period:?}: give whole seconds, 1 second to 30 days"));
        }
        if self.schedules.len() > MAX_SCHEDULES {
            refuse(format!("{} schedules: give at most {MAX_SCHEDULES}", self.schedules.len()));
        }
        self.check_schedules(job_type, errors);
    }

    fn check_schedules(&self, job_type: &str, errors: &mut ConfigErrors) {
        for (index, schedule) in self.schedules.iter().enumerate() {
            let label = format!("Schedule {:?} of job type {job_type:?}", schedule.name);
            if !is_valid_name(&schedule.name, 100) {
                errors.add(format!("{label} has an invalid name: give 1 to 100 letters, digits, '-', '_' and '.'."));
            }
            if self.schedules[..index].iter().any(|other| other.name.eq_ignore_ascii_case(&schedule.name)) {
                errors.add(format!("{label} is declared twice: give each schedule of a job type its own name."));
            }
            if let Err(reason) = &schedule.input {
                errors
                    .add(format!("{label} has an input that cannot be written as JSON ({reason}): correct its type."));
            }
            schedule.timing.check(&label, errors);
            schedule.options.check(&mut |what| errors.add(format!("{label} has {what}.")));
        }
    }

    /// Returns the rules and the schedules as the registration announces them.
    pub(crate) fn into_wire(self) -> (JobDefaults, Vec<DeclaredSchedule>) {
        let unique = self.unique.map(|unique| UniqueRule { for_seconds: unique.period().map(whole_seconds) });
        let rules = JobDefaults { unique, ..self.rules.into_wire() };
        let schedules = self.schedules.into_iter().map(|schedule| DeclaredSchedule {
            name: schedule.name,
            timing: schedule.timing.into_wire(),
            input: schedule.input.unwrap_or_default(),
            display_name: schedule.options.display_name,
            rules: schedule.options.rules.into_wire(),
            timeout_seconds: schedule.options.timeout.map(whole_seconds),
        });
        (rules, schedules.collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::{rules::MAX_TAGS, timing::Cron};

    #[test]
    fn declaration_is_announced_as_written() {
        let options = JobOptions::<String>::default()
            .retries(5)
            .backoff(Duration::from_secs(10))
            .retry_jitter(25)
            .priority(4)
            .max_concurrent(2)
            .overlap(Overlap::Skip)
            .misfire(Misfire::CatchUp)
            .on_lost(OnLost::Fail)
            .tag("billing")
            .schedule("nightly", Cron::new("0 2 * * *").zone("Europe/Berlin"), "all".to_owned())
            .schedule_with("often", Duration::from_secs(30), "new".to_owned(), |schedule| {
                schedule.display_name("New reports").timeout(Duration::from_secs(20)).retries(0).misfire(Misfire::Skip)
            });
        let mut errors = ConfigErrors::default();
        options.check("report", &mut errors);
        assert!(errors.messages().is_empty(), "{errors}");
        let (rules, schedules) = options.into_wire();
        let rules = serde_json::to_value(rules).expect("JSON");
        let expected = json!({
            "maxRetries": 5, "baseRetryDelaySeconds": 10, "retryJitterPercent": 25, "priority": 4, "maxConcurrent": 2,
            "overlap": "skip", "misfire": "catch_up", "onLost": "fail", "tags": ["billing"],
        });
        assert_eq!(rules, expected);
        let schedules = serde_json::to_value(schedules).expect("JSON");
        let expected = json!([
            {
                "name": "nightly", "input": "all",
                "timing": { "kind": "cron", "expression": "0 2 * * *", "zone": "Europe/Berlin" },
            },
            {
                "name": "often", "timing": { "kind": "every", "seconds": 30 }, "input": "new",
                "displayName": "New reports", "timeoutSeconds": 20, "rules": { "maxRetries": 0, "misfire": "skip" },
            },
        ]);
        assert_eq!(schedules, expected);
    }

    #[test]
    fn every_mistake_is_named() {
        let mut options = JobOptions::<u8>::default()
            .retries(101)
            .backoff(Duration::from_millis(1_500))
            .start_within(Duration::ZERO)
            .retry_jitter(101)
            .priority(6)
            .concurrency(0)
            .bundle(11)
            .max_concurrent(0)
            .timeout(Duration::ZERO)
            .grace(Duration::from_secs(61))
            .unique(Unique::by_input().within(Duration::from_secs(31 * 86_400)))
            .tag("a,b")
            .schedule("not a name", Duration::from_millis(100), 1)
            .schedule("twice", Duration::from_secs(1), 1)
            .schedule("TWICE", Duration::from_secs(1), 1)
            .schedule_with("strict", Duration::from_secs(1), 1, |schedule| {
                schedule.display_name(" ").timeout(Duration::from_millis(1)).priority(0)
            });
        for _ in 0..MAX_TAGS {
            options = options.tag("x");
        }
        let mut errors = ConfigErrors::default();
        options.check("report", &mut errors);
        assert_eq!(errors.messages().len(), 19, "{errors}");
        assert!(errors.messages().iter().all(|text| text.contains("report") && text.contains("give")), "{errors}");
    }

    #[cfg(feature = "cron")]
    #[test]
    fn cron_expression_and_zone_are_checked() {
        let options = JobOptions::<()>::default().schedule("a", Cron::new("61 * * * *"), ()).schedule(
            "b",
            Cron::new("0 2 * * *").zone("Mars/Olympus"),
            (),
        );
        let mut errors = ConfigErrors::default();
        options.check("report", &mut errors);
        assert_eq!(errors.messages().len(), 2, "{errors}");
        assert!(errors.messages()[1].contains("Mars/Olympus"), "{errors}");
    }
}
