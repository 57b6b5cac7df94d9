//! The cases of reports, log lines, progress and traces.

use std::time::{Duration, Instant};

use milvaion_protocol::{
    id::OccurrenceId,
    message::{FEATURE_CHECKPOINT, LogLine, first_log_seq},
    status::OccurrenceStatus,
};
use serde_json::json;

use super::{CaseOutcome, minimal::echoes};
use crate::{
    context::{CaseContext, END_WITHIN, TestJob},
    failure::CaseFailure,
    proxy::DeliveryAnswer,
    record::WorkerMessage,
};

/// The time for which a worker must hold no more deliveries than runs.
const NO_SURPLUS_FOR: Duration = Duration::from_secs(2);

pub(crate) async fn retry(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Fail]).await?;
    let mut job = context.job(TestJob::Fail, json!({ "times": 1 }));
    context.send(&job).await?;
    let report = context.ends_as(&job, OccurrenceStatus::Failed).await?;
    let exception = report.exception.unwrap_or_default();
    context.expect(exception.contains("failure 1"), "an exception with \"failure 1\"", || exception.clone())?;
    context.expect(!report.permanent, "no \"permanent\": true", || "a permanent failure".to_owned())?;
    (job.attempt, job.retry_count) = (2, 1);
    context.send(&job).await?;
    context.ends_as(&job, OccurrenceStatus::Completed).await?;
    context.expect_starts(&job, &[1, 2])
}

pub(crate) async fn permanent(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Fail]).await?;
    let job = context.job(TestJob::Fail, json!({ "times": 1, "permanent": true }));
    context.send(&job).await?;
    let report = context.ends_as(&job, OccurrenceStatus::Failed).await?;
    context.expect(report.permanent, "\"permanent\": true", || "a failure that is retried".to_owned())
}

pub(crate) async fn retry_after(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Fail]).await?;
    let job = context.job(TestJob::Fail, json!({ "times": 1, "retryAfterMs": 4000 }));
    context.send(&job).await?;
    let report = context.ends_as(&job, OccurrenceStatus::Failed).await?;
    let delay = report.retry_after_ms;
    context.expect(delay == Some(4000), "\"retryAfterMs\": 4000", || format!("{delay:?}"))
}

pub(crate) async fn snooze(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Snooze]).await?;
    let mut job = context.job(TestJob::Snooze, json!({ "times": 1, "ms": 5000 }));
    context.send(&job).await?;
    let report = context.ends_as(&job, OccurrenceStatus::Queued).await?;
    let delay = report.retry_after_ms;
    context.expect(delay == Some(5000), "\"retryAfterMs\": 5000", || format!("{delay:?}"))?;
    job.attempt = 2;
    context.send(&job).await?;
    context.ends_as(&job, OccurrenceStatus::Completed).await?;
    context.expect_starts(&job, &[1, 2])
}

pub(crate) async fn invalid_input(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": "soon" }));
    context.send(&job).await?;
    let report = context.ends_as(&job, OccurrenceStatus::Failed).await?;
    context.expect(report.permanent, "\"permanent\": true", || "a failure that is retried".to_owned())?;
    context.is_running(&job).await.map(drop)
}

pub(crate) async fn duration(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 600 }));
    context.send(&job).await?;
    let report = context.ends_as(&job, OccurrenceStatus::Completed).await?;
    let duration = report.duration_ms;
    let is_right = duration.is_some_and(|ms| (500..5000).contains(&ms));
    context.expect(is_right, "durationMs of a run of 600 ms", || format!("{duration:?}"))
}

pub(crate) async fn lines(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Log]).await?;
    let mut job = context.job(TestJob::Log, json!({ "lines": 50 }));
    for attempt in [1, 2] {
        job.attempt = attempt;
        context.send(&job).await?;
        context.ends_as(&job, OccurrenceStatus::Completed).await?;
        let first = first_log_seq(attempt);
        let texts = |lines: &[LogLine]| {
            let of_attempt = lines.iter().filter(|line| (first..first + 1_000_000).contains(&line.seq));
            of_attempt.map(|line| (line.seq - first, line.message.clone())).collect::<Vec<_>>()
        };
        let expected: Vec<_> = (0..50).map(|number| (number, format!("line {number}"))).collect();
        let id = job.occurrence_id;
        let complete = || (texts(&log(context, id)) == expected).then_some(());
        let seen = || {
            let all = log(context, id);
            format!(
                "{} line(s): {:?}",
                all.len(),
                texts(&all).first().into_iter().chain(texts(&all).last()).collect::<Vec<_>>()
            )
        };
        let wanted = format!("\"line 0\" to \"line 49\" with the numbers {first} to {}", first + 49);
        context.until(Duration::from_secs(3), wanted, complete, seen).await?;
    }
    Ok(())
}

pub(crate) async fn line_batches(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Log]).await?;
    let job = context.job(TestJob::Log, json!({ "lines": 3000 }));
    context.send(&job).await?;
    context.ends_as_within(&job, OccurrenceStatus::Completed, Duration::from_secs(30)).await?;
    let id = job.occurrence_id;
    let complete = || (log(context, id).len() >= 3000).then_some(());
    let seen = || format!("{} lines", log(context, id).len());
    context.until(Duration::from_secs(10), "3000 lines", complete, seen).await?;
    let record = context.server.record();
    let messages = record.messages.iter().filter(|one| matches!(one.message, WorkerMessage::Lines(_))).count();
    context.expect(messages <= 600, "at most 600 messages for 3000 lines", || messages.to_string())
}

pub(crate) async fn exception_in_the_log(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Fail]).await?;
    let job = context.job(TestJob::Fail, json!({ "times": 1 }));
    context.send(&job).await?;
    context.ends_as(&job, OccurrenceStatus::Failed).await?;
    let id = job.occurrence_id;
    let written = || log(context, id).iter().any(|line| line.message.contains("failure 1")).then_some(());
    let seen = || format!("{} line(s)", log(context, id).len());
    context.until(Duration::from_secs(3), "a log line with the exception", written, seen).await
}

pub(crate) async fn progress(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Progress]).await?;
    let job = context.job(TestJob::Progress, json!({ "steps": 20 }));
    context.send(&job).await?;
    let end = context.ends_as(&job, OccurrenceStatus::Completed).await?;
    let reports = context.server.record().reports(job.occurrence_id, 1);
    let percents: Vec<u8> = reports.iter().filter_map(|report| Some(report.progress.as_ref()?.percent)).collect();
    let seconds = end.duration_ms.unwrap_or(2000).div_ceil(1000);
    let most = usize::try_from(4 * seconds + 1).unwrap_or(usize::MAX);
    context.expect(!percents.is_empty(), "reports with progress", || context.describe(&job))?;
    context.expect(
        percents.is_sorted() && percents.iter().all(|percent| *percent <= 100),
        "a rising percentage",
        || format!("{percents:?}"),
    )?;
    context
        .expect(percents.len() <= most, format!("at most four reports a second, {most}"), || format!("{percents:?}"))?;
    let messages = reports.iter().filter_map(|report| report.progress.as_ref());
    let is_named = messages.into_iter().all(|progress| progress.message.starts_with("step "));
    context.expect(is_named, "the message \"step …\"", || format!("{reports:?}"))
}

/// The kit keeps the newest checkpoint of the reports, as the server does, and sends it with the next attempt.
pub(crate) async fn checkpoint(context: &CaseContext) -> CaseOutcome {
    let mut worker = context.begin(&[TestJob::Echo]).await?;
    if !context.first_hello().await?.features.iter().any(|feature| feature == FEATURE_CHECKPOINT) {
        return Err(CaseFailure::skipped("The worker does not announce the feature checkpoint."));
    }
    context.server.declare_job_queue(&context.worker_id(), context.job_type(TestJob::Checkpoint)).await?;
    context.ready(&mut worker, &[TestJob::Checkpoint], 1).await?;
    let value = json!({ "row": 1200, "text": "Zürich" });
    let mut job = context.job(TestJob::Checkpoint, json!({ "value": value }));
    context.send(&job).await?;
    context.ends_as(&job, OccurrenceStatus::Failed).await?;
    let reports = context.server.record().reports(job.occurrence_id, 1);
    let newest = reports.into_iter().filter_map(|report| report.checkpoint).next_back();
    context.expect(newest.as_ref() == Some(&value), format!("the checkpoint {value}"), || format!("{newest:?}"))?;
    (job.attempt, job.retry_count, job.checkpoint) = (2, 1, newest);
    context.send(&job).await?;
    let report = context.ends_as(&job, OccurrenceStatus::Completed).await?;
    let result = report.result.clone().unwrap_or_default();
    let returned = serde_json::from_str::<serde_json::Value>(&result).ok();
    context.expect(returned.as_ref() == Some(&value), format!("the result {value}"), || result)?;
    context.expect_starts(&job, &[1, 2])
}

pub(crate) async fn trace(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Progress]).await?;
    let mut job = context.job(TestJob::Progress, json!({ "steps": 3 }));
    let trace_id = job.occurrence_id.0.simple().to_string();
    job.traceparent = Some(format!("00-{trace_id}-b7ad6b7169203331-01"));
    context.send(&job).await?;
    context.ends_as(&job, OccurrenceStatus::Completed).await?;
    for report in context.server.record().reports(job.occurrence_id, 1) {
        let traceparent = report.traceparent.unwrap_or_default();
        if report.progress.is_some() {
            context.expect(traceparent.is_empty(), "progress reports without traceparent", || traceparent.clone())?;
        } else if !traceparent.is_empty() {
            let expected = format!("the trace {trace_id} or none");
            context.expect(traceparent.contains(&trace_id), expected, || traceparent.clone())?;
        }
    }
    Ok(())
}

pub(crate) async fn malformed_trace(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Echo]).await?;
    for traceparent in ["malformed", "00-00000000000000000000000000000000-b7ad6b7169203331-01", ""] {
        let mut job = context.job(TestJob::Echo, json!({ "traceparent": traceparent }));
        job.traceparent = Some(traceparent.to_owned());
        context.send(&job).await?;
        echoes(context, &job).await?;
        let repeated = context.server.record().reports(job.occurrence_id, 1);
        let repeats = repeated.iter().any(|report| report.traceparent.as_deref() == Some(traceparent));
        context
            .expect(!repeats, "no repetition of a malformed traceparent", || format!("{traceparent:?} in a report"))?;
    }
    Ok(())
}

pub(crate) async fn concurrency(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Sleep]).await?;
    let jobs = context.send_sleeps(20, 400).await?;
    // Starts and ends by the worker's clock; at equal times the end comes first.
    let mut changes = Vec::new();
    for job in &jobs {
        let end = context.ends_as_within(job, OccurrenceStatus::Completed, Duration::from_secs(30)).await?;
        changes.push((context.is_running(job).await?.timestamp, 1));
        changes.push((end.timestamp, -1));
    }
    changes.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    context.settles(&worker, TestJob::Sleep, END_WITHIN).await?;
    context.expect(most <= 4, "at most 4 runs at once, the concurrency of conformance-sleep", || most.to_string())
}

/// More messages arrive than may run at once. A worker that acknowledges early has some of them, and must hand them back; one
/// that acknowledges late has none.
pub(crate) async fn surplus(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Sleep]).await?;
    let jobs = context.send_sleeps(12, 60_000).await?;
    context.all_permits_are_taken().await?;
    let mut none_waits_since = None;
    let is_free = || {
        let starts: Vec<_> = context.ledger_lines().into_iter().map(|(id, _)| id).collect();
        let (running, surplus): (Vec<_>, Vec<_>) = jobs.iter().partition(|job| starts.contains(&job.occurrence_id));
        let held_by_runs = running.iter().filter(|job| worker.tap.answers(job.occurrence_id).is_empty()).count();
        let is_returned =
            surplus.iter().any(|job| worker.tap.answers(job.occurrence_id).contains(&DeliveryAnswer::Return));
        // After an early acknowledgement the next message is still under way, so the worker must hold no surplus for a while.
        none_waits_since =
            (worker.tap.unanswered() <= held_by_runs).then(|| none_waits_since.unwrap_or_else(Instant::now));
        let none_waits = none_waits_since.is_some_and(|since| since.elapsed() > NO_SURPLUS_FOR);
        (is_returned || none_waits).then_some(())
    };
    let seen = || {
        format!("{} deliveries without an answer, with {} runs", worker.tap.unanswered(), context.ledger_lines().len())
    };
    context.until(END_WITHIN, "no message that waits unacknowledged for a run to end", is_free, seen).await
}

/// Returns the log lines of an occurrence, each once, by their numbers.
fn log(context: &CaseContext, occurrence: OccurrenceId) -> Vec<LogLine> {
    let record = context.server.record();
    let messages = record.messages.iter().filter_map(|received| match &received.message {
        WorkerMessage::Lines(lines) if lines.occurrence_id == occurrence => Some(lines.lines.clone()),
        _ => None,
    });
    let mut lines: Vec<LogLine> = messages.flatten().collect();
    lines.sort_by_key(|line| line.seq);
    lines.dedup_by_key(|line| line.seq);
    lines
}
