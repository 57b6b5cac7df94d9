//! The cases of reserved slots, for which critical runs have a queue of their own. A worker that announces none is not judged.

use std::time::Duration;

use milvaion_protocol::{message::JobMessage, status::OccurrenceStatus, topology::MAX_PRIORITY};
use serde_json::json;

use super::CaseOutcome;
use crate::{
    context::{CaseContext, END_WITHIN, READY_WITHIN, TestJob},
    failure::CaseFailure,
    proxy::DeliveryAnswer,
    worker_process::WorkerProcess,
};

/// The number of slots that the worker is asked to reserve.
const SLOTS: u32 = 2;
/// The time within which a worker that stops has ended.
const STOPPED_WITHIN: Duration = Duration::from_secs(20);

/// All permits are taken, so only a critical run starts.
pub(crate) async fn reserved_slot(context: &CaseContext) -> CaseOutcome {
    let (worker, _) = begin(context).await?;
    context.send_sleeps(4, 60_000).await?;
    context.all_permits_are_taken().await?;
    let other = context.send_sleeps(1, 60_000).await?;
    let critical = critical(context, 100);
    send(context, &critical).await?;
    context.ends_as(&critical, OccurrenceStatus::Completed).await?;
    context.expect_starts(&critical, &[1])?;
    let answers = worker.tap.answers(critical.occurrence_id);
    context.expect(answers == [DeliveryAnswer::Ack], "an acknowledgement", || format!("{answers:?}"))?;
    context.expect_starts(&other[0], &[])
}

/// All permits and slots are taken, so a further critical run has not started when the worker stops.
pub(crate) async fn stopped(context: &CaseContext) -> CaseOutcome {
    let (mut worker, slots) = begin(context).await?;
    context.send_sleeps(4, 60_000).await?;
    context.all_permits_are_taken().await?;
    for _ in 0..slots {
        let running = critical(context, 60_000);
        send(context, &running).await?;
        context.begins(&running).await?;
    }
    let waiting = critical(context, 60_000);
    send(context, &waiting).await?;
    worker.terminate();
    worker.wait(STOPPED_WITHIN).await?;
    let (id, job_type) = (context.worker_id(), context.job_type(TestJob::Sleep));
    let look = || async { (context.server.critical_queue(&id, job_type).await == Some((0, 1))).then_some(()) };
    context.until_async(END_WITHIN, "the message in its queue", look, || context.describe(&waiting)).await?;
    context.expect_starts(&waiting, &[])
}

fn critical(context: &CaseContext, milliseconds: u32) -> JobMessage {
    JobMessage { priority: MAX_PRIORITY, ..context.job(TestJob::Sleep, json!({ "ms": milliseconds })) }
}

/// Starts the worker, and waits until it consumes the queue of critical runs. Returns the number of slots that it announces.
async fn begin(context: &CaseContext) -> Result<(WorkerProcess, u32), CaseFailure> {
    context.reserve_slots(SLOTS);
    let worker = context.begin(&[TestJob::Sleep]).await?;
    let slots = context.first_hello().await?.critical_slots;
    if slots == 0 {
        return Err(CaseFailure::skipped("The worker announces no criticalSlots."));
    }
    let (id, job_type) = (context.worker_id(), context.job_type(TestJob::Sleep));
    let look = || async { context.server.critical_queue(&id, job_type).await.filter(|(consumers, _)| *consumers > 0) };
    let seen = || "none".to_owned();
    context.until_async(READY_WITHIN, "a consumer of the queue of critical runs", look, seen).await?;
    Ok((worker, slots))
}

async fn send(context: &CaseContext, message: &JobMessage) -> CaseOutcome {
    let is_routed = context.server.publish_critical(&context.worker_id(), message).await?;
    context.expect(is_routed, "a queue of critical runs, bound with its key", || "no queue takes it".to_owned())
}
