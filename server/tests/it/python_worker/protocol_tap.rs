//! Listens to everything that server and workers say to each other over the broker, and holds it against the schemas in
//! `docs/protocol`.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
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
use milvaion_server::config::ServerConfig;
use serde_json::Value;

use milvaion_test_support::{stack, unique};

type TappedMessages = Arc<Mutex<Vec<(&'static str, Vec<u8>)>>>;

/// A copy of everything, from the moment it was opened.
pub(crate) struct ProtocolTap {
    connection: Connection,
    heard: TappedMessages,
}

/// The exchanges, and which schema their messages keep to.
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
        let connection = connection.await.expect("the broker answers");
        let names = Topology::new(config.broker.prefix.clone());
        let heard = TappedMessages::default();
        let (topic, direct) = (ExchangeKind::Topic, ExchangeKind::Direct);
        for (name, exchange, kind, key) in [
            ("jobs", names.jobs_exchange(), topic, "#".to_owned()),
            ("status", names.status(), direct.clone(), names.status()),
            ("logs", names.logs(), direct.clone(), names.logs()),
            ("registration", names.registration(), direct.clone(), names.registration()),
            ("claims", names.claims(), direct, names.claims()),
        ] {
            let channel = connection.create_channel().await.expect("a channel");
            let queue = unique("tap");
            let none = FieldTable::default;
            // Whoever comes first declares it.
            let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
            channel.exchange_declare(exchange.as_str().into(), kind, options, none()).await.expect("an exchange");
            let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
            channel.queue_declare(queue.as_str().into(), options, none()).await.expect("a queue");
            let bound = QueueBindOptions::default();
            channel.queue_bind(queue.as_str().into(), exchange.into(), key.into(), bound, none()).await.expect("bound");
            let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
            let deliveries =
                channel.basic_consume(queue.into(), "tap".into(), options, none()).await.expect("it delivers");
            let heard = heard.clone();
            tokio::spawn(async move {
                let mut deliveries = deliveries;
                // The channel lives as long as somebody listens to it.
                let _channel = channel;
                while let Some(Ok(delivery)) = deliveries.next().await {
                    heard.lock().expect("nobody panicked").push((name, delivery.data));
                }
            });
        }
        Self { connection, heard }
    }

    /// The first message that is said on an exchange.
    pub(crate) async fn first(&self, exchange: &str) -> Vec<u8> {
        stack::eventually("a message", || async {
            let heard = self.heard.lock().expect("nobody panicked");
            heard.iter().find(|(name, _)| *name == exchange).map(|(_, body)| body.clone())
        })
        .await
    }

    /// Waits until so many messages were said on an exchange.
    pub(crate) async fn wait_for_messages(&self, exchange: &str, count: usize) {
        stack::eventually("the messages", || async {
            let heard = self.heard.lock().expect("nobody panicked");
            (heard.iter().filter(|(name, _)| *name == exchange).count() >= count).then_some(())
        })
        .await;
    }

    /// Stops listening, and checks what was heard. Returns how many messages there were on each exchange.
    pub(crate) async fn close(self) -> BTreeMap<&'static str, usize> {
        self.connection.close(200, "heard".into()).await.expect("closed");
        let mut kinds = BTreeMap::new();
        let heard = self.heard.lock().expect("nobody panicked");
        for (exchange, file) in SCHEMAS {
            let schema = schema(file);
            for (_, body) in heard.iter().filter(|(name, _)| *name == exchange) {
                let json: Value = serde_json::from_slice(body).expect("it is JSON");
                let wrong: Vec<String> = schema.iter_errors(&json).map(|error| error.to_string()).collect();
                assert!(wrong.is_empty(), "{file} refuses {json:#}: {wrong:?}");
                *kinds.entry(exchange).or_default() += 1;
            }
        }
        kinds
    }
}

fn schema(name: &str) -> Validator {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/protocol/{name}.schema.json"));
    let text = fs::read_to_string(path).expect("the schema can be read");
    jsonschema::validator_for(&serde_json::from_str(&text).expect("JSON")).expect("a schema")
}
