//! Singleton loops, as the server reads them from Redis: their leaders, their counters and their last runs.
//!
//! No row of PostgreSQL stands behind a loop, except for one that an operator disabled. The numbers are those that the
//! leader published with its last heartbeat, so they are a few seconds old.

use chrono::{DateTime, Utc};
use milvaion_protocol::singleton::{LoopKind, LoopOutcome};
use serde::{Deserialize, Serialize};

/// The maximum number of singleton loops in the list. Those that were offered last come first.
pub use milvaion_protocol::singleton::MAX_LOOPS;

/// The maximum number of instances that a loop lists by their ids.
pub const MAX_LISTED_INSTANCES: usize = 50;

/// The state of a singleton loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LoopStatus {
    /// An instance holds the lease.
    Leading,
    /// Instances offer the loop, and none holds the lease.
    #[default]
    NoLeader,
    /// No instance has offered the loop for a minute.
    NotOffered,
    /// An operator disabled the loop. Its leader stops with its next heartbeat.
    Disabled,
}

impl LoopStatus {
    /// Returns the name for display.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Leading => "Running",
            Self::NoLeader => "No leader",
            Self::NotOffered => "Not offered",
            Self::Disabled => "Disabled",
        }
    }

    /// Returns the word in JSON.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Leading => "leading",
            Self::NoLeader => "no-leader",
            Self::NotOffered => "not-offered",
            Self::Disabled => "disabled",
        }
    }
}

/// The instance that holds the lease of a loop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct LoopLeader {
    /// The id of the instance.
    pub instance_id: String,
    /// The id of its worker.
    pub worker_id: String,
    /// The name of its host.
    pub host: String,
    /// The epoch of the lease: the fencing token, which each new leader raises.
    pub epoch: u64,
    /// The time since when it leads; null if the leader has not published it.
    pub since: Option<DateTime<Utc>>,
    /// The time until the lease ends without a renewal, in milliseconds.
    pub lease_remaining_ms: u64,
}

/// An instance that offers a loop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct LoopInstance {
    /// The id.
    pub id: String,
    /// The time of its last heartbeat for the loop.
    pub last_heartbeat_at: DateTime<Utc>,
}

/// A run of a loop that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EndedLoopRun {
    /// The time of the start.
    pub started_at: DateTime<Utc>,
    /// The duration in milliseconds.
    pub duration_ms: f64,
    /// The time from due to start in milliseconds.
    pub late_ms: f64,
    /// The end.
    pub outcome: LoopOutcome,
}

/// The record of the user who disabled a loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LoopDisabled {
    /// The time.
    pub at: DateTime<Utc>,
    /// The user.
    pub by: String,
}

/// A singleton loop. Its counters begin at zero with each leader.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct SingletonLoop {
    /// The name.
    pub name: String,
    /// The state.
    pub status: LoopStatus,
    /// False while the loop is disabled.
    pub is_enabled: bool,
    /// The user who disabled the loop, with the time; null while it is enabled.
    pub disabled: Option<LoopDisabled>,
    /// The leader; null without one.
    pub leader: Option<LoopLeader>,
    /// True if the leader is asked to hand the loop over to another instance.
    pub is_yield_requested: bool,
    /// The highest epoch that was granted; 0 before the first.
    pub epoch: u64,
    /// The lease in milliseconds; 0 before the first leader.
    pub lease_ms: u64,
    /// The time between two heartbeats in milliseconds; 0 before the first leader.
    pub heartbeat_ms: u64,
    /// The kind of rhythm.
    pub kind: LoopKind,
    /// The rhythm in words, such as `every 100ms`; empty before the first leader.
    pub schedule: String,
    /// The number of due ticks: those that ran and those that were dropped.
    pub ticks: u64,
    /// The number of runs that ended.
    pub runs: u64,
    /// The number of ticks that were dropped, because a run was in progress or the process was late.
    pub dropped: u64,
    /// The number of runs that ended with an error.
    pub errors: u64,
    /// The median duration of the last runs in milliseconds.
    pub p50_ms: f64,
    /// The 99th percentile of the duration of the last runs in milliseconds.
    pub p99_ms: f64,
    /// The median time from due to start of the last runs in milliseconds.
    pub late_p50_ms: f64,
    /// The 99th percentile of the time from due to start of the last runs in milliseconds.
    pub late_p99_ms: f64,
    /// The start of the run in progress; null without one.
    pub running_since: Option<DateTime<Utc>>,
    /// The start of the last run that ended.
    pub last_started_at: Option<DateTime<Utc>>,
    /// The end of the last run that ended.
    pub last_ended_at: Option<DateTime<Utc>>,
    /// The last runs, at most 20, the newest last.
    pub recent: Vec<EndedLoopRun>,
    /// The text of the last error.
    pub last_error: Option<String>,
    /// The time of the last error.
    pub last_error_at: Option<DateTime<Utc>>,
    /// The time of the leader's last heartbeat; null before the first leader.
    pub updated_at: Option<DateTime<Utc>>,
    /// The number of instances that offered the loop within the last minute.
    pub instance_count: u64,
    /// Those instances, at most 50, the one with the newest heartbeat first.
    pub instances: Vec<LoopInstance>,
    /// The time of the last heartbeat of any instance; null if Redis has lost it.
    pub last_seen_at: Option<DateTime<Utc>>,
}

impl SingletonLoop {
    /// Returns the listed instances that do not lead.
    pub fn standby(&self) -> impl Iterator<Item = &LoopInstance> {
        let leader = self.leader.as_ref().map(|leader| leader.instance_id.as_str());
        self.instances.iter().filter(move |instance| Some(instance.id.as_str()) != leader)
    }

    /// Returns true if another instance than the leader offers the loop.
    #[must_use]
    pub fn has_standby(&self) -> bool {
        self.standby().next().is_some()
    }
}

/// The list of the singleton loops, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SingletonLoopList {
    /// The loops, at most [`MAX_LOOPS`].
    pub loops: Vec<SingletonLoop>,
    /// True if there are more loops than the list has.
    pub is_truncated: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leader_is_not_on_standby() {
        let instance = |id: &str| LoopInstance { id: id.into(), ..LoopInstance::default() };
        let led = SingletonLoop {
            leader: Some(LoopLeader { instance_id: "a".into(), ..LoopLeader::default() }),
            instances: vec![instance("a"), instance("b")],
            ..SingletonLoop::default()
        };
        assert_eq!(led.standby().map(|instance| instance.id.as_str()).collect::<Vec<_>>(), ["b"]);
        assert!(!SingletonLoop { instances: vec![instance("a")], ..led }.has_standby());
    }

    #[test]
    fn status_has_one_word() {
        for status in [LoopStatus::Leading, LoopStatus::NoLeader, LoopStatus::NotOffered, LoopStatus::Disabled] {
            assert_eq!(serde_json::to_value(status).expect("JSON"), status.slug());
        }
    }
}
