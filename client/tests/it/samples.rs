//! Documents of the API. The tests of the commands use them too.

use chrono::{DateTime, Utc};
use milvaion_api::{
    rest::{Occurrence, OccurrenceDetail, StatusName},
    views::TriggerSource,
};
use milvaion_protocol::message::{LogLevel, LogLine};
use serde_json::{Value, json};

use crate::fake::frame;

/// The id of the job.
pub(crate) const JOB: &str = "01980000-0000-7000-8000-000000000001";
/// The id of the occurrence.
pub(crate) const OCCURRENCE: &str = "01980000-0000-7000-8000-000000000002";

/// Returns the time of every command.
pub(crate) fn now() -> DateTime<Utc> {
    "2026-11-25T12:00:00Z".parse().expect("a time")
}

/// Returns a job.
pub(crate) fn job() -> Value {
    json!({
        "id": JOB, "key": "mail.send", "displayName": "Send mail", "workerId": "mail", "jobType": "send", "tags": ["night"],
        "scheduleWords": "Every day at 03:00", "isActive": true, "nextDueAt": "2026-11-25T15:00:00Z", "workerAlive": true,
        "recent": [{ "id": OCCURRENCE, "status": "failed" }],
        "version": 3,
        "definition": {
            "displayName": "Send mail", "workerId": "mail", "jobType": "send", "jobData": { "to": "a@b.c" },
            "schedule": { "kind": "cron", "expression": "0 3 * * *", "zone": "UTC" },
        },
        "upcoming": ["2026-11-25T15:00:00Z"], "warnings": [], "unreadable": null, "pausedReason": null,
        "createdAt": "2026-11-20T12:00:00Z", "createdBy": "ann@example.com",
        "modifiedAt": "2026-11-25T11:58:30Z", "modifiedBy": "bob@example.com",
    })
}

/// Returns an occurrence.
pub(crate) fn occurrence(status: StatusName) -> Occurrence {
    Occurrence {
        id: OCCURRENCE.parse().expect("an id"),
        job_id: JOB.parse().expect("an id"),
        job_name: "Send mail".into(),
        status,
        version: 1,
        trigger: TriggerSource::Api,
        attempt: 1,
        scheduled_for: now(),
        delayed_until: None,
        started_at: None,
        ended_at: None,
        duration_ms: Some(1_250),
        instance_id: None,
        progress: None,
        note: Some("line one\nline two".into()),
        cancel_requested_at: None,
    }
}

/// Returns an occurrence with its details.
pub(crate) fn occurrence_detail(status: StatusName) -> OccurrenceDetail {
    OccurrenceDetail {
        summary: occurrence(status),
        worker_id: "mail".into(),
        job_type: "send".into(),
        job_version: 3,
        input: json!({ "to": "a@b.c" }),
        triggered_by: None,
        trigger_token: None,
        trigger_reason: None,
        retry_of: None,
        parent_id: None,
        trace_id: "019a9b3f7c007abc8def0123456789ab".into(),
        trace_url: None,
        published_at: None,
        waits_for_slot: false,
        result: None,
        exception: None,
        changes: Vec::new(),
        job_exists: true,
        worker_alive: true,
        instance_alive: true,
        instance_unreachable: false,
        is_overdue: false,
    }
}

/// Returns a line of a log.
pub(crate) fn line(seq: i64) -> LogLine {
    LogLine { seq, at: now(), level: LogLevel::Info, message: format!("line {seq}"), data: None }
}

/// Returns the frame of a change of the status.
pub(crate) fn status_frame(status: StatusName) -> String {
    frame("status", &occurrence(status))
}
