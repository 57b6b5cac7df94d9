//! Declares the exchanges and queues that `milvaion_protocol::topology` names.
//!
//! Declaring an existing queue again is free. The broker refuses a declaration with other arguments than the first one,
//! so the server and the workers use the same table:
//!
//! | Name | Kind | Arguments |
//! |---|---|---|
//! | jobs exchange | topic, durable | none |
//! | dead letter exchange and queue | fanout, durable | none |
//! | status, logs, registration, claims, ingest | direct exchange and queue, durable | none |
//! | queue of critical runs | durable | those of the job queue; only workers declare it, while they consume it |
//! | job queue | durable | `x-max-priority`, so that a critical occurrence overtakes; `x-dead-letter-exchange`, so that a rejected message is kept |

use futures::future::{join_all, try_join};
use lapin::{
    Channel, ExchangeKind, Result,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use milvaion_protocol::topology::{MAX_PRIORITY, Topology};

/// Declares the exchanges and queues that do not depend on a worker.
///
/// # Errors
///
/// Returns an error if the broker refuses a declaration; the channel is closed then.
pub async fn declare(channel: &Channel, names: &Topology) -> Result<()> {
    exchange(channel, &names.jobs_exchange(), ExchangeKind::Topic).await?;
    exchange(channel, &names.dead_letter_exchange(), ExchangeKind::Fanout).await?;
    queue(channel, &names.dead_letter_queue(), FieldTable::default()).await?;
    bind(channel, &names.dead_letter_queue(), &names.dead_letter_exchange(), "").await?;
    for name in [names.status(), names.logs(), names.registration(), names.claims(), names.ingest()] {
        exchange(channel, &name, ExchangeKind::Direct).await?;
        queue(channel, &name, FieldTable::default()).await?;
        bind(channel, &name, &name, &name).await?;
    }
    Ok(())
}

/// A job queue: the worker's id and the job type.
pub type QueueKey = (String, String);

/// Declares the queues of job types, so that messages wait there even before the worker first connects. All
/// declarations are in flight at once. Returns the number of queues that the broker has accepted, from the first one on,
/// and the error of the one after them.
///
/// A refusal closes the channel, so the broker ignores what follows it. It answers in the order of the requests, so the
/// first error is that of the refused queue.
pub async fn declare_job_queues(
    channel: &Channel,
    names: &Topology,
    queues: &[QueueKey],
) -> (usize, Option<lapin::Error>) {
    let declarations =
        queues.iter().map(|(worker_id, job_type)| declare_job_queue(channel, names, worker_id, job_type));
    for (index, declared) in join_all(declarations).await.into_iter().enumerate() {
        if let Err(error) = declared {
            return (index, Some(error));
        }
    }
    (queues.len(), None)
}

/// Declares and binds one queue. Both requests are sent before the first answer, so that the requests of several queues
/// do not mix.
async fn declare_job_queue(channel: &Channel, names: &Topology, worker_id: &str, job_type: &str) -> Result<()> {
    let name = names.job_queue(worker_id, job_type);
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-priority".into(), AMQPValue::LongInt(MAX_PRIORITY.into()));
    arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString(names.dead_letter_exchange().into()));
    let (exchange, key) = (names.jobs_exchange(), Topology::job_binding(worker_id, job_type));
    try_join(queue(channel, &name, arguments), bind(channel, &name, &exchange, &key)).await.map(drop)
}

async fn exchange(channel: &Channel, name: &str, kind: ExchangeKind) -> Result<()> {
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(name.into(), kind, options, FieldTable::default()).await
}

/// Declares a queue. Its type is pinned: where the virtual host defaults to quorum queues, the broker would refuse
/// `x-max-priority`, and drop reports that were returned more often than its delivery limit. The broker treats a queue that
/// was declared without a type as a classic one.
async fn queue(channel: &Channel, name: &str, mut arguments: FieldTable) -> Result<()> {
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(name.into(), options, arguments).await.map(drop)
}

async fn bind(channel: &Channel, queue: &str, exchange: &str, key: &str) -> Result<()> {
    channel
        .queue_bind(queue.into(), exchange.into(), key.into(), QueueBindOptions::default(), FieldTable::default())
        .await
}
