//! What a worker says about itself: that it is there, what it can run, that it lives, that it goes. It is
//! about a process, not about one occurrence, and has a queue of its own.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::OccurrenceId;

/// Worker → server, on the registration queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum RegistrationMessage {
    /// Sent when the worker starts and after each reconnect.
    Hello(InstanceHello),
    /// Sent every five seconds.
    Heartbeat(InstanceHeartbeat),
    /// Sent by a worker that stops in an orderly way.
    Goodbye {
        /// Who goes.
        #[serde(rename = "instanceId")]
        instance_id: String,
    },
}

/// Who I am and what I can run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InstanceHello {
    /// The group this process belongs to; jobs are addressed to it.
    pub worker_id: String,
    /// This process.
    pub instance_id: String,
    /// Where it runs.
    #[serde(default)]
    pub host: String,
    /// Its process id.
    #[serde(default)]
    pub pid: u32,
    /// The worker program's version.
    #[serde(default)]
    pub version: String,
    /// How many occurrences it runs at once, over all types.
    #[serde(default)]
    pub capacity: u32,
    /// What it can run.
    pub job_types: Vec<JobTypeInfo>,
    /// By the worker's clock.
    pub timestamp: DateTime<Utc>,
}

/// A job type as a worker announces it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct JobTypeInfo {
    /// Its name: 1 to 100 letters, digits, `-`, `_` and `.`.
    pub job_type: String,
    /// What it does, in a sentence.
    #[serde(default)]
    pub description: String,
    /// JSON Schema of its input.
    #[serde(default)]
    pub schema: Value,
    /// How many at once in one instance.
    #[serde(default)]
    pub concurrency: u32,
    /// After how many seconds a run is ended unless the job says otherwise.
    #[serde(default)]
    pub timeout_seconds: Option<u32>,
}

/// A sign of life.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InstanceHeartbeat {
    /// The group.
    pub worker_id: String,
    /// This process.
    pub instance_id: String,
    /// What it runs right now.
    #[serde(default)]
    pub running: Vec<OccurrenceId>,
    /// What is wrong with this process that people should see, at most 500 bytes. The next heartbeat takes its place, or
    /// takes it away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    /// By the worker's clock.
    pub timestamp: DateTime<Utc>,
}
