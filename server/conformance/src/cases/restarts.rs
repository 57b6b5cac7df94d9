//! The cases that restart a service. They run alone, on services that belong to the kit.

use std::time::{Duration, Instant};

use milvaion_protocol::status::OccurrenceStatus;
use serde_json::json;

use super::{CaseOutcome, claims::is_done};
use crate::{
    context::{CaseContext, TestJob},
    settings::KitService,
};

/// The time within which a worker works again after a service is back: its longest pause between two tries, and a margin.
const WORKS_AGAIN_WITHIN: Duration = Duration::from_secs(45);
/// The time for which RabbitMQ is away.
const BROKER_AWAY: Duration = Duration::from_secs(3);
/// The time for which Redis is away: longer than the interval of heartbeats, so that each worker notices it.
const REDIS_AWAY: Duration = Duration::from_secs(6);

/// The broker stops during a run, which ends meanwhile. Its message waits for the worker in the queue.
pub(crate) async fn broker(context: &CaseContext) -> CaseOutcome {
    context.control()?;
    let worker = context.begin(&[TestJob::Sleep]).await?;
    let first = context.first_hello().await?.instance_id;
    let job = context.job(TestJob::Sleep, json!({ "ms": 2000 }));
    context.send(&job).await?;
    context.is_running(&job).await?;
    context.begins(&job).await?;
    context.settles(&worker, TestJob::Sleep, WORKS_AGAIN_WITHIN).await?;
    let since = Instant::now();
    context.restart(KitService::RabbitMq, BROKER_AWAY).await?;
    let next = context.job(TestJob::Sleep, json!({ "ms": 10 }));
    context.send(&next).await?;
    context.ends_as_within(&job, OccurrenceStatus::Completed, WORKS_AGAIN_WITHIN).await?;
    context.ends_as_within(&next, OccurrenceStatus::Completed, WORKS_AGAIN_WITHIN).await?;
    let again = || context.hellos(Some(since)).into_iter().next();
    let second = context.until(WORKS_AGAIN_WITHIN, "a hello after the restart", again, || "none".to_owned()).await?;
    let is_same = first == second.instance_id;
    context.expect(is_same, "the same instanceId", || format!("{first} and {}", second.instance_id))?;
    context.settles(&worker, TestJob::Sleep, WORKS_AGAIN_WITHIN).await?;
    context.expect_starts(&job, &[1])?;
    context.expect_starts(&next, &[1])
}

/// Redis stops during a run, which ends after it is back.
pub(crate) async fn redis(context: &CaseContext) -> CaseOutcome {
    context.control()?;
    let worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 15_000 }));
    context.send(&job).await?;
    context.is_running(&job).await?;
    context.begins(&job).await?;
    context.restart(KitService::Redis, REDIS_AWAY).await?;
    context.ends_as_within(&job, OccurrenceStatus::Completed, WORKS_AGAIN_WITHIN).await?;
    let next = context.job(TestJob::Sleep, json!({ "ms": 10 }));
    context.send(&next).await?;
    context.ends_as_within(&next, OccurrenceStatus::Completed, WORKS_AGAIN_WITHIN).await?;
    is_done(context, &next).await?;
    context.settles(&worker, TestJob::Sleep, WORKS_AGAIN_WITHIN).await?;
    context.expect_starts(&job, &[1])?;
    context.expect_starts(&next, &[1])
}
