//! What stands in for a server: the answers to claims, the only thing a worker asks and waits for. The broker and the
//! Redis of a test are real, so nothing else has to be played.

use std::{collections::HashMap, sync::Arc};

use futures::StreamExt;
use lapin::{
    BasicProperties, Channel, Connection, Consumer, ExchangeKind,
    options::{BasicConsumeOptions, BasicPublishOptions, ExchangeDeclareOptions, QueueDeclareOptions},
    types::FieldTable,
};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{ClaimDenial, ClaimReply, ClaimRequest},
};

use super::WorkerTestEnv;

/// What stands for a server as far as claims are concerned: it grants all but those it is told to deny.
#[derive(Default)]
pub(super) struct FakeClaimServer {
    denied: std::sync::Mutex<HashMap<OccurrenceId, ClaimDenial>>,
    asked: std::sync::Mutex<Vec<ClaimRequest>>,
}

impl WorkerTestEnv {
    /// Makes the server deny an occurrence from now on.
    pub(crate) fn deny(&self, occurrence: OccurrenceId, reason: ClaimDenial) {
        self.server.denied.lock().expect("no test thread panicked").insert(occurrence, reason);
    }

    /// Whether the server was asked about an occurrence.
    pub(crate) fn was_asked(&self, occurrence: OccurrenceId) -> bool {
        let asked = self.server.asked.lock().expect("no test thread panicked");
        asked.iter().any(|request| request.occurrence_id == occurrence)
    }
}

/// Where the questions come in, and the channel to answer on.
pub(super) async fn claims_queue(connection: &Connection, name: &str) -> (Channel, Consumer) {
    let channel = connection.create_channel().await.expect("a channel");
    let (exchange, queue) = (
        ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() },
        QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() },
    );
    channel
        .exchange_declare(name.into(), ExchangeKind::Direct, exchange, FieldTable::default())
        .await
        .expect("declared");
    channel.queue_declare(name.into(), queue, FieldTable::default()).await.expect("declared");
    channel
        .queue_bind(name.into(), name.into(), name.into(), Default::default(), FieldTable::default())
        .await
        .expect("bound");
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let questions =
        channel.basic_consume(name.into(), "".into(), options, FieldTable::default()).await.expect("consumes");
    (channel, questions)
}

/// Answers until the connection ends.
pub(super) async fn answer_claims((channel, mut questions): (Channel, Consumer), server: Arc<FakeClaimServer>) {
    while let Some(Ok(question)) = questions.next().await {
        let request: ClaimRequest = serde_json::from_slice(&question.data).expect("a message of the protocol");
        let reason = server.denied.lock().expect("no test thread panicked").get(&request.occurrence_id).copied();
        let reply = ClaimReply {
            occurrence_id: request.occurrence_id,
            attempt: request.attempt,
            granted: reason.is_none(),
            reason,
            by: None,
        };
        server.asked.lock().expect("no test thread panicked").push(request);
        let to = question.properties.reply_to().clone().expect("a question names whom to answer");
        let id = question.properties.correlation_id().clone().expect("a question has an id");
        let (body, properties) =
            (serde_json::to_vec(&reply).expect("plain data"), BasicProperties::default().with_correlation_id(id));
        channel.basic_publish("".into(), to, BasicPublishOptions::default(), &body, properties).await.expect("sent");
    }
}
