//! Disables jobs that keep failing, and enables them again after their cool-down.
//!
//! The task counts rows, never messages, and disables a job by one statement that is guarded by the job's version. A
//! duplicate report and a second server that decides at the same moment therefore change nothing.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use milvaion_api::events::LiveEvent;
use milvaion_protocol::id::JobId;
use milvaion_schedule::rules::{AutoDisable, MAX_CATCH_UP_WINDOW_SECONDS};

use crate::{
    command::jobs::JobCommands,
    domain::auto_disable,
    engine::{Service, context::Context},
    live::alerts::{Alert, AlertSender},
};

/// The time between two ticks without an activation. A job stays disabled at most this long beyond its cool-down.
const AUTO_DISABLE_INTERVAL: Duration = Duration::from_secs(10);
/// The most jobs that one tick enables again.
const REENABLE_BATCH: i64 = 500;

/// The background task that disables failing jobs.
#[derive(Debug)]
pub struct AutoDisabler {
    /// The job commands, with access to the store and to live events.
    pub jobs: JobCommands,
    /// The sender of webhook alerts.
    pub alerts: AlertSender,
    /// The rule for jobs without their own; `None` disables no job.
    pub default_rule: Option<AutoDisable>,
}

impl AutoDisabler {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { jobs: context.jobs(), alerts: context.alerts.clone(), default_rule: context.config.alerts.auto_disable }
    }
}

/// The result of one tick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AutoDisableReport {
    /// Jobs with a rule and a failure within its window.
    pub failing: usize,
    /// Jobs that this tick disabled.
    pub disabled: Vec<JobId>,
    /// Jobs that this tick enabled again.
    pub enabled: Vec<JobId>,
}

impl Service for AutoDisabler {
    const NAME: &'static str = "auto-disable";
    type Report = AutoDisableReport;

    fn period(&self) -> Duration {
        AUTO_DISABLE_INTERVAL
    }

    async fn tick(&mut self) -> anyhow::Result<AutoDisableReport> {
        let mut report = AutoDisableReport::default();
        let now = self.jobs.clock.now();
        for id in self.jobs.store.cooled_down_jobs(now, REENABLE_BATCH).await? {
            if self.enable(id).await? {
                report.enabled.push(id);
            }
        }
        let failing = self.failing(now).await?;
        report.failing = failing.len();
        for id in failing {
            if self.disable_if_due(id).await? {
                report.disabled.push(id);
            }
        }
        Ok(report)
    }

    fn is_notable(report: &AutoDisableReport) -> bool {
        !report.disabled.is_empty() || !report.enabled.is_empty()
    }
}

fn longest_window() -> TimeDelta {
    TimeDelta::seconds(MAX_CATCH_UP_WINDOW_SECONDS.into())
}

impl AutoDisabler {
    async fn failing(&self, now: DateTime<Utc>) -> crate::store::Result<Vec<JobId>> {
        let default_window = self.default_rule.map(|rule| rule.window_seconds);
        self.jobs.store.failing_jobs(now - longest_window(), default_window, now).await
    }

    async fn disable_if_due(&self, id: JobId) -> anyhow::Result<bool> {
        let store = &self.jobs.store;
        let Some(job) = store.job(id).await? else { return Ok(false) };
        let Some(rule) = job.definition.rules.auto_disable.or(self.default_rule) else { return Ok(false) };
        let (runs, since) = store.last_runs(id, auto_disable::runs_to_examine(rule)).await?;
        let now = self.jobs.clock.now();
        let Some(reason) = auto_disable::disable_reason(rule, &runs, since, now) else { return Ok(false) };
        let enable_at = rule.cool_down_seconds.map(|seconds| now + TimeDelta::seconds(seconds.into()));
        if !store.auto_disable(&job, &reason, enable_at, now).await? {
            return Ok(false);
        }
        tracing::warn!(job.id = %id, job.name = job.definition.display_name, reason, "job {id} was disabled automatically");
        self.jobs.publish_change(id, None, LiveEvent::Job { id }).await;
        self.alerts.raise(Alert {
            kind: "job.auto_disable",
            job_id: id,
            job_name: job.definition.display_name,
            reason,
            at: now,
        });
        Ok(true)
    }

    async fn enable(&self, id: JobId) -> anyhow::Result<bool> {
        let store = &self.jobs.store;
        let Some(job) = store.job(id).await? else { return Ok(false) };
        let now = self.jobs.clock.now();
        let next = self.jobs.first_due(id, &job.definition, job.last_fire_at, now).await?;
        if !store.auto_enable(&job, next, now).await? {
            return Ok(false);
        }
        self.jobs.publish_change(id, next, LiveEvent::Job { id }).await;
        Ok(true)
    }
}
