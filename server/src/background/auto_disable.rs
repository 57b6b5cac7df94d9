//! Disables jobs that keep failing, and enables them again after their cool-down.
//!
//! The task counts rows, never messages, and disables a job by one statement that is guarded by the job's version. A
//! duplicate report and a second server that decides at the same moment therefore change nothing.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use milvaion_api::events::LiveEvent;
use milvaion_protocol::id::JobId;
use milvaion_schedule::rules::{AutoDisable, MAX_CATCH_UP_WINDOW_SECONDS};

use tokio::time::Instant;

use super::steps::Steps;
use crate::{
    command::jobs::JobCommands,
    domain::auto_disable,
    engine::{Service, context::Context},
    error::chain,
    store::auto_disable::FailureRecord,
};

/// The time between two ticks without an activation. A job stays disabled at most this long beyond its cool-down.
const AUTO_DISABLE_INTERVAL: Duration = Duration::from_secs(10);
/// The time between two looks at all jobs with a failure in the longest window. The ticks between look at those that
/// failed since the last tick.
const FULL_LOOK_INTERVAL: Duration = Duration::from_secs(300);
/// The time for which failures of the last tick are looked at again: a statement may commit later than it read the clock.
const LATE_COMMIT: TimeDelta = TimeDelta::seconds(60);
/// The most jobs that one tick enables again.
const REENABLE_BATCH: i64 = 500;
/// The number of jobs whose runs are read per query.
const DECISION_BATCH: usize = 200;

/// The background task that disables failing jobs.
#[derive(Debug)]
pub struct AutoDisabler {
    /// The job commands, with access to the store and to live events.
    pub jobs: JobCommands,
    /// The rule for jobs without their own; `None` disables no job.
    pub default_rule: Option<AutoDisable>,
    /// The look for failing jobs of the last tick.
    pub last_look: LastLook,
}

/// The last look for failing jobs.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastLook {
    /// The instant of the last look by the server's clock; none looks at all failing jobs.
    at: Option<DateTime<Utc>>,
    /// The instant of the last look at all failing jobs.
    full: Option<Instant>,
}

impl LastLook {
    /// Returns the instant after which failures are looked at, for a look at `now`.
    fn since(&mut self, now: DateTime<Utc>) -> DateTime<Utc> {
        let is_full = self.full.is_none_or(|at| at.elapsed() >= FULL_LOOK_INTERVAL);
        if is_full {
            self.full = Some(Instant::now());
        }
        match self.at {
            Some(at) if !is_full => at.min(now) - LATE_COMMIT,
            _ => now - longest_window(),
        }
    }
}

impl AutoDisabler {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            jobs: JobCommands::of(context),
            default_rule: context.config.alerts.auto_disable,
            last_look: LastLook::default(),
        }
    }
}

/// The result of one tick.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct AutoDisableReport {
    /// Jobs with a rule and a failure within its window that were looked at.
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
        let mut steps = Steps::new(Self::NAME);
        let cooled_down = self.jobs.store.cooled_down_jobs(now, REENABLE_BATCH).await;
        for id in steps.result("enabling", cooled_down).unwrap_or_default() {
            match self.enable(id).await {
                Ok(is_enabled) => report.enabled.extend(is_enabled.then_some(id)),
                Err(error) => log_skipped(id, &error),
            }
        }
        let store = &self.jobs.store;
        // After an error, the next tick looks at everything again.
        let mut look = std::mem::take(&mut self.last_look);
        let mut is_complete = true;
        let default_window = self.default_rule.map(|rule| rule.window_seconds);
        let failing = store.failing_jobs(look.since(now), default_window, now).await?;
        report.failing = failing.len();
        for batch in failing.chunks(DECISION_BATCH) {
            for record in store.failure_records(batch, self.default_rule).await? {
                let decided = auto_disable::disable_reason(record.rule, &record.runs, record.since, now);
                let Some(reason) = decided else { continue };
                let id = record.id;
                match self.disable(record, reason, now).await {
                    Ok(is_disabled) => report.disabled.extend(is_disabled.then_some(id)),
                    Err(error) => {
                        log_skipped(id, &error);
                        is_complete = false;
                    }
                }
            }
        }
        if is_complete {
            look.at = Some(now);
            self.last_look = look;
        }
        steps.end(report)
    }

    fn is_notable(report: &AutoDisableReport) -> bool {
        !report.disabled.is_empty() || !report.enabled.is_empty()
    }
}

fn longest_window() -> TimeDelta {
    TimeDelta::seconds(MAX_CATCH_UP_WINDOW_SECONDS.into())
}

/// Logs why a job was left as it is. One job that cannot be read must not stop the others.
fn log_skipped(id: JobId, error: &anyhow::Error) {
    let reason = chain(error.as_ref());
    tracing::warn!(job.id = %id, error = reason, "job {id} could not be disabled or enabled automatically");
}

impl AutoDisabler {
    async fn disable(&self, record: FailureRecord, reason: String, now: DateTime<Utc>) -> anyhow::Result<bool> {
        let (store, id, rule) = (&self.jobs.store, record.id, record.rule);
        let Some(job) = store.job(id).await? else { return Ok(false) };
        let enable_at = rule.cool_down_seconds.map(|seconds| now + TimeDelta::seconds(seconds.into()));
        if !store.auto_disable(&job, &reason, enable_at, now).await? {
            return Ok(false);
        }
        tracing::warn!(job.id = %id, job.name = job.definition.display_name, reason, "job {id} was disabled automatically");
        self.jobs.publish_change(id, None, LiveEvent::Job { id }).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_new_failures_are_looked_at_between_full_looks() {
        let mut look = LastLook::default();
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(100);
        assert_eq!(look.since(now), now - longest_window());
        look.at = Some(now);
        let later = now + TimeDelta::seconds(10);
        assert_eq!(look.since(later), now - LATE_COMMIT);
        tokio::time::advance(FULL_LOOK_INTERVAL).await;
        assert_eq!(look.since(later), later - longest_window());
    }
}
