//! The registration and the heartbeats of a worker instance: its start, its job types, its liveness and its stop. These
//! messages concern a process instead of one occurrence, so they have a queue of their own.

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

/// The registration of an instance and of its job types.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InstanceHello {
    /// The worker, the logical group of this instance. Jobs are addressed to it.
    pub worker_id: String,
    /// The id of this process.
    pub instance_id: String,
    /// The name of its host.
    #[serde(default)]
    pub host: String,
    /// Its process id.
    #[serde(default)]
    pub pid: u32,
    /// The version of the worker program.
    #[serde(default)]
    pub version: String,
    /// The maximum number of concurrent runs, over all job types.
    #[serde(default)]
    pub capacity: u32,
    /// The job types that it can run.
    pub job_types: Vec<JobTypeInfo>,
    /// The time of sending, by the worker's clock.
    pub timestamp: DateTime<Utc>,
}

/// A job type as a worker announces it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct JobTypeInfo {
    /// The name: 1 to 100 letters, digits, `-`, `_` and `.`.
    pub job_type: String,
    /// The description, one sentence.
    #[serde(default)]
    pub description: String,
    /// The JSON Schema of the input.
    #[serde(default)]
    pub schema: Value,
    /// The maximum number of concurrent runs in one instance.
    #[serde(default)]
    pub concurrency: u32,
    /// The timeout of a run, in seconds, if the job does not set one.
    #[serde(default)]
    pub timeout_seconds: Option<u32>,
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
    #[serde(default)]
    pub running: Vec<OccurrenceId>,
    /// A problem of this process that operators should see, at most 500 bytes. Each heartbeat replaces or clears the
    /// notice of the previous one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    /// The time of sending, by the worker's clock.
    pub timestamp: DateTime<Utc>,
}
