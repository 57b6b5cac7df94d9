//! The cases of bundles: messages with several runs. A worker that announces none is not judged.

use std::time::Duration;

use milvaion_protocol::message::JobMessage;
use serde_json::json;

use super::{CaseOutcome, minimal::echoes};
use crate::{
    context::{CaseContext, END_WITHIN, TestJob},
    failure::CaseFailure,
    proxy::DeliveryAnswer,
    worker_process::WorkerProcess,
};

/// The time within which a worker that stops has answered its deliveries.
const STOPPED_WITHIN: Duration = Duration::from_secs(20);

pub(crate) async fn all_runs(context: &CaseContext) -> CaseOutcome {
    let (worker, largest) = begin(context, TestJob::Echo).await?;
    let runs: Vec<_> = (0..largest).map(|number| context.job(TestJob::Echo, json!({ "number": number }))).collect();
    send(context, &runs).await?;
    for run in &runs {
        echoes(context, run).await?;
        context.expect_starts(run, &[1])?;
    }
    context.settles(&worker, TestJob::Echo, END_WITHIN).await?;
    let answers = worker.tap.answers(runs[0].occurrence_id);
    context.expect(answers == [DeliveryAnswer::Ack], "one acknowledgement", || format!("{answers:?}"))
}

pub(crate) async fn redelivered(context: &CaseContext) -> CaseOutcome {
    let (mut first, _) = begin(context, TestJob::Echo).await?;
    first.stop().await?;
    let runs = [0, 1].map(|number| context.job(TestJob::Echo, json!({ "number": number })));
    send(context, &runs).await?;
    let (id, job_type) = (context.worker_id(), context.job_type(TestJob::Echo));
    let is_returned = context.server.deliver_and_return(&id, job_type).await?;
    context.expect(is_returned, "the bundle in its queue", || "an empty queue".to_owned())?;
    let second = context.worker(&[TestJob::Echo], 1).await?;
    is_rejected(context, &second, &runs, END_WITHIN).await?;
    runs.iter().try_for_each(|run| context.expect_starts(run, &[]))
}

/// Three of four permits are taken, so one of two runs starts.
pub(crate) async fn refused(context: &CaseContext) -> CaseOutcome {
    let (worker, _) = begin(context, TestJob::Sleep).await?;
    context.send_sleeps(3, 60_000).await?;
    let count = || context.ledger_lines().len();
    context.until(END_WITHIN, "three runs", || (count() >= 3).then_some(()), || format!("{} runs", count())).await?;
    let runs = [60_000, 60_000].map(|ms| context.job(TestJob::Sleep, json!({ "ms": ms })));
    send(context, &runs).await?;
    is_rejected(context, &worker, &runs, END_WITHIN).await?;
    let (started, waiting): (Vec<_>, Vec<_>) =
        runs.iter().partition(|run| !context.starts(run.occurrence_id).is_empty());
    context.expect(started.len() == 1, "the start of one of the two", || format!("{} starts", started.len()))?;
    context.is_running(started[0]).await?;
    context.expect_starts(waiting[0], &[])
}

/// All permits are taken, so no run of the bundle has started when the worker stops.
pub(crate) async fn stopped(context: &CaseContext) -> CaseOutcome {
    let (mut worker, _) = begin(context, TestJob::Sleep).await?;
    context.send_sleeps(4, 60_000).await?;
    context.all_permits_are_taken().await?;
    let runs = [60_000, 60_000].map(|ms| context.job(TestJob::Sleep, json!({ "ms": ms })));
    send(context, &runs).await?;
    let first = runs[0].occurrence_id;
    let is_there = || (worker.tap.unanswered() > 0 || !worker.tap.answers(first).is_empty()).then_some(());
    context.until(END_WITHIN, "a delivery of the bundle", is_there, || context.describe(&runs[0])).await?;
    worker.terminate();
    worker.wait(STOPPED_WITHIN).await?;
    is_rejected(context, &worker, &runs, END_WITHIN).await?;
    runs.iter().try_for_each(|run| context.expect_starts(run, &[]))
}

/// Starts the worker. Returns the largest bundle that it announces for a job type, at least two.
async fn begin(context: &CaseContext, job: TestJob) -> Result<(WorkerProcess, u32), CaseFailure> {
    let worker = context.begin(&[job]).await?;
    let hello = context.first_hello().await?;
    let info = hello.job_types.into_iter().find(|info| info.job_type.eq_ignore_ascii_case(context.job_type(job)));
    match info.and_then(|info| info.bundle_size) {
        Some(largest @ 2..) => Ok((worker, largest)),
        _ => Err(CaseFailure::skipped("The worker announces no bundleSize.")),
    }
}

async fn send(context: &CaseContext, runs: &[JobMessage]) -> CaseOutcome {
    let is_routed = context.server.publish_bundle(&context.worker_id(), runs).await?;
    context.expect(is_routed, "a queue of the worker", || "no queue takes the bundle".to_owned())
}

/// Waits until the bundle was rejected, and fails if it was returned to its queue.
async fn is_rejected(
    context: &CaseContext,
    worker: &WorkerProcess,
    runs: &[JobMessage],
    within: Duration,
) -> CaseOutcome {
    let answers = || worker.tap.answers(runs[0].occurrence_id);
    let is_answered = || (!answers().is_empty()).then_some(());
    context.until(within, "an answer to the bundle", is_answered, || context.describe(&runs[0])).await?;
    let answers = answers();
    context.expect(answers == [DeliveryAnswer::Reject], "a rejection without requeue", || format!("{answers:?}"))
}
