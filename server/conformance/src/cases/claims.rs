//! The cases of claims in Redis: the key of a run, its lease, and the decisions about a claim that another instance holds.

use std::time::Duration;

use milvaion_protocol::{message::JobMessage, status::OccurrenceStatus};
use redis::AsyncCommands;
use serde_json::json;

use super::{CaseOutcome, minimal::echoes};
use crate::{
    broker::PublishMark,
    context::{CLAIM_RETENTION_MS, CaseContext, END_WITHIN, TestJob},
    failure::CaseFailure,
    proxy::{DeliveryAnswer, NetworkFault},
    record::{ClaimPolicy, WorkerMessage},
    worker_process::WorkerProcess,
};

/// A full lease, in milliseconds.
const LEASE_MS: i64 = 15_000;
/// Two heartbeats and a margin: the time within which a worker notices what it checks with each heartbeat.
pub(crate) const NOTICED_WITHIN: Duration = Duration::from_secs(14);

pub(crate) async fn key(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 1500 }));
    context.send(&job).await?;
    let instance = context.is_running(&job).await?.instance_id;
    let held = context.claim(&job).await;
    let expected = format!("running:{{id}} = {instance}:1 with more than 24 h to live");
    let is_held = held.as_ref().is_some_and(|(value, life)| {
        *value == format!("{instance}:1") && (CLAIM_RETENTION_MS..=CLAIM_RETENTION_MS + LEASE_MS).contains(life)
    });
    context.expect(is_held, expected, || format!("{held:?}"))?;
    context.ends_as(&job, OccurrenceStatus::Completed).await?;
    is_done(context, &job).await
}

pub(crate) async fn lease(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 9000 }));
    context.send(&job).await?;
    context.begins(&job).await?;
    let lowest = std::sync::atomic::AtomicI64::new(i64::MAX);
    let grown = || async {
        let (_, life) = context.claim(&job).await?;
        let before = lowest.fetch_min(life, std::sync::atomic::Ordering::Relaxed);
        (life > before.saturating_add(1000)).then_some(())
    };
    context.until_async(Duration::from_secs(8), "a renewed lease", grown, || "the lease only fell".to_owned()).await?;
    context.ends_as(&job, OccurrenceStatus::Completed).await.map(drop)
}

pub(crate) async fn next_attempt(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Echo]).await?;
    for claim in ["dead-00000000:1", "done:1"] {
        let mut job = context.job(TestJob::Echo, json!({ "after": claim }));
        job.attempt = 2;
        context.set_claim(&job, claim, LEASE_MS).await?;
        context.send(&job).await?;
        echoes(context, &job).await?;
        context.expect_starts(&job, &[2])?;
    }
    Ok(())
}

pub(crate) async fn ended(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Echo]).await?;
    for (claim, attempt) in [("done:1", 1), ("done:3", 2), ("other-00000000:3", 2)] {
        let mut job = context.job(TestJob::Echo, json!({ "after": claim }));
        job.attempt = attempt;
        context.set_claim(&job, claim, if claim.starts_with("done") { 0 } else { LEASE_MS }).await?;
        context.send(&job).await?;
        is_dropped(context, &worker, &job, END_WITHIN).await?;
    }
    Ok(())
}

/// The process that ran the attempt has marked its end ten minutes ago, and the report of the end has not arrived.
pub(crate) async fn ended_long_ago(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Echo]).await?;
    let job = context.job(TestJob::Echo, json!({ "ended": "long ago" }));
    context.set_claim(&job, "done:1", -660_000).await?;
    context.publish(&job, PublishMark::Republished).await?;
    let report = context.ends_as(&job, OccurrenceStatus::Unknown).await?;
    let own = context.first_hello().await?.instance_id;
    context.expect(report.instance_id == own, format!("the instanceId {own}"), || report.instance_id.clone())?;
    context.expect_starts(&job, &[])
}

pub(crate) async fn held(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Echo]).await?;
    let job = context.job(TestJob::Echo, json!({ "held": true }));
    context.set_claim(&job, "other-00000000:1", LEASE_MS).await?;
    context.send(&job).await?;
    is_dropped(context, &worker, &job, END_WITHIN).await
}

pub(crate) async fn held_and_renewed(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Echo]).await?;
    let job = context.job(TestJob::Echo, json!({ "held": true }));
    context.set_claim(&job, "other-00000000:1", LEASE_MS - 8000).await?;
    context.publish(&job, PublishMark::Republished).await?;
    is_dropped_while_renewed(context, &worker, &job).await
}

pub(crate) async fn expired(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Echo]).await?;
    for mark in [PublishMark::First, PublishMark::Republished] {
        let job = context.job(TestJob::Echo, json!({ "expired": true }));
        context.set_claim(&job, "dead-00000000:1", -1000).await?;
        context.publish(&job, mark).await?;
        is_reported_lost(context, &job, "dead-00000000", END_WITHIN).await?;
        let checks = context.server.record().claim_checks(job.occurrence_id, 1).len();
        context.expect(checks > 0, "a claim check", || context.describe(&job))?;
    }
    Ok(())
}

pub(crate) async fn expires_later(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Echo]).await?;
    let job = context.job(TestJob::Echo, json!({ "expires": true }));
    context.set_claim(&job, "dead-00000000:1", 3000).await?;
    context.publish(&job, PublishMark::Republished).await?;
    is_reported_lost(context, &job, "dead-00000000", Duration::from_secs(20)).await
}

pub(crate) async fn expired_and_denied(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Echo]).await?;
    context.answer_claims(ClaimPolicy::Deny("ended".to_owned()));
    let job = context.job(TestJob::Echo, json!({ "expired": true }));
    context.set_claim(&job, "dead-00000000:1", -1000).await?;
    context.send(&job).await?;
    is_dropped(context, &worker, &job, END_WITHIN).await
}

pub(crate) async fn lost_to_another(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    context.send(&job).await?;
    context.begins(&job).await?;
    is_listed(context, &job, true).await?;
    let claim = "other-00000000:2";
    context.set_claim(&job, claim, LEASE_MS).await?;
    is_listed(context, &job, false).await?;
    let kept = context.claim(&job).await.map(|(value, _)| value);
    context.expect(kept.as_deref() == Some(claim), format!("the claim {claim}, unchanged"), || format!("{kept:?}"))?;
    context.settles(&worker, TestJob::Sleep, END_WITHIN).await
}

pub(crate) async fn earlier_done(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Sleep]).await?;
    let mut job = context.job(TestJob::Sleep, json!({ "ms": 8000 }));
    job.attempt = 2;
    context.send(&job).await?;
    context.begins(&job).await?;
    // As after a start without Redis: the key still has the end of the attempt before.
    context.set_claim(&job, "done:1", 0).await?;
    let own = || async {
        let (value, _) = context.claim(&job).await?;
        value.ends_with(":2").then_some(())
    };
    let seen = || "the claim stays done:1".to_owned();
    context.until_async(Duration::from_secs(7), "the claim of attempt 2, taken by its renewal", own, seen).await?;
    context.ends_as(&job, OccurrenceStatus::Completed).await?;
    context.expect_starts(&job, &[2])?;
    is_done(context, &job).await
}

pub(crate) async fn redis_loses_data(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 8000 }));
    context.send(&job).await?;
    context.is_running(&job).await?;
    context.begins(&job).await?;
    context.erase_keys().await?;
    context.publish(&job, PublishMark::Republished).await?;
    let claimed = || context.claim(&job);
    context.until_async(Duration::from_secs(7), "the claim again", claimed, || "no claim".to_owned()).await?;
    context.send(&job).await?;
    context.ends_as(&job, OccurrenceStatus::Completed).await?;
    context.settles(&worker, TestJob::Sleep, END_WITHIN).await?;
    context.expect_starts(&job, &[1])?;
    is_done(context, &job).await
}

pub(crate) async fn redis_away(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Echo]).await?;
    worker.redis.set(NetworkFault { is_down: true, ..NetworkFault::default() });
    let job = context.job(TestJob::Echo, json!({ "without": "Redis" }));
    context.send(&job).await?;
    echoes(context, &job).await?;
    let checks = context.server.record().claim_checks(job.occurrence_id, 1);
    let is_announced = checks.iter().any(|check| check.starts_at.is_some());
    context.expect(is_announced, "a claim check with startsAt", || context.describe(&job))?;
    context.expect_starts(&job, &[1])
}

pub(crate) async fn redis_away_denied(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Echo]).await?;
    worker.redis.set(NetworkFault { is_down: true, ..NetworkFault::default() });
    context.answer_claims(ClaimPolicy::Deny("cancelled".to_owned()));
    let job = context.job(TestJob::Echo, json!({ "without": "Redis" }));
    context.send(&job).await?;
    is_dropped(context, &worker, &job, END_WITHIN).await
}

pub(crate) async fn redis_away_no_server(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Echo]).await?;
    worker.redis.set(NetworkFault { is_down: true, ..NetworkFault::default() });
    context.answer_claims(ClaimPolicy::Silent);
    let job = context.job(TestJob::Echo, json!({ "without": "Redis and server" }));
    context.send(&job).await?;
    echoes(context, &job).await?;
    context.expect_starts(&job, &[1])
}

/// Neither Redis nor the server knows of the start, so only a confirmed report proves it. The broker stops confirming between
/// the claim check and the report, within the second in which the worker waits for the server.
pub(crate) async fn redis_away_unconfirmed(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Echo]).await?;
    worker.redis.set(NetworkFault { is_down: true, ..NetworkFault::default() });
    context.answer_claims(ClaimPolicy::Silent);
    let mut tries = 0;
    let job = loop {
        let job = context.job(TestJob::Echo, json!({ "without": "a confirm" }));
        context.send(&job).await?;
        let asked = || (!context.server.record().claim_checks(job.occurrence_id, 1).is_empty()).then_some(());
        context.until(END_WITHIN, "a claim check", asked, || context.describe(&job)).await?;
        let since = std::time::Instant::now();
        // The confirm of the claim check.
        tokio::time::sleep(Duration::from_millis(200)).await;
        worker.broker.set(NetworkFault { without_confirms: true, ..NetworkFault::default() });
        if since.elapsed() < Duration::from_millis(700) {
            break job;
        }
        // This machine was too slow, and the report may be confirmed already.
        tries += 1;
        if tries == 5 {
            return Err(CaseFailure::skipped("This machine is too slow to stop the confirms in time."));
        }
        worker.broker.heal();
        worker.broker.cut();
        context.ends_as_within(&job, OccurrenceStatus::Completed, Duration::from_secs(40)).await?;
    };
    context.is_running(&job).await?;
    // Over the time in which it would start.
    tokio::time::sleep(Duration::from_secs(2)).await;
    context.expect_starts(&job, &[])?;
    worker.broker.heal();
    worker.broker.cut();
    context.ends_as_within(&job, OccurrenceStatus::Completed, Duration::from_secs(40)).await?;
    context.expect_starts(&job, &[1])
}

/// Redis cannot be reached when the process starts. The first delivery starts all the same, because the server has recorded
/// the start, and later ones are claimed.
pub(crate) async fn redis_away_at_start(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin_without_redis(&[TestJob::Echo]).await?;
    let job = context.job(TestJob::Echo, json!({ "without": "Redis" }));
    context.send(&job).await?;
    context.ends_as_within(&job, OccurrenceStatus::Completed, Duration::from_secs(30)).await?;
    context.expect_starts(&job, &[1])?;
    worker.redis.heal();
    let since = std::time::Instant::now();
    loop {
        let next = context.job(TestJob::Echo, json!({ "with": "Redis" }));
        context.send(&next).await?;
        echoes(context, &next).await?;
        // Its connection to Redis is opened again after a pause, so the first ones may still run without a claim.
        if context.claim(&next).await.is_some() {
            return is_done(context, &next).await;
        }
        let is_in_time = since.elapsed() < Duration::from_secs(30);
        context.expect(is_in_time, "a claim within 30 s after Redis is there", || context.describe(&next))?;
    }
}

pub(crate) async fn redis_away_duplicate(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Echo]).await?;
    worker.redis.set(NetworkFault { is_down: true, ..NetworkFault::default() });
    let job = context.job(TestJob::Echo, json!({ "without": "Redis" }));
    context.publish(&job, PublishMark::Republished).await?;
    let returned = || worker.tap.answers(job.occurrence_id).contains(&DeliveryAnswer::Return).then_some(());
    context.until(END_WITHIN, "the message handed back", returned, || context.describe(&job)).await?;
    context.expect_starts(&job, &[])?;
    worker.redis.heal();
    context.ends_as_within(&job, OccurrenceStatus::Completed, Duration::from_secs(30)).await?;
    context.expect_starts(&job, &[1])
}

pub(crate) async fn claims_since(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Echo]).await?;
    let now = crate::clock::now();
    let () = context.redis().set(context.keys.claims_since(), now.timestamp_millis()).await?;
    context.answer_claims(ClaimPolicy::Deny("cancelled".to_owned()));
    let mut job = context.job(TestJob::Echo, json!({ "older": "than the data of Redis" }));
    job.timestamp = now - chrono::Duration::seconds(60);
    context.send(&job).await?;
    is_dropped(context, &worker, &job, END_WITHIN).await?;
    let left = context.claim(&job).await;
    context.expect(left.is_none(), "no claim", || format!("{left:?}"))?;
    context.answer_claims(ClaimPolicy::FromReports);
    let mut granted = context.job(TestJob::Echo, json!({ "older": "and granted" }));
    granted.timestamp = now - chrono::Duration::seconds(60);
    context.send(&granted).await?;
    echoes(context, &granted).await?;
    let checks = context.server.record().claim_checks(granted.occurrence_id, 1).len();
    context.expect(checks > 0, "a claim check for a message older than claims_since", || context.describe(&granted))
}

/// Redis has lost its data, the server has not stored the report of the start yet, and a copy of the message arrives. The
/// holder renews its claim some seconds later.
pub(crate) async fn duplicate_after_loss(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Echo]).await?;
    let since = crate::clock::now().timestamp_millis() - LEASE_MS + 6000;
    let () = context.redis().set(context.keys.claims_since(), since).await?;
    let running = context.job(TestJob::Echo, json!({ "running": true }));
    let waiting = context.job(TestJob::Echo, json!({ "running": false }));
    for job in [&running, &waiting] {
        context.publish(job, PublishMark::Republished).await?;
    }
    // A worker that claims at once starts both in milliseconds.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for job in [&running, &waiting] {
        context.expect_starts(job, &[])?;
    }
    is_dropped_while_renewed(context, &worker, &running).await?;
    context.ends_as_within(&waiting, OccurrenceStatus::Completed, Duration::from_secs(20)).await?;
    context.expect_starts(&waiting, &[1])
}

pub(crate) async fn claims_since_set(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Echo]).await?;
    context.erase_keys().await?;
    let since = crate::clock::now().timestamp_millis();
    let job = context.job(TestJob::Echo, json!({}));
    context.send(&job).await?;
    echoes(context, &job).await?;
    let value = context.value(context.keys.claims_since()).await;
    let is_recent = value.as_deref().and_then(|value| value.parse::<i64>().ok()).is_some_and(|at| at > since - 60_000);
    context.expect(is_recent, "claims_since with the present time in milliseconds", || format!("{value:?}"))
}

pub(crate) async fn revoked(context: &CaseContext) -> CaseOutcome {
    let _worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    context.send(&job).await?;
    context.begins(&job).await?;
    let () = context.redis().pset_ex(context.keys.revocation(job.occurrence_id), 2, 86_400_000).await?;
    let instance = context.is_running(&job).await?.instance_id;
    let free = || async {
        let value = context.claim(&job).await.map(|(value, _)| value).unwrap_or_default();
        (!value.starts_with(&instance)).then_some(())
    };
    context.until_async(NOTICED_WITHIN, "the claim deleted", free, || "it is still held".to_owned()).await?;
    context.ends_as(&job, OccurrenceStatus::Queued).await.map(drop)
}

/// Waits until the claim of an attempt records its end.
pub(super) async fn is_done(context: &CaseContext, job: &JobMessage) -> CaseOutcome {
    let done = format!("done:{}", job.attempt);
    let is_done = || async { context.claim(job).await.filter(|(value, _)| *value == done) };
    let seen = || "another value".to_owned();
    let (_, life) = context.until_async(END_WITHIN, format!("running:{{id}} = {done}"), is_done, seen).await?;
    let is_kept = (CLAIM_RETENTION_MS - 60_000..=CLAIM_RETENTION_MS).contains(&life);
    context.expect(is_kept, "24 h to live", || format!("{life} ms"))
}

/// Waits until a message is acknowledged without a run and without a report.
pub(crate) async fn is_dropped(
    context: &CaseContext,
    worker: &WorkerProcess,
    job: &JobMessage,
    within: Duration,
) -> CaseOutcome {
    let id = job.occurrence_id;
    let answered = || (!worker.tap.answers(id).is_empty()).then_some(());
    context.until(within, "an acknowledgement", answered, || context.describe(job)).await?;
    let answers = worker.tap.answers(id);
    context.expect(answers == [DeliveryAnswer::Ack], "an acknowledgement", || context.describe(job))?;
    context.expect_starts(job, &[])?;
    let end = context.server.record().end(id, job.attempt);
    context.expect(end.is_none(), "no report", || context.describe(job))
}

/// Keeps the claim of another instance until its duplicate is acknowledged without a run and without a report.
async fn is_dropped_while_renewed(context: &CaseContext, worker: &WorkerProcess, job: &JobMessage) -> CaseOutcome {
    let since = std::time::Instant::now();
    let answered = || async {
        // Each second the lease is half a second longer, so that each read finds it renewed.
        let lease = LEASE_MS / 2 + i64::try_from(since.elapsed().as_millis() / 2).unwrap_or(LEASE_MS);
        context.set_claim(job, "other-00000000:1", lease.min(LEASE_MS)).await.ok()?;
        (!worker.tap.answers(job.occurrence_id).is_empty()).then_some(())
    };
    context.until_async(NOTICED_WITHIN, "an acknowledgement", answered, || context.describe(job)).await?;
    is_dropped(context, worker, job, END_WITHIN).await
}

/// Waits until an attempt is reported as lost with the instance that held its claim.
pub(crate) async fn is_reported_lost(
    context: &CaseContext,
    job: &JobMessage,
    holder: &str,
    within: Duration,
) -> CaseOutcome {
    let report = context.ends_as_within(job, OccurrenceStatus::Unknown, within).await?;
    let instance = report.instance_id;
    context.expect(instance == holder, format!("Unknown with the instanceId {holder}"), || instance.clone())
}

/// Waits until heartbeats list a run, or list it no more.
pub(crate) async fn is_listed(context: &CaseContext, job: &JobMessage, listed: bool) -> Result<(), CaseFailure> {
    let since = std::time::Instant::now();
    let id = job.occurrence_id;
    let found = || {
        let record = context.server.record();
        let later = record.messages.iter().filter(|received| received.at > since);
        let mut heartbeats = later.filter_map(|received| match &received.message {
            WorkerMessage::Heartbeat(heartbeat) => Some(heartbeat.running.contains(&id)),
            _ => None,
        });
        heartbeats.any(|contains| contains == listed).then_some(())
    };
    let expected = if listed { "a heartbeat that lists the run" } else { "a heartbeat without the run" };
    context.until(NOTICED_WITHIN, expected, found, || context.describe(job)).await
}
