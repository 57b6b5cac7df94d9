//! The events for browsers, and the values that PostgreSQL stores as JSON.

use milvaion_api::{
    events::{EventEnvelope, LiveEvent},
    rest::ApiEvent,
    views::{OccurrenceRow, StatusChange, TriggerSource},
};
use milvaion_protocol::{
    id::{CalendarId, UserId},
    message::{LogLevel, LogLine, RunProgress},
    status::OccurrenceStatus,
};
use milvaion_schedule::schedule::{IntervalAnchor, Schedule};
use serde_json::{Value, json};

use crate::{DUE_TIME, JOB_ID, LATER_TIME, OCCURRENCE_ID, at, golden, job, minimal, occurrence};

fn line() -> LogLine {
    LogLine {
        seq: 2_000_017,
        at: at(LATER_TIME),
        level: LogLevel::Warn,
        message: "slow answer\nfrom the mailbox".into(),
        data: Some(json!({ "elapsedMs": 900 })),
    }
}

/// The golden of [`line`].
fn line_json() -> Value {
    json!({
        "seq": 2_000_017,
        "at": LATER_TIME,
        "level": "warn",
        "message": "slow answer\nfrom the mailbox",
        "data": { "elapsedMs": 900 },
    })
}

// --- Server to browser. ---

fn row() -> OccurrenceRow {
    OccurrenceRow {
        id: occurrence(),
        job_id: job(),
        job_name: "Nightly report".into(),
        status: OccurrenceStatus::Completed,
        version: 4,
        trigger: TriggerSource::Manual,
        attempt: 1,
        scheduled_for: at(DUE_TIME),
        started_at: Some(at(LATER_TIME)),
        ended_at: Some(at("2026-11-21T09:00:01Z")),
        duration_ms: Some(877),
        instance_id: Some("mail-0a1b2c3d".into()),
        progress: Some(RunProgress { percent: 100, message: "done".into() }),
        note: Some("all well".into()),
        waits_until: Some(at("2026-11-21T09:05:00Z")),
        cancel_requested_at: Some(at(LATER_TIME)),
    }
}

fn row_json() -> Value {
    json!({
        "id": OCCURRENCE_ID,
        "jobId": JOB_ID,
        "jobName": "Nightly report",
        "status": 2,
        "version": 4,
        "trigger": "manual",
        "attempt": 1,
        "scheduledFor": DUE_TIME,
        "startedAt": LATER_TIME,
        "endedAt": "2026-11-21T09:00:01Z",
        "durationMs": 877,
        "instanceId": "mail-0a1b2c3d",
        "progress": { "percent": 100, "message": "done" },
        "note": "all well",
        "waitsUntil": "2026-11-21T09:05:00Z",
        "cancelRequestedAt": LATER_TIME,
    })
}

#[test]
fn occurrence_row() {
    golden(&row(), row_json());
    let queued = OccurrenceRow {
        status: OccurrenceStatus::Queued,
        started_at: None,
        ended_at: None,
        duration_ms: None,
        instance_id: None,
        progress: None,
        note: None,
        waits_until: None,
        cancel_requested_at: None,
        ..row()
    };
    // Unknown values are written as null, so that a page that patches a row can clear values as well.
    let mut queued_json = row_json();
    queued_json["status"] = json!(0);
    let nullable =
        ["startedAt", "endedAt", "durationMs", "instanceId", "progress", "note", "waitsUntil", "cancelRequestedAt"];
    for name in nullable {
        queued_json[name] = Value::Null;
    }
    golden(&queued, queued_json.clone());
    for name in nullable {
        queued_json.as_object_mut().expect("a JSON object").remove(name);
    }
    minimal(queued_json, &queued);
}

fn enveloped(event: LiveEvent, json: Value) {
    let envelope = EventEnvelope { id: "6430a1b2c3d4e-00ff00ff00ff00ff".into(), at: at(LATER_TIME), event };
    golden(&envelope, json!({ "id": "6430a1b2c3d4e-00ff00ff00ff00ff", "at": LATER_TIME, "event": json }));
}

#[test]
fn every_event() {
    enveloped(LiveEvent::Occurrences { rows: vec![row()] }, json!({ "occurrences": { "rows": [row_json()] } }));
    enveloped(LiveEvent::Job { id: job() }, json!({ "job": { "id": JOB_ID } }));
    enveloped(LiveEvent::JobDeleted { id: job() }, json!({ "jobDeleted": { "id": JOB_ID } }));
    enveloped(LiveEvent::Log { ids: vec![occurrence()] }, json!({ "log": { "ids": [OCCURRENCE_ID] } }));
    enveloped(LiveEvent::Calendar { id: CalendarId(job().0) }, json!({ "calendar": { "id": JOB_ID } }));
    enveloped(LiveEvent::Workers, json!("workers"));
    enveloped(LiveEvent::Cluster, json!("cluster"));
    enveloped(LiveEvent::Alerts, json!("alerts"));
    enveloped(LiveEvent::Session { user_id: UserId(job().0) }, json!({ "session": { "userId": JOB_ID } }));
    enveloped(LiveEvent::Resync, json!("resync"));
}

#[test]
fn log_lines_for_programs() {
    golden(
        &ApiEvent::Log { occurrence_id: occurrence(), lines: vec![line()] },
        json!({ "kind": "log", "occurrenceId": OCCURRENCE_ID, "lines": [line_json()] }),
    );
}

#[test]
fn unknown_event_is_an_error() {
    // The page reads its data again after the error. To read the event as another one would be worse.
    let json = json!({ "id": "1", "at": LATER_TIME, "event": "eclipse" });
    assert!(serde_json::from_value::<EventEnvelope>(json).is_err());
}

// --- Stored in PostgreSQL as JSON and read by every later version. ---

#[test]
fn schedules() {
    golden(
        &Schedule::Cron { expression: "0 9 * * MON-FRI".into(), zone: "Europe/Warsaw".into() },
        json!({ "kind": "cron", "expression": "0 9 * * MON-FRI", "zone": "Europe/Warsaw" }),
    );
    golden(&Schedule::every(30), json!({ "kind": "every", "seconds": 30 }));
    golden(
        &Schedule::Every { seconds: 30, from: IntervalAnchor::End },
        json!({ "kind": "every", "seconds": 30, "from": "end" }),
    );
    golden(&Schedule::once(at(DUE_TIME)), json!({ "kind": "once", "at": DUE_TIME }));
    golden(&Schedule::Manual, json!({ "kind": "manual" }));
}

#[test]
fn status_changes() {
    let step = StatusChange {
        status: OccurrenceStatus::Failed,
        at: at(LATER_TIME),
        attempt: 1,
        by: Some("mail-0a1b2c3d".into()),
        note: Some("the mailbox is full".into()),
    };
    golden(
        &step,
        json!({ "status": 3, "at": LATER_TIME, "attempt": 1, "by": "mail-0a1b2c3d", "note": "the mailbox is full" }),
    );
    // The first status change, as the server inserts it with a new occurrence.
    golden(
        &StatusChange { status: OccurrenceStatus::Queued, by: None, note: None, ..step },
        json!({ "status": 0, "at": LATER_TIME, "attempt": 1 }),
    );
}
