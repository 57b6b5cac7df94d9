//! The cases of registration and heartbeats, and of the requests that end a run: cancellation and timeout.

use std::time::{Duration, Instant};

use milvaion_protocol::{
    message::{CancelMessage, InstanceHello, JobMessage},
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
    failure::CaseFailure,
    proxy::NetworkFault,
    record::WorkerMessage,
    stage::{END_WITHIN, READY_WITHIN, Stage, TestJob, job_type_names},
};

/// The longest time between two heartbeats: their interval and a margin.
const HEARTBEAT_GAP: Duration = Duration::from_secs(8);

pub(crate) async fn hello(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Echo]).await?;
    let hello = first_hello(stage).await?;
    let worker_id = stage.worker_id();
    stage.expect(hello.worker_id == worker_id, format!("workerId {worker_id}"), || hello.worker_id.clone())?;
    let mut offered: Vec<_> = hello.job_types.iter().map(|info| info.job_type.as_str()).collect();
    offered.sort_unstable();
    let expected: Vec<_> = job_type_names().into_iter().filter(|name| *name != "conformance-echo").collect();
    let is_complete = expected.iter().chain([&stage.job_type(TestJob::Echo)]).all(|name| offered.contains(name));
    stage.expect(is_complete, "all job types of the contract", || format!("{offered:?}"))?;
    for info in &hello.job_types {
        let name = &info.job_type;
        let of_object = info.schema.get("type").and_then(|kind| kind.as_str()) == Some("object");
        stage.expect(of_object, format!("{name} with a schema of an object"), || info.schema.to_string())?;
        stage.expect(info.concurrency > 0, format!("{name} with a concurrency"), || "0".to_owned())?;
    }
    stage.expect(hello.capacity > 0, "a capacity", || "0".to_owned())
}

pub(crate) async fn hello_again(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Echo]).await?;
    let first = first_hello(stage).await?;
    let since = Instant::now();
    worker.broker.cut();
    let again = || hellos(stage, Some(since)).into_iter().next();
    let second = stage.until(READY_WITHIN, "a second hello", again, || "none".to_owned()).await?;
    let is_same = first.instance_id == second.instance_id;
    stage.expect(is_same, "the same instanceId", || format!("{} and {}", first.instance_id, second.instance_id))?;
    let job = stage.job(TestJob::Echo, json!({ "after": "the reconnect" }));
    stage.send(&job).await?;
    stage.ends_as_within(&job, OccurrenceStatus::Completed, READY_WITHIN).await.map(drop)
}

pub(crate) async fn heartbeats(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Sleep]).await?;
    let job = stage.job(TestJob::Sleep, json!({ "ms": 7000 }));
    stage.send(&job).await?;
    stage.begins(&job).await?;
    is_listed(stage, &job, true).await?;
    stage.expect(begins_with_hello(stage), "a hello before the first heartbeat", || "a heartbeat first".to_owned())?;
    stage.ends_as(&job, OccurrenceStatus::Completed).await?;
    is_listed(stage, &job, false).await
}

pub(crate) async fn heartbeats_of_a_blocked_worker(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Block]).await?;
    let job = stage.job(TestJob::Block, json!({ "ms": 12_000 }));
    stage.send(&job).await?;
    stage.begins(&job).await?;
    let since = Instant::now();
    stage.ends_as_within(&job, OccurrenceStatus::Completed, Duration::from_secs(30)).await?;
    let record = stage.server.record();
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
    stage.expect(is_steady, expected, || format!("a gap of {:.1} s", longest.as_secs_f32()))
}

pub(crate) async fn heartbeat_key(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Echo]).await?;
    let instance = first_hello(stage).await?.instance_id;
    let key = stage.keys.heartbeat(&instance);
    let read = || async { stage.value(key.clone()).await?.parse::<i64>().ok() };
    let missing = || "no such key".to_owned();
    let expected = "heartbeat:{instanceId} with the time in milliseconds";
    let first = stage.until_async(HEARTBEAT_GAP, expected, read, missing).await?;
    let life: i64 = stage.redis().pttl(&key).await?;
    stage.expect((1..=15_000).contains(&life), "15 s to live", || format!("{life} ms"))?;
    let changed = || async { read().await.filter(|value| *value > first) };
    stage.until_async(HEARTBEAT_GAP, "a later time", changed, || first.to_string()).await.map(drop)
}

pub(crate) async fn cancel_on_the_channel(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Sleep]).await?;
    let job = stage.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    stage.send(&job).await?;
    stage.is_running(&job).await?;
    stage.begins(&job).await?;
    publish_cancel(stage, &job, 1).await?;
    is_cancelled(stage, &job, Duration::from_secs(4)).await
}

pub(crate) async fn cancel_by_the_key(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Sleep]).await?;
    let job = stage.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    stage.send(&job).await?;
    stage.begins(&job).await?;
    set_cancel(stage, &job, 1).await?;
    is_cancelled(stage, &job, NOTICED_WITHIN).await
}

pub(crate) async fn cancel_before_the_start(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Sleep]).await?;
    let job = stage.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    set_cancel(stage, &job, 1).await?;
    stage.send(&job).await?;
    is_cancelled(stage, &job, END_WITHIN).await?;
    stage.expect_starts(&job, &[])?;
    stage.settles(&worker, TestJob::Sleep, END_WITHIN).await
}

pub(crate) async fn cancel_of_an_earlier_attempt(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Sleep]).await?;
    let mut job = stage.job(TestJob::Sleep, json!({ "ms": 6000 }));
    job.attempt = 2;
    set_cancel(stage, &job, 1).await?;
    stage.send(&job).await?;
    stage.begins(&job).await?;
    publish_cancel(stage, &job, 1).await?;
    stage.ends_as(&job, OccurrenceStatus::Completed).await.map(drop)
}

pub(crate) async fn cancel_while_redis_is_away(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Sleep]).await?;
    let job = stage.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    stage.send(&job).await?;
    stage.begins(&job).await?;
    worker.redis.set(NetworkFault { is_down: true, ..NetworkFault::default() });
    publish_cancel(stage, &job, 1).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    worker.redis.heal();
    is_cancelled(stage, &job, Duration::from_secs(20)).await
}

pub(crate) async fn timeout(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Sleep, TestJob::Echo]).await?;
    let mut job = stage.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    job.timeout_seconds = Some(1);
    stage.send(&job).await?;
    stage.ends_as_within(&job, OccurrenceStatus::TimedOut, Duration::from_secs(8)).await?;
    let next = stage.job(TestJob::Echo, json!({ "after": "the timeout" }));
    stage.send(&next).await?;
    echoes(stage, &next).await.map(drop)
}

fn begins_with_hello(stage: &Stage) -> bool {
    let record = stage.server.record();
    let first = record
        .messages
        .iter()
        .find(|received| matches!(received.message, WorkerMessage::Hello(_) | WorkerMessage::Heartbeat(_)));
    first.is_some_and(|received| matches!(received.message, WorkerMessage::Hello(_)))
}

/// Waits for the registration of an instance.
pub(crate) async fn first_hello(stage: &Stage) -> Result<InstanceHello, CaseFailure> {
    let found = || hellos(stage, None).into_iter().next();
    stage.until(READY_WITHIN, "a hello", found, || "none".to_owned()).await
}

fn hellos(stage: &Stage, since: Option<Instant>) -> Vec<InstanceHello> {
    let record = stage.server.record();
    let later = record.messages.iter().filter(|received| since.is_none_or(|since| received.at > since));
    let all = later.filter_map(|received| match &received.message {
        WorkerMessage::Hello(hello) => Some(hello.clone()),
        _ => None,
    });
    all.collect()
}

fn cancel_message(job: &JobMessage, attempt: u32) -> String {
    let message = CancelMessage {
        occurrence_id: job.occurrence_id,
        attempt,
        reason: "Cancelled by Ann: wrong customer".to_owned(),
    };
    serde_json::to_string(&message).unwrap_or_default()
}

async fn set_cancel(stage: &Stage, job: &JobMessage, attempt: u32) -> CaseOutcome {
    let key = stage.keys.cancel_request(job.occurrence_id);
    let () = stage.redis().set_ex(key, cancel_message(job, attempt), 86_400).await?;
    Ok(())
}

async fn publish_cancel(stage: &Stage, job: &JobMessage, attempt: u32) -> CaseOutcome {
    set_cancel(stage, job, attempt).await?;
    let () = stage.redis().publish(stage.keys.cancellation_channel(), cancel_message(job, attempt)).await?;
    Ok(())
}

async fn is_cancelled(stage: &Stage, job: &JobMessage, within: Duration) -> CaseOutcome {
    let report = stage.ends_as_within(job, OccurrenceStatus::Cancelled, within).await?;
    let exception = report.exception.unwrap_or_default();
    let is_named = exception.contains("Ann: wrong customer");
    stage.expect(is_named, "an exception with the user and the reason", || format!("{exception:?}"))
}
