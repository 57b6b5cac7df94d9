//! What there is to do while things break: jobs of every kind, drawn from the seed.

use chrono::{DateTime, Timelike, Utc};
use milvaion_api::requests::JobInput;
use milvaion_schedule::{
    rules::{MisfirePolicy, OverlapPolicy, Rules},
    schedule::Schedule,
};
use rand::{Rng, RngExt, rngs::StdRng};
use serde_json::{Value, json};

/// The worker id that everything is addressed to.
pub(crate) const WORKER_ID: &str = "chaos";

/// A job to be defined.
#[derive(Clone, Debug)]
pub(crate) struct JobPlan {
    /// What it runs.
    pub(crate) kind: &'static str,
    /// When.
    pub(crate) when: JobTiming,
    /// Failures that are followed by another attempt.
    pub(crate) max_retries: u16,
    /// How long a run lasts, if not as its type says.
    pub(crate) milliseconds: Option<u64>,
}

/// When a job is due.
#[derive(Clone, Debug)]
pub(crate) enum JobTiming {
    /// By an expression of six fields in UTC.
    Cron(String),
    /// At one instant.
    Once(DateTime<Utc>),
    /// When it is asked for.
    Manual,
}

impl JobPlan {
    /// A job of a type, with the retries that the type is about.
    pub(crate) fn new(kind: &'static str, when: JobTiming) -> Self {
        let max_retries = match kind {
            "flaky" => 2,
            "failing" | "panics" => 1,
            _ => 0,
        };
        Self { kind, when, max_retries, milliseconds: None }
    }

    /// Every `seconds` seconds of the minute.
    pub(crate) fn every(kind: &'static str, seconds: u32) -> Self {
        let expression = if seconds == 1 { "* * * * * *".to_owned() } else { format!("*/{seconds} * * * * *") };
        Self::new(kind, JobTiming::Cron(expression))
    }

    /// Whose runs last so long.
    pub(crate) fn with_duration_ms(mut self, milliseconds: u64) -> Self {
        self.milliseconds = Some(milliseconds);
        self
    }

    /// As the server is told.
    pub(crate) fn input(&self, name: &str) -> JobInput {
        JobInput {
            display_name: name.into(),
            description: String::new(),
            tags: Vec::new(),
            worker_id: WORKER_ID.into(),
            job_type: self.kind.into(),
            job_data: self.milliseconds.map_or_else(|| json!({}), |n| json!({"milliseconds": n})),
            schedule: match &self.when {
                JobTiming::Cron(expression) => Schedule::Cron { expression: expression.clone(), zone: "UTC".into() },
                JobTiming::Once(at) => Schedule::Once { at: *at },
                JobTiming::Manual => Schedule::Manual,
            },
            is_active: true,
            priority: 3,
            timeout_seconds: None,
            // Everything that is missed is owed, so that nothing that is lost can pass for a policy.
            rules: Rules {
                misfire: MisfirePolicy::CatchUp,
                catch_up_limit: 1_000,
                catch_up_window_seconds: 3_600,
                overlap: OverlapPolicy::Allow,
                max_retries: self.max_retries,
                base_retry_delay_seconds: 1,
                ..Rules::default()
            },
        }
    }

    /// As the checker is told.
    pub(crate) fn evidence(&self, job: &Value, name: &str) -> Value {
        let (kind, cron, once) = match &self.when {
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

/// The ordinary mix: sixty jobs, about 27 occurrences a second. `window` is how many seconds from now the single runs are
/// spread over.
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
        add(kind, once, &mut |kind| JobPlan::new(kind, JobTiming::Once(some_second(random, window))));
    }
    add("quick", 1, &mut |kind| JobPlan::new(kind, JobTiming::Manual));
    add("obedient", 1, &mut |kind| JobPlan::new(kind, JobTiming::Manual));
    plans
}

/// A whole second, not too soon, within the window.
fn some_second(random: &mut impl Rng, window: u64) -> DateTime<Utc> {
    let seconds = random.random_range(5..window.max(6));
    let at =
        milvaion_server::clock::machine_now() + chrono::TimeDelta::seconds(i64::try_from(seconds).unwrap_or(i64::MAX));
    at.with_nanosecond(0).unwrap_or(at)
}
