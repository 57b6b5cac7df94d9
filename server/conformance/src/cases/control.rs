//! The cases of registration and heartbeats, and of the requests that end a run: cancellation and timeout.

use std::time::{Duration, Instant};

use milvaion_protocol::{
    message::{CancelMessage, FEATURE_CHECKPOINT, JobMessage},
    status::OccurrenceStatus,
};
use redis::AsyncCommands;
use serde_json::json;

use super::{
    CaseOutcome,
    claims::{NOTICED_WITHIN, is_listed},
    minimal::echoes,
};
use crate::{
    context::{CaseContext, END_WITHIN, READY_WITHIN, TestJob, job_type_names},
    proxy::NetworkFault,
    record::WorkerMessage,
};

/// The longest time between two heartbeats: their interval and a margin.
const HEARTBEAT_GAP: Duration = Duration::from_secs(8);

pub(crate) async fn hello(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Echo]).await?;
    let hello = context.first_hello().await?;
    let worker_id = context.worker_id();
    context.expect(hello.worker_id == worker_id, format!("workerId {worker_id}"), || hello.worker_id.clone())?;
    let mut offered: Vec<_> = hello.job_types.iter().map(|info| info.job_type.as_str()).collect();
    offered.sort_unstable();
    let has_checkpoints = hello.features.iter().any(|feature| feature == FEATURE_CHECKPOINT);
    let is_expected =
        |name: &&str| *name != "conformance-echo" && (has_checkpoints || *name != "conformance-checkpoint");
    let expected: Vec<_> = job_type_names().into_iter().filter(is_expected).collect();
    let is_complete = expected.iter().chain([&context.job_type(TestJob::Echo)]).all(|name| offered.contains(name));
    context.expect(is_complete, "all job types of the contract", || format!("{offered:?}"))?;
    for info in &hello.job_types {
        let name = &info.job_type;
        let of_object = info.schema.get("type").and_then(|kind| kind.as_str()) == Some("object");
        context.expect(of_object, format!("{name} with a schema of an object"), || info.schema.to_string())?;
        context.expect(info.concurrency > 0, format!("{name} with a concurrency"), || "0".to_owned())?;
    }
    context.expect(hello.capacity > 0, "a capacity", || "0".to_owned())
}

pub(crate) async fn hello_again(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Echo]).await?;
    let first = context.first_hello().await?;
    let since = Instant::now();
    worker.broker.cut();
    let again = || context.hellos(Some(since)).into_iter().next();
    let second = context.until(READY_WITHIN, "a second hello", again, || "none".to_owned()).await?;
    let is_same = first.instance_id == second.instance_id;
    context.expect(is_same, "the same instanceId", || format!("{} and {}", first.instance_id, second.instance_id))?;
    let job = context.job(TestJob::Echo, json!({ "after": "the reconnect" }));
    context.send(&job).await?;
    context.ends_as_within(&job, OccurrenceStatus::Completed, READY_WITHIN).await.map(drop)
}

pub(crate) async fn heartbeats(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 7000 }));
    context.send(&job).await?;
    context.begins(&job).await?;
    is_listed(context, &job, true).await?;
    context
        .expect(begins_with_hello(context), "a hello before the first heartbeat", || "a heartbeat first".to_owned())?;
    context.ends_as(&job, OccurrenceStatus::Completed).await?;
    is_listed(context, &job, false).await
}

/// The run ends shortly after a heartbeat and its end is not confirmed, so the next heartbeat must list it.
pub(crate) async fn listed_until_confirmed(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Sleep]).await?;
    let beats = || {
        let record = context.server.record();
        record.messages.iter().filter(|received| matches!(received.message, WorkerMessage::Heartbeat(_))).count()
    };
    let before = beats();
    let next_beat = || (beats() > before).then_some(());
    context.until(HEARTBEAT_GAP, "a heartbeat", next_beat, || "none".to_owned()).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 1500 }));
    context.send(&job).await?;
    context.is_running(&job).await?;
    context.settles(&worker, TestJob::Sleep, END_WITHIN).await?;
    worker.broker.set(NetworkFault { without_confirms: true, ..NetworkFault::default() });
    context.ends_as(&job, OccurrenceStatus::Completed).await?;
    is_listed(context, &job, true).await?;
    worker.broker.heal();
    worker.broker.cut();
    is_listed(context, &job, false).await?;
    context.expect_starts(&job, &[1])
}

pub(crate) async fn heartbeats_of_a_blocked_worker(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Block]).await?;
    let job = context.job(TestJob::Block, json!({ "ms": 12_000 }));
    context.send(&job).await?;
    context.begins(&job).await?;
    let since = Instant::now();
    context.ends_as_within(&job, OccurrenceStatus::Completed, Duration::from_secs(30)).await?;
    let record = context.server.record();
    let (mut last, mut longest) = (since, Duration::ZERO);
    for received in record.messages.iter().filter(|received| received.at > since) {
        if let WorkerMessage::Heartbeat(heartbeat) = &received.message
            && heartbeat.running.contains(&job.occurrence_id)
        {
            longest = longest.max(received.at - last);
            last = received.at;
        }
    }
    let is_steady = last > since && longest <= HEARTBEAT_GAP;
    let expected = format!("heartbeats that list the run, with gaps of at most {} s", HEARTBEAT_GAP.as_secs());
    context.expect(is_steady, expected, || format!("a gap of {:.1} s", longest.as_secs_f32()))
}

pub(crate) async fn heartbeat_key(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Echo]).await?;
    let instance = context.first_hello().await?.instance_id;
    let key = context.keys.heartbeat(&instance);
    let read = || async { context.value(key.clone()).await?.parse::<i64>().ok() };
    let missing = || "no such key".to_owned();
    let expected = "heartbeat:{instanceId} with the time in milliseconds";
    let first = context.until_async(HEARTBEAT_GAP, expected, read, missing).await?;
    let life: i64 = context.redis().pttl(&key).await?;
    context.expect((1..=15_000).contains(&life), "15 s to live", || format!("{life} ms"))?;
    let changed = || async { read().await.filter(|value| *value > first) };
    context.until_async(HEARTBEAT_GAP, "a later time", changed, || first.to_string()).await.map(drop)
}

pub(crate) async fn cancel_on_the_channel(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    context.send(&job).await?;
    context.is_running(&job).await?;
    context.begins(&job).await?;
    publish_cancel(context, &job, 1).await?;
    is_cancelled(context, &job, Duration::from_secs(4)).await
}

pub(crate) async fn cancel_by_the_key(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    context.send(&job).await?;
    context.begins(&job).await?;
    set_cancel(context, &job, 1).await?;
    is_cancelled(context, &job, NOTICED_WITHIN).await
}

pub(crate) async fn cancel_before_the_start(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    set_cancel(context, &job, 1).await?;
    context.send(&job).await?;
    is_cancelled(context, &job, END_WITHIN).await?;
    context.expect_starts(&job, &[])?;
    context.settles(&worker, TestJob::Sleep, END_WITHIN).await
}

pub(crate) async fn cancel_of_an_earlier_attempt(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Sleep]).await?;
    let mut job = context.job(TestJob::Sleep, json!({ "ms": 6000 }));
    job.attempt = 2;
    set_cancel(context, &job, 1).await?;
    context.send(&job).await?;
    context.begins(&job).await?;
    publish_cancel(context, &job, 1).await?;
    context.ends_as(&job, OccurrenceStatus::Completed).await.map(drop)
}

pub(crate) async fn cancel_while_redis_is_away(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    context.send(&job).await?;
    context.begins(&job).await?;
    worker.redis.set(NetworkFault { is_down: true, ..NetworkFault::default() });
    publish_cancel(context, &job, 1).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    worker.redis.heal();
    is_cancelled(context, &job, Duration::from_secs(20)).await
}

pub(crate) async fn timeout(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Sleep, TestJob::Echo]).await?;
    let mut job = context.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    job.timeout_seconds = Some(1);
    context.send(&job).await?;
    context.ends_as_within(&job, OccurrenceStatus::TimedOut, Duration::from_secs(8)).await?;
    let next = context.job(TestJob::Echo, json!({ "after": "the timeout" }));
    context.send(&next).await?;
    echoes(context, &next).await.map(drop)
}

fn begins_with_hello(context: &CaseContext) -> bool {
    let record = context.server.record();
    let first = record
        .messages
        .iter()
        .find(|received| matches!(received.message, WorkerMessage::Hello(_) | WorkerMessage::Heartbeat(_)));
    first.is_some_and(|received| matches!(received.message, WorkerMessage::Hello(_)))
}

fn cancel_message(job: &JobMessage, attempt: u32) -> String {
    let message = CancelMessage {
        occurrence_id: job.occurrence_id,
        attempt: Some(attempt),
        reason: "Cancellation requested by Ann: wrong customer".to_owned(),
    };
    serde_json::to_string(&message).unwrap_or_default()
}

async fn set_cancel(context: &CaseContext, job: &JobMessage, attempt: u32) -> CaseOutcome {
    let key = context.keys.cancel_request(job.occurrence_id);
    let () = context.redis().set_ex(key, cancel_message(job, attempt), 86_400).await?;
    Ok(())
}

async fn publish_cancel(context: &CaseContext, job: &JobMessage, attempt: u32) -> CaseOutcome {
    set_cancel(context, job, attempt).await?;
    let () = context.redis().publish(context.keys.cancellation_channel(), cancel_message(job, attempt)).await?;
    Ok(())
}

async fn is_cancelled(context: &CaseContext, job: &JobMessage, within: Duration) -> CaseOutcome {
    let report = context.ends_as_within(job, OccurrenceStatus::Cancelled, within).await?;
    let exception = report.exception.unwrap_or_default();
    let is_named = exception.contains("Ann: wrong customer");
    context.expect(is_named, "an exception with the user and the reason", || format!("{exception:?}"))
}
