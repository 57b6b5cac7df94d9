//! Declares the exchanges and queues that a worker needs.
//!
//! Server and worker declare the same objects with the same arguments, so that either can start first: repeating a
//! declaration has no effect, and the broker refuses a declaration with other arguments. The names are in
//! `milvaion_protocol::topology`. Beside them, the following is binding:
//!
//! | Object | Kind | Arguments |
//! |---|---|---|
//! | jobs exchange | topic, durable | none |
//! | dead letter exchange | fanout, durable | none |
//! | dead letter queue | durable | none; bound with an empty key |
//! | status, logs, registration, claims exchange | direct, durable | none |
//! | status, logs, registration, claims queue | durable | none; bound with its own name as key |
//! | all queues | classic | `x-queue-type` `classic` (long string) beside the arguments below |
//! | job queue | durable | `x-max-priority` 5 (long int), `x-dead-letter-exchange` (long string); bound with `job_binding` |
//! | queue of critical runs, with reserved slots only | durable | those of the job queue; bound with `critical_binding` |

use lapin::{
    Channel, ExchangeKind, Result,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use milvaion_protocol::topology::{MAX_PRIORITY, Topology};

/// Declares the exchanges and queues that all workers and the server share.
///
/// # Errors
/// Returns the error of the broker if it refuses a declaration. The channel is closed then.
pub(crate) async fn declare_shared(channel: &Channel, topology: &Topology) -> Result<()> {
    exchange(channel, &topology.jobs_exchange(), ExchangeKind::Topic).await?;
    exchange(channel, &topology.dead_letter_exchange(), ExchangeKind::Fanout).await?;
    queue(channel, &topology.dead_letter_queue(), FieldTable::default()).await?;
    bind(channel, &topology.dead_letter_queue(), &topology.dead_letter_exchange(), "").await?;
    for name in [topology.status(), topology.logs(), topology.registration(), topology.claims()] {
        exchange(channel, &name, ExchangeKind::Direct).await?;
        queue(channel, &name, FieldTable::default()).await?;
        bind(channel, &name, &name, &name).await?;
    }
    Ok(())
}

/// Declares the queue of one job type, or the one of its critical runs, and returns its name.
///
/// # Errors
/// Returns the error of the broker if it refuses the declaration. The channel is closed then.
pub(crate) async fn declare_job_queue(
    channel: &Channel,
    topology: &Topology,
    worker_id: &str,
    job_type: &str,
    is_critical: bool,
) -> Result<String> {
    let (name, key) = if is_critical {
        (topology.critical_queue(worker_id, job_type), Topology::critical_binding(worker_id, job_type))
    } else {
        (topology.job_queue(worker_id, job_type), Topology::job_binding(worker_id, job_type))
    };
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-priority".into(), AMQPValue::LongInt(MAX_PRIORITY.into()));
    arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString(topology.dead_letter_exchange().into()));
    queue(channel, &name, arguments).await?;
    bind(channel, &name, &topology.jobs_exchange(), &key).await?;
    Ok(name)
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
