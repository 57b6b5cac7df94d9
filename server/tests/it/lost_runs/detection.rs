//! When a run counts as lost, and what becomes of it then.

use chrono::{DateTime, Duration, Utc};
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_server::{
    background::lease::{LEADER_ROLE, Leadership},
    store::{leases::FencingToken, lost_runs::LostRunUpdate},
};

use super::harness::LostRunHarness;

#[tokio::test]
async fn mv13_a_run_whose_worker_fell_silent_is_run_again_within_twenty_seconds() {
    let mut harness = LostRunHarness::new().await;
    harness.pass(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    assert_eq!(harness.pass(14, true).await.requeued, 0);
    assert_eq!(harness.pass(4, true).await.requeued, 1);
    let view = harness.view(id).await;
    assert_eq!((view.row.status, view.row.attempt), (OccurrenceStatus::Queued, 2));
    assert_eq!((view.row.instance_id, view.row.started_at, view.published_at), (None, None, None));
    let step = view.changes.last().expect("a step");
    assert!(step.note.as_deref().is_some_and(|note| note.contains("its worker fell silent")), "{step:?}");
    assert_eq!(step.attempt, 2);
    harness.zombies.activate_republisher.notified().await;

    // The first worker comes back and speaks of an attempt that is over.
    assert_eq!(harness.report(id, 1, "w-1", OccurrenceStatus::Completed).await, 0);
    assert_eq!(harness.report(id, 2, "w-2", OccurrenceStatus::Completed).await, 1);
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Completed, 2));
}

#[tokio::test]
async fn a_worker_that_speaks_of_its_run_keeps_it_for_ever() {
    let mut harness = LostRunHarness::new().await;
    harness.pass(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    for _ in 0..30 {
        assert_eq!(harness.pass(4, true).await.requeued, 0);
        harness.beat("w-1", &[id]).await;
    }
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Running, 1));
    // It lives on, but no longer speaks of this run: started anew, say.
    harness.beat("w-1", &[]).await;
    let mut lost = 0;
    for _ in 0..5 {
        lost += harness.pass(4, true).await.requeued;
        harness.beat("w-1", &[]).await;
    }
    assert_eq!(lost, 1);
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Queued, 2));
}

#[tokio::test]
async fn a_server_that_heard_nothing_for_two_minutes_blames_nobody() {
    let mut harness = LostRunHarness::new().await;
    harness.pass(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    assert_eq!(harness.pass(120, false).await.requeued, 0);
    // It hears again: everybody has the whole limit to be heard of.
    assert_eq!(harness.pass(14, true).await.requeued, 0);
    harness.beat("w-1", &[id]).await;
    assert_eq!(harness.pass(4, true).await.requeued, 0);
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Running, 1));
    assert_eq!(harness.pass(14, true).await.requeued, 1, "who stays silent is lost");
}

#[tokio::test]
async fn by_a_clock_that_was_just_set_nobody_is_silent() {
    let mut harness = LostRunHarness::new().await;
    harness.pass(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    // It is ten minutes later all of a sudden, and the next heartbeat may be written by another server's clock.
    harness.clock.advance(Duration::minutes(10));
    harness.clock.hold();
    assert_eq!(harness.pass(60, true).await.requeued, 0);
    harness.beat("w-1", &[id]).await;
    assert_eq!(harness.pass(44, true).await.requeued, 0);
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Running, 1));
    assert_eq!(harness.pass(14, true).await.requeued, 1, "who stays silent is lost");
}

#[tokio::test]
async fn a_server_that_lost_its_term_while_it_looked_settles_nothing() {
    let mut harness = LostRunHarness::new().await;
    harness.pass(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    harness.leads.send_replace(Leadership::Follower);
    assert_eq!(harness.pass(30, true).await.requeued, 0);
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Running, 1));
    harness.leads.send_replace(Leadership::Leaderless);
    assert_eq!(harness.pass(2, true).await.requeued, 1, "where nobody can lead, everybody may");
}

#[tokio::test]
async fn a_run_that_ended_four_workers_lives_is_not_given_to_a_fifth() {
    let mut harness = LostRunHarness::new().await;
    harness.pass(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    for attempt in 2..=4 {
        assert_eq!(harness.pass(18, true).await.requeued, 1, "attempt {attempt}");
        harness.start(id, attempt, "w-1").await;
    }
    let judged = harness.pass(18, true).await;
    assert_eq!((judged.requeued, judged.ended), (0, 1));
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Failed, 4));
    harness.zombies.activate_slot_granter.notified().await;
    let kept = format!("SELECT count(*) FROM failed_occurrences WHERE occurrence_id = '{id}' AND cause = 'poison'");
    assert_eq!(harness.count(&kept).await, 1);
    assert_eq!(harness.count("SELECT coalesce(sum(count), 0)::bigint FROM stats_minute WHERE status = 3").await, 1);
}

#[tokio::test]
async fn a_run_that_must_not_be_repeated_waits_ten_minutes_for_a_late_word() {
    let mut harness = LostRunHarness::new().await;
    harness.pass(30, true).await;
    let (one, two) = (harness.running("fail", "w-1").await, harness.running("fail", "w-2").await);
    assert_eq!(harness.pass(18, true).await.unknown, 2);
    let view = harness.view(one).await;
    assert_eq!((view.row.status, view.row.attempt), (OccurrenceStatus::Unknown, 1));
    assert!(view.row.note.as_deref().is_some_and(|note| note.contains("its worker fell silent")));
    assert_eq!(harness.report(one, 1, "w-1", OccurrenceStatus::Completed).await, 1, "late, but it counts");
    assert_eq!(harness.status(one).await.0, OccurrenceStatus::Completed);

    assert_eq!(harness.pass(580, true).await.ended, 0);
    assert_eq!(harness.status(two).await.0, OccurrenceStatus::Unknown);
    assert_eq!(harness.pass(30, true).await.ended, 1);
    assert_eq!(harness.status(two).await.0, OccurrenceStatus::Failed);
    let kept = format!("SELECT count(*) FROM failed_occurrences WHERE occurrence_id = '{two}' AND cause = 'lost'");
    assert_eq!(harness.count(&kept).await, 1);
    assert_eq!(harness.report(two, 1, "w-2", OccurrenceStatus::Completed).await, 0, "too late");
}

#[tokio::test]
async fn a_lost_run_that_somebody_wanted_to_end_has_ended() {
    let mut harness = LostRunHarness::new().await;
    harness.pass(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    harness.set(id, "cancel_requested_at = now(), cancel_requested_by = 'ana@example.org'").await;
    assert_eq!(harness.pass(18, true).await.ended, 1);
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Cancelled, 1));
}

#[tokio::test]
async fn a_jobs_own_limit_counts() {
    let mut harness = LostRunHarness::new().await;
    harness.pass(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    harness.set(id, "heartbeat_timeout_seconds = 60").await;
    assert_eq!(harness.pass(56, true).await.requeued, 0);
    assert_eq!(harness.pass(6, true).await.requeued, 1);
}

#[tokio::test]
async fn a_sign_of_life_between_the_look_and_the_deed_saves_the_run_and_an_old_leader_settles_nothing() {
    let harness = LostRunHarness::new().await;
    let id = harness.running("requeue", "w-1").await;
    let seen: DateTime<Utc> = harness.clock.now();
    let settled = |sign| LostRunUpdate {
        id,
        attempt: 1,
        was: OccurrenceStatus::Running,
        last_seen_at: Some(sign),
        status: OccurrenceStatus::Queued,
        note: "its worker fell silent".into(),
        cause: None,
        is_quarantined: false,
    };
    harness.clock.advance(Duration::seconds(5));
    harness.beat("w-1", &[id]).await;
    let now = harness.clock.now();
    assert!(harness.store.update_lost_runs(&[settled(seen)], None, now).await.expect("answered").rows.is_empty());

    let old: FencingToken = harness.store.take_lease(LEADER_ROLE, "one", now).await.expect("answered");
    let new = harness.store.take_lease(LEADER_ROLE, "two", now).await.expect("answered");
    assert!(harness.store.update_lost_runs(&[settled(now)], Some(old), now).await.expect("answered").rows.is_empty());
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Running, 1));
    assert_eq!(harness.store.update_lost_runs(&[settled(now)], Some(new), now).await.expect("answered").rows.len(), 1);
    assert!(
        harness.store.update_lost_runs(&[settled(now)], Some(new), now).await.expect("answered").rows.is_empty(),
        "once"
    );
}

#[tokio::test]
async fn a_settled_run_gives_its_slot_back_and_starts_the_pause_after_it() {
    let mut harness = LostRunHarness::new().await;
    harness.pass(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    let job = harness.view(id).await.row.job_id;
    harness.set(id, "rescues = 3, pause_after_seconds = 60").await;
    harness.count(&format!(
        "WITH s AS (INSERT INTO slots (occurrence_id, created_at, job_id, priority, is_taken) VALUES ('{id}', now(), '{job}', 3, true) RETURNING 1),
              j AS (UPDATE jobs SET schedule = '{{\"kind\": \"every\", \"seconds\": 60, \"from\": \"end\"}}' WHERE id = '{job}' RETURNING 1)
         SELECT count(*) FROM s, j"
    ))
    .await;
    assert_eq!(harness.pass(18, true).await.ended, 1);
    assert_eq!(harness.count("SELECT count(*) FROM slots").await, 0);
    // The releaser, which is woken here, begins the pause.
    harness.zombies.activate_slot_granter.notified().await;
    let now = harness.view(id).await.row.ended_at.expect("ended");
    let begun = harness.store.schedule_after_end(now).await.expect("answered");
    assert_eq!(begun, [(job, now + Duration::seconds(60))]);
}
