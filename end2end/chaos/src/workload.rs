//! The jobs that are due while faults are injected: some of every type, drawn from the seed.

use chrono::{DateTime, Timelike, Utc};
use milvaion_api::requests::JobInput;
use milvaion_schedule::{
    rules::{MisfirePolicy, OverlapPolicy, Rules},
    schedule::Schedule,
};
use rand::{Rng, RngExt, rngs::StdRng};
use serde_json::{Value, json};

/// The worker id of all chaos workers and jobs.
pub(crate) const WORKER_ID: &str = "chaos";

/// A job to be defined.
#[derive(Clone, Debug)]
pub(crate) struct JobPlan {
    /// The job type.
    pub(crate) kind: &'static str,
    /// The schedule.
    pub(crate) timing: JobTiming,
    /// The number of retries.
    pub(crate) max_retries: u16,
    /// The duration of a run in milliseconds, if it is not the one of the job type.
    pub(crate) milliseconds: Option<u64>,
    /// The unreachable timeout in seconds, if it is not the default.
    pub(crate) unreachable_seconds: Option<u32>,
}

/// The schedule of a job.
#[derive(Clone, Debug)]
pub(crate) enum JobTiming {
    /// A cron expression of six fields, in UTC.
    Cron(String),
    /// One instant.
    Once(DateTime<Utc>),
    /// No schedule; runs are triggered.
    Manual,
}

impl JobPlan {
    /// Returns a job with the number of retries that its type needs.
    pub(crate) fn new(kind: &'static str, timing: JobTiming) -> Self {
        let max_retries = match kind {
            "flaky" => 2,
            "failing" | "panics" => 1,
            _ => 0,
        };
        Self { kind, timing, max_retries, milliseconds: None, unreachable_seconds: None }
    }

    /// Returns a job that is due every `seconds` seconds of the minute.
    pub(crate) fn every(kind: &'static str, seconds: u32) -> Self {
        let expression = if seconds == 1 { "* * * * * *".to_owned() } else { format!("*/{seconds} * * * * *") };
        Self::new(kind, JobTiming::Cron(expression))
    }

    /// Sets the duration of its runs.
    pub(crate) fn with_duration_ms(mut self, milliseconds: u64) -> Self {
        self.milliseconds = Some(milliseconds);
        self
    }

    /// Returns the job as a request to the server.
    pub(crate) fn input(&self, name: &str) -> JobInput {
        JobInput {
            display_name: name.into(),
            description: String::new(),
            tags: Vec::new(),
            worker_id: WORKER_ID.into(),
            job_type: self.kind.into(),
            job_data: self.milliseconds.map_or_else(|| json!({}), |n| json!({"milliseconds": n})),
            schedule: match &self.timing {
                JobTiming::Cron(expression) => Schedule::Cron { expression: expression.clone(), zone: "UTC".into() },
                JobTiming::Once(at) => Schedule::once(*at),
                JobTiming::Manual => Schedule::Manual,
            },
            is_active: true,
            priority: 3,
            timeout_seconds: None,
            // Every missed due time is caught up, so that a lost run cannot be explained by a policy.
            rules: Rules {
                misfire: MisfirePolicy::CatchUp,
                catch_up_limit: 1_000,
                catch_up_window_seconds: 3_600,
                overlap: OverlapPolicy::Allow,
                max_retries: self.max_retries,
                base_retry_delay_seconds: 1,
                unreachable_timeout_seconds: self.unreachable_seconds,
                ..Rules::default()
            },
        }
    }

    /// Returns the job as a line of `jobs.jsonl`.
    pub(crate) fn evidence(&self, job: &Value, name: &str) -> Value {
        let (kind, cron, once) = match &self.timing {
            JobTiming::Cron(expression) => ("cron", Some(expression.as_str()), None),
            JobTiming::Once(at) => ("once", None, Some(at.timestamp_micros())),
            JobTiming::Manual => ("manual", None, None),
        };
        json!({
            "job": job, "name": name, "kind": kind, "cron": cron, "once": once, "type": self.kind,
            "max_retries": self.max_retries,
        })
    }
}

/// The time from the drawing of the one-time jobs to the earliest due time, in seconds. Until then they must be defined.
const MIN_ONCE_SECONDS: u64 = 8;

/// Returns the default workload: sixty jobs, about 27 occurrences a second. One-time jobs are due within `window`
/// seconds from now.
pub(crate) fn default_workload(random: &mut StdRng, window: u64) -> Vec<JobPlan> {
    let mut plans = Vec::with_capacity(60);
    let mut add = |kind, count: usize, make: &mut dyn FnMut(&'static str) -> JobPlan| {
        plans.extend((0..count).map(|_| make(kind)));
    };
    for (kind, each_second, each_five) in
        [("quick", 16, 16), ("flaky", 2, 1), ("failing", 1, 1), ("panics", 1, 0), ("long", 0, 2)]
    {
        add(kind, each_second, &mut |kind| JobPlan::every(kind, 1));
        add(kind, each_five, &mut |kind| JobPlan::every(kind, 5));
    }
    for (kind, each_minute, once) in [("quick", 6, 8), ("long", 2, 2)] {
        add(kind, each_minute, &mut |kind| {
            JobPlan::new(kind, JobTiming::Cron(format!("{} * * * * *", random.random_range(0..60))))
        });
        add(kind, once, &mut |kind| JobPlan::new(kind, JobTiming::Once(random_second(random, window))));
    }
    add("quick", 1, &mut |kind| JobPlan::new(kind, JobTiming::Manual));
    add("obedient", 1, &mut |kind| JobPlan::new(kind, JobTiming::Manual));
    // They are defined first: the others may take longer than until the earliest due time on a busy machine.
    plans.sort_by_key(|plan| !matches!(plan.timing, JobTiming::Once(_)));
    plans
}

/// Returns a whole second between [`MIN_ONCE_SECONDS`] from now and the end of the window.
fn random_second(random: &mut impl Rng, window: u64) -> DateTime<Utc> {
    let seconds = random.random_range(MIN_ONCE_SECONDS..window.max(MIN_ONCE_SECONDS + 1));
    let at =
        milvaion_server::clock::machine_now() + chrono::TimeDelta::seconds(i64::try_from(seconds).unwrap_or(i64::MAX));
    at.with_nanosecond(0).unwrap_or(at)
}
