//! The cases of the level *minimal*: a worker that runs jobs and reports their ends, as simply as possible.
//!
//! Such a worker writes no ledger, registers nothing, and may end when its broker fails; a supervisor starts it again.

use std::time::Duration;

use milvaion_protocol::{
    message::{JobMessage, MAX_JOB_DATA_BYTES, MAX_MESSAGE_BYTES, StatusReport},
    status::OccurrenceStatus,
};
use serde_json::{Value, json};

use super::CaseOutcome;
use crate::{
    broker::dead_letter,
    failure::CaseFailure,
    proxy::NetworkFault,
    record::WorkerMessage,
    stage::{END_WITHIN, Stage, TestJob},
    worker_process::WorkerProcess,
};

const ECHO: &[TestJob] = &[TestJob::Echo];
/// The time within which the broker delivers a message again after a connection has ended.
const REDELIVERED_WITHIN: Duration = Duration::from_secs(20);

pub(crate) async fn echo(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(ECHO).await?;
    let job = stage.job(TestJob::Echo, json!({ "greeting": "hello" }));
    stage.send(&job).await?;
    echoes(stage, &job).await?;
    let first = stage.server.record().reports(job.occurrence_id, 1).into_iter().next();
    let is_in_order = first.is_some_and(|report| report.status == OccurrenceStatus::Running);
    stage.expect(is_in_order, "the report Running before the end", || stage.describe(&job))?;
    stage.settles(&worker, TestJob::Echo, END_WITHIN).await
}

pub(crate) async fn many(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(ECHO).await?;
    let mut jobs = Vec::new();
    for number in 0..30 {
        let job = stage.job(TestJob::Echo, json!({ "number": number }));
        stage.send(&job).await?;
        jobs.push(job);
    }
    for job in &jobs {
        echoes(stage, job).await?;
        let ends = stage.server.record().reports(job.occurrence_id, 1);
        let ends = ends.iter().filter(|report| report.status == OccurrenceStatus::Completed).count();
        stage.expect(ends == 1, "one report Completed", || stage.describe(job))?;
    }
    stage.settles(&worker, TestJob::Echo, END_WITHIN).await
}

pub(crate) async fn attempt_number(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(ECHO).await?;
    let mut job = stage.job(TestJob::Echo, json!({ "third": true }));
    (job.attempt, job.retry_count) = (3, 2);
    stage.send(&job).await?;
    echoes(stage, &job).await.map(drop)
}

pub(crate) async fn big_input(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(ECHO).await?;
    let text = "ä".repeat(MAX_JOB_DATA_BYTES / 2 - 20);
    let job = stage.job(TestJob::Echo, json!({ "text": text }));
    stage.send(&job).await?;
    // The result may be truncated, so its length is not compared.
    stage.ends_as(&job, OccurrenceStatus::Completed).await.map(drop)
}

pub(crate) async fn values(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(ECHO).await?;
    let input = json!({
        "text": "Zürich 東京 \u{1F600} \"quoted\" \\ \n end", "empty": "", "nothing": null, "whole": 9_007_199_254_740_991_i64,
        "negative": -12, "fraction": 0.5, "flag": true, "list": [1, [2, { "deep": [] }]], "object": {},
    });
    let job = stage.job(TestJob::Echo, input);
    stage.send(&job).await?;
    echoes(stage, &job).await.map(drop)
}

pub(crate) async fn unknown_fields(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(ECHO).await?;
    let job = stage.job(TestJob::Echo, json!({ "known": 1 }));
    let mut body = to_value(&job)?;
    body["conformance"] = json!({ "unknown": ["to", "this", "version"] });
    body["checkpoint"] = json!({ "of": "an optional part" });
    stage.publish_body(&job, TestJob::Echo, body.to_string().as_bytes()).await?;
    echoes(stage, &job).await.map(drop)
}

pub(crate) async fn missing_fields(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(ECHO).await?;
    let job = stage.job(TestJob::Echo, json!({ "known": 1 }));
    let mut body = to_value(&job)?;
    for field in ["jobName", "attempt", "retryCount", "maxRetries", "timeoutSeconds", "priority", "traceparent"] {
        body.as_object_mut().map(|fields| fields.remove(field));
    }
    stage.publish_body(&job, TestJob::Echo, body.to_string().as_bytes()).await?;
    echoes(stage, &job).await.map(drop)
}

pub(crate) async fn unreadable_body(stage: &Stage) -> CaseOutcome {
    let job = stage.job(TestJob::Echo, Value::Null);
    is_rejected(stage, &job, b"{\"occurrenceId\": ").await
}

pub(crate) async fn attempt_zero(stage: &Stage) -> CaseOutcome {
    let mut job = stage.job(TestJob::Echo, json!({}));
    job.attempt = 0;
    is_rejected(stage, &job, to_value(&job)?.to_string().as_bytes()).await
}

pub(crate) async fn other_job_type(stage: &Stage) -> CaseOutcome {
    let mut job = stage.job(TestJob::Echo, json!({}));
    job.job_type = "conformance-other".to_owned();
    is_rejected(stage, &job, to_value(&job)?.to_string().as_bytes()).await
}

pub(crate) async fn job_type_case(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(ECHO).await?;
    let job = stage.job(TestJob::Echo, json!({ "case": "upper" }));
    let mut body = to_value(&job)?;
    body["jobType"] = json!(job.job_type.to_uppercase());
    stage.publish_body(&job, TestJob::Echo, body.to_string().as_bytes()).await?;
    echoes(stage, &job).await.map(drop)
}

pub(crate) async fn too_large(stage: &Stage) -> CaseOutcome {
    let job = stage.job(TestJob::Echo, json!({ "text": "x".repeat(MAX_MESSAGE_BYTES) }));
    is_rejected(stage, &job, to_value(&job)?.to_string().as_bytes()).await
}

/// The confirm of the report *Running* never arrives, and the worker dies. It must not have acknowledged the message.
pub(crate) async fn unconfirmed_start(stage: &Stage) -> CaseOutcome {
    let mut first = stage.begin(ECHO).await?;
    first.broker.set(NetworkFault { without_confirms: true, ..NetworkFault::default() });
    let job = stage.job(TestJob::Echo, json!({ "kept": true }));
    stage.send(&job).await?;
    stage.is_running(&job).await?;
    stage.expect(first.tap.unanswered() == 1, "a delivery without an answer", || stage.describe(&job))?;
    first.kill().await;
    drop(first);
    let second = stage.worker(ECHO, 1).await?;
    // With claims the server's answer decides, and the kit has a report Running of the first instance; the second one then
    // drops the message, and the server would send the next attempt.
    let answered = || second.tap.answers(job.occurrence_id).first().copied();
    stage
        .until(REDELIVERED_WITHIN, "a redelivery of the message, and its answer", answered, || stage.describe(&job))
        .await?;
    Ok(())
}

/// The broker returns every report, because the queue is missing.
pub(crate) async fn returned_report(stage: &Stage) -> CaseOutcome {
    let mut worker = stage.begin(ECHO).await?;
    stage.server.delete_status_queue().await?;
    let job = stage.job(TestJob::Echo, json!({ "returned": true }));
    stage.send(&job).await?;
    let tap = worker.tap.clone();
    // The delivery ends without an answer if the worker ends, which a minimal one may.
    let mut is_over = || !tap.answers(job.occurrence_id).is_empty() || worker.ended().is_some();
    let seen_delivery = || (tap.unanswered() > 0 || is_over()).then_some(());
    stage.until(END_WITHIN, "a delivery of the message", seen_delivery, || stage.describe(&job)).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    stage.server.restore_status_queue().await?;
    let restarted = restart_if_ended(stage, &mut worker).await?;
    stage.ends_as_within(&job, OccurrenceStatus::Completed, REDELIVERED_WITHIN).await?;
    drop(restarted);
    Ok(())
}

pub(crate) async fn second_instance(stage: &Stage) -> CaseOutcome {
    let first = stage.begin(ECHO).await?;
    let second = stage.worker(ECHO, 2).await?;
    let mut jobs = Vec::new();
    for number in 0..20 {
        let job = stage.job(TestJob::Echo, json!({ "number": number }));
        stage.send(&job).await?;
        jobs.push(job);
    }
    let mut instances = Vec::new();
    for job in &jobs {
        instances.push(echoes(stage, job).await?.instance_id);
    }
    instances.sort();
    instances.dedup();
    stage.expect(instances.len() == 2, "reports of two instances, each with an instanceId of its own", || {
        format!("{instances:?}")
    })?;
    stage.settles(&first, TestJob::Echo, END_WITHIN).await?;
    stage.settles(&second, TestJob::Echo, END_WITHIN).await
}

/// Waits for the successful end of a job that returns its input, and compares the result.
pub(crate) async fn echoes(stage: &Stage, job: &JobMessage) -> Result<StatusReport, CaseFailure> {
    let report = stage.ends_as(job, OccurrenceStatus::Completed).await?;
    let result = report.result.clone().unwrap_or_default();
    let returned = serde_json::from_str::<Value>(&result).ok();
    stage.expect(returned.as_ref() == Some(&job.job_data), format!("the result {}", job.job_data), || result)?;
    Ok(report)
}

/// Sends a body that must be rejected and then a message, which must run.
async fn is_rejected(stage: &Stage, job: &JobMessage, body: &[u8]) -> CaseOutcome {
    let worker = stage.begin(ECHO).await?;
    stage.publish_body(job, TestJob::Echo, body).await?;
    let expected = dead_letter(job.occurrence_id, "rejected");
    let is_dead = || {
        let record = stage.server.record();
        let found = record
            .messages
            .iter()
            .any(|received| matches!(&received.message, WorkerMessage::DeadLetter(letter) if *letter == expected));
        found.then_some(())
    };
    let seen = || format!("{}{}", stage.describe(job), worker.last_output());
    stage.until(END_WITHIN, "a rejection without requeue", is_dead, seen).await?;
    let next = stage.job(TestJob::Echo, json!({ "next": true }));
    stage.send(&next).await?;
    echoes(stage, &next).await?;
    stage.expect(stage.starts(job.occurrence_id).is_empty(), "no start", || stage.describe(job))
}

/// Starts the worker again if it has ended, as a supervisor would.
async fn restart_if_ended(stage: &Stage, worker: &mut WorkerProcess) -> Result<Option<WorkerProcess>, CaseFailure> {
    if worker.ended().is_none() { Ok(None) } else { Ok(Some(stage.worker(ECHO, 1).await?)) }
}

/// Returns a job message as JSON.
pub(crate) fn to_value(job: &JobMessage) -> Result<Value, CaseFailure> {
    serde_json::to_value(job).map_err(|error| CaseFailure::new("a job message", error.to_string()))
}
