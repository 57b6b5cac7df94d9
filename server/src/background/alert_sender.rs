//! Sends the messages about alerts.
//!
//! Every server sends: a message is claimed by one of them, and tried again by any. The task sends some at once, so that
//! a receiver that does not answer delays only its own messages.

use std::time::Duration;

use futures::StreamExt;
use milvaion_api::events::LiveEvent;

use crate::{
    clock::Clock,
    domain::{
        alert_delivery::next_attempt,
        alert_message::{AlertMessage, MAX_LISTED_ALERTS},
    },
    engine::{Service, context::Context},
    live::Hub,
    notify::{Notifier, SendError},
    store::{
        Store,
        alerts::deliveries::{ClaimedMessage, DeliveryResult},
    },
};

/// The time between two ticks.
const TICK_INTERVAL: Duration = Duration::from_secs(3);
/// The messages that one tick sends.
const MESSAGES_PER_TICK: usize = 20;
/// The messages that are sent at once.
const CONCURRENT_MESSAGES: usize = 5;

/// The background task that sends messages about alerts.
#[derive(Debug)]
pub struct AlertSender {
    /// The PostgreSQL store.
    pub store: Store,
    /// The server's clock.
    pub clock: Clock,
    /// The live events for browsers.
    pub hub: Hub,
    /// The sender of one message.
    pub notifier: Notifier,
}

impl AlertSender {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.store.clone(),
            clock: context.clock.clone(),
            hub: context.hub.clone(),
            notifier: context.notifier.clone(),
        }
    }

    /// Sends a message and records the result. Returns true if the receiver accepted it.
    async fn send(&self, message: ClaimedMessage) -> anyhow::Result<bool> {
        let sent = match &message.target {
            Some(target) if message.is_enabled => {
                self.notifier.send(target, &self.rendered(&message), self.clock.now()).await
            }
            Some(_) => Err(SendError { reason: "the channel is switched off".into(), is_permanent: true }),
            None => {
                let reason = "a newer server has defined this channel; upgrade this server".into();
                Err(SendError { reason, is_permanent: true })
            }
        };
        let now = self.clock.now();
        let result = match sent {
            Ok(()) => DeliveryResult::Sent,
            Err(error) if !message.is_enabled => DeliveryResult::GivenUp { error: error.reason },
            Err(error) => match next_attempt(message.attempt, error.is_permanent, message.created_at, now) {
                Some(at) => DeliveryResult::Retry { error: error.reason, at },
                None => DeliveryResult::GivenUp { error: error.reason },
            },
        };
        if let DeliveryResult::Retry { error, .. } | DeliveryResult::GivenUp { error } = &result {
            tracing::warn!(
                alert.rule = message.rule_name,
                alert.channel = message.channel_name,
                attempt = message.attempt,
                error,
                "a message about an alert was not delivered over channel {}: {error}",
                message.channel_name
            );
        }
        self.store.settle_alert_message(&message, &result, now).await?;
        Ok(result == DeliveryResult::Sent)
    }

    fn rendered(&self, message: &ClaimedMessage) -> AlertMessage {
        AlertMessage {
            id: message.id,
            rule_id: message.rule_id,
            rule_name: message.rule_name.clone(),
            severity: message.severity,
            alerts: message.alerts.iter().take(MAX_LISTED_ALERTS).cloned().collect(),
            omitted: message.alerts.len().saturating_sub(MAX_LISTED_ALERTS) as u64,
            url: self.notifier.dashboard_url().map(str::to_owned),
            is_test: false,
        }
    }
}

/// The result of one tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct AlertSenderReport {
    /// Messages that their receivers accepted.
    pub sent: usize,
    /// Attempts that failed.
    pub failed: usize,
}

impl Service for AlertSender {
    const NAME: &'static str = "alert-sender";
    /// Longer than the attempts of one tick take: 20 of at most 10 s, five at once.
    const TIME_LIMIT: Duration = Duration::from_secs(50);
    type Report = AlertSenderReport;

    fn period(&self) -> Duration {
        TICK_INTERVAL
    }

    async fn tick(&mut self) -> anyhow::Result<AlertSenderReport> {
        let mut claimed = Vec::new();
        while claimed.len() < MESSAGES_PER_TICK
            && let Some(message) = self.store.claim_alert_message(self.clock.now()).await?
        {
            claimed.push(message);
        }
        let this = &*self;
        let results: Vec<anyhow::Result<bool>> = futures::stream::iter(claimed)
            .map(|message| this.send(message))
            .buffer_unordered(CONCURRENT_MESSAGES)
            .collect()
            .await;
        let mut report = AlertSenderReport::default();
        for result in results {
            if result? {
                report.sent += 1;
            } else {
                report.failed += 1;
            }
        }
        if report.sent + report.failed > 0 {
            self.hub.publish(self.clock.now(), vec![LiveEvent::Alerts]);
        }
        Ok(report)
    }

    fn has_more(report: &AlertSenderReport) -> bool {
        report.sent + report.failed >= MESSAGES_PER_TICK
    }

    fn is_notable(report: &AlertSenderReport) -> bool {
        report.sent + report.failed > 0
    }
}
