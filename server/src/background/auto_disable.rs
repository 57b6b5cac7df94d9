//! Disables jobs that keep failing, and enables them again after their pause.
//!
//! It counts rows, never messages, and disabling is one statement guarded by the job's version: a report that comes twice
//! and a second server that judges at the same moment change nothing.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use milvaion_api::events::LiveEvent;
use milvaion_protocol::id::JobId;
use milvaion_schedule::rules::{AutoDisable, MAX_CATCH_UP_WINDOW_SECONDS};

use super::BackgroundTask;
use crate::{
    command::jobs::JobCommands,
    domain::auto_disable,
    live::alerts::{Alert, AlertSender},
};

/// How often it looks without being woken: the longest a job stays disabled beyond its pause.
const AUTO_DISABLE_INTERVAL: Duration = Duration::from_secs(10);
/// How many jobs are enabled again in one tick.
const REENABLE_BATCH: i64 = 500;

/// The task.
#[derive(Debug)]
pub struct AutoDisabler {
    /// Where jobs are, and who tells of changed ones.
    pub jobs: JobCommands,
    /// Who else is told.
    pub alerts: AlertSender,
    /// The rule for jobs that have none of their own; none means never.
    pub default_rule: Option<AutoDisable>,
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AutoDisableReport {
    /// Jobs with a rule and a failure within its window.
    pub failing: usize,
    /// Disabled now.
    pub disabled: Vec<JobId>,
    /// Enabled again now.
    pub enabled: Vec<JobId>,
}

impl BackgroundTask for AutoDisabler {
    const NAME: &'static str = "auto-disable";
    type Report = AutoDisableReport;

    fn period(&self) -> Duration {
        AUTO_DISABLE_INTERVAL
    }

    async fn tick(&mut self) -> anyhow::Result<AutoDisableReport> {
        let mut judged = AutoDisableReport::default();
        let now = self.jobs.clock.now();
        for id in self.jobs.store.cooled_down_jobs(now, REENABLE_BATCH).await? {
            if self.enable(id).await? {
                judged.enabled.push(id);
            }
        }
        let failing = self.failing(now).await?;
        judged.failing = failing.len();
        for id in failing {
            if self.disable_if_due(id).await? {
                judged.disabled.push(id);
            }
        }
        Ok(judged)
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
        let usual = self.default_rule.map(|rule| rule.window_seconds);
        self.jobs.store.failing_jobs(now - longest_window(), usual, now).await
    }

    async fn disable_if_due(&self, id: JobId) -> anyhow::Result<bool> {
        let store = &self.jobs.store;
        let Some(job) = store.job(id).await? else { return Ok(false) };
        let Some(rule) = job.definition.rules.auto_disable.or(self.default_rule) else { return Ok(false) };
        let (runs, since) = store.last_runs(id, auto_disable::runs_to_examine(rule)).await?;
        let now = self.jobs.clock.now();
        let Some(reason) = auto_disable::disable_reason(rule, &runs, since, now) else { return Ok(false) };
        let again = rule.cool_down_seconds.map(|seconds| now + TimeDelta::seconds(seconds.into()));
        if !store.auto_disable(&job, &reason, again, now).await? {
            return Ok(false);
        }
        tracing::warn!(job.id = %id, job.name = job.definition.display_name, reason, "a job was disabled");
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
