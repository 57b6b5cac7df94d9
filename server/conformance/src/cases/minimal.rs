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
    context::{CaseContext, END_WITHIN, TestJob},
    failure::CaseFailure,
    proxy::NetworkFault,
    record::WorkerMessage,
    worker_process::WorkerProcess,
};

const ECHO: &[TestJob] = &[TestJob::Echo];
/// The time within which the broker delivers a message again after a connection has ended.
const REDELIVERED_WITHIN: Duration = Duration::from_secs(20);

pub(crate) async fn echo(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(ECHO).await?;
    let job = context.job(TestJob::Echo, json!({ "greeting": "hello" }));
    context.send(&job).await?;
    echoes(context, &job).await?;
    let first = context.server.record().reports(job.occurrence_id, 1).into_iter().next();
    let is_in_order = first.is_some_and(|report| report.status == OccurrenceStatus::Running);
    context.expect(is_in_order, "the report Running before the end", || context.describe(&job))?;
    context.settles(&worker, TestJob::Echo, END_WITHIN).await
}

pub(crate) async fn many(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(ECHO).await?;
    let mut jobs = Vec::new();
    for number in 0..30 {
        let job = context.job(TestJob::Echo, json!({ "number": number }));
        context.send(&job).await?;
        jobs.push(job);
    }
    for job in &jobs {
        echoes(context, job).await?;
        let ends = context.server.record().reports(job.occurrence_id, 1);
        let ends = ends.iter().filter(|report| report.status == OccurrenceStatus::Completed).count();
        context.expect(ends == 1, "one report Completed", || context.describe(job))?;
    }
    context.settles(&worker, TestJob::Echo, END_WITHIN).await
}

pub(crate) async fn attempt_number(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(ECHO).await?;
    let mut job = context.job(TestJob::Echo, json!({ "third": true }));
    (job.attempt, job.retry_count) = (3, 2);
    context.send(&job).await?;
    echoes(context, &job).await.map(drop)
}

pub(crate) async fn big_input(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(ECHO).await?;
    let text = "ä".repeat(MAX_JOB_DATA_BYTES / 2 - 20);
    let job = context.job(TestJob::Echo, json!({ "text": text }));
    context.send(&job).await?;
    // The result may be truncated, so its length is not compared.
    context.ends_as(&job, OccurrenceStatus::Completed).await.map(drop)
}

pub(crate) async fn values(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(ECHO).await?;
    let input = json!({
        "text": "Zürich 東京 \u{1F600} \"quoted\" \\ \n end", "empty": "", "nothing": null, "whole": 9_007_199_254_740_991_i64,
        "negative": -12, "fraction": 0.5, "flag": true, "list": [1, [2, { "deep": [] }]], "object": {},
    });
    let job = context.job(TestJob::Echo, input);
    context.send(&job).await?;
    echoes(context, &job).await.map(drop)
}

pub(crate) async fn unknown_fields(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(ECHO).await?;
    let job = context.job(TestJob::Echo, json!({ "known": 1 }));
    let mut body = to_value(&job)?;
    body["conformance"] = json!({ "unknown": ["to", "this", "version"] });
    body["checkpoint"] = json!({ "of": "an optional part" });
    context.publish_body(&job, TestJob::Echo, body.to_string().as_bytes()).await?;
    echoes(context, &job).await.map(drop)
}

pub(crate) async fn missing_fields(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(ECHO).await?;
    let job = context.job(TestJob::Echo, json!({ "known": 1 }));
    let mut body = to_value(&job)?;
    for field in ["jobName", "attempt", "retryCount", "maxRetries", "timeoutSeconds", "priority", "traceparent"] {
        body.as_object_mut().map(|fields| fields.remove(field));
    }
    context.publish_body(&job, TestJob::Echo, body.to_string().as_bytes()).await?;
    echoes(context, &job).await.map(drop)
}

pub(crate) async fn whole_numbers(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(ECHO).await?;
    let job = context.job(TestJob::Echo, json!({ "written": "as 1.0" }));
    let mut body = to_value(&job)?;
    for (field, value) in
        [("attempt", 1.0), ("retryCount", 0.0), ("maxRetries", 3.0), ("timeoutSeconds", 120.0), ("priority", 3.0)]
    {
        body[field] = json!(value);
    }
    context.publish_body(&job, TestJob::Echo, body.to_string().as_bytes()).await?;
    echoes(context, &job).await?;
    let next = context.job(TestJob::Echo, json!({ "attempt": "null" }));
    let mut body = to_value(&next)?;
    body["attempt"] = Value::Null;
    context.publish_body(&next, TestJob::Echo, body.to_string().as_bytes()).await?;
    echoes(context, &next).await.map(drop)
}

pub(crate) async fn unreadable_body(context: &CaseContext) -> CaseOutcome {
    let job = context.job(TestJob::Echo, Value::Null);
    is_rejected(context, &job, b"{\"occurrenceId\": ").await
}

pub(crate) async fn attempt_zero(context: &CaseContext) -> CaseOutcome {
    let mut job = context.job(TestJob::Echo, json!({}));
    job.attempt = 0;
    is_rejected(context, &job, to_value(&job)?.to_string().as_bytes()).await
}

pub(crate) async fn other_job_type(context: &CaseContext) -> CaseOutcome {
    let mut job = context.job(TestJob::Echo, json!({}));
    job.job_type = "conformance-other".to_owned();
    is_rejected(context, &job, to_value(&job)?.to_string().as_bytes()).await
}

pub(crate) async fn job_type_case(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(ECHO).await?;
    let job = context.job(TestJob::Echo, json!({ "case": "upper" }));
    let mut body = to_value(&job)?;
    body["jobType"] = json!(job.job_type.to_uppercase());
    context.publish_body(&job, TestJob::Echo, body.to_string().as_bytes()).await?;
    echoes(context, &job).await.map(drop)
}

pub(crate) async fn too_large(context: &CaseContext) -> CaseOutcome {
    let job = context.job(TestJob::Echo, json!({ "text": "x".repeat(MAX_MESSAGE_BYTES) }));
    is_rejected(context, &job, to_value(&job)?.to_string().as_bytes()).await
}

/// The confirm of the report *Running* never arrives, and the worker dies. It must not have acknowledged the message.
pub(crate) async fn unconfirmed_start(context: &CaseContext) -> CaseOutcome {
    let mut first = context.begin(ECHO).await?;
    first.broker.set(NetworkFault { without_confirms: true, ..NetworkFault::default() });
    let job = context.job(TestJob::Echo, json!({ "kept": true }));
    context.send(&job).await?;
    context.is_running(&job).await?;
    context.expect(first.tap.unanswered() == 1, "a delivery without an answer", || context.describe(&job))?;
    first.kill().await;
    drop(first);
    let second = context.worker(ECHO, 1).await?;
    // With claims the server's answer decides, and the kit has a report Running of the first instance; the second one then
    // drops the message, and the server would send the next attempt.
    let answered = || second.tap.answers(job.occurrence_id).first().copied();
    context
        .until(REDELIVERED_WITHIN, "a redelivery of the message, and its answer", answered, || context.describe(&job))
        .await?;
    Ok(())
}

/// The broker returns every report, because the queue is missing.
pub(crate) async fn returned_report(context: &CaseContext) -> CaseOutcome {
    let mut worker = context.begin(ECHO).await?;
    // Opens the worker's connection for reports: a new one would declare the queue again.
    let before = context.job(TestJob::Echo, json!({ "returned": false }));
    context.send(&before).await?;
    echoes(context, &before).await?;
    context.server.delete_status_queue().await?;
    let job = context.job(TestJob::Echo, json!({ "returned": true }));
    context.send(&job).await?;
    let tap = worker.tap.clone();
    // The delivery ends without an answer if the worker ends, which a minimal one may.
    let mut is_over = || !tap.answers(job.occurrence_id).is_empty() || worker.ended().is_some();
    let seen_delivery = || (tap.unanswered() > 0 || is_over()).then_some(());
    context.until(END_WITHIN, "a delivery of the message", seen_delivery, || context.describe(&job)).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    context.server.restore_status_queue().await?;
    let restarted = restart_if_ended(context, &mut worker).await?;
    context.ends_as_within(&job, OccurrenceStatus::Completed, REDELIVERED_WITHIN).await?;
    drop(restarted);
    Ok(())
}

pub(crate) async fn second_instance(context: &CaseContext) -> CaseOutcome {
    let first = context.begin(ECHO).await?;
    let second = context.worker(ECHO, 2).await?;
    let mut jobs = Vec::new();
    for number in 0..20 {
        let job = context.job(TestJob::Echo, json!({ "number": number }));
        context.send(&job).await?;
        jobs.push(job);
    }
    let mut instances = Vec::new();
    for job in &jobs {
        instances.push(echoes(context, job).await?.instance_id);
    }
    instances.sort();
    instances.dedup();
    context.expect(instances.len() == 2, "reports of two instances, each with an instanceId of its own", || {
        format!("{instances:?}")
    })?;
    context.settles(&first, TestJob::Echo, END_WITHIN).await?;
    context.settles(&second, TestJob::Echo, END_WITHIN).await
}

/// Waits for the successful end of a job that returns its input, and compares the result.
pub(crate) async fn echoes(context: &CaseContext, job: &JobMessage) -> Result<StatusReport, CaseFailure> {
    let report = context.ends_as(job, OccurrenceStatus::Completed).await?;
    let result = report.result.clone().unwrap_or_default();
    let returned = serde_json::from_str::<Value>(&result).ok();
    context.expect(returned.as_ref() == Some(&job.job_data), format!("the result {}", job.job_data), || result)?;
    Ok(report)
}

/// Sends a body that must be rejected and then a message, which must run.
async fn is_rejected(context: &CaseContext, job: &JobMessage, body: &[u8]) -> CaseOutcome {
    let worker = context.begin(ECHO).await?;
    context.publish_body(job, TestJob::Echo, body).await?;
    let expected = dead_letter(job.occurrence_id, "rejected");
    let is_dead = || {
        let record = context.server.record();
        let found = record
            .messages
            .iter()
            .any(|received| matches!(&received.message, WorkerMessage::DeadLetter(letter) if *letter == expected));
        found.then_some(())
    };
    let seen = || format!("{}{}", context.describe(job), worker.last_output());
    context.until(END_WITHIN, "a rejection without requeue", is_dead, seen).await?;
    let next = context.job(TestJob::Echo, json!({ "next": true }));
    context.send(&next).await?;
    echoes(context, &next).await?;
    context.expect(context.starts(job.occurrence_id).is_empty(), "no start", || context.describe(job))
}

/// Starts the worker again if it has ended, as a supervisor would.
async fn restart_if_ended(
    context: &CaseContext,
    worker: &mut WorkerProcess,
) -> Result<Option<WorkerProcess>, CaseFailure> {
    if worker.ended().is_none() { Ok(None) } else { Ok(Some(context.worker(ECHO, 1).await?)) }
}

/// Returns a job message as JSON.
pub(crate) fn to_value(job: &JobMessage) -> Result<Value, CaseFailure> {
    serde_json::to_value(job).map_err(|error| CaseFailure::new("a job message", error.to_string()))
}
