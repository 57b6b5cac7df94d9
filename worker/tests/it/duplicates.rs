//! A message that comes twice starts nothing twice, whatever broker and Redis do.

use std::{net::SocketAddr, time::Duration};

use milvaion_protocol::{message::ClaimDenial, status::OccurrenceStatus};

use milvaion_test_support::{
    broker_env::{ConfirmHold, CountingJob, SnoozingJob, WorkerTestEnv, is_one_completed_run, no_input},
    http,
    net::free_address,
    wait::until,
};

/// Returns the number of copies a worker has dropped.
async fn copies_dropped(health: SocketAddr) -> u32 {
    let dropped = http::metric(health.port(), "milvaion_worker_copies_dropped_total").await;
    dropped.expect("the worker responds") as u32
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_published_twice_runs_once() {
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
    // Late copies come after the end, and are dropped too. Two more, so that whoever gets it deals with it before.
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
    // Whatever had not been acknowledged would be back by now.
    assert_eq!(env.queue(&queue).await, Some((0, 0)));
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_higher_attempt_of_the_same_occurrence_runs() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    let mut message = env.message("count", no_input());
    env.publish(&message).await;
    env.ended(message.occurrence_id).await;
    message.attempt = 2;
    env.publish(&message).await;
    until("the second attempt runs", async || counter.runs() == 2).await;
    message.attempt = 1;
    env.publish(&message).await;
    // One at a time: when this one has ended, that one was dealt with.
    let after = env.message("count", no_input());
    env.publish(&after).await;
    env.ended(after.occurrence_id).await;
    worker.stop().await;
    assert_eq!(counter.runs(), 3, "an older attempt does not run after a newer one");
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_dropped_when_its_holder_lives_and_reported_as_lost_when_it_has_died() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let address = free_address();
    let worker = env.start(env.worker().health(address).job(counter.clone()), "count").await;
    let (orphan, twin, plain, late) = (
        env.message("count", no_input()),
        env.message("count", no_input()),
        env.message("count", no_input()),
        env.message("count", no_input()),
    );
    env.claim(plain.occurrence_id, "w-living", 5_000).await;
    env.publish(&plain).await;
    env.claim(orphan.occurrence_id, "w-dead", 1_500).await;
    env.republish(&orphan).await;
    let reports = env.ended(orphan.occurrence_id).await;
    let said: Vec<_> = reports.iter().map(|report| (report.status, report.instance_id.as_str())).collect();
    assert_eq!(said, [(OccurrenceStatus::Unknown, "w-dead")], "perhaps it had begun: {reports:?}");
    // Nothing on this message says that it may be a copy; the server is asked nevertheless.
    env.claim_for(late.occurrence_id, "w-dead", 23 * 3_600_000).await;
    env.publish(&late).await;
    let reports = env.ended(late.occurrence_id).await;
    assert_eq!(reports.iter().map(|report| report.status).collect::<Vec<_>>(), [OccurrenceStatus::Unknown]);
    assert!(env.claim_server().has_request_for(late.occurrence_id));
    // It ended an hour ago, and the server has not heard of it: nobody will tell how.
    let untold = env.message("count", no_input());
    env.claim_for(untold.occurrence_id, "done", 23 * 3_600_000).await;
    env.publish(&untold).await;
    let reports = env.ended(untold.occurrence_id).await;
    assert_eq!(reports.iter().map(|report| report.status).collect::<Vec<_>>(), [OccurrenceStatus::Unknown]);
    assert!(env.claim_server().has_request_for(untold.occurrence_id));

    let before = copies_dropped(address).await;
    let mut lease = 5_000;
    env.claim(twin.occurrence_id, "w-living", lease).await;
    env.republish(&twin).await;
    // Its holder renews its claim again and again.
    until("the copy is dropped", async || {
        lease += 1_000;
        env.claim(twin.occurrence_id, "w-living", lease).await;
        copies_dropped(address).await > before
    })
    .await;
    let queue = env.topology.job_queue("w", "count");
    worker.stop().await;
    assert_eq!(env.queue(&queue).await, Some((0, 0)), "every copy was acknowledged");
    assert_eq!(counter.runs(), 0);
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_what_a_worker_without_marks_had_runs_when_its_lease_is_over() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    let orphan = env.message("count", no_input());
    env.claim_for(orphan.occurrence_id, "other", 1_500).await;
    env.republish(&orphan).await;
    assert!(is_one_completed_run(&env.ended(orphan.occurrence_id).await));
    assert_eq!(counter.runs(), 1);
    worker.stop().await;
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_a_first_copy_starts_unless_the_server_says_that_it_was_cancelled() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let (cancelled, plain) = (env.message("count", no_input()), env.message("count", no_input()));
    env.claim_server().deny(cancelled.occurrence_id, ClaimDenial::Cancelled);
    let copy = env.message("count", no_input());
    env.claim_server().deny(copy.occurrence_id, ClaimDenial::Running);
    // Nobody listens there.
    let builder = env.worker().redis_url("redis://127.0.0.1:1/0").job(counter.clone());
    let worker = env.start(builder, "count").await;
    // The first question has a connection to open, for which a second may be too short; about a copy there is more time.
    env.republish(&copy).await;
    until("the server is asked", async || env.claim_server().has_request_for(copy.occurrence_id)).await;
    env.publish(&cancelled).await;
    env.publish(&plain).await;
    assert!(is_one_completed_run(&env.ended(plain.occurrence_id).await));
    until("the server was asked", async || env.claim_server().has_request_for(cancelled.occurrence_id)).await;
    worker.stop().await;
    assert_eq!(counter.runs(), 1);
    let queue = env.topology.job_queue("w", "count");
    assert_eq!(env.queue(&queue).await, Some((0, 0)), "what was cancelled is gone");
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_instance_sent_back_for_want_of_a_place_is_no_copy_when_it_comes_again() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(false);
    // One place, and no Redis: a copy could not start.
    let address = free_address();
    let builder = env.worker().redis_url("redis://127.0.0.1:1/0").capacity(1).health(address).job(counter.clone());
    let worker = env.start(builder, "count").await;
    let messages: Vec<_> = (0..3).map(|_| env.message("count", no_input())).collect();
    for message in &messages {
        env.publish(message).await;
    }
    until("one runs", async || counter.runs() == 1).await;
    let sent_back = "milvaion_worker_deliveries_sent_back_total";
    until("others are sent back", async || http::metric(address.port(), sent_back).await.is_some_and(|n| n > 0.0))
        .await;
    counter.open();
    for message in &messages {
        assert!(is_one_completed_run(&env.ended(message.occurrence_id).await));
    }
    worker.stop().await;
    assert_eq!(counter.runs(), 3);
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_what_snoozed_before_its_start_was_confirmed_is_dropped() {
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
    until("it snoozes", async || runs() == 1).await;
    let over = Some("done:1".to_owned());
    until("its end is marked", async || env.claimed(message.occurrence_id).await == over).await;
    // The broker gives to each in turn: one of these comes to whoever did not have the first.
    env.publish(&message).await;
    env.publish(&message).await;
    hold.set(false);
    until("both copies are dealt with", async || {
        copies_dropped(ports[0]).await + copies_dropped(ports[1]).await + runs() == 3
    })
    .await;
    worker.stop().await;
    other.stop().await;
    assert_eq!(runs(), 1);
    env.clean(&["snooze"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_was_handed_back_before_anybody_heard_of_it_begins_elsewhere() {
    let mut env = WorkerTestEnv::new().await;
    let hold = ConfirmHold::start(&mut env).await;
    let (first, second) = (CountingJob::new(false), CountingJob::new(true));
    let worker = env.start(env.worker().shutdown_grace(Duration::ZERO).job(first.clone()), "count").await;
    let message = env.message("count", no_input());
    hold.set(true);
    env.publish(&message).await;
    until("it runs", async || first.runs() == 1).await;
    worker.stop().await;
    hold.set(false);
    // The broker was told of no start, so the message is there again; and so is the claim of who has gone.
    let worker = env.start(env.worker().job(second.clone()), "count").await;
    until("it runs again", async || second.runs() == 1).await;
    worker.stop().await;
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_run_of_which_is_heard_at_the_last_moment_is_nobody_elses() {
    let mut env = WorkerTestEnv::new().await;
    let hold = ConfirmHold::start(&mut env).await;
    let (counter, address) = (CountingJob::new(false), free_address());
    let builder = env.worker().shutdown_grace(Duration::ZERO).health(address).job(counter.clone());
    let worker = env.start(builder, "count").await;
    let message = env.message("count", no_input());
    hold.set(true);
    env.publish(&message).await;
    until("it runs", async || counter.runs() == 1).await;
    worker.request_stop();
    let running = r#"milvaion_worker_running{job_type="count"}"#;
    until("it is interrupted", async || http::metric(address.port(), running).await == Some(0.0)).await;
    // Its start and its end get through while the worker waits for the last confirmations.
    hold.set(false);
    worker.stop().await;
    assert_eq!(env.claimed(message.occurrence_id).await.as_deref(), Some("done:1"));
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_not_started_when_redis_has_forgotten_and_the_server_has_not() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    let (copy, lonely, first) =
        (env.message("count", no_input()), env.message("count", no_input()), env.message("count", no_input()));
    env.claim_server().deny(copy.occurrence_id, ClaimDenial::Running);
    env.republish(&copy).await;
    // Sent again because its confirmation was lost: nobody ever had it.
    env.republish(&lonely).await;
    env.publish(&first).await;
    assert!(is_one_completed_run(&env.ended(lonely.occurrence_id).await));
    assert!(is_one_completed_run(&env.ended(first.occurrence_id).await));
    until("the server is asked", async || env.claim_server().has_request_for(copy.occurrence_id)).await;
    worker.stop().await;
    assert_eq!(counter.runs(), 2);
    assert!(env.claim_server().has_request_for(lonely.occurrence_id));
    assert!(!env.claim_server().has_request_for(first.occurrence_id), "a first copy costs no question");
    assert_eq!(env.queue(&env.topology.job_queue("w", "count")).await, Some((0, 0)));
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_is_acknowledged_only_after_its_start_is_confirmed() {
    let mut env = WorkerTestEnv::new().await;
    let hold = ConfirmHold::start(&mut env).await;
    let counter = CountingJob::new(true);
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    hold.set(true);
    let messages = [env.message("count", no_input()), env.message("count", no_input())];
    env.publish(&messages[0]).await;
    env.publish(&messages[1]).await;
    until("the first one runs", async || counter.runs() == 1).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    // The type takes one delivery at a time, so the second stays where it is until the first is acknowledged.
    let queue = env.topology.job_queue("w", "count");
    assert_eq!(env.queue(&queue).await, Some((1, 1)));
    assert_eq!(counter.runs(), 1, "the run began without waiting, but nothing was acknowledged");
    hold.set(false);
    for message in &messages {
        let reports = env.ended(message.occurrence_id).await;
        assert!(is_one_completed_run(&reports), "{reports:?}");
    }
    worker.stop().await;
    assert_eq!(env.queue(&queue).await, Some((0, 0)));
    env.clean(&["count"]).await;
}
