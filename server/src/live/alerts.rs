//! Alerts that leave the house: one POST to the address somebody configured.
//!
//! Raising one never waits and never fails. It is tried three times; what cannot be delivered is logged and let go,
//! since the change it tells of is in PostgreSQL and on the dashboard in any case.

use std::time::Duration;

use chrono::{DateTime, Utc};
use milvaion_protocol::id::JobId;
use serde::Serialize;
use tokio::sync::mpsc;

/// How many alerts may wait.
const ALERT_QUEUE_CAPACITY: usize = 100;
/// How often each is tried.
const MAX_DELIVERY_ATTEMPTS: u32 = 3;
/// How long the receiver may take.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after the first try; doubled after each.
const DELIVERY_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Something somebody should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Alert {
    /// What happened, as in the audit log.
    pub kind: &'static str,
    /// To which job.
    pub job_id: JobId,
    /// That job's name.
    pub job_name: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: DateTime<Utc>,
}

/// Where alerts are handed in. Cloning gives the same place; without an address it leads nowhere.
#[derive(Clone, Debug)]
pub struct AlertSender {
    queue: Option<mpsc::Sender<Alert>>,
}

impl AlertSender {
    /// The place, and the task that delivers until every copy of it is gone.
    pub fn new(url: Option<String>) -> (Self, impl Future<Output = ()> + use<>) {
        let (sender, queue) = mpsc::channel(ALERT_QUEUE_CAPACITY);
        let alerts = Self { queue: url.is_some().then_some(sender) };
        (alerts, deliver(url, queue))
    }

    /// Hands an alert in. Returns at once.
    pub fn raise(&self, alert: Alert) {
        let Some(queue) = &self.queue else { return };
        if let Err(error) = queue.try_send(alert) {
            tracing::warn!(error = %error, "an alert was let go: too many wait to be delivered");
        }
    }
}

async fn deliver(url: Option<String>, mut queue: mpsc::Receiver<Alert>) {
    let Some(url) = url else { return };
    let client = match reqwest::Client::builder()
        .timeout(DELIVERY_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .build()
    {
        Ok(client) => client,
        Err(error) => {
            tracing::error!(error = %error, "alerts cannot be delivered");
            return;
        }
    };
    while let Some(alert) = queue.recv().await {
        let mut pause = DELIVERY_RETRY_INTERVAL;
        for attempt in 1..=MAX_DELIVERY_ATTEMPTS {
            match post(&client, &url, &alert).await {
                Ok(()) => break,
                Err(reason) if attempt < MAX_DELIVERY_ATTEMPTS => {
                    tracing::debug!(reason, attempt, "an alert could not be delivered yet");
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Err(reason) => {
                    tracing::warn!(reason, alert.kind, job.id = %alert.job_id, "an alert could not be delivered; check ALERT_WEBHOOK_URL");
                }
            }
        }
    }
}

async fn post(client: &reqwest::Client, url: &str, alert: &Alert) -> Result<(), String> {
    let body = serde_json::to_string(alert).map_err(|error| error.to_string())?;
    let answer = client
        .post(url)
        .header("content-type", "application/json")
        .body(body)
        .send()
        .await
        // The address may hold a secret; it does not belong into a log.
        .map_err(|error| crate::error::chain(&error.without_url()))?;
    if answer.status().is_success() { Ok(()) } else { Err(format!("the receiver answered {}", answer.status())) }
}
