//! Decides from the heartbeats in Redis whether a worker instance is alive.
//!
//! An instance writes its heartbeat to RabbitMQ, for the server, and to Redis, for the other instances. If only the first is
//! missing, the instance may well be alive: the broker may accept no messages from it. Its runs then continue, and starting them
//! again would run them twice.
//!
//! That a key exists proves nothing, since a key outlives its writer until it expires, and a Redis whose clock was set back
//! keeps it for hours. That a key is missing proves nothing either, since Redis may have lost its data a second ago. So an
//! instance is alive if its value was *seen to change* between two looks, and silent if it did not change while the server
//! looked at the same Redis without a gap.

use std::{collections::HashMap, time::Duration};

/// The time for which Redis must have been seen without a gap before it counts: three heartbeats of an instance.
pub const MIN_SIGHT: Duration = Duration::from_secs(15);
/// The time after which a value that was never seen to change is the value of a silent instance: one heartbeat and a
/// margin.
const FIRST_CHANGE: Duration = Duration::from_secs(6);
/// The time after which a value that was seen to change is the value of a silent instance: three heartbeats.
const NEXT_CHANGE: Duration = Duration::from_secs(15);
/// The longest time between two looks. After a longer one the process may have been frozen.
const MAX_GAP: Duration = Duration::from_secs(10);

/// The state of an instance by its heartbeat in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatState {
    /// Redis has not been seen for long enough.
    Unseen,
    /// The value has not been watched for long enough.
    Undecided,
    /// The value changes.
    Changing,
    /// The value does not change, or there is none.
    Still,
}

/// What one look at Redis found.
#[derive(Clone, Debug, Default)]
pub struct HeartbeatLook {
    /// True if this is the Redis of the last look, and it has lost nothing since.
    pub is_same: bool,
    /// The values of the instances that are watched; `None` for a missing key.
    pub values: HashMap<String, Option<String>>,
}

/// The heartbeats in Redis of the instances whose messages are missing, from one look to the next.
#[derive(Clone, Debug, Default)]
pub struct HeartbeatWatch {
    last_look: Option<Duration>,
    seen_since: Option<Duration>,
    instances: HashMap<String, WatchedValue>,
}

#[derive(Clone, Debug)]
struct WatchedValue {
    value: Option<String>,
    /// The look at which the value was first seen as it is.
    since: Duration,
    has_changed: bool,
    /// True if there was a value at some look.
    has_existed: bool,
}

impl HeartbeatWatch {
    /// Records a look at the monotonic time `at`; `None` if Redis did not answer. Instances that the look does not name
    /// are no longer watched.
    pub fn record(&mut self, at: Duration, look: Option<HeartbeatLook>) {
        let was_away = self.last_look.is_none_or(|last| at.saturating_sub(last) > MAX_GAP);
        let Some(look) = look else {
            *self = Self::default();
            return;
        };
        self.last_look = Some(at);
        if was_away || !look.is_same {
            self.seen_since = Some(at);
            self.instances.clear();
        }
        let mut before = std::mem::take(&mut self.instances);
        for (instance, value) in look.values {
            let watched = match before.remove(&instance) {
                // A key that expires is no heartbeat.
                Some(watched) if value.is_none() || watched.value == value => watched,
                Some(_) => WatchedValue { value, since: at, has_changed: true, has_existed: true },
                None => WatchedValue { has_existed: value.is_some(), value, since: at, has_changed: false },
            };
            self.instances.insert(instance, watched);
        }
    }

    /// Returns the state of an instance at the time of the last look.
    #[must_use]
    pub fn state(&self, instance: &str) -> HeartbeatState {
        let (Some(last), Some(seen_since)) = (self.last_look, self.seen_since) else { return HeartbeatState::Unseen };
        if last.saturating_sub(seen_since) < MIN_SIGHT {
            return HeartbeatState::Unseen;
        }
        let Some(watched) = self.instances.get(instance) else { return HeartbeatState::Undecided };
        let unchanged_for = last.saturating_sub(watched.since);
        match watched.has_changed {
            true if unchanged_for < NEXT_CHANGE => HeartbeatState::Changing,
            false if unchanged_for < FIRST_CHANGE => HeartbeatState::Undecided,
            _ => HeartbeatState::Still,
        }
    }

    /// Returns the time for which an instance's value was watched without a change. Zero if Redis has not been seen for
    /// long enough, or if the instance has no value: such an instance may write none.
    #[must_use]
    pub fn still_for(&self, instance: &str) -> Duration {
        match (self.state(instance), self.instances.get(instance), self.last_look) {
            (HeartbeatState::Still, Some(watched), Some(last)) if watched.has_existed => {
                last.saturating_sub(watched.since)
            }
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(value: Option<&str>) -> Option<HeartbeatLook> {
        Some(HeartbeatLook { is_same: true, values: HashMap::from([("w-1".to_owned(), value.map(str::to_owned))]) })
    }

    /// Looks every two seconds, and returns the state and the still time after the last look.
    fn watch(heartbeats: &mut HeartbeatWatch, from: u64, looks: &[Option<HeartbeatLook>]) -> (HeartbeatState, u64) {
        for (at, look) in (from..).step_by(2).zip(looks) {
            heartbeats.record(Duration::from_secs(at), look.clone());
        }
        (heartbeats.state("w-1"), heartbeats.still_for("w-1").as_secs())
    }

    fn seen() -> HeartbeatWatch {
        let mut heartbeats = HeartbeatWatch::default();
        watch(&mut heartbeats, 0, &vec![Some(HeartbeatLook { is_same: true, ..HeartbeatLook::default() }); 11]);
        heartbeats
    }

    #[test]
    fn changing_value_is_a_sign_of_life_and_a_present_one_is_not() {
        assert_eq!(watch(&mut seen(), 22, &[look(Some("1")), look(Some("2"))]).0, HeartbeatState::Changing);
        assert_eq!(watch(&mut seen(), 22, &vec![look(Some("1")); 3]), (HeartbeatState::Undecided, 0));
        assert_eq!(watch(&mut seen(), 22, &vec![look(Some("1")); 4]), (HeartbeatState::Still, 6));
    }

    #[test]
    fn missing_key_is_no_sign_of_life() {
        assert_eq!(watch(&mut seen(), 22, &vec![look(None); 4]), (HeartbeatState::Still, 0));
        // The key of a killed instance expires.
        let looks: Vec<_> = [vec![look(Some("1")); 3], vec![look(None); 30]].concat();
        assert_eq!(watch(&mut seen(), 22, &looks), (HeartbeatState::Still, 64));
    }

    #[test]
    fn killed_instance_is_still_after_three_heartbeats() {
        let mut heartbeats = seen();
        assert_eq!(watch(&mut heartbeats, 22, &[look(Some("1")), look(Some("2"))]).0, HeartbeatState::Changing);
        assert_eq!(watch(&mut heartbeats, 26, &vec![look(Some("2")); 6]).0, HeartbeatState::Changing);
        assert_eq!(watch(&mut heartbeats, 38, &[look(Some("2")), look(Some("2"))]), (HeartbeatState::Still, 16));
    }

    #[test]
    fn outage_loss_of_data_or_pause_begin_anew() {
        for gap in [None, Some(HeartbeatLook::default())] {
            let mut heartbeats = seen();
            assert_eq!(watch(&mut heartbeats, 22, &vec![look(Some("1")); 8]).0, HeartbeatState::Still);
            assert_eq!(watch(&mut heartbeats, 38, &[gap]).0, HeartbeatState::Unseen);
            assert_eq!(watch(&mut heartbeats, 40, &vec![look(Some("1")); 7]).0, HeartbeatState::Unseen);
            assert_eq!(watch(&mut heartbeats, 54, &vec![look(Some("1")); 3]).0, HeartbeatState::Still);
        }
        let mut heartbeats = seen();
        assert_eq!(watch(&mut heartbeats, 60, &[look(Some("1"))]).0, HeartbeatState::Unseen, "40 s without a look");
    }
}
