//! Messages about alerts: grouped, sent once, tried again, and about the resolution too.

use std::sync::{Arc, Mutex};

use axum::{Router, extract::State, http::HeaderMap, routing::post};
use milvaion_api::alerts::{AlertCondition, AlertTarget};
use milvaion_protocol::{
    id::{AlertChannelId, AlertRuleId},
    status::OccurrenceStatus,
};
use milvaion_server::{
    background::alert_sender::{AlertSender, AlertSenderReport},
    engine::Service,
    notify::Notifier,
};
use milvaion_test_support::server_env;
use serde_json::Value;

use super::harness::AlertHarness;

/// A receiver of webhooks, which answers with a status that the test chooses.
#[derive(Clone)]
struct Receiver {
    received: Arc<Mutex<Vec<(String, Value)>>>,
    status: Arc<Mutex<u16>>,
    url: String,
}

impl Receiver {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/hook", listener.local_addr().expect("bound"));
        let receiver = Self { received: Arc::default(), status: Arc::new(Mutex::new(204)), url };
        let app = Router::new().route("/hook", post(Self::receive)).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        receiver
    }

    async fn receive(State(this): State<Self>, headers: HeaderMap, body: String) -> axum::http::StatusCode {
        let id = headers["webhook-id"].to_str().expect("text").to_owned();
        let document = serde_json::from_str(&body).expect("JSON");
        this.received.lock().expect("not poisoned").push((id, document));
        axum::http::StatusCode::from_u16(*this.status.lock().expect("not poisoned")).expect("a status")
    }

    fn answer_with(&self, status: u16) {
        *self.status.lock().expect("not poisoned") = status;
    }

    fn take(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut self.received.lock().expect("not poisoned"))
    }
}

struct Delivery {
    harness: AlertHarness,
    receiver: Receiver,
    sender: AlertSender,
    channel: AlertChannelId,
    rule: AlertRuleId,
}

impl Delivery {
    async fn new() -> Self {
        let (harness, receiver) = (AlertHarness::new().await, Receiver::start().await);
        let mut config = server_env::config().await;
        config.alerts.http_allow = vec!["127.0.0.0/8".parse().expect("a rule")];
        config.database_url = Some(harness.url.clone());
        let sender = AlertSender {
            store: harness.store.clone(),
            clock: harness.clock.clone(),
            hub: harness.hub.clone(),
            notifier: Notifier::new(&config),
        };
        let target = AlertTarget::Webhook { url: receiver.url.clone(), signing_secret: None };
        let channel = harness.channel(target).await;
        let rule = harness.rule(AlertCondition::OccurrenceFailed { causes: vec![] }, &[channel]).await;
        Self { harness, receiver, sender, channel, rule }
    }

    /// Lets `seconds` pass and sends what is due.
    async fn send_after(&mut self, seconds: i64) -> AlertSenderReport {
        self.harness.advance(seconds);
        self.sender.tick().await.expect("the tick succeeds")
    }
}

fn titles(message: &Value) -> Vec<&str> {
    message["alerts"].as_array().expect("alerts").iter().filter_map(|alert| alert["title"].as_str()).collect()
}

#[tokio::test]
async fn failures_of_many_jobs_are_one_message() {
    let mut delivery = Delivery::new().await;
    for _ in 0..25 {
        let job = delivery.harness.job().await;
        for _ in 0..2 {
            delivery.harness.ended(job, OccurrenceStatus::Failed).await;
        }
    }
    assert_eq!(delivery.harness.tick().await.messages, 25);
    assert_eq!(delivery.send_after(9).await, AlertSenderReport::default(), "further alerts may join the message");
    assert_eq!(delivery.send_after(2).await, AlertSenderReport { sent: 1, failed: 0 });
    let received = delivery.receiver.take();
    let [(_, message)] = received.as_slice() else { panic!("{received:?}") };
    assert_eq!(
        (titles(message).len(), &message["omitted"], &message["status"]),
        (20, &Value::from(5), &Value::from("firing"))
    );
    assert_eq!(message["alerts"][0]["count"], 2);
    assert_eq!(delivery.send_after(3_600).await, AlertSenderReport::default());
    let alert = &delivery.harness.alerts(true).await[0];
    assert_eq!((alert.messages.len(), alert.messages[0].attempts, alert.messages[0].sent_at.is_some()), (1, 1, true));
}

#[tokio::test]
async fn resolution_of_an_announced_alert_is_sent() {
    let mut delivery = Delivery::new().await;
    let job = delivery.harness.job().await;
    delivery.harness.ended(job, OccurrenceStatus::Failed).await;
    delivery.harness.tick().await;
    delivery.send_after(10).await;
    delivery.harness.ended(job, OccurrenceStatus::Completed).await;
    assert_eq!(delivery.harness.tick().await.changes.resolved, 1);
    assert_eq!(delivery.send_after(10).await.sent, 1);
    let states: Vec<_> = delivery.receiver.take().into_iter().map(|(_, message)| message["status"].clone()).collect();
    assert_eq!(states, ["firing", "resolved"]);

    // An alert that was not announced has no message about its end.
    let id = delivery.rule;
    let (until, entry) =
        (delivery.harness.now() + chrono::Duration::hours(1), delivery.harness.entry("alert_rule.mute"));
    assert!(delivery.harness.store.mute_alert_rule(id, Some(until), &entry).await.expect("muted"));
    delivery.harness.advance(1);
    delivery.harness.ended(job, OccurrenceStatus::Failed).await;
    assert_eq!(delivery.harness.tick().await.messages, 0);
    assert_eq!(delivery.harness.store.firing_alerts().await.expect("read").total(), 1, "a muted rule still shows");
    delivery.harness.advance(1);
    delivery.harness.ended(job, OccurrenceStatus::Completed).await;
    delivery.harness.tick().await;
    assert_eq!(delivery.send_after(600).await, AlertSenderReport::default());
}

#[tokio::test]
async fn alert_that_still_fires_after_a_mute_is_announced() {
    let mut delivery = Delivery::new().await;
    let (until, entry) =
        (delivery.harness.now() + chrono::Duration::minutes(5), delivery.harness.entry("alert_rule.mute"));
    delivery.harness.store.mute_alert_rule(delivery.rule, Some(until), &entry).await.expect("muted");
    let job = delivery.harness.job().await;
    delivery.harness.ended(job, OccurrenceStatus::Failed).await;
    assert_eq!(delivery.harness.tick().await.messages, 0);
    delivery.harness.advance(301);
    assert_eq!(delivery.harness.tick().await.messages, 1);
    assert_eq!(delivery.send_after(10).await.sent, 1);
}

#[tokio::test]
async fn refused_message_is_tried_again_with_the_same_id_for_a_day() {
    let mut delivery = Delivery::new().await;
    let job = delivery.harness.job().await;
    delivery.harness.ended(job, OccurrenceStatus::Failed).await;
    delivery.harness.tick().await;
    delivery.receiver.answer_with(503);
    assert_eq!(delivery.send_after(10).await, AlertSenderReport { sent: 0, failed: 1 });
    assert_eq!(delivery.send_after(9).await, AlertSenderReport::default());
    assert_eq!(delivery.send_after(1).await.failed, 1);
    let channel = delivery.harness.store.alert_channel(delivery.channel).await.expect("read").expect("it exists");
    assert!(channel.last_error.as_deref().is_some_and(|error| error.contains("503")), "{channel:?}");
    delivery.receiver.answer_with(200);
    assert_eq!(delivery.send_after(20).await.sent, 1);
    let ids: Vec<_> = delivery.receiver.take().into_iter().map(|(id, _)| id).collect();
    assert!(ids.len() == 3 && ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let channel = delivery.harness.store.alert_channel(delivery.channel).await.expect("read").expect("it exists");
    assert_eq!((channel.last_error, channel.last_sent_at), (None, Some(delivery.harness.now())));
}

#[tokio::test]
async fn message_is_given_up_after_a_day_and_shows_its_error() {
    let mut delivery = Delivery::new().await;
    let job = delivery.harness.job().await;
    delivery.harness.ended(job, OccurrenceStatus::Failed).await;
    delivery.harness.tick().await;
    delivery.receiver.answer_with(503);
    let mut attempts = delivery.send_after(10).await.failed;
    for _ in 0..60 {
        attempts += delivery.send_after(1_800).await.failed;
    }
    assert_eq!(delivery.receiver.take().len(), attempts);
    let message = &delivery.harness.firing().await.messages[0];
    assert!(message.failed_at.is_some() && message.sent_at.is_none(), "{message:?}");
    assert!(message.error.as_deref().is_some_and(|error| error.contains("503")), "{message:?}");
}

#[tokio::test]
async fn message_of_a_killed_server_is_sent_by_another_one() {
    let mut delivery = Delivery::new().await;
    let job = delivery.harness.job().await;
    delivery.harness.ended(job, OccurrenceStatus::Failed).await;
    delivery.harness.tick().await;
    delivery.harness.advance(10);
    let claimed = delivery.harness.store.claim_alert_message(delivery.harness.now()).await.expect("claimed");
    let claimed = claimed.expect("it is due");
    assert_eq!(delivery.send_after(59).await, AlertSenderReport::default(), "the message is in other hands");
    assert_eq!(delivery.send_after(2).await.sent, 1);
    assert_eq!(delivery.receiver.take()[0].0, claimed.id.to_string());
}

#[tokio::test]
async fn message_that_is_due_longest_is_claimed_first() {
    let delivery = Delivery::new().await;
    let store = &delivery.harness.store;
    // Of rules with channels of their own, the one that was created last fires first.
    let mut rules = vec![delivery.rule];
    for _ in 0..4 {
        let target = AlertTarget::Webhook { url: delivery.receiver.url.clone(), signing_secret: None };
        let channel = delivery.harness.channel(target).await;
        rules.push(delivery.harness.rule(AlertCondition::OccurrenceFailed { causes: vec![] }, &[channel]).await);
    }
    rules.reverse();
    for rule in &rules {
        delivery.harness.fire(*rule).await;
        delivery.harness.advance(1);
    }
    delivery.harness.advance(20);
    let mut claimed = Vec::new();
    while let Some(message) = store.claim_alert_message(delivery.harness.now()).await.expect("claimed") {
        claimed.push(message.rule_id);
    }
    assert_eq!(claimed, rules);
}

#[tokio::test]
async fn two_servers_send_a_message_once() {
    let mut delivery = Delivery::new().await;
    for _ in 0..30 {
        let job = delivery.harness.job().await;
        delivery.harness.ended(job, OccurrenceStatus::Failed).await;
    }
    delivery.harness.tick().await;
    delivery.harness.advance(10);
    let (store, now) = (delivery.harness.store.clone(), delivery.harness.now());
    let claim = async || store.claim_alert_message(now).await.expect("claimed").map_or(0, |found| found.alerts.len());
    let claimed = tokio::join!(claim(), claim(), claim(), claim());
    let mut sizes = [claimed.0, claimed.1, claimed.2, claimed.3];
    sizes.sort_unstable();
    assert_eq!(sizes, [0, 0, 0, 30]);
}
