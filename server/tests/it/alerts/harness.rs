//! Alert rules on a real database and a clock that only the test advances.

use chrono::{DateTime, Duration, Utc};
use milvaion_api::alerts::{Alert, AlertChannel, AlertCondition, AlertFilter, AlertRule, AlertSeverity, AlertTarget};
use milvaion_protocol::{
    id::{AlertChannelId, AlertRuleId, JobId, OccurrenceId},
    message::StatusReport,
    status::OccurrenceStatus,
};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    background::alerts::{AlertEvaluator, AlertReport},
    clock::{Clock, machine_now},
    domain::alerting::Finding,
    engine::Service,
    live::Hub,
    store::{
        Store,
        alerts::{SaveOutcome, states::AlertPosition},
        audit::AuditEntry,
    },
};
use milvaion_test_support::{database, jobs, runs};

pub(crate) struct AlertHarness {
    pub(crate) url: String,
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) hub: Hub,
    pub(crate) evaluator: AlertEvaluator,
}

impl AlertHarness {
    /// Opens a database without the rules of a fresh installation.
    pub(crate) async fn new() -> Self {
        let harness = Self::with_default_rules().await;
        for rule in harness.store.alert_rules().await.expect("read") {
            let entry = harness.entry("alert_rule.delete");
            assert!(harness.store.delete_alert_rule(rule.id, None, &entry).await.expect("deleted"));
        }
        harness
    }

    pub(crate) async fn with_default_rules() -> Self {
        let url = database::create().await;
        let store = database::open(&url).await;
        let (clock, hub) = (Clock::manual(machine_now()), Hub::new().0);
        let evaluator = AlertEvaluator {
            store: store.clone(),
            clock: clock.clone(),
            hub: hub.clone(),
            looked_at: None,
            examined: AlertPosition::default(),
        };
        Self { url, store, clock, hub, evaluator }
    }

    pub(crate) fn entry(&self, action: &'static str) -> AuditEntry {
        AuditEntry::new(self.clock.now(), "ana@example.org", action, "alert:test")
    }

    pub(crate) async fn rule(&self, condition: AlertCondition, channels: &[AlertChannelId]) -> AlertRuleId {
        let id = self.clock.alert_rule_id();
        let rule = AlertRule {
            name: format!("{} {id}", condition.kind()),
            condition,
            jobs: vec![],
            tags: vec![],
            severity: AlertSeverity::Critical,
            channels: vec![],
            is_enabled: true,
        };
        let saved = self.store.save_alert_rule(id, None, &rule, channels, &self.entry("alert_rule.create")).await;
        assert_eq!(saved.expect("saved"), SaveOutcome::Saved);
        id
    }

    pub(crate) async fn channel(&self, target: AlertTarget) -> AlertChannelId {
        let id = self.clock.alert_channel_id();
        let channel = AlertChannel { name: format!("channel {id}"), target, is_enabled: true };
        let saved = self.store.save_alert_channel(id, None, &channel, &self.entry("alert_channel.create")).await;
        assert_eq!(saved.expect("saved"), SaveOutcome::Saved);
        id
    }

    /// Runs one tick, which also looks for lasting conditions.
    pub(crate) async fn tick(&mut self) -> AlertReport {
        self.evaluator.looked_at = None;
        self.evaluator.tick().await.expect("the tick succeeds")
    }

    /// Fires an alert of a rule and announces it.
    pub(crate) async fn fire(&self, rule: AlertRuleId) {
        let now = self.clock.now();
        let finding = Finding {
            rule_id: rule,
            group_key: "test".into(),
            title: "Test".into(),
            detail: String::new(),
            job: None,
            occurrence_id: None,
            count: 1,
            first_at: now,
            last_at: now,
        };
        assert_eq!(self.store.report_alerts(vec![finding], now).await.expect("stored").started, 1);
        assert_eq!(self.store.announce_alerts(now).await.expect("stored"), 1);
    }

    pub(crate) fn advance(&self, seconds: i64) {
        self.clock.advance(Duration::seconds(seconds));
    }

    pub(crate) async fn job(&self) -> JobId {
        jobs::insert(&self.store, &self.clock, Schedule::Manual, None).await
    }

    /// Creates a run of a job that ended with a status.
    pub(crate) async fn ended(&self, job: JobId, status: OccurrenceStatus) -> OccurrenceId {
        let id = runs::insert_manual(&self.store, &self.clock, job).await;
        self.report(id, status).await;
        id
    }

    pub(crate) async fn report(&self, id: OccurrenceId, status: OccurrenceStatus) {
        let exception = (status == OccurrenceStatus::Failed).then(|| "boom".to_owned());
        let report = StatusReport { exception, ..StatusReport::new(id, 1, "w-1", status, self.clock.now()) };
        assert_eq!(runs::report(&self.store, &self.clock, vec![report]).await, 1);
    }

    pub(crate) async fn alerts(&self, firing: bool) -> Vec<Alert> {
        let filter = AlertFilter { firing: Some(firing), ..AlertFilter::default() };
        self.store.alerts(&filter).await.expect("read").rows
    }

    /// Returns the only firing alert.
    pub(crate) async fn firing(&self) -> Alert {
        let mut alerts = self.alerts(true).await;
        assert_eq!(alerts.len(), 1, "{alerts:#?}");
        alerts.remove(0)
    }

    /// Returns the reasons for the resolutions.
    pub(crate) async fn resolutions(&self) -> Vec<String> {
        self.alerts(false).await.into_iter().filter_map(|alert| alert.resolution).collect()
    }

    pub(crate) fn now(&self) -> DateTime<Utc> {
        self.clock.now()
    }
}
