//! The cases of claims in Redis: the key of a run, its lease, and the decisions about a claim that another instance holds.

use std::time::Duration;

use milvaion_protocol::{message::JobMessage, status::OccurrenceStatus};
use redis::AsyncCommands;
use serde_json::json;

use super::{CaseOutcome, minimal::echoes};
use crate::{
    broker::PublishMark,
    failure::CaseFailure,
    proxy::{DeliveryAnswer, NetworkFault},
    record::{ClaimPolicy, WorkerMessage},
    stage::{CLAIM_RETENTION_MS, END_WITHIN, Stage, TestJob},
    worker_process::WorkerProcess,
};

/// A full lease, in milliseconds.
const LEASE_MS: i64 = 15_000;
/// Two heartbeats and a margin: the time within which a worker notices what it checks with each heartbeat.
pub(crate) const NOTICED_WITHIN: Duration = Duration::from_secs(14);

pub(crate) async fn key(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Sleep]).await?;
    let job = stage.job(TestJob::Sleep, json!({ "ms": 1500 }));
    stage.send(&job).await?;
    let instance = stage.is_running(&job).await?.instance_id;
    let held = stage.claim(&job).await;
    let expected = format!("running:{{id}} = {instance}:1 with more than 24 h to live");
    let is_held = held.as_ref().is_some_and(|(value, life)| {
        *value == format!("{instance}:1") && (CLAIM_RETENTION_MS..=CLAIM_RETENTION_MS + LEASE_MS).contains(life)
    });
    stage.expect(is_held, expected, || format!("{held:?}"))?;
    stage.ends_as(&job, OccurrenceStatus::Completed).await?;
    is_done(stage, &job).await
}

pub(crate) async fn lease(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Sleep]).await?;
    let job = stage.job(TestJob::Sleep, json!({ "ms": 9000 }));
    stage.send(&job).await?;
    stage.begins(&job).await?;
    let lowest = std::sync::atomic::AtomicI64::new(i64::MAX);
    let grown = || async {
        let (_, life) = stage.claim(&job).await?;
        let before = lowest.fetch_min(life, std::sync::atomic::Ordering::Relaxed);
        (life > before.saturating_add(1000)).then_some(())
    };
    stage.until_async(Duration::from_secs(8), "a renewed lease", grown, || "the lease only fell".to_owned()).await?;
    stage.ends_as(&job, OccurrenceStatus::Completed).await.map(drop)
}

pub(crate) async fn next_attempt(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Echo]).await?;
    for claim in ["dead-00000000:1", "done:1"] {
        let mut job = stage.job(TestJob::Echo, json!({ "after": claim }));
        job.attempt = 2;
        stage.set_claim(&job, claim, LEASE_MS).await?;
        stage.send(&job).await?;
        echoes(stage, &job).await?;
        stage.expect_starts(&job, &[2])?;
    }
    Ok(())
}

pub(crate) async fn ended(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Echo]).await?;
    for (claim, attempt) in [("done:1", 1), ("done:3", 2), ("other-00000000:3", 2)] {
        let mut job = stage.job(TestJob::Echo, json!({ "after": claim }));
        job.attempt = attempt;
        stage.set_claim(&job, claim, if claim.starts_with("done") { 0 } else { LEASE_MS }).await?;
        stage.send(&job).await?;
        is_dropped(stage, &worker, &job, END_WITHIN).await?;
    }
    Ok(())
}

/// The process that ran the attempt has marked its end ten minutes ago, and the report of the end has not arrived.
pub(crate) async fn ended_long_ago(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Echo]).await?;
    let job = stage.job(TestJob::Echo, json!({ "ended": "long ago" }));
    stage.set_claim(&job, "done:1", -660_000).await?;
    stage.publish(&job, PublishMark::Republished).await?;
    let report = stage.ends_as(&job, OccurrenceStatus::Unknown).await?;
    let own = super::control::first_hello(stage).await?.instance_id;
    stage.expect(report.instance_id == own, format!("the instanceId {own}"), || report.instance_id.clone())?;
    stage.expect_starts(&job, &[])
}

pub(crate) async fn held(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Echo]).await?;
    let job = stage.job(TestJob::Echo, json!({ "held": true }));
    stage.set_claim(&job, "other-00000000:1", LEASE_MS).await?;
    stage.send(&job).await?;
    is_dropped(stage, &worker, &job, END_WITHIN).await
}

pub(crate) async fn held_and_renewed(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Echo]).await?;
    let job = stage.job(TestJob::Echo, json!({ "held": true }));
    stage.set_claim(&job, "other-00000000:1", LEASE_MS - 8000).await?;
    stage.publish(&job, PublishMark::Republished).await?;
    let renewed = std::sync::atomic::AtomicI64::new(LEASE_MS - 8000);
    let answered = || async {
        // Grows faster than time passes.
        let lease = renewed.fetch_add(100, std::sync::atomic::Ordering::Relaxed);
        stage.set_claim(&job, "other-00000000:1", lease.min(LEASE_MS)).await.ok()?;
        (!worker.tap.answers(job.occurrence_id).is_empty()).then_some(())
    };
    stage.until_async(NOTICED_WITHIN, "an acknowledgement", answered, || stage.describe(&job)).await?;
    is_dropped(stage, &worker, &job, END_WITHIN).await
}

pub(crate) async fn expired(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Echo]).await?;
    for mark in [PublishMark::First, PublishMark::Republished] {
        let job = stage.job(TestJob::Echo, json!({ "expired": true }));
        stage.set_claim(&job, "dead-00000000:1", -1000).await?;
        stage.publish(&job, mark).await?;
        is_reported_lost(stage, &job, "dead-00000000", END_WITHIN).await?;
        let checks = stage.server.record().claim_checks(job.occurrence_id, 1).len();
        stage.expect(checks > 0, "a claim check", || stage.describe(&job))?;
    }
    Ok(())
}

pub(crate) async fn expires_later(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Echo]).await?;
    let job = stage.job(TestJob::Echo, json!({ "expires": true }));
    stage.set_claim(&job, "dead-00000000:1", 3000).await?;
    stage.publish(&job, PublishMark::Republished).await?;
    is_reported_lost(stage, &job, "dead-00000000", Duration::from_secs(20)).await
}

pub(crate) async fn expired_and_denied(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Echo]).await?;
    stage.answer_claims(ClaimPolicy::Deny("ended".to_owned()));
    let job = stage.job(TestJob::Echo, json!({ "expired": true }));
    stage.set_claim(&job, "dead-00000000:1", -1000).await?;
    stage.send(&job).await?;
    is_dropped(stage, &worker, &job, END_WITHIN).await
}

pub(crate) async fn lost_to_another(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Sleep]).await?;
    let mut lost = Vec::new();
    for claim in ["other-00000000:1", "other-00000000:2"] {
        let job = stage.job(TestJob::Sleep, json!({ "ms": 60_000 }));
        stage.send(&job).await?;
        stage.begins(&job).await?;
        is_listed(stage, &job, true).await?;
        stage.set_claim(&job, claim, LEASE_MS).await?;
        lost.push((job, claim));
    }
    for (job, claim) in &lost {
        is_listed(stage, job, false).await?;
        let kept = stage.claim(job).await.map(|(value, _)| value);
        stage
            .expect(kept.as_deref() == Some(claim), format!("the claim {claim}, unchanged"), || format!("{kept:?}"))?;
    }
    stage.settles(&worker, TestJob::Sleep, END_WITHIN).await
}

pub(crate) async fn earlier_done(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Sleep]).await?;
    let mut job = stage.job(TestJob::Sleep, json!({ "ms": 8000 }));
    job.attempt = 2;
    stage.send(&job).await?;
    stage.begins(&job).await?;
    // As after a start without Redis: the key still has the end of the attempt before.
    stage.set_claim(&job, "done:1", 0).await?;
    let own = || async {
        let (value, _) = stage.claim(&job).await?;
        value.ends_with(":2").then_some(())
    };
    let seen = || "the claim stays done:1".to_owned();
    stage.until_async(Duration::from_secs(7), "the claim of attempt 2, taken by its renewal", own, seen).await?;
    stage.ends_as(&job, OccurrenceStatus::Completed).await?;
    stage.expect_starts(&job, &[2])?;
    is_done(stage, &job).await
}

pub(crate) async fn redis_loses_data(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Sleep]).await?;
    let job = stage.job(TestJob::Sleep, json!({ "ms": 8000 }));
    stage.send(&job).await?;
    stage.is_running(&job).await?;
    stage.begins(&job).await?;
    stage.erase_keys().await?;
    stage.publish(&job, PublishMark::Republished).await?;
    let claimed = || stage.claim(&job);
    stage.until_async(Duration::from_secs(7), "the claim again", claimed, || "no claim".to_owned()).await?;
    stage.send(&job).await?;
    stage.ends_as(&job, OccurrenceStatus::Completed).await?;
    stage.settles(&worker, TestJob::Sleep, END_WITHIN).await?;
    stage.expect_starts(&job, &[1])?;
    is_done(stage, &job).await
}

pub(crate) async fn redis_away(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Echo]).await?;
    worker.redis.set(NetworkFault { is_down: true, ..NetworkFault::default() });
    let job = stage.job(TestJob::Echo, json!({ "without": "Redis" }));
    stage.send(&job).await?;
    echoes(stage, &job).await?;
    let checks = stage.server.record().claim_checks(job.occurrence_id, 1);
    let is_announced = checks.iter().any(|check| check.starts_at.is_some());
    stage.expect(is_announced, "a claim check with startsAt", || stage.describe(&job))?;
    stage.expect_starts(&job, &[1])
}

pub(crate) async fn redis_away_denied(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Echo]).await?;
    worker.redis.set(NetworkFault { is_down: true, ..NetworkFault::default() });
    stage.answer_claims(ClaimPolicy::Deny("cancelled".to_owned()));
    let job = stage.job(TestJob::Echo, json!({ "without": "Redis" }));
    stage.send(&job).await?;
    is_dropped(stage, &worker, &job, END_WITHIN).await
}

pub(crate) async fn redis_away_no_server(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Echo]).await?;
    worker.redis.set(NetworkFault { is_down: true, ..NetworkFault::default() });
    stage.answer_claims(ClaimPolicy::Silent);
    let job = stage.job(TestJob::Echo, json!({ "without": "Redis and server" }));
    stage.send(&job).await?;
    echoes(stage, &job).await?;
    stage.expect_starts(&job, &[1])
}

pub(crate) async fn redis_away_duplicate(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Echo]).await?;
    worker.redis.set(NetworkFault { is_down: true, ..NetworkFault::default() });
    let job = stage.job(TestJob::Echo, json!({ "without": "Redis" }));
    stage.publish(&job, PublishMark::Republished).await?;
    let returned = || worker.tap.answers(job.occurrence_id).contains(&DeliveryAnswer::Return).then_some(());
    stage.until(END_WITHIN, "the message handed back", returned, || stage.describe(&job)).await?;
    stage.expect_starts(&job, &[])?;
    worker.redis.heal();
    stage.ends_as_within(&job, OccurrenceStatus::Completed, Duration::from_secs(30)).await?;
    stage.expect_starts(&job, &[1])
}

pub(crate) async fn claims_since(stage: &Stage) -> CaseOutcome {
    let worker = stage.begin(&[TestJob::Echo]).await?;
    let now = crate::clock::now();
    let () = stage.redis().set(stage.keys.claims_since(), now.timestamp_millis()).await?;
    stage.answer_claims(ClaimPolicy::Deny("cancelled".to_owned()));
    let mut job = stage.job(TestJob::Echo, json!({ "older": "than the data of Redis" }));
    job.timestamp = now - chrono::Duration::seconds(60);
    stage.send(&job).await?;
    is_dropped(stage, &worker, &job, END_WITHIN).await?;
    let left = stage.claim(&job).await;
    stage.expect(left.is_none(), "no claim", || format!("{left:?}"))?;
    stage.answer_claims(ClaimPolicy::FromReports);
    let mut granted = stage.job(TestJob::Echo, json!({ "older": "and granted" }));
    granted.timestamp = now - chrono::Duration::seconds(60);
    stage.send(&granted).await?;
    echoes(stage, &granted).await?;
    let checks = stage.server.record().claim_checks(granted.occurrence_id, 1).len();
    stage.expect(checks > 0, "a claim check for a message older than claims_since", || stage.describe(&granted))
}

pub(crate) async fn claims_since_set(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Echo]).await?;
    stage.erase_keys().await?;
    let since = crate::clock::now().timestamp_millis();
    let job = stage.job(TestJob::Echo, json!({}));
    stage.send(&job).await?;
    echoes(stage, &job).await?;
    let value = stage.value(stage.keys.claims_since()).await;
    let is_recent = value.as_deref().and_then(|value| value.parse::<i64>().ok()).is_some_and(|at| at > since - 60_000);
    stage.expect(is_recent, "claims_since with the present time in milliseconds", || format!("{value:?}"))
}

pub(crate) async fn revoked(stage: &Stage) -> CaseOutcome {
    let _worker = stage.begin(&[TestJob::Sleep]).await?;
    let job = stage.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    stage.send(&job).await?;
    stage.begins(&job).await?;
    let () = stage.redis().pset_ex(stage.keys.revocation(job.occurrence_id), 2, 86_400_000).await?;
    let instance = stage.is_running(&job).await?.instance_id;
    let free = || async {
        let value = stage.claim(&job).await.map(|(value, _)| value).unwrap_or_default();
        (!value.starts_with(&instance)).then_some(())
    };
    stage.until_async(NOTICED_WITHIN, "the claim deleted", free, || "it is still held".to_owned()).await?;
    stage.ends_as(&job, OccurrenceStatus::Queued).await.map(drop)
}

/// Waits until the claim of an attempt records its end.
async fn is_done(stage: &Stage, job: &JobMessage) -> CaseOutcome {
    let done = format!("done:{}", job.attempt);
    let is_done = || async { stage.claim(job).await.filter(|(value, _)| *value == done) };
    let seen = || "another value".to_owned();
    let (_, life) = stage.until_async(END_WITHIN, format!("running:{{id}} = {done}"), is_done, seen).await?;
    let is_kept = (CLAIM_RETENTION_MS - 60_000..=CLAIM_RETENTION_MS).contains(&life);
    stage.expect(is_kept, "24 h to live", || format!("{life} ms"))
}

/// Waits until a message is acknowledged without a run and without a report.
pub(crate) async fn is_dropped(
    stage: &Stage,
    worker: &WorkerProcess,
    job: &JobMessage,
    within: Duration,
) -> CaseOutcome {
    let id = job.occurrence_id;
    let answered = || (!worker.tap.answers(id).is_empty()).then_some(());
    stage.until(within, "an acknowledgement", answered, || stage.describe(job)).await?;
    let answers = worker.tap.answers(id);
    stage.expect(answers == [DeliveryAnswer::Ack], "an acknowledgement", || stage.describe(job))?;
    stage.expect_starts(job, &[])?;
    let end = stage.server.record().end(id, job.attempt);
    stage.expect(end.is_none(), "no report", || stage.describe(job))
}

/// Waits until an attempt is reported as lost with the instance that held its claim.
pub(crate) async fn is_reported_lost(stage: &Stage, job: &JobMessage, holder: &str, within: Duration) -> CaseOutcome {
    let report = stage.ends_as_within(job, OccurrenceStatus::Unknown, within).await?;
    let instance = report.instance_id;
    stage.expect(instance == holder, format!("Unknown with the instanceId {holder}"), || instance.clone())
}

/// Waits until heartbeats list a run, or list it no more.
pub(crate) async fn is_listed(stage: &Stage, job: &JobMessage, listed: bool) -> Result<(), CaseFailure> {
    let since = std::time::Instant::now();
    let id = job.occurrence_id;
    let found = || {
        let record = stage.server.record();
        let later = record.messages.iter().filter(|received| received.at > since);
        let mut heartbeats = later.filter_map(|received| match &received.message {
            WorkerMessage::Heartbeat(heartbeat) => Some(heartbeat.running.contains(&id)),
            _ => None,
        });
        heartbeats.any(|contains| contains == listed).then_some(())
    };
    let expected = if listed { "a heartbeat that lists the run" } else { "a heartbeat without the run" };
    stage.until(NOTICED_WITHIN, expected, found, || stage.describe(job)).await
}
