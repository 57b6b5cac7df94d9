use std::collections::HashMap;

use super::*;
use crate::heartbeat_watch::HeartbeatLook;

const PERIOD: Duration = Duration::from_secs(2);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn stale_run(age: u64) -> StaleRun {
    StaleRun {
        id: OccurrenceId::default(),
        attempt: 1,
        last_seen_at: DateTime::UNIX_EPOCH,
        age: secs(age),
        is_listed: true,
        is_stopped: false,
        is_stopping: false,
        instance_id: Some("w-1".into()),
        is_unreported: false,
        heartbeat_timeout: secs(15),
        unreachable_timeout: secs(300),
        on_lost: LostRunRule::Requeue,
        requeues: 0,
        is_cancelled: false,
        unreadable_report: None,
    }
}

/// Creates a tracker that was updated every period up to second `upto`.
fn tracker_receiving(upto: u64) -> HeartbeatTracker {
    let mut tracker = HeartbeatTracker::new(PERIOD);
    for at in (0..=upto).step_by(2) {
        tracker.observe(secs(at), true);
    }
    tracker
}

/// Looks at the heartbeat of `w-1` in Redis every period. `value` returns the value at each second.
fn watch_seen(upto: u64, value: impl Fn(u64) -> Option<String>) -> HeartbeatWatch {
    let mut heartbeats = HeartbeatWatch::default();
    for at in (0..=upto).step_by(2) {
        let values = HashMap::from([("w-1".to_owned(), value(at))]);
        heartbeats.record(secs(at), Some(HeartbeatLook { is_same: true, values }));
    }
    heartbeats
}

/// Returns the lost runs among stale ones whose instance writes no heartbeat to Redis.
fn lost(tracker: &mut HeartbeatTracker, stale: Vec<StaleRun>) -> Vec<(StaleRun, SilenceVerdict)> {
    let judged = tracker.judge(stale, &watch_seen(30, |_| None));
    assert!(judged.iter().all(|(_, verdict)| *verdict == SilenceVerdict::Lost), "{judged:?}");
    judged
}

#[test]
fn decisions_follow_rule_requeues_and_cancel() {
    for (on_lost, requeues, is_cancelled, expected) in [
        (LostRunRule::Requeue, 0, false, LostRunDecision::Requeue),
        (LostRunRule::Requeue, 2, false, LostRunDecision::Requeue),
        (LostRunRule::Requeue, 3, false, LostRunDecision::Poison),
        (LostRunRule::Fail, 0, false, LostRunDecision::Unknown),
        (LostRunRule::Fail, 3, false, LostRunDecision::Unknown),
        (LostRunRule::Requeue, 0, true, LostRunDecision::Cancel),
        (LostRunRule::Fail, 0, true, LostRunDecision::Cancel),
    ] {
        let decision = |is_stopping| decide_lost_run(on_lost, requeues, is_cancelled, is_stopping);
        assert_eq!(decision(false), expected, "{on_lost:?} {requeues} {is_cancelled}");
        let with_a_stop = if is_cancelled { LostRunDecision::Cancel } else { LostRunDecision::Requeue };
        assert_eq!(decision(true), with_a_stop, "{on_lost:?} {requeues} {is_cancelled}");
    }
}

#[test]
fn time_observed_from_the_last_report_counts_in_full() {
    let mut tracker = tracker_receiving(100);
    assert!(lost(&mut tracker, vec![stale_run(7)]).is_empty());
    tracker.observe(secs(102), true);
    tracker.observe(secs(104), true);
    tracker.observe(secs(106), true);
    assert!(lost(&mut tracker, vec![stale_run(13)]).is_empty());
    tracker.observe(secs(108), true);
    assert_eq!(lost(&mut tracker, vec![stale_run(15)]).len(), 1);
}

#[test]
fn first_observation_grants_the_whole_timeout() {
    let mut tracker = tracker_receiving(0);
    for at in (2..=14).step_by(2) {
        tracker.observe(secs(at), true);
        assert!(lost(&mut tracker, vec![stale_run(600 + at)]).is_empty(), "at {at}");
    }
    tracker.observe(secs(16), true);
    assert_eq!(lost(&mut tracker, vec![stale_run(616)]).len(), 1);
}

#[test]
fn gap_in_reception_restarts_every_timeout() {
    let mut tracker = tracker_receiving(100);
    assert!(lost(&mut tracker, vec![stale_run(13)]).is_empty());
    tracker.observe(secs(102), false);
    assert!(lost(&mut tracker, vec![stale_run(600)]).is_empty());
    tracker.observe(secs(104), true);
    for at in (106..=118).step_by(2) {
        tracker.observe(secs(at), true);
        assert!(lost(&mut tracker, vec![stale_run(600)]).is_empty(), "at {at}");
    }
    tracker.observe(secs(120), true);
    assert_eq!(lost(&mut tracker, vec![stale_run(600)]).len(), 1);
}

#[test]
fn pause_of_the_server_does_not_count() {
    let mut tracker = tracker_receiving(100);
    assert!(lost(&mut tracker, vec![stale_run(13)]).is_empty());
    // Seven seconds late: counts as two.
    tracker.observe(secs(109), true);
    assert_eq!(tracker.observed_for(), secs(102));
    // A minute late: every timeout starts again.
    tracker.observe(secs(169), true);
    assert_eq!(tracker.observed_for(), Duration::ZERO);
    assert!(lost(&mut tracker, vec![stale_run(600)]).is_empty());
}

#[test]
fn reported_run_restarts_its_timeout() {
    let mut tracker = tracker_receiving(100);
    lost(&mut tracker, vec![stale_run(14)]);
    tracker.observe(secs(102), true);
    let later = StaleRun { last_seen_at: DateTime::UNIX_EPOCH + chrono::Duration::seconds(9), ..stale_run(7) };
    assert!(lost(&mut tracker, vec![later]).is_empty());
    tracker.observe(secs(104), true);
    lost(&mut tracker, Vec::new());
    tracker.observe(secs(106), true);
    assert!(lost(&mut tracker, vec![stale_run(14)]).is_empty(), "the first gap no longer counts");
}

#[test]
fn unreported_run_of_a_live_worker_gets_the_whole_timeout() {
    let mut tracker = tracker_receiving(100);
    let unreported = |age| StaleRun { is_unreported: true, is_listed: false, ..stale_run(age) };
    assert!(lost(&mut tracker, vec![unreported(3_600)]).is_empty());
    for at in (102..=114).step_by(2) {
        tracker.observe(secs(at), true);
        assert!(lost(&mut tracker, vec![unreported(3_600)]).is_empty(), "at {at}");
    }
    tracker.observe(secs(116), true);
    let lost = lost(&mut tracker, vec![unreported(3_600)]);
    let ages: Vec<_> = lost.iter().map(|(run, _)| run.age).collect();
    assert_eq!(ages, [secs(16)], "the time since the start report is not the time without a heartbeat");
}

#[test]
fn job_timeout_is_used_down_to_the_minimum() {
    for (limit, age, expected) in [(60, 58, 0), (60, 60, 1), (1, 14, 0), (1, 15, 1)] {
        let run = StaleRun { heartbeat_timeout: secs(limit), ..stale_run(age) };
        assert_eq!(lost(&mut tracker_receiving(100), vec![run]).len(), expected, "limit {limit}, age {age}");
    }
}

#[test]
fn verdict_follows_silence_and_watch() {
    use {HeartbeatState as Watch, SilenceVerdict as Verdict};
    for (silent, state, expected) in [
        (14, Watch::Still, Verdict::Wait),
        (15, Watch::Still, Verdict::Lost),
        (15, Watch::Changing, Verdict::Unreachable),
        (299, Watch::Changing, Verdict::Unreachable),
        (300, Watch::Changing, Verdict::Revoke),
        (15, Watch::Undecided, Verdict::Wait),
        (299, Watch::Unseen, Verdict::Wait),
        (300, Watch::Unseen, Verdict::Lost),
        (300, Watch::Undecided, Verdict::Lost),
    ] {
        assert_eq!(judge_silence(&stale_run(600), secs(silent), state), expected, "{silent} s, {state:?}");
    }
}

#[test]
fn verdict_depends_on_what_is_known_of_the_run() {
    let verdict = |run: StaleRun| judge_silence(&run, secs(300), HeartbeatState::Changing);
    let run = || stale_run(600);
    assert_eq!(verdict(StaleRun { is_stopped: true, ..run() }), SilenceVerdict::Lost);
    assert_eq!(verdict(StaleRun { is_unreported: true, ..run() }), SilenceVerdict::Lost);
    assert_eq!(verdict(StaleRun { on_lost: LostRunRule::Fail, ..run() }), SilenceVerdict::Lost);
    assert_eq!(verdict(StaleRun { unreachable_timeout: secs(301), ..run() }), SilenceVerdict::Unreachable);
    assert_eq!(verdict(StaleRun { heartbeat_timeout: secs(600), ..run() }), SilenceVerdict::Wait);
}

#[test]
fn revoked_run_is_lost_once_its_claim_is_released() {
    let step = |claim, revoked| revocation_step(&stale_run(600), claim, revoked);
    assert_eq!(step(Some("w-1:1"), None), RevocationStep::Request);
    assert_eq!(step(Some("w-1:1"), Some(2)), RevocationStep::Request);
    assert_eq!(step(None, Some(2)), RevocationStep::Released);
    assert_eq!(step(None, None), RevocationStep::Wait, "the worker makes no claims");
    assert_eq!(step(None, Some(1)), RevocationStep::Wait, "an earlier attempt was revoked");
    assert_eq!(step(Some("done:1"), Some(2)), RevocationStep::Wait, "the report of its end is at the worker");
}

#[test]
fn still_heartbeat_means_death_while_nothing_is_received() {
    let dead = |run, upto, value: fn(u64) -> Option<String>| dead_by_watch(vec![run], &watch_seen(upto, value)).len();
    assert_eq!(dead(stale_run(600), 58, |_| Some("1".into())), 0);
    assert_eq!(dead(stale_run(600), 60, |_| Some("1".into())), 1);
    assert_eq!(dead(stale_run(59), 60, |_| Some("1".into())), 0);
    assert_eq!(dead(stale_run(600), 600, |at| Some(at.to_string())), 0);
    assert_eq!(dead(stale_run(600), 600, |_| None), 0, "it may be an instance that writes no heartbeat");
    assert_eq!(dead(StaleRun { is_stopped: true, ..stale_run(600) }, 60, |_| Some("1".into())), 0);
}
