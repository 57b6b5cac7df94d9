//! Applies the alert rules.
//!
//! Events are taken every few seconds, because a user waits for the message about a failure. Lasting conditions are looked
//! for less often: they read the open occurrences, and none of them is about seconds. Every change is one transaction with
//! its messages, so a tick may be dropped anywhere. The steps of a tick do not need each other: while one fails, the others
//! still work.

use std::{collections::HashSet, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use milvaion_api::{alerts::AlertCondition, events::LiveEvent};
use milvaion_protocol::id::AlertRuleId;
use tokio::time::Instant;

use super::steps::Steps;
use crate::{
    clock::Clock,
    domain::{
        alerting::{
            ActiveRule,
            conditions::{Picture, find},
        },
        liveness,
    },
    engine::{RunsOn, Service, context::Context},
    live::Hub,
    store::{
        Store,
        alerts::states::{AlertChanges, AlertPosition, EVENT_BATCH},
    },
};

/// The time between two ticks.
const TICK_INTERVAL: Duration = Duration::from_secs(3);
/// The time between two looks for lasting conditions.
const CONDITION_INTERVAL: Duration = Duration::from_secs(15);
/// The shortest time of a run that is compared with its median. Below it, a multiple of the median says little.
const MIN_COMPARED_RUN: TimeDelta = TimeDelta::seconds(30);

/// The background task that applies the alert rules.
#[derive(Debug)]
pub struct AlertEvaluator {
    /// The PostgreSQL store.
    pub store: Store,
    /// The server's clock.
    pub clock: Clock,
    /// The live events for browsers.
    pub hub: Hub,
    /// The last look for lasting conditions; none before the first.
    pub looked_at: Option<Instant>,
    /// The position behind the firing alerts that were examined last.
    pub examined: AlertPosition,
}

impl AlertEvaluator {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.store.clone(),
            clock: context.clock.clone(),
            hub: context.hub.clone(),
            looked_at: None,
            examined: AlertPosition::default(),
        }
    }

    /// Looks for the lasting conditions of `rules`.
    async fn apply_conditions(&self, rules: &[ActiveRule], now: DateTime<Utc>) -> anyhow::Result<AlertChanges> {
        let rules: Vec<ActiveRule> =
            rules.iter().filter(|rule| is_lasting(&rule.definition.condition)).cloned().collect();
        if rules.is_empty() {
            return Ok(AlertChanges::default());
        }
        let picture = self.picture(&rules, now).await?;
        let findings = find(&rules, &picture, now);
        let ids: Vec<AlertRuleId> = rules.iter().map(|rule| rule.id).collect();
        Ok(self.store.apply_alert_conditions(&ids, findings, now).await?)
    }

    /// Reads what the rules ask about, and nothing else.
    async fn picture(&self, rules: &[ActiveRule], now: DateTime<Utc>) -> anyhow::Result<Picture> {
        let asks = |wanted: fn(&AlertCondition) -> bool| rules.iter().any(|rule| wanted(&rule.definition.condition));
        let mut picture = Picture::default();
        let asks_open = asks(|condition| {
            use AlertCondition::{LateStart, LongRun, NoLiveWorker, QueueAge};
            matches!(condition, LateStart { .. } | NoLiveWorker { .. } | QueueAge { .. } | LongRun { .. })
        });
        if asks_open {
            picture.open = self.store.oldest_open_runs(now).await?;
        }
        let alive_since = liveness::alive_since(now);
        if asks(|condition| matches!(condition, AlertCondition::NoLiveWorker { .. })) {
            picture.live_types = self.store.live_job_types(alive_since).await?;
        }
        if asks(|condition| matches!(condition, AlertCondition::LongRun { times_median: Some(_), .. })) {
            let is_compared = |begun_at: DateTime<Utc>| now - begun_at >= MIN_COMPARED_RUN;
            let long = picture.open.iter().filter(|run| run.begun_at.is_some_and(is_compared));
            let jobs: HashSet<_> = long.map(|run| run.job.id).collect();
            picture.medians = self.store.median_durations(&jobs).await?;
        }
        let windows: HashSet<u32> = rules
            .iter()
            .filter_map(|rule| match rule.definition.condition {
                AlertCondition::FailureRate { window_minutes, .. } => Some(window_minutes),
                _ => None,
            })
            .collect();
        for window in windows {
            let rates = self.store.failure_rates(now - TimeDelta::minutes(window.into())).await?;
            picture.rates.insert(window, rates);
        }
        if asks(|condition| matches!(condition, AlertCondition::WorkerGone {})) {
            picture.gone = self.store.gone_instances(alive_since).await?;
        }
        Ok(picture)
    }
}

/// Returns true for conditions that are found in a picture, not in events.
const fn is_lasting(condition: &AlertCondition) -> bool {
    matches!(
        condition,
        AlertCondition::LateStart { .. }
            | AlertCondition::NoLiveWorker { .. }
            | AlertCondition::QueueAge { .. }
            | AlertCondition::LongRun { .. }
            | AlertCondition::FailureRate { .. }
            | AlertCondition::WorkerGone {}
    )
}

/// The result of one tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct AlertReport {
    /// What changed.
    pub changes: AlertChanges,
    /// Messages that were made.
    pub messages: u64,
}

impl Service for AlertEvaluator {
    const NAME: &'static str = "alerts";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    // A step that reaches the time limit of its statements leaves time for the others.
    const TIME_LIMIT: Duration = Duration::from_secs(90);
    type Report = AlertReport;

    fn period(&self) -> Duration {
        TICK_INTERVAL
    }

    async fn tick(&mut self) -> anyhow::Result<AlertReport> {
        let now = self.clock.now();
        let (mut report, mut steps) = (AlertReport::default(), Steps::new(Self::NAME));
        if let Some(rules) = steps.result("rules", self.store.active_alert_rules().await) {
            let applied = self.store.apply_alert_events(&rules, now).await;
            report.changes += steps.result("events", applied).unwrap_or_default();
            if self.looked_at.is_none_or(|at| at.elapsed() >= CONDITION_INTERVAL) {
                let applied = self.apply_conditions(&rules, now).await;
                if let Some(changes) = steps.result("conditions", applied) {
                    report.changes += changes;
                    self.looked_at = Some(Instant::now());
                }
            }
        }
        let resolved = self.store.resolve_alerts(&mut self.examined, now).await;
        report.changes += steps.result("resolutions", resolved).unwrap_or_default();
        let messages = self.store.announce_alerts(now).await;
        report.messages = steps.result("messages", messages).unwrap_or_default();
        if report.changes.started > 0 || report.changes.resolved > 0 {
            self.hub.publish(now, vec![LiveEvent::Alerts]);
        }
        steps.end(report)
    }

    fn has_more(report: &AlertReport) -> bool {
        report.changes.events >= EVENT_BATCH as usize
    }

    fn is_notable(report: &AlertReport) -> bool {
        report.changes.started > 0 || report.changes.resolved > 0
    }
}
