//! A message that comes twice starts nothing twice, whatever broker and Redis do.

use std::{net::SocketAddr, time::Duration};

use milvaion_protocol::{message::ClaimDenial, status::OccurrenceStatus};

use crate::common::{CountingJob, SnoozingJob, WorkerTestEnv, ask, eventually, free_address, nothing, tell_of_one_run};

/// How many copies a worker has dropped so far.
async fn copies_dropped(health: SocketAddr) -> u32 {
    let (_, metrics) = ask(health.port(), "/metrics").await;
    let count = metrics.lines().find_map(|line| line.strip_prefix("milvaion_worker_copies_dropped_total "));
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_published_twice_runs_once() {
    let stack = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let workers = [
        stack.start(stack.worker().job(counter.clone()), "count").await,
        stack.start(stack.worker().job(counter.clone()), "count").await,
    ];
    let messages: Vec<_> = (0..20).map(|_| stack.message("count", nothing())).collect();
    for message in &messages {
        stack.publish(message).await;
        stack.publish(message).await;
    }
    for message in &messages {
        let reports = stack.ended(message.occurrence_id).await;
        assert!(tell_of_one_run(&reports), "{reports:?}");
    }
    // Late copies come after the end, and are dropped too. Two more, so that whoever gets it deals with it before.
    stack.publish(&messages[0]).await;
    for _ in 0..2 {
        let after = stack.message("count", nothing());
        stack.publish(&after).await;
        stack.ended(after.occurrence_id).await;
    }
    let queue = stack.topology.job_queue("w", "count");
    for worker in workers {
        worker.stop().await;
    }
    assert_eq!(counter.runs(), 22);
    // Whatever had not been acknowledged would be back by now.
    assert_eq!(stack.queue(&queue).await, Some((0, 0)));
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_higher_attempt_of_the_same_occurrence_runs() {
    let stack = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let worker = stack.start(stack.worker().job(counter.clone()), "count").await;
    let mut message = stack.message("count", nothing());
    stack.publish(&message).await;
    stack.ended(message.occurrence_id).await;
    message.attempt = 2;
    stack.publish(&message).await;
    eventually("the second attempt runs", async || counter.runs() == 2).await;
    message.attempt = 1;
    stack.publish(&message).await;
    // One at a time: when this one has ended, that one was dealt with.
    let after = stack.message("count", nothing());
    stack.publish(&after).await;
    stack.ended(after.occurrence_id).await;
    worker.stop().await;
    assert_eq!(counter.runs(), 3, "an older attempt does not run after a newer one");
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_dropped_when_its_holder_lives_and_reported_as_lost_when_it_has_died() {
    let stack = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let address = free_address();
    let worker = stack.start(stack.worker().health(address).job(counter.clone()), "count").await;
    let (orphan, twin, plain, late) = (
        stack.message("count", nothing()),
        stack.message("count", nothing()),
        stack.message("count", nothing()),
        stack.message("count", nothing()),
    );
    stack.claim(plain.occurrence_id, "w-living", 5_000).await;
    stack.publish(&plain).await;
    stack.claim(orphan.occurrence_id, "w-dead", 1_500).await;
    stack.republish(&orphan).await;
    let reports = stack.ended(orphan.occurrence_id).await;
    let said: Vec<_> = reports.iter().map(|report| (report.status, report.instance_id.as_str())).collect();
    assert_eq!(said, [(OccurrenceStatus::Unknown, "w-dead")], "perhaps it had begun: {reports:?}");
    // Nothing on this message says that it may be a copy; the server is asked nevertheless.
    stack.claim_for(late.occurrence_id, "w-dead", 23 * 3_600_000).await;
    stack.publish(&late).await;
    let reports = stack.ended(late.occurrence_id).await;
    assert_eq!(reports.iter().map(|report| report.status).collect::<Vec<_>>(), [OccurrenceStatus::Unknown]);
    assert!(stack.was_asked(late.occurrence_id));
    // It ended an hour ago, and the server has not heard of it: nobody will tell how.
    let untold = stack.message("count", nothing());
    stack.claim_for(untold.occurrence_id, "done", 23 * 3_600_000).await;
    stack.publish(&untold).await;
    let reports = stack.ended(untold.occurrence_id).await;
    assert_eq!(reports.iter().map(|report| report.status).collect::<Vec<_>>(), [OccurrenceStatus::Unknown]);
    assert!(stack.was_asked(untold.occurrence_id));

    let before = copies_dropped(address).await;
    let mut lease = 5_000;
    stack.claim(twin.occurrence_id, "w-living", lease).await;
    stack.republish(&twin).await;
    // Its holder renews its claim again and again.
    eventually("the copy is dropped", async || {
        lease += 1_000;
        stack.claim(twin.occurrence_id, "w-living", lease).await;
        copies_dropped(address).await > before
    })
    .await;
    let queue = stack.topology.job_queue("w", "count");
    worker.stop().await;
    assert_eq!(stack.queue(&queue).await, Some((0, 0)), "every copy was acknowledged");
    assert_eq!(counter.runs(), 0);
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_what_a_worker_without_marks_had_runs_when_its_lease_is_over() {
    let stack = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let worker = stack.start(stack.worker().job(counter.clone()), "count").await;
    let orphan = stack.message("count", nothing());
    stack.claim_for(orphan.occurrence_id, "other", 1_500).await;
    stack.republish(&orphan).await;
    assert!(tell_of_one_run(&stack.ended(orphan.occurrence_id).await));
    assert_eq!(counter.runs(), 1);
    worker.stop().await;
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_a_first_copy_starts_unless_the_server_says_that_it_was_cancelled() {
    let stack = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let (cancelled, plain) = (stack.message("count", nothing()), stack.message("count", nothing()));
    stack.deny(cancelled.occurrence_id, ClaimDenial::Cancelled);
    let copy = stack.message("count", nothing());
    stack.deny(copy.occurrence_id, ClaimDenial::Running);
    // Nobody listens there.
    let builder = stack.worker().redis_url("redis://127.0.0.1:1/0").job(counter.clone());
    let worker = stack.start(builder, "count").await;
    // The first question has a connection to open, for which a second may be too short; about a copy there is more time.
    stack.republish(&copy).await;
    eventually("the server is asked", async || stack.was_asked(copy.occurrence_id)).await;
    stack.publish(&cancelled).await;
    stack.publish(&plain).await;
    assert!(tell_of_one_run(&stack.ended(plain.occurrence_id).await));
    eventually("the server was asked", async || stack.was_asked(cancelled.occurrence_id)).await;
    worker.stop().await;
    assert_eq!(counter.runs(), 1);
    let queue = stack.topology.job_queue("w", "count");
    assert_eq!(stack.queue(&queue).await, Some((0, 0)), "what was cancelled is gone");
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_instance_sent_back_for_want_of_a_place_is_no_copy_when_it_comes_again() {
    let stack = WorkerTestEnv::new().await;
    let counter = CountingJob::new(false);
    // One place, and no Redis: a copy could not start.
    let address = free_address();
    let builder = stack.worker().redis_url("redis://127.0.0.1:1/0").capacity(1).health(address).job(counter.clone());
    let worker = stack.start(builder, "count").await;
    let messages: Vec<_> = (0..3).map(|_| stack.message("count", nothing())).collect();
    for message in &messages {
        stack.publish(message).await;
    }
    eventually("one runs", async || counter.runs() == 1).await;
    let nobody = "milvaion_worker_deliveries_sent_back_total 0";
    eventually("others are sent back", async || !ask(address.port(), "/metrics").await.1.contains(nobody)).await;
    counter.open();
    for message in &messages {
        assert!(tell_of_one_run(&stack.ended(message.occurrence_id).await));
    }
    worker.stop().await;
    assert_eq!(counter.runs(), 3);
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_what_snoozed_before_its_start_was_confirmed_is_dropped() {
    let mut stack = WorkerTestEnv::new().await;
    let hold = stack.hold_confirmations().await;
    let (first, second) = (SnoozingJob::default(), SnoozingJob::default());
    let ports = [free_address(), free_address()];
    let worker = stack.start(stack.worker().health(ports[0]).job(first.clone()), "snooze").await;
    let other = stack.start(stack.worker().health(ports[1]).job(second.clone()), "snooze").await;
    let message = stack.message("snooze", nothing());
    let runs = || first.runs() + second.runs();
    hold.set(true);
    stack.publish(&message).await;
    eventually("it snoozes", async || runs() == 1).await;
    let over = Some("done:1".to_owned());
    eventually("its end is marked", async || stack.claimed(message.occurrence_id).await == over).await;
    // The broker gives to each in turn: one of these comes to whoever did not have the first.
    stack.publish(&message).await;
    stack.publish(&message).await;
    hold.set(false);
    eventually("both copies are dealt with", async || {
        copies_dropped(ports[0]).await + copies_dropped(ports[1]).await + runs() == 3
    })
    .await;
    worker.stop().await;
    other.stop().await;
    assert_eq!(runs(), 1);
    stack.clean(&["snooze"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_was_handed_back_before_anybody_heard_of_it_begins_elsewhere() {
    let mut stack = WorkerTestEnv::new().await;
    let hold = stack.hold_confirmations().await;
    let (first, second) = (CountingJob::new(false), CountingJob::new(true));
    let worker = stack.start(stack.worker().shutdown_grace(Duration::ZERO).job(first.clone()), "count").await;
    let message = stack.message("count", nothing());
    hold.set(true);
    stack.publish(&message).await;
    eventually("it runs", async || first.runs() == 1).await;
    worker.stop().await;
    hold.set(false);
    // The broker was told of no start, so the message is there again; and so is the claim of who has gone.
    let worker = stack.start(stack.worker().job(second.clone()), "count").await;
    eventually("it runs again", async || second.runs() == 1).await;
    worker.stop().await;
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_run_of_which_is_heard_at_the_last_moment_is_nobody_elses() {
    let mut stack = WorkerTestEnv::new().await;
    let hold = stack.hold_confirmations().await;
    let (counter, address) = (CountingJob::new(false), free_address());
    let builder = stack.worker().shutdown_grace(Duration::ZERO).health(address).job(counter.clone());
    let worker = stack.start(builder, "count").await;
    let message = stack.message("count", nothing());
    hold.set(true);
    stack.publish(&message).await;
    eventually("it runs", async || counter.runs() == 1).await;
    worker.ask();
    let nothing_runs = r#"milvaion_worker_running{job_type="count"} 0"#;
    eventually("it is interrupted", async || ask(address.port(), "/metrics").await.1.contains(nothing_runs)).await;
    // Its start and its end get through while the worker waits for the last confirmations.
    hold.set(false);
    worker.stop().await;
    assert_eq!(stack.claimed(message.occurrence_id).await.as_deref(), Some("done:1"));
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_not_started_when_redis_has_forgotten_and_the_server_has_not() {
    let stack = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let worker = stack.start(stack.worker().job(counter.clone()), "count").await;
    let (copy, lonely, first) =
        (stack.message("count", nothing()), stack.message("count", nothing()), stack.message("count", nothing()));
    stack.deny(copy.occurrence_id, ClaimDenial::Running);
    stack.republish(&copy).await;
    // Sent again because its confirmation was lost: nobody ever had it.
    stack.republish(&lonely).await;
    stack.publish(&first).await;
    assert!(tell_of_one_run(&stack.ended(lonely.occurrence_id).await));
    assert!(tell_of_one_run(&stack.ended(first.occurrence_id).await));
    eventually("the server is asked", async || stack.was_asked(copy.occurrence_id)).await;
    worker.stop().await;
    assert_eq!(counter.runs(), 2);
    assert!(stack.was_asked(lonely.occurrence_id));
    assert!(!stack.was_asked(first.occurrence_id), "a first copy costs no question");
    assert_eq!(stack.queue(&stack.topology.job_queue("w", "count")).await, Some((0, 0)));
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_is_acknowledged_only_after_its_start_is_confirmed() {
    let mut stack = WorkerTestEnv::new().await;
    let hold = stack.hold_confirmations().await;
    let counter = CountingJob::new(true);
    let worker = stack.start(stack.worker().job(counter.clone()), "count").await;
    hold.set(true);
    let messages = [stack.message("count", nothing()), stack.message("count", nothing())];
    stack.publish(&messages[0]).await;
    stack.publish(&messages[1]).await;
    eventually("the first one runs", async || counter.runs() == 1).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    // The type takes one delivery at a time, so the second stays where it is until the first is acknowledged.
    let queue = stack.topology.job_queue("w", "count");
    assert_eq!(stack.queue(&queue).await, Some((1, 1)));
    assert_eq!(counter.runs(), 1, "the run began without waiting, but nothing was acknowledged");
    hold.set(false);
    for message in &messages {
        let reports = stack.ended(message.occurrence_id).await;
        assert!(tell_of_one_run(&reports), "{reports:?}");
    }
    worker.stop().await;
    assert_eq!(stack.queue(&queue).await, Some((0, 0)));
    stack.clean(&["count"]).await;
}
