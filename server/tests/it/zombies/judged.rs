//! When a run counts as lost, and what becomes of it then.

use chrono::{DateTime, Duration, Utc};
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_server::{
    background::lease::{LEADER, Leadership},
    store::{leases::Fence, lost::Settled},
};

use super::bench::Bench;

#[tokio::test]
async fn mv13_a_run_whose_worker_fell_silent_is_run_again_within_twenty_seconds() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let id = bench.running("requeue", "w-1").await;
    assert_eq!(bench.pass(14, true).await.requeued, 0);
    assert_eq!(bench.pass(4, true).await.requeued, 1);
    let view = bench.view(id).await;
    assert_eq!((view.row.status, view.row.attempt), (OccurrenceStatus::Queued, 2));
    assert_eq!((view.row.instance_id, view.row.started_at, view.published_at), (None, None, None));
    let step = view.changes.last().expect("a step");
    assert!(step.note.as_deref().is_some_and(|note| note.contains("its worker fell silent")), "{step:?}");
    assert_eq!(step.attempt, 2);
    bench.zombies.republish.notified().await;

    // The first worker comes back and speaks of an attempt that is over.
    assert_eq!(bench.report(id, 1, "w-1", OccurrenceStatus::Completed).await, 0);
    assert_eq!(bench.report(id, 2, "w-2", OccurrenceStatus::Completed).await, 1);
    assert_eq!(bench.status(id).await, (OccurrenceStatus::Completed, 2));
}

#[tokio::test]
async fn a_worker_that_speaks_of_its_run_keeps_it_for_ever() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let id = bench.running("requeue", "w-1").await;
    for _ in 0..30 {
        assert_eq!(bench.pass(4, true).await.requeued, 0);
        bench.beat("w-1", &[id]).await;
    }
    assert_eq!(bench.status(id).await, (OccurrenceStatus::Running, 1));
    // It lives on, but no longer speaks of this run: started anew, say.
    bench.beat("w-1", &[]).await;
    let mut lost = 0;
    for _ in 0..5 {
        lost += bench.pass(4, true).await.requeued;
        bench.beat("w-1", &[]).await;
    }
    assert_eq!(lost, 1);
    assert_eq!(bench.status(id).await, (OccurrenceStatus::Queued, 2));
}

#[tokio::test]
async fn a_server_that_heard_nothing_for_two_minutes_blames_nobody() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let id = bench.running("requeue", "w-1").await;
    assert_eq!(bench.pass(120, false).await.requeued, 0);
    // It hears again: everybody has the whole limit to be heard of.
    assert_eq!(bench.pass(14, true).await.requeued, 0);
    bench.beat("w-1", &[id]).await;
    assert_eq!(bench.pass(4, true).await.requeued, 0);
    assert_eq!(bench.status(id).await, (OccurrenceStatus::Running, 1));
    assert_eq!(bench.pass(14, true).await.requeued, 1, "who stays silent is lost");
}

#[tokio::test]
async fn by_a_clock_that_was_just_set_nobody_is_silent() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let id = bench.running("requeue", "w-1").await;
    // It is ten minutes later all of a sudden, and the next heartbeat may be written by another server's clock.
    bench.clock.advance(Duration::minutes(10));
    bench.clock.hold();
    assert_eq!(bench.pass(60, true).await.requeued, 0);
    bench.beat("w-1", &[id]).await;
    assert_eq!(bench.pass(44, true).await.requeued, 0);
    assert_eq!(bench.status(id).await, (OccurrenceStatus::Running, 1));
    assert_eq!(bench.pass(14, true).await.requeued, 1, "who stays silent is lost");
}

#[tokio::test]
async fn a_server_that_lost_its_term_while_it_looked_settles_nothing() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let id = bench.running("requeue", "w-1").await;
    bench.leads.send_replace(Leadership::Follower);
    assert_eq!(bench.pass(30, true).await.requeued, 0);
    assert_eq!(bench.status(id).await, (OccurrenceStatus::Running, 1));
    bench.leads.send_replace(Leadership::Nobody);
    assert_eq!(bench.pass(2, true).await.requeued, 1, "where nobody can lead, everybody may");
}

#[tokio::test]
async fn a_run_that_ended_four_workers_lives_is_not_given_to_a_fifth() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let id = bench.running("requeue", "w-1").await;
    for attempt in 2..=4 {
        assert_eq!(bench.pass(18, true).await.requeued, 1, "attempt {attempt}");
        bench.start(id, attempt, "w-1").await;
    }
    let judged = bench.pass(18, true).await;
    assert_eq!((judged.requeued, judged.ended), (0, 1));
    assert_eq!(bench.status(id).await, (OccurrenceStatus::Failed, 4));
    bench.zombies.release.notified().await;
    let kept = format!("SELECT count(*) FROM failed_occurrences WHERE occurrence_id = '{id}' AND cause = 'poison'");
    assert_eq!(bench.count(&kept).await, 1);
    assert_eq!(bench.count("SELECT coalesce(sum(count), 0)::bigint FROM stats_minute WHERE status = 3").await, 1);
}

#[tokio::test]
async fn a_run_that_must_not_be_repeated_waits_ten_minutes_for_a_late_word() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let (one, two) = (bench.running("fail", "w-1").await, bench.running("fail", "w-2").await);
    assert_eq!(bench.pass(18, true).await.unknown, 2);
    let view = bench.view(one).await;
    assert_eq!((view.row.status, view.row.attempt), (OccurrenceStatus::Unknown, 1));
    assert!(view.row.note.as_deref().is_some_and(|note| note.contains("its worker fell silent")));
    assert_eq!(bench.report(one, 1, "w-1", OccurrenceStatus::Completed).await, 1, "late, but it counts");
    assert_eq!(bench.status(one).await.0, OccurrenceStatus::Completed);

    assert_eq!(bench.pass(580, true).await.ended, 0);
    assert_eq!(bench.status(two).await.0, OccurrenceStatus::Unknown);
    assert_eq!(bench.pass(30, true).await.ended, 1);
    assert_eq!(bench.status(two).await.0, OccurrenceStatus::Failed);
    let kept = format!("SELECT count(*) FROM failed_occurrences WHERE occurrence_id = '{two}' AND cause = 'lost'");
    assert_eq!(bench.count(&kept).await, 1);
    assert_eq!(bench.report(two, 1, "w-2", OccurrenceStatus::Completed).await, 0, "too late");
}

#[tokio::test]
async fn a_lost_run_that_somebody_wanted_to_end_has_ended() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let id = bench.running("requeue", "w-1").await;
    bench.set(id, "cancel_requested_at = now(), cancel_requested_by = 'ana@example.org'").await;
    assert_eq!(bench.pass(18, true).await.ended, 1);
    assert_eq!(bench.status(id).await, (OccurrenceStatus::Cancelled, 1));
}

#[tokio::test]
async fn a_jobs_own_limit_counts() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let id = bench.running("requeue", "w-1").await;
    bench.set(id, "zombie_timeout_seconds = 60").await;
    assert_eq!(bench.pass(56, true).await.requeued, 0);
    assert_eq!(bench.pass(6, true).await.requeued, 1);
}

#[tokio::test]
async fn a_sign_of_life_between_the_look_and_the_deed_saves_the_run_and_an_old_leader_settles_nothing() {
    let bench = Bench::new().await;
    let id = bench.running("requeue", "w-1").await;
    let seen: DateTime<Utc> = bench.clock.now();
    let settled = |sign| Settled {
        id,
        attempt: 1,
        was: OccurrenceStatus::Running,
        sign: Some(sign),
        status: OccurrenceStatus::Queued,
        note: "its worker fell silent".into(),
        cause: None,
        takes_turn: false,
    };
    bench.clock.advance(Duration::seconds(5));
    bench.beat("w-1", &[id]).await;
    let now = bench.clock.now();
    assert!(bench.store.settle_lost(&[settled(seen)], None, now).await.expect("answered").rows.is_empty());

    let old: Fence = bench.store.take_lease(LEADER, "one", now).await.expect("answered");
    let new = bench.store.take_lease(LEADER, "two", now).await.expect("answered");
    assert!(bench.store.settle_lost(&[settled(now)], Some(old), now).await.expect("answered").rows.is_empty());
    assert_eq!(bench.status(id).await, (OccurrenceStatus::Running, 1));
    assert_eq!(bench.store.settle_lost(&[settled(now)], Some(new), now).await.expect("answered").rows.len(), 1);
    assert!(bench.store.settle_lost(&[settled(now)], Some(new), now).await.expect("answered").rows.is_empty(), "once");
}

#[tokio::test]
async fn a_settled_run_gives_its_slot_back_and_starts_the_pause_after_it() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let id = bench.running("requeue", "w-1").await;
    let job = bench.view(id).await.row.job_id;
    bench.set(id, "rescues = 3, pause_after_seconds = 60").await;
    bench.count(&format!(
        "WITH s AS (INSERT INTO slots (occurrence_id, created_at, job_id, priority, is_taken) VALUES ('{id}', now(), '{job}', 3, true) RETURNING 1),
              j AS (UPDATE jobs SET schedule = '{{\"kind\": \"every\", \"seconds\": 60, \"from\": \"end\"}}' WHERE id = '{job}' RETURNING 1)
         SELECT count(*) FROM s, j"
    ))
    .await;
    assert_eq!(bench.pass(18, true).await.ended, 1);
    assert_eq!(bench.count("SELECT count(*) FROM slots").await, 0);
    // The releaser, which is woken here, begins the pause.
    bench.zombies.release.notified().await;
    let now = bench.view(id).await.row.ended_at.expect("ended");
    let begun = bench.store.begin_pauses(now).await.expect("answered");
    assert_eq!(begun, [(job, now + Duration::seconds(60))]);
}
