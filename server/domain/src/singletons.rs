//! Singleton loops: their view, made from what Redis and PostgreSQL have, and the alerts about loops without a leader.

use std::collections::{BTreeSet, HashMap};

use chrono::{DateTime, TimeDelta, Utc};
use milvaion_api::{
    alerts::AlertCondition,
    singletons::{EndedLoopRun, LoopDisabled, LoopInstance, LoopLeader, LoopStatus, SingletonLoop},
};
use milvaion_protocol::singleton::{LoopState, MAX_LOOP_ERROR_BYTES};

use super::alerting::{ActiveRule, Finding};

/// The maximum length of a text that a leader publishes, in bytes, except for its error.
const MAX_TEXT_BYTES: usize = 200;
/// The lease that counts for a loop that no instance has led, in milliseconds: the default of workers.
const DEFAULT_LEASE_MS: u64 = 10_000;

/// The keys of a loop in Redis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoopKeys {
    /// The name.
    pub name: String,
    /// The time of the last heartbeat of any instance, in milliseconds since 1970; none if Redis has lost it.
    pub last_seen_ms: Option<i64>,
    /// The value of the lease, `{instance}:{epoch}`; none if it is free.
    pub lease: Option<String>,
    /// The time to live of the lease in milliseconds.
    pub lease_remaining_ms: i64,
    /// The highest epoch that was granted.
    pub epoch: u64,
    /// The instance that wrote the state.
    pub state_instance: String,
    /// The time of the state, in milliseconds since 1970.
    pub updated_at_ms: Option<i64>,
    /// The state that the leader published.
    pub state: LoopState,
    /// The value of the key that disables the loop.
    pub disabled: Option<String>,
    /// The instance that is asked to yield.
    pub yield_from: Option<String>,
    /// The number of instances that offer the loop.
    pub instance_count: u64,
    /// The newest of these instances, with the time of the last heartbeat in milliseconds since 1970.
    pub instances: Vec<(String, i64)>,
}

/// The shortest time in milliseconds without a heartbeat after which an instance is not shown.
const MIN_SILENCE_MS: i64 = 10_000;

fn time(milliseconds: i64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_millis(milliseconds)
}

/// Returns the start of a text, with at most `limit` bytes.
fn start(text: &str, limit: usize) -> String {
    text[..text.floor_char_boundary(limit)].to_owned()
}

/// Returns the view of a loop. PostgreSQL decides whether it is disabled: the key in Redis may be missing for a moment.
#[must_use]
pub fn view(keys: &LoopKeys, disabled: Option<LoopDisabled>) -> SingletonLoop {
    let state = &keys.state;
    let leader = keys.lease.as_deref().map(|lease| leader(lease, keys));
    let instances = live_instances(keys);
    let silent = (keys.instances.len() - instances.len()) as u64;
    let instance_count = keys.instance_count.saturating_sub(silent);
    let status = match (&disabled, &leader, instance_count) {
        (Some(_), ..) => LoopStatus::Disabled,
        (None, Some(_), _) => LoopStatus::Leading,
        (None, None, 0) => LoopStatus::NotOffered,
        (None, None, _) => LoopStatus::NoLeader,
    };
    let is_yield_requested =
        leader.as_ref().is_some_and(|leader| keys.yield_from.as_ref() == Some(&leader.instance_id));
    SingletonLoop {
        name: keys.name.clone(),
        status,
        is_enabled: disabled.is_none(),
        disabled,
        epoch: leader.as_ref().map_or(keys.epoch, |leader| leader.epoch.max(keys.epoch)),
        is_yield_requested,
        lease_ms: state.lease_ms,
        heartbeat_ms: state.heartbeat_ms,
        kind: state.kind,
        schedule: start(&state.schedule, MAX_TEXT_BYTES),
        ticks: state.ticks,
        runs: state.runs,
        dropped: state.dropped,
        errors: state.errors,
        p50_ms: state.p50_ms,
        p99_ms: state.p99_ms,
        late_p50_ms: state.late_p50_ms,
        late_p99_ms: state.late_p99_ms,
        // What ran when the last leader stopped does not run any more.
        running_since: state.running_since.filter(|_| leader.is_some()).and_then(time),
        last_started_at: state.last_start.and_then(time),
        last_ended_at: state.last_end.and_then(time),
        recent: state
            .recent
            .iter()
            .filter_map(|run| {
                let (duration_ms, late_ms, outcome) = (run.duration_ms, run.late_ms, run.outcome);
                Some(EndedLoopRun { started_at: time(run.start)?, duration_ms, late_ms, outcome })
            })
            .collect(),
        last_error: state.last_error.as_deref().map(|text| start(text, MAX_LOOP_ERROR_BYTES)),
        last_error_at: state.last_error_at.and_then(time),
        updated_at: keys.updated_at_ms.and_then(time),
        instance_count,
        instances: instances
            .iter()
            .filter_map(|(id, at)| Some(LoopInstance { id: start(id, MAX_TEXT_BYTES), last_heartbeat_at: time(*at)? }))
            .collect(),
        last_seen_at: keys.last_seen_ms.and_then(time),
        leader,
    }
}

/// Returns the instances that have not missed some heartbeats. Redis lists a killed instance for a minute, and an operator
/// must not hand a loop over to it. The newest heartbeat counts as now, so that no other clock is compared.
fn live_instances(keys: &LoopKeys) -> Vec<&(String, i64)> {
    let heartbeats = i64::try_from(keys.state.heartbeat_ms.saturating_mul(3)).unwrap_or(i64::MAX);
    let limit = heartbeats.max(MIN_SILENCE_MS);
    let newest = keys.instances.iter().map(|(_, at)| *at).max().unwrap_or_default();
    keys.instances.iter().filter(|(_, at)| newest.saturating_sub(*at) <= limit).collect()
}

/// Returns the holder of a lease. What another instance published about itself is left out.
fn leader(lease: &str, keys: &LoopKeys) -> LoopLeader {
    let (instance, epoch) = lease.rsplit_once(':').unwrap_or((lease, "0"));
    let published = (keys.state_instance == instance).then_some(&keys.state);
    let text = |of: fn(&LoopState) -> &String| published.map(|state| start(of(state), MAX_TEXT_BYTES));
    LoopLeader {
        instance_id: start(instance, MAX_TEXT_BYTES),
        worker_id: text(|state| &state.worker_id).unwrap_or_default(),
        host: text(|state| &state.host).unwrap_or_default(),
        epoch: epoch.parse().unwrap_or_default(),
        since: published.and_then(|state| time(state.since)),
        lease_remaining_ms: u64::try_from(keys.lease_remaining_ms).unwrap_or_default(),
    }
}

/// The enabled loops without a leader, each with the time since when it has been observed to have none.
#[derive(Clone, Debug, Default)]
pub struct LeaderlessLoops(HashMap<String, DateTime<Utc>>);

impl LeaderlessLoops {
    /// Updates the loops with an observation at `now`. A loop that has a leader, is disabled or does not exist any more is
    /// removed.
    pub fn observe(&mut self, loops: &[SingletonLoop], now: DateTime<Utc>) {
        let leaderless: BTreeSet<&str> = loops
            .iter()
            .filter(|row| matches!(row.status, LoopStatus::NoLeader | LoopStatus::NotOffered))
            .map(|row| row.name.as_str())
            .collect();
        self.0.retain(|name, _| leaderless.contains(name.as_str()));
        for name in leaderless {
            self.0.entry(name.to_owned()).or_insert(now);
        }
    }

    /// Returns what the rules find among these loops at `now`.
    #[must_use]
    pub fn find(&self, rules: &[ActiveRule], loops: &[SingletonLoop], now: DateTime<Utc>) -> Vec<Finding> {
        let mut findings = Vec::new();
        for rule in rules {
            let AlertCondition::LoopWithoutLeader { loop_seconds, loops: names } = &rule.definition.condition else {
                continue;
            };
            for row in loops.iter().filter(|row| names.is_empty() || names.contains(&row.name)) {
                let Some(since) = self.0.get(&row.name) else { continue };
                let lease_ms = if row.lease_ms == 0 { DEFAULT_LEASE_MS } else { row.lease_ms };
                let twice = i64::try_from(lease_ms.saturating_mul(2)).unwrap_or(i64::MAX);
                let limit_ms = loop_seconds.map_or(twice, |seconds| i64::from(seconds) * 1_000);
                if now - *since >= TimeDelta::try_milliseconds(limit_ms).unwrap_or(TimeDelta::MAX) {
                    findings.push(finding(rule, row, *since, now));
                }
            }
        }
        findings
    }
}

fn finding(rule: &ActiveRule, row: &SingletonLoop, since: DateTime<Utc>, now: DateTime<Utc>) -> Finding {
    let detail = if row.instance_count == 0 {
        "No instance offers it. Start a worker that does, or forget the loop if it is no longer needed.".to_owned()
    } else {
        let noun = if row.instance_count == 1 { "instance offers" } else { "instances offer" };
        format!("{} {noun} it, and none holds the lease. The log of its worker has the cause.", row.instance_count)
    };
    Finding {
        rule_id: rule.id,
        group_key: format!("loop:{}", row.name),
        title: format!("Singleton loop {} has no leader", row.name),
        detail,
        job: None,
        occurrence_id: None,
        count: 1,
        first_at: since,
        last_at: now,
    }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::singleton::{LoopOutcome, LoopRun};

    use super::*;
    use crate::alerting::tests::rule;

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(second)
    }

    fn keys() -> LoopKeys {
        LoopKeys {
            name: "price-feed".into(),
            lease: Some("host:7:a:12".into()),
            lease_remaining_ms: 9_000,
            epoch: 12,
            state_instance: "host:7:a".into(),
            state: LoopState {
                worker_id: "prices".into(),
                since: 5_000,
                running_since: Some(6_000),
                recent: vec![LoopRun { start: 4_000, duration_ms: 1.0, late_ms: 0.0, outcome: LoopOutcome::Ok }],
                last_error: Some("é".repeat(400)),
                ..LoopState::default()
            },
            yield_from: Some("host:7:a".into()),
            instance_count: 1,
            instances: vec![("host:7:a".into(), 6_000)],
            ..LoopKeys::default()
        }
    }

    fn without_leader(status: LoopStatus) -> SingletonLoop {
        let instance_count = u64::from(status == LoopStatus::NoLeader);
        SingletonLoop { name: "price-feed".into(), status, instance_count, lease_ms: 5_000, ..SingletonLoop::default() }
    }

    #[test]
    fn leader_is_the_holder_of_the_lease() {
        let led = view(&keys(), None);
        let leader = led.leader.as_ref().expect("a leader");
        assert_eq!((leader.instance_id.as_str(), leader.epoch, leader.since), ("host:7:a", 12, Some(at(5))));
        assert_eq!((led.status, led.running_since, led.is_yield_requested), (LoopStatus::Leading, Some(at(6)), true));
        assert!(led.last_error.is_some_and(|text| text.len() <= MAX_LOOP_ERROR_BYTES));

        let other = view(&LoopKeys { state_instance: "host:7:b".into(), ..keys() }, None);
        let leader = other.leader.expect("a leader");
        assert_eq!((leader.worker_id.as_str(), leader.since), ("", None), "the state is that of another instance");
    }

    #[test]
    fn killed_instance_is_not_on_standby() {
        let instances =
            vec![("host:7:a".to_owned(), 60_000), ("killed".to_owned(), 49_999), ("slow".to_owned(), 50_000)];
        let shown = view(&LoopKeys { instance_count: 3, instances, ..keys() }, None);
        let ids: Vec<_> = shown.instances.iter().map(|instance| instance.id.as_str()).collect();
        assert_eq!((shown.instance_count, ids), (2, vec!["host:7:a", "slow"]));
    }

    #[test]
    fn status_follows_lease_instances_and_disabling() {
        let free = LoopKeys { lease: None, ..keys() };
        let none = LoopKeys { lease: None, instance_count: 0, ..keys() };
        let disabled = LoopDisabled { at: at(1), by: "ada@example.org".into() };
        assert_eq!(view(&free, None).status, LoopStatus::NoLeader);
        assert_eq!(view(&free, None).running_since, None, "its leader is gone");
        assert_eq!(view(&none, None).status, LoopStatus::NotOffered);
        let stopping = view(&keys(), Some(disabled));
        assert_eq!((stopping.status, stopping.is_enabled), (LoopStatus::Disabled, false));
        assert!(stopping.leader.is_some(), "it leads until its next heartbeat");
    }

    #[test]
    fn loop_without_leader_is_found_after_twice_its_lease() {
        let condition = |loop_seconds, loops: &[&str]| AlertCondition::LoopWithoutLeader {
            loop_seconds,
            loops: loops.iter().map(|name| (*name).to_owned()).collect(),
        };
        let mut leaderless = LeaderlessLoops::default();
        let loops = [without_leader(LoopStatus::NoLeader)];
        leaderless.observe(&loops, at(100));
        leaderless.observe(&loops, at(105));
        let found = |condition, second| leaderless.find(&[rule(1, condition)], &loops, at(second)).len();
        assert_eq!([found(condition(None, &[]), 109), found(condition(None, &[]), 110)], [0, 1]);
        assert_eq!([found(condition(Some(60), &[]), 159), found(condition(Some(60), &[]), 160)], [0, 1]);
        assert_eq!(found(condition(None, &["orders"]), 999), 0);
        assert_eq!(found(condition(None, &["orders", "price-feed"]), 999), 1);

        let mut later = leaderless.clone();
        for status in [LoopStatus::Leading, LoopStatus::Disabled] {
            later.observe(&[without_leader(status)], at(200));
            later.observe(&loops, at(201));
            assert_eq!(later.find(&[rule(1, condition(None, &[]))], &loops, at(202)), [], "it begins anew: {status:?}");
        }
        later.observe(&[], at(300));
        assert!(later.0.is_empty(), "it was forgotten");
    }

    #[test]
    fn finding_says_what_to_do() {
        let mut leaderless = LeaderlessLoops::default();
        let loops = [without_leader(LoopStatus::NotOffered)];
        leaderless.observe(&loops, at(0));
        let rule = rule(1, AlertCondition::LoopWithoutLeader { loop_seconds: None, loops: vec![] });
        let found = leaderless.find(&[rule], &loops, at(60));
        assert_eq!(found[0].title, "Singleton loop price-feed has no leader");
        assert!(found[0].detail.contains("forget the loop"), "{}", found[0].detail);
    }
}
