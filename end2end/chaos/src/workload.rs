//! What there is to do while things break: jobs of every kind, drawn from the seed.

use chrono::{DateTime, Timelike, Utc};
use milvaion_api::request::JobInput;
use milvaion_schedule::{
    rules::{Misfire, Overlap, Rules},
    schedule::Schedule,
};
use rand::{Rng, RngExt, rngs::StdRng};
use serde_json::{Value, json};

/// The worker id that everything is addressed to.
pub(crate) const WORKER: &str = "chaos";

/// A job to be defined.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// What it runs.
    pub(crate) kind: &'static str,
    /// When.
    pub(crate) when: When,
    /// Failures that are followed by another attempt.
    pub(crate) max_retries: u16,
    /// How long a run lasts, if not as its type says.
    pub(crate) milliseconds: Option<u64>,
}

/// When a job is due.
#[derive(Clone, Debug)]
pub(crate) enum When {
    /// By an expression of six fields in UTC.
    Cron(String),
    /// At one instant.
    Once(DateTime<Utc>),
    /// When it is asked for.
    Manual,
}

impl Plan {
    /// A job of a type, with the retries that the type is about.
    pub(crate) fn new(kind: &'static str, when: When) -> Self {
        let max_retries = match kind {
            "flaky" => 2,
            "failing" | "panics" => 1,
            _ => 0,
        };
        Self { kind, when, max_retries, milliseconds: None }
    }

    /// Every `seconds` seconds of the minute.
    pub(crate) fn each(kind: &'static str, seconds: u32) -> Self {
        let expression = if seconds == 1 { "* * * * * *".to_owned() } else { format!("*/{seconds} * * * * *") };
        Self::new(kind, When::Cron(expression))
    }

    /// Whose runs last so long.
    pub(crate) fn lasting(mut self, milliseconds: u64) -> Self {
        self.milliseconds = Some(milliseconds);
        self
    }

    /// As the server is told.
    pub(crate) fn input(&self, name: &str) -> JobInput {
        JobInput {
            display_name: name.into(),
            description: String::new(),
            tags: Vec::new(),
            worker_id: WORKER.into(),
            job_type: self.kind.into(),
            job_data: self.milliseconds.map_or_else(|| json!({}), |n| json!({"milliseconds": n})),
            schedule: match &self.when {
                When::Cron(expression) => Schedule::Cron { expression: expression.clone(), zone: "UTC".into() },
                When::Once(at) => Schedule::Once { at: *at },
                When::Manual => Schedule::Manual,
            },
            is_active: true,
            priority: 3,
            timeout_seconds: None,
            // Everything that is missed is owed, so that nothing that is lost can pass for a policy.
            rules: Rules {
                misfire: Misfire::CatchUp,
                catch_up_limit: 1_000,
                catch_up_window_seconds: 3_600,
                overlap: Overlap::Allow,
                max_retries: self.max_retries,
                base_retry_delay_seconds: 1,
                ..Rules::default()
            },
        }
    }

    /// As the checker is told.
    pub(crate) fn evidence(&self, job: &Value, name: &str) -> Value {
        let (kind, cron, once) = match &self.when {
            When::Cron(expression) => ("cron", Some(expression.as_str()), None),
            When::Once(at) => ("once", None, Some(at.timestamp_micros())),
            When::Manual => ("manual", None, None),
        };
        json!({
            "job": job, "name": name, "kind": kind, "cron": cron, "once": once, "type": self.kind,
            "max_retries": self.max_retries,
        })
    }
}

/// The ordinary mix: sixty jobs, about 27 occurrences a second. `window` is how many seconds from now the single runs are
/// spread over.
pub(crate) fn usual(random: &mut StdRng, window: u64) -> Vec<Plan> {
    let mut plans = Vec::with_capacity(60);
    let mut add = |kind, count: usize, make: &mut dyn FnMut(&'static str) -> Plan| {
        plans.extend((0..count).map(|_| make(kind)));
    };
    for (kind, each_second, each_five) in
        [("quick", 16, 16), ("flaky", 2, 1), ("failing", 1, 1), ("panics", 1, 0), ("long", 0, 2)]
    {
        add(kind, each_second, &mut |kind| Plan::each(kind, 1));
        add(kind, each_five, &mut |kind| Plan::each(kind, 5));
    }
    for (kind, each_minute, once) in [("quick", 6, 8), ("long", 2, 2)] {
        add(kind, each_minute, &mut |kind| {
            Plan::new(kind, When::Cron(format!("{} * * * * *", random.random_range(0..60))))
        });
        add(kind, once, &mut |kind| Plan::new(kind, When::Once(some_second(random, window))));
    }
    add("quick", 1, &mut |kind| Plan::new(kind, When::Manual));
    add("obedient", 1, &mut |kind| Plan::new(kind, When::Manual));
    plans
}

/// A whole second, not too soon, within the window.
fn some_second(random: &mut impl Rng, window: u64) -> DateTime<Utc> {
    let seconds = random.random_range(5..window.max(6));
    let at =
        milvaion_server::clock::machine_now() + chrono::TimeDelta::seconds(i64::try_from(seconds).unwrap_or(i64::MAX));
    at.with_nanosecond(0).unwrap_or(at)
}
