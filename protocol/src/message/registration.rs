//! The registration and the heartbeats of a worker instance: its start, its job types, its liveness and its stop. These
//! messages concern a process instead of one occurrence, so they have a queue of their own.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::OccurrenceId;

/// Worker → server, on the registration queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum RegistrationMessage {
    /// The registration, sent when the worker starts and after each reconnect.
    Hello(InstanceHello),
    /// The heartbeat, sent every five seconds.
    Heartbeat(InstanceHeartbeat),
    /// The notice of a graceful stop.
    Goodbye {
        /// The instance that stops.
        #[serde(rename = "instanceId")]
        instance_id: String,
    },
}

impl RegistrationMessage {
    /// Returns the instance that the message is about.
    #[must_use]
    pub fn instance_id(&self) -> &str {
        match self {
            Self::Hello(InstanceHello { instance_id, .. })
            | Self::Heartbeat(InstanceHeartbeat { instance_id, .. })
            | Self::Goodbye { instance_id } => instance_id,
        }
    }
}

/// The version of the protocol that this crate implements. It is incremented when a worker of the previous version could
/// misunderstand a message; a new optional field does not increment it.
pub const PROTOCOL_VERSION: u32 = 1;

/// Feature: the instance claims attempts in Redis before it starts them.
pub const FEATURE_CLAIMS: &str = "claims";
/// Feature: the instance reports checkpoints and continues from the one in a job message; the server keeps them.
pub const FEATURE_CHECKPOINT: &str = "checkpoint";
/// Feature: job types may declare defaults and schedules, and the server defines jobs from them.
pub const FEATURE_SCHEDULES: &str = "schedules";
/// Feature: the server accepts new occurrences on the ingest queue.
pub const FEATURE_INGEST: &str = "ingest";

/// The registration of an instance and of its job types. A server answers it with a [`HelloReply`] if the message names a
/// direct reply-to address.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InstanceHello {
    /// The worker, the logical group of this instance. Jobs are addressed to it.
    pub worker_id: String,
    /// The id of this process.
    pub instance_id: String,
    /// The name of its host.
    #[serde(default, deserialize_with = "crate::lenient::or_default")]
    pub host: String,
    /// Its process id.
    #[serde(default, deserialize_with = "crate::lenient::number_or_default")]
    pub pid: u32,
    /// The version of the worker program. Of two versions the higher one decides about the schedules that the job types
    /// declare: numbers are compared as numbers, so `1.10.0` is higher than `1.9.2`.
    #[serde(default, deserialize_with = "crate::lenient::or_default")]
    pub version: String,
    /// The version of the protocol that the program implements.
    #[serde(default = "crate::lenient::one", deserialize_with = "crate::lenient::protocol")]
    pub protocol: u32,
    /// The optional parts of the protocol that the program implements, such as `claims`. Unknown names are ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::lenient::or_default")]
    pub features: Vec<String>,
    /// The maximum number of concurrent runs, over all job types.
    #[serde(default, deserialize_with = "crate::lenient::number_or_default")]
    pub capacity: u32,
    /// The number of concurrent runs that the instance reserves for the priority 5 (critical), beside `capacity`. Above 0, it
    /// consumes the queue of critical runs of each of its job types.
    #[serde(default, skip_serializing_if = "is_zero", deserialize_with = "crate::lenient::number_or_default")]
    pub critical_slots: u32,
    /// The job types that it can run.
    pub job_types: Vec<JobTypeInfo>,
    /// The time of sending, by the worker's clock.
    pub timestamp: DateTime<Utc>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A job type as a worker announces it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct JobTypeInfo {
    /// The name: 1 to 100 letters, digits, `-`, `_` and `.`.
    pub job_type: String,
    /// The description, one sentence.
    #[serde(default, deserialize_with = "crate::lenient::or_default")]
    pub description: String,
    /// The JSON Schema of the input.
    #[serde(default)]
    pub schema: Value,
    /// The maximum number of concurrent runs in one instance.
    #[serde(default, deserialize_with = "crate::lenient::number_or_default")]
    pub concurrency: u32,
    /// The timeout of a run, in seconds, if the job does not set one.
    #[serde(default, deserialize_with = "crate::lenient::optional")]
    pub timeout_seconds: Option<u32>,
    /// The maximum number of runs in one message that the instance takes, up to 10. None means 1: it takes no bundles.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::lenient::optional")]
    pub bundle_size: Option<u32>,
    /// The rules that the code declares for this type. They apply to the jobs of its schedules and to occurrences that are
    /// enqueued by job type, and the form of a new job starts with them.
    #[serde(default, skip_serializing_if = "JobDefaults::is_empty", deserialize_with = "crate::lenient::or_default")]
    pub defaults: JobDefaults,
    /// The schedules that the code declares, at most 100. The server keeps a job for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::lenient::or_default")]
    pub schedules: Vec<DeclaredSchedule>,
}

/// The rules that the code of a worker declares for a job type. A rule without a value has the server's default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct JobDefaults {
    /// The maximum number of attempts after the first, 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "crate::lenient::optional")]
    pub max_retries: Option<u16>,
    /// The delay before the second attempt, in seconds, 1 to 86,400. It doubles for each further attempt.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "crate::lenient::optional")]
    pub base_retry_delay_seconds: Option<u32>,
    /// The share of a retry delay, in percent, that may be removed at random, 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "crate::lenient::optional")]
    pub retry_jitter_percent: Option<u16>,
    /// The priority, from 1 (idle) to 5 (critical).
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "crate::lenient::optional")]
    pub priority: Option<u8>,
    /// The maximum number of concurrent occurrences of a job of this type in the whole fleet, 1 to 10,000.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "crate::lenient::optional")]
    pub max_concurrent: Option<u16>,
    /// The policy for a due time while an earlier occurrence is open: `allow`, `skip`, `queue` or `replace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlap: Option<String>,
    /// The policy for misfires: `fire_once`, `skip` or `catch_up`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misfire: Option<String>,
    /// The policy for lost runs: `requeue` or `fail`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_lost: Option<String>,
    /// The start limit, in seconds, 1 to 2,592,000: an occurrence that no worker has begun within this time of its due
    /// time is skipped.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "crate::lenient::optional")]
    pub start_within_seconds: Option<u32>,
    /// The uniqueness of occurrences that are enqueued by job type, in the defaults of a job type. A schedule ignores it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique: Option<UniqueRule>,
    /// The tags, at most 20.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::lenient::or_default")]
    pub tags: Vec<String>,
}

/// The rule that an occurrence is created only if no open one of the same job has the same input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct UniqueRule {
    /// The time for which the rule applies after the creation even if the occurrence has ended, in seconds, at most 30 days.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "crate::lenient::optional")]
    pub for_seconds: Option<u32>,
}

impl JobDefaults {
    /// Returns true if the code declares no rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns these rules, and those of `others` where this has none.
    #[must_use]
    pub fn or(&self, others: &Self) -> Self {
        let word = |own: &Option<String>, other: &Option<String>| own.as_ref().or(other.as_ref()).cloned();
        Self {
            max_retries: self.max_retries.or(others.max_retries),
            base_retry_delay_seconds: self.base_retry_delay_seconds.or(others.base_retry_delay_seconds),
            retry_jitter_percent: self.retry_jitter_percent.or(others.retry_jitter_percent),
            priority: self.priority.or(others.priority),
            max_concurrent: self.max_concurrent.or(others.max_concurrent),
            overlap: word(&self.overlap, &others.overlap),
            misfire: word(&self.misfire, &others.misfire),
            on_lost: word(&self.on_lost, &others.on_lost),
            start_within_seconds: self.start_within_seconds.or(others.start_within_seconds),
            unique: self.unique.or(others.unique),
            tags: if self.tags.is_empty() { others.tags.clone() } else { self.tags.clone() },
        }
    }
}

/// A schedule that the code of a worker declares for a job type. The server keeps a job for each combination of worker, job
/// type and name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DeclaredSchedule {
    /// The name of the schedule: 1 to 100 letters, digits, `-`, `_` and `.`, unique within the job type.
    pub name: String,
    /// The due times.
    pub timing: DeclaredTiming,
    /// The input of the job.
    #[serde(default)]
    pub input: Value,
    /// The name of the job on the pages. Without it, the job type and the name of the schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// The rules that differ from those of the job type.
    #[serde(default, skip_serializing_if = "JobDefaults::is_empty", deserialize_with = "crate::lenient::or_default")]
    pub rules: JobDefaults,
    /// The timeout of a run, in seconds, if it differs from that of the job type.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::lenient::optional")]
    pub timeout_seconds: Option<u32>,
}

/// The due times of a declared schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum DeclaredTiming {
    /// The local times that a cron expression matches.
    Cron {
        /// Five or six fields, the seconds first if there are six.
        expression: String,
        /// The IANA name of the time zone.
        #[serde(default = "utc", deserialize_with = "crate::lenient::zone")]
        zone: String,
    },
    /// A fixed interval, counted from the previous due time.
    Every {
        /// The interval in seconds, 1 to 31,622,400.
        #[serde(deserialize_with = "crate::lenient::number")]
        seconds: u64,
    },
}

fn utc() -> String {
    "UTC".to_owned()
}

/// Server → worker, on the queue that the registration named in `reply_to`, with its `correlation_id`: the registration was
/// stored or refused. A worker shows the problems to its operators, and runs the job types that were accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HelloReply {
    /// True if the server has stored the registration. If it is false, the instance has not been registered, and the
    /// problems say why.
    pub accepted: bool,
    /// The version of the protocol that the server implements.
    #[serde(default = "crate::lenient::one", deserialize_with = "crate::lenient::protocol")]
    pub protocol: u32,
    /// The optional parts of the protocol that the server implements. Unknown names are ignored.
    #[serde(default, deserialize_with = "crate::lenient::or_default")]
    pub features: Vec<String>,
    /// The parts of the registration that the server did not accept, at most 100.
    #[serde(default, deserialize_with = "crate::lenient::or_default")]
    pub problems: Vec<HelloProblem>,
}

/// A part of a registration that the server did not accept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HelloProblem {
    /// The job type; none if the problem concerns the whole registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_type: Option<String>,
    /// The schedule of the job type, if the problem concerns one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// The cause and the remedy.
    pub text: String,
}

impl fmt::Display for HelloProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.job_type, &self.schedule) {
            (Some(job_type), Some(schedule)) => write!(f, "{job_type}, schedule {schedule}: {}", self.text),
            (Some(job_type), None) => write!(f, "{job_type}: {}", self.text),
            (None, _) => f.write_str(&self.text),
        }
    }
}

/// The heartbeat of an instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InstanceHeartbeat {
    /// The worker, the logical group of this instance.
    pub worker_id: String,
    /// The id of this process.
    pub instance_id: String,
    /// The occurrences that it runs now.
    #[serde(default, deserialize_with = "crate::lenient::or_default")]
    pub running: Vec<OccurrenceId>,
    /// The number of runs by priority, each priority once and the highest first. Priorities without runs are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::lenient::or_default")]
    pub priorities: Vec<PriorityLoad>,
    /// A problem of this process that operators should see, at most 500 bytes. Each heartbeat replaces or clears the
    /// notice of the previous one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    /// True if the instance stops: it takes no new work and ends or hands back what it runs. A run that is lost with an
    /// instance that stops does not count as a requeue.
    #[serde(default, skip_serializing_if = "std::ops::Not::not", deserialize_with = "crate::lenient::or_default")]
    pub stopping: bool,
    /// The time of sending, by the worker's clock.
    pub timestamp: DateTime<Utc>,
}

/// The runs of one priority in an instance, for the dashboard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PriorityLoad {
    /// The priority, from 1 (idle) to 5 (critical).
    #[serde(deserialize_with = "crate::lenient::number")]
    pub priority: u8,
    /// The number of runs that have a permit.
    #[serde(default, deserialize_with = "crate::lenient::number_or_default")]
    pub running: u32,
    /// The number of runs that the instance has received and that wait for a permit.
    #[serde(default, deserialize_with = "crate::lenient::number_or_default")]
    pub waiting: u32,
}
