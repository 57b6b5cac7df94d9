//! Duplicate deliveries: a message that arrives twice starts one run, whatever the broker and Redis do.

use std::{net::SocketAddr, time::Duration};

use milvaion_protocol::{message::ClaimDenial, status::OccurrenceStatus};

use milvaion_worker::Outbox;

use milvaion_test_support::{
    broker_env::{ConfirmHold, CountingJob, SnoozingJob, WorkerTestEnv, is_one_completed_run, no_input},
    http,
    net::free_address,
    wait::until,
};

/// Returns the number of duplicate deliveries a worker has dropped.
async fn dropped_duplicates(health: SocketAddr) -> u32 {
    let dropped = http::metric(health.port(), "milvaion_worker_duplicates_dropped_total").await;
    dropped.expect("the worker responds") as u32
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_published_twice_runs_once() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let workers = [
        env.start(env.worker().job(counter.clone()), "count").await,
        env.start(env.worker().job(counter.clone()), "count").await,
    ];
    let messages: Vec<_> = (0..20).map(|_| env.message("count", no_input())).collect();
    for message in &messages {
        env.publish(message).await;
        env.publish(message).await;
    }
    for message in &messages {
        let reports = env.ended(message.occurrence_id).await;
        assert!(is_one_completed_run(&reports), "{reports:?}");
    }
    // A late duplicate arrives after the end and is dropped too. It is followed by two more messages, so that the
    // instance that receives it processes it before one of them.
    env.publish(&messages[0]).await;
    for _ in 0..2 {
        let after = env.message("count", no_input());
        env.publish(&after).await;
        env.ended(after.occurrence_id).await;
    }
    let queue = env.topology.job_queue("w", "count");
    for worker in workers {
        worker.stop().await;
    }
    assert_eq!(counter.runs(), 22);
    // Deliveries that were not acknowledged would be back in the queue by now.
    assert_eq!(env.queue(&queue).await, Some((0, 0)));
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redelivery_to_the_running_instance_needs_no_claim_check() {
    let env = WorkerTestEnv::new().await;
    let (counter, address) = (CountingJob::new(false), free_address());
    let builder = env.worker().concurrency("count", 2).health(address).job(counter.clone());
    let worker = env.start(builder, "count").await;
    let message = env.message("count", no_input());
    // The server denies an attempt that has started to all instances, also to the one that runs it.
    env.claim_server().deny(message.occurrence_id, ClaimDenial::Running);
    env.publish(&message).await;
    until("the start of the run", async || counter.runs() == 1).await;
    env.republish(&message).await;
    until("a dropped duplicate", async || dropped_duplicates(address).await == 1).await;
    counter.open();
    assert!(is_one_completed_run(&env.ended(message.occurrence_id).await));
    // The same holds after the end of the run.
    env.republish(&message).await;
    until("another dropped duplicate", async || dropped_duplicates(address).await == 2).await;
    assert!(!env.claim_server().has_request_for(message.occurrence_id), "the run table has it");
    worker.stop().await;
    assert_eq!(counter.runs(), 1);
    assert_eq!(env.queue(&env.topology.job_queue("w", "count")).await, Some((0, 0)));
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_higher_attempt_of_an_occurrence_runs() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    let mut message = env.message("count", no_input());
    env.publish(&message).await;
    env.ended(message.occurrence_id).await;
    message.attempt = 2;
    env.publish(&message).await;
    until("the start of the second attempt", async || counter.runs() == 2).await;
    message.attempt = 1;
    env.publish(&message).await;
    // The type runs one at a time: when this run has ended, the older attempt has been processed.
    let after = env.message("count", no_input());
    env.publish(&after).await;
    env.ended(after.occurrence_id).await;
    worker.stop().await;
    assert_eq!(counter.runs(), 3, "an older attempt does not run after a newer one");
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_is_dropped_or_reported_as_lost() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let address = free_address();
    let worker = env.start(env.worker().health(address).job(counter.clone()), "count").await;
    let (abandoned, held, unmarked, late) = (
        env.message("count", no_input()),
        env.message("count", no_input()),
        env.message("count", no_input()),
        env.message("count", no_input()),
    );
    env.claim(unmarked.occurrence_id, "w-living", 5_000).await;
    env.publish(&unmarked).await;
    env.claim(abandoned.occurrence_id, "w-dead", 1_500).await;
    env.republish(&abandoned).await;
    let reports = env.ended(abandoned.occurrence_id).await;
    let found: Vec<_> = reports.iter().map(|report| (report.status, report.instance_id.as_str())).collect();
    assert_eq!(found, [(OccurrenceStatus::Unknown, "w-dead")], "it may have started: {reports:?}");
    // This message has no mark of a possible duplicate, but a claim check is sent nevertheless.
    env.claim_for(late.occurrence_id, "w-dead", 23 * 3_600_000).await;
    env.publish(&late).await;
    let reports = env.ended(late.occurrence_id).await;
    assert_eq!(reports.iter().map(|report| report.status).collect::<Vec<_>>(), [OccurrenceStatus::Unknown]);
    assert!(env.claim_server().has_request_for(late.occurrence_id));
    // This attempt ended an hour ago, and the server has received no report of its end. The outcome stays unknown.
    let unreported = env.message("count", no_input());
    env.claim_for(unreported.occurrence_id, "done", 23 * 3_600_000).await;
    env.publish(&unreported).await;
    let reports = env.ended(unreported.occurrence_id).await;
    assert_eq!(reports.iter().map(|report| report.status).collect::<Vec<_>>(), [OccurrenceStatus::Unknown]);
    assert!(env.claim_server().has_request_for(unreported.occurrence_id));

    let before = dropped_duplicates(address).await;
    let mut lease = 5_000;
    env.claim(held.occurrence_id, "w-living", lease).await;
    env.republish(&held).await;
    // The holder keeps renewing its claim.
    until("a dropped duplicate", async || {
        lease += 1_000;
        env.claim(held.occurrence_id, "w-living", lease).await;
        dropped_duplicates(address).await > before
    })
    .await;
    let queue = env.topology.job_queue("w", "count");
    worker.stop().await;
    assert_eq!(env.queue(&queue).await, Some((0, 0)), "every delivery was acknowledged");
    assert_eq!(counter.runs(), 0);
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_runs_after_a_claim_without_retention() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    let duplicate = env.message("count", no_input());
    // The key expires with the lease, so it leaves no record of a lost holder.
    env.claim_for(duplicate.occurrence_id, "other", 1_500).await;
    env.republish(&duplicate).await;
    assert!(is_one_completed_run(&env.ended(duplicate.occurrence_id).await));
    assert_eq!(counter.runs(), 1);
    worker.stop().await;
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_delivery_runs_without_redis_unless_denied() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let (cancelled, plain) = (env.message("count", no_input()), env.message("count", no_input()));
    env.claim_server().deny(cancelled.occurrence_id, ClaimDenial::Cancelled);
    let duplicate = env.message("count", no_input());
    env.claim_server().deny(duplicate.occurrence_id, ClaimDenial::Running);
    // Nothing listens on this port.
    let builder = env.worker().redis_url("redis://127.0.0.1:1/0").job(counter.clone());
    let worker = env.start(builder, "count").await;
    // The first claim check also opens a connection, for which one second may be too short. The check of a possible
    // duplicate has more time, so it comes first.
    env.republish(&duplicate).await;
    until("a claim check of the duplicate", async || env.claim_server().has_request_for(duplicate.occurrence_id)).await;
    env.publish(&cancelled).await;
    env.publish(&plain).await;
    assert!(is_one_completed_run(&env.ended(plain.occurrence_id).await));
    until("a claim check of the cancelled run", async || env.claim_server().has_request_for(cancelled.occurrence_id))
        .await;
    worker.stop().await;
    assert_eq!(counter.runs(), 1);
    assert!(env.claim_server().has_start_of(plain.occurrence_id), "the server has recorded its start");
    assert!(!env.claim_server().has_start_of(duplicate.occurrence_id), "a duplicate does not start without Redis");
    let queue = env.topology.job_queue("w", "count");
    assert_eq!(env.queue(&queue).await, Some((0, 0)), "the cancelled message was acknowledged");
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_that_is_recorded_nowhere_awaits_its_start_confirm() {
    let mut env = WorkerTestEnv::new().await;
    let hold = ConfirmHold::start(&mut env).await;
    env.claim_server().fall_silent();
    let counter = CountingJob::new(true);
    let builder = env.worker().redis_url("redis://127.0.0.1:1/0").job(counter.clone());
    let worker = env.start(builder, "count").await;
    let [confirmed, stopped] = [env.message("count", no_input()), env.message("count", no_input())];
    hold.set(true);
    env.publish(&confirmed).await;
    until("the report of the start", async || {
        env.reports().await.iter().any(|one| one.occurrence_id == confirmed.occurrence_id)
    })
    .await;
    assert_eq!(counter.runs(), 0, "if this process died now, no code of the job would have run");
    hold.set(false);
    assert!(is_one_completed_run(&env.ended(confirmed.occurrence_id).await));
    assert_eq!(counter.runs(), 1);
    // A run that has not begun when its worker stops is handed back.
    hold.set(true);
    env.publish(&stopped).await;
    until("the report of the start", async || {
        env.reports().await.iter().any(|one| one.occurrence_id == stopped.occurrence_id)
    })
    .await;
    worker.request_stop();
    hold.set(false);
    worker.stop().await;
    let reports = env.reports().await;
    let of_it: Vec<_> =
        reports.iter().filter(|one| one.occurrence_id == stopped.occurrence_id).map(|one| one.status).collect();
    assert!(
        of_it.ends_with(&[OccurrenceStatus::Queued]) && counter.runs() == 1
            || of_it.ends_with(&[OccurrenceStatus::Completed]) && counter.runs() == 2,
        "{of_it:?}"
    );
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivery_returned_by_a_busy_instance_runs_later() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(false);
    // The capacity is one and Redis is unavailable. A possible duplicate could not start.
    let address = free_address();
    let builder = env.worker().redis_url("redis://127.0.0.1:1/0").capacity(1).health(address).job(counter.clone());
    let worker = env.start(builder, "count").await;
    let messages: Vec<_> = (0..3).map(|_| env.message("count", no_input())).collect();
    for message in &messages {
        env.publish(message).await;
    }
    until("the start of one run", async || counter.runs() == 1).await;
    let sent_back = "milvaion_worker_deliveries_returned_total";
    until("returned deliveries", async || http::metric(address.port(), sent_back).await.is_some_and(|n| n > 0.0)).await;
    counter.open();
    for message in &messages {
        assert!(is_one_completed_run(&env.ended(message.occurrence_id).await));
    }
    worker.stop().await;
    assert_eq!(counter.runs(), 3);
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_of_an_unconfirmed_snooze_is_dropped() {
    let mut env = WorkerTestEnv::new().await;
    let hold = ConfirmHold::start(&mut env).await;
    let (first, second) = (SnoozingJob::default(), SnoozingJob::default());
    let ports = [free_address(), free_address()];
    let worker = env.start(env.worker().health(ports[0]).job(first.clone()), "snooze").await;
    let other = env.start(env.worker().health(ports[1]).job(second.clone()), "snooze").await;
    let message = env.message("snooze", no_input());
    let runs = || first.runs() + second.runs();
    hold.set(true);
    env.publish(&message).await;
    until("the start of the run", async || runs() == 1).await;
    let running = r#"milvaion_worker_running{job_type="snooze"}"#;
    for port in ports {
        until("the end of the run", async || http::metric(port.port(), running).await == Some(0.0)).await;
    }
    // The broker delivers round-robin: one of these goes to the instance that did not receive the first.
    env.publish(&message).await;
    env.publish(&message).await;
    hold.set(false);
    until("two dropped duplicates", async || {
        dropped_duplicates(ports[0]).await + dropped_duplicates(ports[1]).await + runs() == 3
    })
    .await;
    worker.stop().await;
    other.stop().await;
    assert_eq!(runs(), 1);
    env.clean(&["snooze"]).await;
}

/// If its process died before the confirm, an end in Redis without a report would drop every further message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_is_marked_ended_after_its_end_confirm() {
    let mut env = WorkerTestEnv::new().await;
    let hold = ConfirmHold::start(&mut env).await;
    let (counter, address) = (CountingJob::new(true), free_address());
    let builder = env.worker().outbox(Outbox::Off).concurrency("count", 2).health(address).job(counter.clone());
    let worker = env.start(builder, "count").await;
    let [message, after] = [env.message("count", no_input()), env.message("count", no_input())];
    hold.set(true);
    env.publish(&message).await;
    until("the start of the run", async || counter.runs() == 1).await;
    let running = r#"milvaion_worker_running{job_type="count"}"#;
    until("the end of the run", async || http::metric(address.port(), running).await == Some(0.0)).await;
    // Claims and ends share a queue, so an end from before would be marked by now.
    env.publish(&after).await;
    until("the start of the next run", async || counter.runs() == 2).await;
    let claim = env.claimed(message.occurrence_id).await.expect("a claim");
    assert!(claim.ends_with(":1") && claim != "done:1", "{claim}");
    hold.set(false);
    let ended = Some("done:1".to_owned());
    until("the mark of its end", async || env.claimed(message.occurrence_id).await == ended).await;
    worker.stop().await;
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_run_confirmed_late_is_marked_ended() {
    let mut env = WorkerTestEnv::new().await;
    let hold = ConfirmHold::start(&mut env).await;
    let (counter, address) = (CountingJob::new(false), free_address());
    let builder = env.worker().shutdown_grace(Duration::ZERO).health(address).job(counter.clone());
    let worker = env.start(builder, "count").await;
    let message = env.message("count", no_input());
    hold.set(true);
    env.publish(&message).await;
    until("the start of the run", async || counter.runs() == 1).await;
    worker.request_stop();
    let running = r#"milvaion_worker_running{job_type="count"}"#;
    until("the end of the interrupted run", async || http::metric(address.port(), running).await == Some(0.0)).await;
    // The confirms of its start and its end arrive while the worker waits for the last confirms.
    hold.set(false);
    worker.stop().await;
    assert_eq!(env.claimed(message.occurrence_id).await.as_deref(), Some("done:1"));
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_denies_duplicates_after_redis_lost_data() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    let (duplicate, republished, first) =
        (env.message("count", no_input()), env.message("count", no_input()), env.message("count", no_input()));
    env.claim_server().deny(duplicate.occurrence_id, ClaimDenial::Running);
    env.republish(&duplicate).await;
    // Republished because its confirm was lost: no worker had received it.
    env.republish(&republished).await;
    env.publish(&first).await;
    assert!(is_one_completed_run(&env.ended(republished.occurrence_id).await));
    assert!(is_one_completed_run(&env.ended(first.occurrence_id).await));
    until("a claim check of the duplicate", async || env.claim_server().has_request_for(duplicate.occurrence_id)).await;
    worker.stop().await;
    assert_eq!(counter.runs(), 2);
    assert!(env.claim_server().has_request_for(republished.occurrence_id));
    assert!(!env.claim_server().has_request_for(first.occurrence_id), "a first delivery needs no claim check");
    assert_eq!(env.queue(&env.topology.job_queue("w", "count")).await, Some((0, 0)));
    env.clean(&["count"]).await;
}

/// The server grants both, because the report of the start has not arrived yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_after_redis_lost_data_waits_for_the_claim_of_a_living_holder() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let address = free_address();
    let worker = env.start(env.worker().health(address).job(counter.clone()), "count").await;
    let (running, waiting) = (env.message("count", no_input()), env.message("count", no_input()));
    env.redis_lost_data_before(Duration::from_secs(11)).await;
    env.republish(&running).await;
    env.republish(&waiting).await;
    until("the claim check", async || env.claim_server().has_request_for(running.occurrence_id)).await;
    let mut lease = 5_000;
    until("a dropped duplicate", async || {
        lease += 1_000;
        env.claim(running.occurrence_id, "w-living", lease).await;
        dropped_duplicates(address).await == 1
    })
    .await;
    assert!(is_one_completed_run(&env.ended(waiting.occurrence_id).await), "nothing holds it");
    worker.stop().await;
    assert_eq!(counter.runs(), 1);
    assert_eq!(env.queue(&env.topology.job_queue("w", "count")).await, Some((0, 0)));
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_from_before_redis_lost_data_is_checked() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let address = free_address();
    let worker = env.start(env.worker().health(address).job(counter.clone()), "count").await;
    let (cancelled, queued) = (env.message("count", no_input()), env.message("count", no_input()));
    let mut later = env.message("count", no_input());
    later.timestamp += chrono::Duration::minutes(1);
    env.claim_server().deny(cancelled.occurrence_id, ClaimDenial::Cancelled);
    env.forget_claims().await;
    env.publish(&cancelled).await;
    until("the denial", async || dropped_duplicates(address).await == 1).await;
    until("the release of its claim", async || env.claimed(cancelled.occurrence_id).await.is_none()).await;
    env.publish(&queued).await;
    env.publish(&later).await;
    for message in [&queued, &later] {
        assert!(is_one_completed_run(&env.ended(message.occurrence_id).await));
    }
    assert!(env.claim_server().has_request_for(queued.occurrence_id), "its cancel request might be lost");
    assert!(!env.claim_server().has_request_for(later.occurrence_id), "it was published after the loss");
    worker.stop().await;
    assert_eq!(counter.runs(), 2);
    assert_eq!(env.queue(&env.topology.job_queue("w", "count")).await, Some((0, 0)));
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivery_is_acknowledged_after_its_start_confirm() {
    let mut env = WorkerTestEnv::new().await;
    let hold = ConfirmHold::start(&mut env).await;
    let counter = CountingJob::new(true);
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    hold.set(true);
    let messages = [env.message("count", no_input()), env.message("count", no_input())];
    env.publish(&messages[0]).await;
    env.publish(&messages[1]).await;
    until("the start of the first run", async || counter.runs() == 1).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    // The prefetch of the type is one, so the second message stays in its queue until the first is acknowledged.
    let queue = env.topology.job_queue("w", "count");
    assert_eq!(env.queue(&queue).await, Some((1, 1)));
    assert_eq!(counter.runs(), 1, "the run started without waiting, but nothing was acknowledged");
    hold.set(false);
    for message in &messages {
        let reports = env.ended(message.occurrence_id).await;
        assert!(is_one_completed_run(&reports), "{reports:?}");
    }
    worker.stop().await;
    assert_eq!(env.queue(&queue).await, Some((0, 0)));
    env.clean(&["count"]).await;
}

mod exhaustive {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn unconfirmed_interrupted_attempt_runs_elsewhere() {
        let mut env = WorkerTestEnv::new().await;
        let hold = ConfirmHold::start(&mut env).await;
        let (first, second) = (CountingJob::new(false), CountingJob::new(true));
        let worker = env.start(env.worker().shutdown_grace(Duration::ZERO).job(first.clone()), "count").await;
        let message = env.message("count", no_input());
        hold.set(true);
        env.publish(&message).await;
        until("the start of the run", async || first.runs() == 1).await;
        worker.stop().await;
        hold.set(false);
        // The broker had confirmed no start, so it redelivers the message, and the stopped worker has released its claim.
        let worker = env.start(env.worker().job(second.clone()), "count").await;
        until("the second start", async || second.runs() == 1).await;
        worker.stop().await;
        env.clean(&["count"]).await;
    }
}
