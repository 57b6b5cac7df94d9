//! Keeps the singleton loops in Redis as PostgreSQL and the operators want them, and raises the alerts about loops without
//! a leader.
//!
//! A loop that an operator disabled must not run because Redis lost its data. The interval between two ticks is therefore
//! shorter than that between two heartbeats of an instance. While Redis is away no loop runs, and a tick fails without an
//! effect: alerts stay as they are.

use std::time::Duration;

use milvaion_api::{alerts::AlertCondition, events::LiveEvent};
use milvaion_protocol::id::AlertRuleId;
use serde::Serialize;

use super::steps::Steps;
use crate::{
    cache::Cache,
    clock::Clock,
    command::singletons::LoopsRead,
    domain::singletons::LeaderlessLoops,
    engine::{RunsOn, Service, context::Context},
    live::Hub,
    store::{Store, alerts::states::AlertChanges},
};

/// The time between two ticks.
const TICK_INTERVAL: Duration = Duration::from_secs(2);

/// The background task that watches singleton loops.
#[derive(Debug)]
pub struct SingletonWatch {
    /// The PostgreSQL store.
    pub store: Store,
    /// Access to Redis.
    pub cache: Cache,
    /// The server's clock.
    pub clock: Clock,
    /// The live events for browsers.
    pub hub: Hub,
    /// The loops without a leader, as of the last tick.
    pub leaderless: LeaderlessLoops,
    /// True if alerts may fire that a tick has to resolve.
    pub may_resolve: bool,
}

impl SingletonWatch {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.store.clone(),
            cache: context.cache.clone(),
            clock: context.clock.clone(),
            hub: context.hub.clone(),
            leaderless: LeaderlessLoops::default(),
            may_resolve: true,
        }
    }

    /// Makes the disabling keys in Redis equal to PostgreSQL. Returns the number of keys that were written and deleted.
    async fn align_keys(&self, read: &LoopsRead) -> anyhow::Result<(usize, usize)> {
        let (mut disabled, mut enabled) = (0, 0);
        for keys in &read.keys {
            match (read.disabled.get(&keys.name), &keys.disabled) {
                (Some(record), None) => {
                    self.cache.disable_loop(&keys.name, record).await?;
                    disabled += 1;
                }
                (None, Some(value)) => {
                    enabled += usize::from(self.cache.enable_loop_disabled_by(&keys.name, value).await?);
                }
                (Some(_), Some(_)) | (None, None) => {}
            }
        }
        Ok((disabled, enabled))
    }

    /// Applies the rules about loops without a leader.
    async fn apply_alerts(&mut self, read: &LoopsRead) -> anyhow::Result<AlertChanges> {
        let (now, loops) = (self.clock.now(), read.views());
        self.leaderless.observe(&loops, now);
        let rules = self.store.active_alert_rules().await?;
        let findings = self.leaderless.find(&rules, &loops, now);
        if findings.is_empty() && !self.may_resolve {
            return Ok(AlertChanges::default());
        }
        let is_about_loops = |condition: &AlertCondition| matches!(condition, AlertCondition::LoopWithoutLeader { .. });
        let rules = rules.iter().filter(|rule| is_about_loops(&rule.definition.condition));
        let ids: Vec<AlertRuleId> = rules.map(|rule| rule.id).collect();
        let may_resolve = !findings.is_empty();
        let changes = self.store.apply_alert_conditions(&ids, findings, now).await?;
        self.may_resolve = may_resolve;
        if changes.started > 0 || changes.resolved > 0 {
            self.hub.publish(now, vec![LiveEvent::Alerts]);
        }
        Ok(changes)
    }
}

/// The result of one tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SingletonReport {
    /// The number of loops.
    pub loops: usize,
    /// The number of disabled loops whose key was missing in Redis.
    pub disabled: usize,
    /// The number of enabled loops whose key was deleted in Redis.
    pub enabled: usize,
    /// The number of loops that were dropped after their retention.
    pub dropped: usize,
    /// The number of alerts that began.
    pub alerts_started: usize,
    /// The number of alerts that were resolved.
    pub alerts_resolved: usize,
}

impl Service for SingletonWatch {
    const NAME: &'static str = "singletons";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    type Report = SingletonReport;

    fn period(&self) -> Duration {
        TICK_INTERVAL
    }

    async fn tick(&mut self) -> anyhow::Result<SingletonReport> {
        let read = LoopsRead::read::<anyhow::Error>(&self.store, &self.cache).await?;
        let mut report = SingletonReport { loops: read.keys.len(), ..SingletonReport::default() };
        let mut steps = Steps::new(Self::NAME);
        let aligned = self.align_keys(&read).await;
        (report.disabled, report.enabled) = steps.result("keys", aligned).unwrap_or_default();
        let dropped = self.cache.drop_old_loops(read.now_ms).await;
        report.dropped = steps.result("retention", dropped).unwrap_or_default();
        let changes = steps.result("alerts", self.apply_alerts(&read).await).unwrap_or_default();
        (report.alerts_started, report.alerts_resolved) = (changes.started, changes.resolved);
        steps.end(report)
    }

    fn is_notable(report: &SingletonReport) -> bool {
        SingletonReport { loops: 0, ..*report } != SingletonReport::default()
    }
}
