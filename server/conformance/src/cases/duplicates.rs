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
    proxy::{DeliveryAnswer, NetworkFault},
    record::ClaimPolicy,
    stage::{END_WITHIN, Stage, TestJob},
};

/// The time within which a run ends although its worker has to connect again.
const RECONNECTED_WITHIN: Duration = Duration::from_secs(40);

pub(crate) async fn ledger(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Echo, TestJob::Sleep]).await?;
    for (job, input) in [(TestJob::Echo, json!({})), (TestJob::Sleep, json!({ "ms": 10 }))] {
        let job = stage.job(job, input);
        stage.send(&job).await?;
        stage.ends_as(&job, OccurrenceStatus::Completed).await?;
        stage.expect_starts(&job, &[1])?;
    }
    Ok(())
}

pub(crate) async fn same_instance(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Sleep]).await?;
    let job = stage.job(TestJob::Sleep, json!({ "ms": 2500 }));
    stage.send(&job).await?;
    stage.begins(&job).await?;
    // Without the header, as after a hand-back by another instance, only the worker's own table can know the attempt: the
    // claim in Redis has the worker's own value.
    stage.send(&job).await?;
    stage.send(&job).await?;
    stage.ends_as(&job, OccurrenceStatus::Completed).await?;
    stage.settles(&worker, TestJob::Sleep, END_WITHIN).await?;
    stage.expect_starts(&job, &[1])
}

pub(crate) async fn same_instance_granted(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Sleep]).await?;
    // As if the server had not yet processed the report Running.
    stage.answer_claims(ClaimPolicy::Grant);
    let job = stage.job(TestJob::Sleep, json!({ "ms": 2500 }));
    stage.send(&job).await?;
    stage.begins(&job).await?;
    stage.publish(&job, PublishMark::Republished).await?;
    stage.publish(&job, PublishMark::Republished).await?;
    stage.ends_as(&job, OccurrenceStatus::Completed).await?;
    stage.settles(&worker, TestJob::Sleep, END_WITHIN).await?;
    stage.expect_starts(&job, &[1])
}

pub(crate) async fn at_once(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Sleep]).await?;
    let job = stage.job(TestJob::Sleep, json!({ "ms": 500 }));
    for mark in [PublishMark::First, PublishMark::Republished, PublishMark::First, PublishMark::Republished] {
        stage.publish(&job, mark).await?;
    }
    stage.ends_as(&job, OccurrenceStatus::Completed).await?;
    stage.settles(&worker, TestJob::Sleep, Duration::from_secs(20)).await?;
    stage.expect_starts(&job, &[1])
}

pub(crate) async fn other_instance(stage: &Stage) -> CaseOutcome {
    let first = stage.begin(&[TestJob::Sleep]).await?;
    let second = stage.worker(&[TestJob::Sleep], 2).await?;
    let job = stage.job(TestJob::Sleep, json!({ "ms": 3000 }));
    stage.send(&job).await?;
    stage.is_running(&job).await?;
    stage.begins(&job).await?;
    for mark in [PublishMark::First, PublishMark::Republished].repeat(3) {
        stage.publish(&job, mark).await?;
    }
    stage.ends_as(&job, OccurrenceStatus::Completed).await?;
    stage.settles(&first, TestJob::Sleep, END_WITHIN).await?;
    stage.settles(&second, TestJob::Sleep, END_WITHIN).await?;
    stage.expect_starts(&job, &[1])
}

pub(crate) async fn after_the_end(stage: &Stage) -> CaseOutcome {
    let mut first = stage.begin(&[TestJob::Echo]).await?;
    let job = stage.job(TestJob::Echo, json!({ "once": true }));
    stage.send(&job).await?;
    echoes(stage, &job).await?;
    stage.settles(&first, TestJob::Echo, END_WITHIN).await?;
    stage.send(&job).await?;
    stage.publish(&job, PublishMark::Republished).await?;
    stage.settles(&first, TestJob::Echo, END_WITHIN).await?;
    stage.expect_starts(&job, &[1])?;
    // The next instance has no table of ended attempts, and finds the key.
    first.stop().await?;
    let second = stage.worker(&[TestJob::Echo], 1).await?;
    stage.send(&job).await?;
    stage.publish(&job, PublishMark::Republished).await?;
    let answered = || (second.tap.answers(job.occurrence_id).len() >= 2).then_some(());
    stage.until(END_WITHIN, "an answer to both duplicates", answered, || stage.describe(&job)).await?;
    stage.expect_starts(&job, &[1])
}

pub(crate) async fn own_redelivery(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Sleep]).await?;
    stage.answer_claims(ClaimPolicy::Grant);
    worker.broker.set(NetworkFault { without_confirms: true, ..NetworkFault::default() });
    let job = stage.job(TestJob::Sleep, json!({ "ms": 5000 }));
    stage.send(&job).await?;
    stage.begins(&job).await?;
    worker.broker.heal();
    worker.broker.cut();
    stage.ends_as_within(&job, OccurrenceStatus::Completed, RECONNECTED_WITHIN).await?;
    stage.settles(&worker, TestJob::Sleep, RECONNECTED_WITHIN).await?;
    stage.expect_starts(&job, &[1])
}

pub(crate) async fn own_redelivery_after_the_end(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Sleep]).await?;
    stage.answer_claims(ClaimPolicy::Grant);
    worker.broker.set(NetworkFault { without_confirms: true, ..NetworkFault::default() });
    let job = stage.job(TestJob::Sleep, json!({ "ms": 200 }));
    stage.send(&job).await?;
    stage.begins(&job).await?;
    // The run ends meanwhile; its end is not reported, because its start is not confirmed.
    tokio::time::sleep(Duration::from_secs(1)).await;
    worker.broker.heal();
    worker.broker.cut();
    stage.ends_as_within(&job, OccurrenceStatus::Completed, RECONNECTED_WITHIN).await?;
    stage.settles(&worker, TestJob::Sleep, RECONNECTED_WITHIN).await?;
    stage.expect_starts(&job, &[1])
}

pub(crate) async fn check_granted(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Echo]).await?;
    let job = stage.job(TestJob::Echo, json!({ "asked": true }));
    stage.publish(&job, PublishMark::Republished).await?;
    echoes(stage, &job).await?;
    let checks = stage.server.record().claim_checks(job.occurrence_id, 1).len();
    stage.expect(checks > 0, "a claim check", || stage.describe(&job))?;
    stage.expect_starts(&job, &[1])
}

pub(crate) async fn check_denied(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Echo]).await?;
    for reason in ["running", "ended", "cancelled", "superseded", "waiting", "unknown"] {
        denied(stage, &worker, reason).await?;
    }
    Ok(())
}

pub(crate) async fn check_denied_for_an_unknown_reason(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Echo]).await?;
    denied(stage, &worker, "reasonOfALaterVersion").await
}

async fn denied(stage: &Stage, worker: &crate::worker_process::WorkerProcess, reason: &str) -> CaseOutcome {
    stage.answer_claims(ClaimPolicy::Deny(reason.to_owned()));
    let job = stage.job(TestJob::Echo, json!({ "denied": reason }));
    stage.publish(&job, PublishMark::Republished).await?;
    is_dropped(stage, worker, &job, END_WITHIN).await
}

pub(crate) async fn check_without_reply(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Echo]).await?;
    stage.answer_claims(ClaimPolicy::Silent);
    let job = stage.job(TestJob::Echo, json!({ "asked": "again" }));
    stage.publish(&job, PublishMark::Republished).await?;
    let returned = || worker.tap.answers(job.occurrence_id).contains(&DeliveryAnswer::Return).then_some(());
    let within = Duration::from_secs(16);
    stage.until(within, "the message handed back", returned, || stage.describe(&job)).await?;
    stage.expect_starts(&job, &[])?;
    stage.answer_claims(ClaimPolicy::FromReports);
    stage.ends_as_within(&job, OccurrenceStatus::Completed, Duration::from_secs(30)).await?;
    stage.expect_starts(&job, &[1])
}

pub(crate) async fn killed_while_running(stage: &Stage) -> CaseOutcome {
    let mut first = stage.begin(&[TestJob::Sleep]).await?;
    let mut job = stage.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    stage.send(&job).await?;
    stage.is_running(&job).await?;
    stage.begins(&job).await?;
    stage.settles(&first, TestJob::Sleep, END_WITHIN).await?;
    first.kill().await;
    drop(first);
    let _second = stage.worker(&[TestJob::Sleep], 1).await?;
    (job.attempt, job.job_data) = (2, json!({ "ms": 100 }));
    stage.send(&job).await?;
    stage.ends_as(&job, OccurrenceStatus::Completed).await?;
    stage.expect_starts(&job, &[1, 2])
}

/// The worker dies after its claim and before its report *Running*: the next instance cannot know whether the run began.
pub(crate) async fn killed_before_its_report(stage: &Stage) -> CaseOutcome {
    let mut first = stage.begin(&[TestJob::Sleep]).await?;
    first.broker.set(NetworkFault { without_publishes: true, ..NetworkFault::default() });
    let job = stage.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    stage.send(&job).await?;
    let claimed = || stage.claim(&job);
    let (claim, _) = stage.until_async(END_WITHIN, "a claim", claimed, || stage.describe(&job)).await?;
    first.kill().await;
    drop(first);
    let _second = stage.worker(&[TestJob::Sleep], 1).await?;
    let holder = claim.rsplit_once(':').map_or("", |(instance, _)| instance);
    is_reported_lost(stage, &job, holder, Duration::from_secs(35)).await?;
    let starts = stage.starts(job.occurrence_id);
    stage.expect(starts.len() <= 1, "no second start", || stage.describe(&job))
}

pub(crate) async fn superseded_in_one_instance(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Sleep]).await?;
    let mut job = stage.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    stage.send(&job).await?;
    stage.begins(&job).await?;
    (job.attempt, job.job_data) = (2, json!({ "ms": 1000 }));
    stage.send(&job).await?;
    stage.ends_as(&job, OccurrenceStatus::Completed).await?;
    stage.expect_starts(&job, &[1, 2])?;
    // The first attempt has lost its claim, and ends.
    is_listed(stage, &job, false).await
}
