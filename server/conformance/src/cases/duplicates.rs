//! The cases of duplicate deliveries: to the instance that runs the attempt, to another one, and after its end; and of claim
//! checks, with which a worker asks about them.

use std::time::Duration;

use milvaion_protocol::status::OccurrenceStatus;
use serde_json::json;

use super::{
    CaseOutcome,
    claims::{is_dropped, is_listed, is_reported_lost},
    minimal::echoes,
};
use crate::{
    broker::PublishMark,
    context::{CaseContext, END_WITHIN, TestJob},
    proxy::{DeliveryAnswer, NetworkFault},
    record::ClaimPolicy,
};

/// The time within which a run ends although its worker has to connect again.
const RECONNECTED_WITHIN: Duration = Duration::from_secs(40);

pub(crate) async fn ledger(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Echo, TestJob::Sleep]).await?;
    for (job, input) in [(TestJob::Echo, json!({})), (TestJob::Sleep, json!({ "ms": 10 }))] {
        let job = context.job(job, input);
        context.send(&job).await?;
        context.ends_as(&job, OccurrenceStatus::Completed).await?;
        context.expect_starts(&job, &[1])?;
    }
    Ok(())
}

pub(crate) async fn same_instance(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 2500 }));
    context.send(&job).await?;
    context.begins(&job).await?;
    // Without the header, as after a hand-back by another instance, only the worker's own table can know the attempt: the
    // claim in Redis has the worker's own value.
    context.send(&job).await?;
    context.send(&job).await?;
    context.ends_as(&job, OccurrenceStatus::Completed).await?;
    context.settles(&worker, TestJob::Sleep, END_WITHIN).await?;
    context.expect_starts(&job, &[1])
}

pub(crate) async fn same_instance_granted(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Sleep]).await?;
    // As if the server had not yet processed the report Running.
    context.answer_claims(ClaimPolicy::Grant);
    let job = context.job(TestJob::Sleep, json!({ "ms": 2500 }));
    context.send(&job).await?;
    context.begins(&job).await?;
    context.publish(&job, PublishMark::Republished).await?;
    context.publish(&job, PublishMark::Republished).await?;
    context.ends_as(&job, OccurrenceStatus::Completed).await?;
    context.settles(&worker, TestJob::Sleep, END_WITHIN).await?;
    context.expect_starts(&job, &[1])
}

pub(crate) async fn at_once(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 500 }));
    for mark in [PublishMark::First, PublishMark::Republished, PublishMark::First, PublishMark::Republished] {
        context.publish(&job, mark).await?;
    }
    context.ends_as(&job, OccurrenceStatus::Completed).await?;
    context.settles(&worker, TestJob::Sleep, Duration::from_secs(20)).await?;
    context.expect_starts(&job, &[1])
}

pub(crate) async fn other_instance(context: &CaseContext) -> CaseOutcome {
    let first = context.begin(&[TestJob::Sleep]).await?;
    let second = context.worker(&[TestJob::Sleep], 2).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 3000 }));
    context.send(&job).await?;
    context.is_running(&job).await?;
    context.begins(&job).await?;
    for mark in [PublishMark::First, PublishMark::Republished].repeat(3) {
        context.publish(&job, mark).await?;
    }
    context.ends_as(&job, OccurrenceStatus::Completed).await?;
    context.settles(&first, TestJob::Sleep, END_WITHIN).await?;
    context.settles(&second, TestJob::Sleep, END_WITHIN).await?;
    context.expect_starts(&job, &[1])
}

pub(crate) async fn after_the_end(context: &CaseContext) -> CaseOutcome {
    let mut first = context.begin(&[TestJob::Echo]).await?;
    let job = context.job(TestJob::Echo, json!({ "once": true }));
    context.send(&job).await?;
    echoes(context, &job).await?;
    context.settles(&first, TestJob::Echo, END_WITHIN).await?;
    context.send(&job).await?;
    context.publish(&job, PublishMark::Republished).await?;
    context.settles(&first, TestJob::Echo, END_WITHIN).await?;
    context.expect_starts(&job, &[1])?;
    // The next instance has no table of ended attempts, and finds the key.
    first.stop().await?;
    let second = context.worker(&[TestJob::Echo], 1).await?;
    context.send(&job).await?;
    context.publish(&job, PublishMark::Republished).await?;
    let answered = || (second.tap.answers(job.occurrence_id).len() >= 2).then_some(());
    context.until(END_WITHIN, "an answer to both duplicates", answered, || context.describe(&job)).await?;
    context.expect_starts(&job, &[1])
}

pub(crate) async fn own_redelivery(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Sleep]).await?;
    context.answer_claims(ClaimPolicy::Grant);
    worker.broker.set(NetworkFault { without_confirms: true, ..NetworkFault::default() });
    let job = context.job(TestJob::Sleep, json!({ "ms": 5000 }));
    context.send(&job).await?;
    context.begins(&job).await?;
    worker.broker.heal();
    worker.broker.cut();
    context.ends_as_within(&job, OccurrenceStatus::Completed, RECONNECTED_WITHIN).await?;
    context.settles(&worker, TestJob::Sleep, RECONNECTED_WITHIN).await?;
    context.expect_starts(&job, &[1])
}

pub(crate) async fn own_redelivery_after_the_end(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Sleep]).await?;
    context.answer_claims(ClaimPolicy::Grant);
    worker.broker.set(NetworkFault { without_confirms: true, ..NetworkFault::default() });
    let job = context.job(TestJob::Sleep, json!({ "ms": 200 }));
    context.send(&job).await?;
    context.begins(&job).await?;
    // The run ends meanwhile; its end is not reported, because its start is not confirmed.
    tokio::time::sleep(Duration::from_secs(1)).await;
    worker.broker.heal();
    worker.broker.cut();
    context.ends_as_within(&job, OccurrenceStatus::Completed, RECONNECTED_WITHIN).await?;
    context.settles(&worker, TestJob::Sleep, RECONNECTED_WITHIN).await?;
    context.expect_starts(&job, &[1])
}

pub(crate) async fn check_granted(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Echo]).await?;
    let job = context.job(TestJob::Echo, json!({ "asked": true }));
    context.publish(&job, PublishMark::Republished).await?;
    echoes(context, &job).await?;
    let checks = context.server.record().claim_checks(job.occurrence_id, 1).len();
    context.expect(checks > 0, "a claim check", || context.describe(&job))?;
    context.expect_starts(&job, &[1])
}

pub(crate) async fn check_denied(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Echo]).await?;
    for reason in ["running", "ended", "cancelled", "superseded", "waiting", "unknown"] {
        denied(context, &worker, reason).await?;
    }
    Ok(())
}

pub(crate) async fn check_denied_for_an_unknown_reason(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Echo]).await?;
    denied(context, &worker, "reasonOfALaterVersion").await
}

async fn denied(context: &CaseContext, worker: &crate::worker_process::WorkerProcess, reason: &str) -> CaseOutcome {
    context.answer_claims(ClaimPolicy::Deny(reason.to_owned()));
    let job = context.job(TestJob::Echo, json!({ "denied": reason }));
    context.publish(&job, PublishMark::Republished).await?;
    is_dropped(context, worker, &job, END_WITHIN).await
}

pub(crate) async fn check_without_reply(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Echo]).await?;
    context.answer_claims(ClaimPolicy::Silent);
    let job = context.job(TestJob::Echo, json!({ "asked": "again" }));
    context.publish(&job, PublishMark::Republished).await?;
    let returned = || worker.tap.answers(job.occurrence_id).contains(&DeliveryAnswer::Return).then_some(());
    let within = Duration::from_secs(16);
    context.until(within, "the message handed back", returned, || context.describe(&job)).await?;
    context.expect_starts(&job, &[])?;
    context.answer_claims(ClaimPolicy::FromReports);
    context.ends_as_within(&job, OccurrenceStatus::Completed, Duration::from_secs(30)).await?;
    context.expect_starts(&job, &[1])
}

pub(crate) async fn killed_while_running(context: &CaseContext) -> CaseOutcome {
    let mut first = context.begin(&[TestJob::Sleep]).await?;
    let mut job = context.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    context.send(&job).await?;
    context.is_running(&job).await?;
    context.begins(&job).await?;
    context.settles(&first, TestJob::Sleep, END_WITHIN).await?;
    first.kill().await;
    drop(first);
    let _second = context.worker(&[TestJob::Sleep], 1).await?;
    (job.attempt, job.job_data) = (2, json!({ "ms": 100 }));
    context.send(&job).await?;
    context.ends_as(&job, OccurrenceStatus::Completed).await?;
    context.expect_starts(&job, &[1, 2])
}

/// The worker dies after its claim and before its report *Running*: the next instance cannot know whether the run began.
pub(crate) async fn killed_before_its_report(context: &CaseContext) -> CaseOutcome {
    let mut first = context.begin(&[TestJob::Sleep]).await?;
    first.broker.set(NetworkFault { without_publishes: true, ..NetworkFault::default() });
    let job = context.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    context.send(&job).await?;
    let claimed = || context.claim(&job);
    let (claim, _) = context.until_async(END_WITHIN, "a claim", claimed, || context.describe(&job)).await?;
    first.kill().await;
    drop(first);
    let _second = context.worker(&[TestJob::Sleep], 1).await?;
    let holder = claim.rsplit_once(':').map_or("", |(instance, _)| instance);
    is_reported_lost(context, &job, holder, Duration::from_secs(35)).await?;
    let starts = context.starts(job.occurrence_id);
    context.expect(starts.len() <= 1, "no second start", || context.describe(&job))
}

pub(crate) async fn superseded_in_one_instance(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Sleep]).await?;
    let mut job = context.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    context.send(&job).await?;
    context.begins(&job).await?;
    (job.attempt, job.job_data) = (2, json!({ "ms": 1000 }));
    context.send(&job).await?;
    context.ends_as(&job, OccurrenceStatus::Completed).await?;
    context.expect_starts(&job, &[1, 2])?;
    // The first attempt has lost its claim, and ends.
    is_listed(context, &job, false).await
}
