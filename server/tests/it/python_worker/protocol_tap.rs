//! Records every message between server and workers, and validates the messages with the schemas in `docs/protocol`.

use std::{
    collections::BTreeMap,
    fs,
    sync::{Arc, Mutex},
};

use futures::StreamExt;
use jsonschema::Validator;
use lapin::{
    Connection, ConnectionProperties, ExchangeKind,
    options::{BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::FieldTable,
};
use milvaion_protocol::topology::Topology;
use milvaion_server::{broker::echo::is_echo, config::ServerConfig};
use milvaion_test_support::{paths, services, wait};
use serde_json::Value;

type TappedMessages = Arc<Mutex<Vec<(&'static str, Vec<u8>)>>>;

/// The messages on all exchanges since it was opened.
pub(crate) struct ProtocolTap {
    connection: Connection,
    messages: TappedMessages,
}

/// The exchanges, and the schemas of their messages.
const SCHEMAS: [(&str, &str); 5] = [
    ("jobs", "job-message"),
    ("status", "status-message"),
    ("logs", "log-message"),
    ("registration", "registration-message"),
    ("claims", "claim-request"),
];

impl ProtocolTap {
    pub(crate) async fn open(config: &ServerConfig) -> Self {
        let connection = Connection::connect(&config.broker.url, ConnectionProperties::default());
        let connection = connection.await.expect("the broker responds");
        let names = Topology::new(config.broker.prefix.clone());
        let messages = TappedMessages::default();
        let (topic, direct) = (ExchangeKind::Topic, ExchangeKind::Direct);
        for (name, exchange, kind, key) in [
            ("jobs", names.jobs_exchange(), topic, "#".to_owned()),
            ("status", names.status(), direct.clone(), names.status()),
            ("logs", names.logs(), direct.clone(), names.logs()),
            ("registration", names.registration(), direct.clone(), names.registration()),
            ("claims", names.claims(), direct, names.claims()),
        ] {
            let channel = connection.create_channel().await.expect("a channel");
            let queue = services::unique("tap");
            let none = FieldTable::default;
            // The server may start later: the exchanges are declared by the first process that needs them.
            let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
            channel.exchange_declare(exchange.as_str().into(), kind, options, none()).await.expect("an exchange");
            let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
            channel.queue_declare(queue.as_str().into(), options, none()).await.expect("a queue");
            let bound = QueueBindOptions::default();
            channel
                .queue_bind(queue.as_str().into(), exchange.into(), key.into(), bound, none())
                .await
                .expect("the listener is bound");
            let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
            let deliveries =
                channel.basic_consume(queue.into(), "tap".into(), options, none()).await.expect("a consumer");
            let messages = messages.clone();
            tokio::spawn(async move {
                let mut deliveries = deliveries;
                // The channel is closed when it is dropped.
                let _channel = channel;
                while let Some(Ok(delivery)) = deliveries.next().await {
                    // Servers send echoes to these exchanges too.
                    if is_echo(&delivery) {
                        continue;
                    }
                    messages.lock().expect("the mutex is not poisoned").push((name, delivery.data));
                }
            });
        }
        Self { connection, messages }
    }

    /// Waits for the first message on an exchange. Returns its body.
    pub(crate) async fn first(&self, exchange: &str) -> Vec<u8> {
        wait::eventually("a message", || async {
            let messages = self.messages.lock().expect("the mutex is not poisoned");
            messages.iter().find(|(name, _)| *name == exchange).map(|(_, body)| body.clone())
        })
        .await
    }

    /// Waits until there are `count` messages on an exchange.
    pub(crate) async fn wait_for_messages(&self, exchange: &str, count: usize) {
        wait::eventually("the messages", || async {
            let messages = self.messages.lock().expect("the mutex is not poisoned");
            (messages.iter().filter(|(name, _)| *name == exchange).count() >= count).then_some(())
        })
        .await;
    }

    /// Stops recording and validates the messages. Returns the number of messages on each exchange.
    pub(crate) async fn close(self) -> BTreeMap<&'static str, usize> {
        self.connection.close(200, "done".into()).await.expect("closed");
        let mut counts = BTreeMap::new();
        let messages = self.messages.lock().expect("the mutex is not poisoned");
        for (exchange, file) in SCHEMAS {
            let schema = schema(file);
            for (_, body) in messages.iter().filter(|(name, _)| *name == exchange) {
                let json: Value = serde_json::from_slice(body).expect("the body is JSON");
                let errors: Vec<String> = schema.iter_errors(&json).map(|error| error.to_string()).collect();
                assert!(errors.is_empty(), "{file} rejects {json:#}: {errors:?}");
                *counts.entry(exchange).or_default() += 1;
            }
        }
        counts
    }
}

fn schema(name: &str) -> Validator {
    let path = paths::repository_root().join(format!("docs/protocol/{name}.schema.json"));
    let text = fs::read_to_string(path).expect("the schema can be read");
    jsonschema::validator_for(&serde_json::from_str(&text).expect("JSON")).expect("a schema")
}
