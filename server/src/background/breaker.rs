//! Disables jobs that keep failing, and enables them again after their pause.
//!
//! It counts rows, never messages, and disabling is one statement guarded by the job's version: a report that comes twice
//! and a second server that judges at the same moment change nothing.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use milvaion_api::event::Event;
use milvaion_protocol::id::JobId;
use milvaion_schedule::rules::{AutoDisable, MAX_CATCH_UP_WINDOW_SECONDS};

use super::Task;
use crate::{
    command::jobs::Jobs,
    domain::breaker,
    live::alerts::{Alert, Alerts},
};

/// How often it looks without being woken: the longest a job stays disabled beyond its pause.
const LOOK: Duration = Duration::from_secs(10);
/// How many jobs are enabled again in one tick.
const BATCH: i64 = 500;

/// The task.
#[derive(Debug)]
pub struct Breaker {
    /// Where jobs are, and who tells of changed ones.
    pub jobs: Jobs,
    /// Who else is told.
    pub alerts: Alerts,
    /// The rule for jobs that have none of their own; none means never.
    pub usual: Option<AutoDisable>,
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Jobs with a rule and a failure within its window.
    pub failing: usize,
    /// Disabled now.
    pub disabled: Vec<JobId>,
    /// Enabled again now.
    pub enabled: Vec<JobId>,
}

impl Task for Breaker {
    const NAME: &'static str = "breaker";
    type Report = Judged;

    fn period(&self) -> Duration {
        LOOK
    }

    async fn tick(&mut self) -> anyhow::Result<Judged> {
        let mut judged = Judged::default();
        let now = self.jobs.clock.now();
        for id in self.jobs.store.cooled_down(now, BATCH).await? {
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

    fn is_news(report: &Judged) -> bool {
        !report.disabled.is_empty() || !report.enabled.is_empty()
    }
}

fn longest_window() -> TimeDelta {
    TimeDelta::seconds(MAX_CATCH_UP_WINDOW_SECONDS.into())
}

impl Breaker {
    async fn failing(&self, now: DateTime<Utc>) -> crate::store::Result<Vec<JobId>> {
        let usual = self.usual.map(|rule| rule.window_seconds);
        self.jobs.store.failing_jobs(now - longest_window(), usual, now).await
    }

    async fn disable_if_due(&self, id: JobId) -> anyhow::Result<bool> {
        let store = &self.jobs.store;
        let Some(job) = store.job(id).await? else { return Ok(false) };
        let Some(rule) = job.definition.rules.auto_disable.or(self.usual) else { return Ok(false) };
        let (runs, since) = store.last_runs(id, breaker::look_at(rule)).await?;
        let now = self.jobs.clock.now();
        let Some(reason) = breaker::judge(rule, &runs, since, now) else { return Ok(false) };
        let again = rule.cool_down_seconds.map(|seconds| now + TimeDelta::seconds(seconds.into()));
        if !store.auto_disable(&job, &reason, again, now).await? {
            return Ok(false);
        }
        tracing::warn!(job.id = %id, job.name = job.definition.display_name, reason, "a job was disabled");
        self.jobs.told(id, None, Event::Job { id }).await;
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
        let next = self.jobs.first(id, &job.definition, job.last_fire_at, now).await?;
        if !store.auto_enable(&job, next, now).await? {
            return Ok(false);
        }
        self.jobs.told(id, next, Event::Job { id }).await;
        Ok(true)
    }
}
