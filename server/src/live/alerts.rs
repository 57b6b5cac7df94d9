//! Alerts to an external address: one POST per alert to the configured webhook.
//!
//! Raising an alert never blocks and never fails. Delivery is tried three times. An alert that cannot be delivered is
//! logged and dropped, because its change is in PostgreSQL and on the dashboard in any case.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use futures::{FutureExt, future::BoxFuture};
use milvaion_protocol::id::JobId;
use serde::Serialize;
use tokio::sync::{Mutex, mpsc};

/// The most alerts that wait for delivery.
const ALERT_QUEUE_CAPACITY: usize = 100;
/// The most delivery attempts per alert.
const MAX_DELIVERY_ATTEMPTS: u32 = 3;
/// The timeout of one delivery.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after the first attempt; it doubles after each.
const DELIVERY_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// An alert, as it is posted to the webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Alert {
    /// The kind of event, as in the audit log.
    pub kind: &'static str,
    /// The job it is about.
    pub job_id: JobId,
    /// The job's name.
    pub job_name: String,
    /// The reason for the alert.
    pub reason: String,
    /// The instant of the event.
    pub at: DateTime<Utc>,
}

/// The sender of alerts. Clones share its queue; without an address it drops every alert.
#[derive(Clone, Debug)]
pub struct AlertSender {
    queue: Option<mpsc::Sender<Alert>>,
}

impl AlertSender {
    /// Creates the sender, and the loop that delivers its alerts. Each call of the loop continues the one before.
    pub fn new(url: Option<String>) -> (Self, impl Fn() -> BoxFuture<'static, ()> + Send + Sync) {
        let (sender, queue) = mpsc::channel(ALERT_QUEUE_CAPACITY);
        let alerts = Self { queue: url.is_some().then_some(sender) };
        let queue = Arc::new(Mutex::new(queue));
        (alerts, move || deliver(url.clone(), queue.clone()).boxed())
    }

    /// Queues an alert for delivery, without waiting.
    pub fn raise(&self, alert: Alert) {
        let Some(queue) = &self.queue else { return };
        if let Err(error) = queue.try_send(alert) {
            tracing::warn!(error = %error, "an alert was dropped, because {ALERT_QUEUE_CAPACITY} alerts wait for delivery");
        }
    }
}

async fn deliver(url: Option<String>, queue: Arc<Mutex<mpsc::Receiver<Alert>>>) {
    let Some(url) = url else { return std::future::pending().await };
    let mut queue = queue.lock().await;
    let client = match reqwest::Client::builder()
        .timeout(DELIVERY_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .build()
    {
        Ok(client) => client,
        Err(error) => {
            tracing::error!(error = %error, "alerts cannot be delivered, because the HTTP client failed to start");
            return;
        }
    };
    while let Some(alert) = queue.recv().await {
        let mut pause = DELIVERY_RETRY_INTERVAL;
        for attempt in 1..=MAX_DELIVERY_ATTEMPTS {
            match post(&client, &url, &alert).await {
                Ok(()) => break,
                Err(reason) if attempt < MAX_DELIVERY_ATTEMPTS => {
                    tracing::debug!(reason, attempt, "an alert could not be delivered in attempt {attempt}");
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Err(reason) => {
                    tracing::warn!(reason, alert.kind, job.id = %alert.job_id, "an alert about job {} could not be delivered; check ALERT_WEBHOOK_URL", alert.job_id);
                }
            }
        }
    }
}

/// Posts an alert to `url`.
async fn post(client: &reqwest::Client, url: &str, alert: &Alert) -> Result<(), String> {
    let body = serde_json::to_string(alert).map_err(|error| error.to_string())?;
    let answer = client
        .post(url)
        .header("content-type", "application/json")
        .body(body)
        .send()
        .await
        // The address may contain a secret, which must not be logged.
        .map_err(|error| crate::error::chain(&error.without_url()))?;
    if answer.status().is_success() { Ok(()) } else { Err(format!("the receiver answered {}", answer.status())) }
}
