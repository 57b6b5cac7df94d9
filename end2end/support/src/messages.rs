//! Messages of workers and of the server, in their simplest valid form. A test changes what it is about.

use chrono::{DateTime, Utc};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::{InstanceHeartbeat, InstanceHello, JobMessage, JobTypeInfo, PROTOCOL_VERSION},
};
use serde_json::{Value, json};

/// Returns the registration of an instance of the worker `w`, without job types.
#[must_use]
pub fn hello(instance: &str, now: DateTime<Utc>) -> InstanceHello {
    InstanceHello {
        worker_id: "w".into(),
        instance_id: instance.into(),
        host: "h".into(),
        pid: 1,
        version: "1".into(),
        protocol: PROTOCOL_VERSION,
        capacity: 1,
        timestamp: now,
        ..InstanceHello::default()
    }
}

/// Returns a job type that accepts any object.
#[must_use]
pub fn job_type(name: &str) -> JobTypeInfo {
    JobTypeInfo {
        job_type: name.into(),
        description: String::new(),
        schema: json!({ "type": "object" }),
        concurrency: 1,
        ..JobTypeInfo::default()
    }
}

/// Returns a heartbeat of an instance of the worker `w`.
#[must_use]
pub fn heartbeat(instance: &str, running: &[OccurrenceId], now: DateTime<Utc>) -> InstanceHeartbeat {
    InstanceHeartbeat {
        worker_id: "w".into(),
        instance_id: instance.into(),
        running: running.to_vec(),
        priorities: Vec::new(),
        notice: None,
        stopping: false,
        timestamp: now,
    }
}

/// Returns the message about the first attempt of an occurrence, without retries.
#[must_use]
pub fn job_message(id: OccurrenceId, job_type: &str, input: Value, now: DateTime<Utc>) -> JobMessage {
    JobMessage {
        occurrence_id: id,
        job_id: JobId::from_parts(now, rand::random()),
        job_name: "test".into(),
        job_type: job_type.into(),
        job_data: input,
        correlation_id: id,
        scheduled_for: now,
        timestamp: now,
        attempt: 1,
        retry_count: 0,
        max_retries: 0,
        timeout_seconds: None,
        priority: 3,
        traceparent: None,
        checkpoint: None,
        parent_id: None,
    }
}
