//! Reports the background tasks of this server that do not work, for the alert rules about them.
//!
//! Only the server itself knows the state of its tasks. It repeats its report while the trouble lasts; an alert that no
//! server repeats is resolved after some minutes, also if the server was stopped.

use std::time::Duration;

use milvaion_api::{alerts::AlertCondition, events::LiveEvent};

use crate::{
    clock::Clock,
    domain::alerting::Finding,
    engine::{Service, context::Context, status::ServiceStatuses},
    live::Hub,
    store::Store,
};

/// The time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(15);

/// The background task that reports the others.
#[derive(Debug)]
pub struct TaskAlerts {
    /// The PostgreSQL store.
    pub store: Store,
    /// The server's clock.
    pub clock: Clock,
    /// The live events for browsers.
    pub hub: Hub,
    /// The state of each task.
    pub services: ServiceStatuses,
    /// The name of this server.
    pub server: String,
}

impl TaskAlerts {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.store.clone(),
            clock: context.clock.clone(),
            hub: context.hub.clone(),
            services: context.services.clone(),
            server: context.server_name.clone(),
        }
    }
}

impl Service for TaskAlerts {
    const NAME: &'static str = "task-alerts";
    /// The number of tasks that do not work.
    type Report = usize;

    fn period(&self) -> Duration {
        REPORT_INTERVAL
    }

    async fn tick(&mut self) -> anyhow::Result<usize> {
        let troubles = self.services.troubles();
        if troubles.is_empty() {
            return Ok(0);
        }
        let now = self.clock.now();
        let rules = self.store.active_alert_rules().await?;
        let rules =
            rules.iter().filter(|rule| matches!(rule.definition.condition, AlertCondition::ServiceUnhealthy {}));
        let report = |rule_id, name: &str, reason: &str| Finding {
            rule_id,
            group_key: format!("task:{}:{name}", self.server),
            title: format!("Background task {name} of server {} does not work", self.server),
            detail: reason.to_owned(),
            job: None,
            occurrence_id: None,
            count: 1,
            first_at: now,
            last_at: now,
        };
        let findings: Vec<Finding> =
            rules.flat_map(|rule| troubles.iter().map(|(name, reason)| report(rule.id, name, reason))).collect();
        if self.store.report_alerts(findings, now).await?.started > 0 {
            self.hub.publish(now, vec![LiveEvent::Alerts]);
        }
        Ok(troubles.len())
    }

    fn is_notable(troubles: &usize) -> bool {
        *troubles > 0
    }
}
