//! The messages on the broker.

use milvaion_protocol::{
    message::{
        CancelMessage, ClaimDenial, ClaimReply, ClaimRequest, DeclaredSchedule, DeclaredTiming, HelloProblem,
        HelloReply, IngestMessage, IngestOutcome, IngestReply, IngestResult, InstanceHeartbeat, InstanceHello,
        JobBundle, JobDefaults, JobMessage, JobTypeInfo, LogLevel, LogLine, LogMessage, NewOccurrence, PriorityLoad,
        RegistrationMessage, RunProgress, StatusMessage, StatusReport, UniqueRule,
    },
    status::OccurrenceStatus,
};
use serde_json::{Value, json};

use crate::{DUE_TIME, JOB_ID, LATER_TIME, OCCURRENCE_ID, at, golden, job, minimal, occurrence};

// --- Server to worker. ---

#[test]
fn cancel_message() {
    let message = CancelMessage { occurrence_id: occurrence(), attempt: Some(2), reason: "too slow".into() };
    golden(&message, json!({ "occurrenceId": OCCURRENCE_ID, "attempt": 2, "reason": "too slow" }));
}

#[test]
fn job_message() {
    let message = JobMessage {
        occurrence_id: occurrence(),
        job_id: job(),
        job_name: "Nightly report".into(),
        job_type: "http-request".into(),
        job_data: json!({ "url": "https://example.org", "headers": {} }),
        correlation_id: occurrence(),
        scheduled_for: at(DUE_TIME),
        timestamp: at(LATER_TIME),
        attempt: 2,
        retry_count: 1,
        max_retries: 3,
        timeout_seconds: Some(90),
        priority: 5,
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
        checkpoint: Some(json!({ "row": 7 })),
        parent_id: Some(occurrence()),
    };
    let json = json!({
        "occurrenceId": OCCURRENCE_ID,
        "jobId": JOB_ID,
        "jobName": "Nightly report",
        "jobType": "http-request",
        "jobData": { "url": "https://example.org", "headers": {} },
        "correlationId": OCCURRENCE_ID,
        "scheduledFor": DUE_TIME,
        "timestamp": LATER_TIME,
        "attempt": 2,
        "retryCount": 1,
        "maxRetries": 3,
        "timeoutSeconds": 90,
        "priority": 5,
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "checkpoint": { "row": 7 },
        "parentId": OCCURRENCE_ID,
    });
    golden(&message, json.clone());
    golden(&JobBundle { runs: vec![message.clone(), message.clone()] }, json!({ "runs": [json, json] }));

    // A missing timeout is written as null; a missing trace context is left out.
    let plain =
        JobMessage { timeout_seconds: None, traceparent: None, checkpoint: None, parent_id: None, ..message.clone() };
    let mut plain_json = json;
    plain_json["timeoutSeconds"] = Value::Null;
    for field in ["traceparent", "checkpoint", "parentId"] {
        plain_json.as_object_mut().expect("a JSON object").remove(field);
    }
    golden(&plain, plain_json);

    minimal(
        json!({
            "occurrenceId": OCCURRENCE_ID, "jobId": JOB_ID, "jobType": "http-request", "correlationId": OCCURRENCE_ID,
            "scheduledFor": DUE_TIME, "timestamp": LATER_TIME,
        }),
        &JobMessage {
            job_name: String::new(),
            job_data: Value::Null,
            attempt: 1,
            retry_count: 0,
            max_retries: 0,
            timeout_seconds: None,
            priority: 3,
            traceparent: None,
            checkpoint: None,
            parent_id: None,
            ..message
        },
    );
}

// --- Worker to server. ---

fn report() -> StatusReport {
    StatusReport {
        occurrence_id: occurrence(),
        attempt: 2,
        instance_id: "mail-0a1b2c3d".into(),
        status: OccurrenceStatus::Failed,
        timestamp: at(LATER_TIME),
        result: Some("{\"sent\":3}".into()),
        exception: Some("the mailbox is full".into()),
        duration_ms: Some(1_250),
        progress: Some(RunProgress { percent: 40, message: "2 of 5".into() }),
        permanent: true,
        retry_after_ms: Some(90_000),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
        checkpoint: Some(json!({ "row": 7 })),
        is_incomplete: false,
    }
}

fn report_json() -> Value {
    json!({
        "occurrenceId": OCCURRENCE_ID,
        "attempt": 2,
        "instanceId": "mail-0a1b2c3d",
        "status": 3,
        "timestamp": LATER_TIME,
        "result": "{\"sent\":3}",
        "exception": "the mailbox is full",
        "durationMs": 1250,
        "progress": { "percent": 40, "message": "2 of 5" },
        "permanent": true,
        "retryAfterMs": 90_000,
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "checkpoint": { "row": 7 },
    })
}

#[test]
fn status_report() {
    golden(&report(), report_json());
    let minimal_json =
        json!({ "occurrenceId": OCCURRENCE_ID, "instanceId": "mail-0a1b2c3d", "status": 1, "timestamp": LATER_TIME });
    let running = StatusReport {
        attempt: 1,
        status: OccurrenceStatus::Running,
        result: None,
        exception: None,
        duration_ms: None,
        progress: None,
        permanent: false,
        retry_after_ms: None,
        traceparent: None,
        checkpoint: None,
        ..report()
    };
    minimal(minimal_json, &running);
    // Optional fields without a value are not written.
    golden(
        &running,
        json!({
            "occurrenceId": OCCURRENCE_ID, "attempt": 1, "instanceId": "mail-0a1b2c3d", "status": 1, "timestamp": LATER_TIME,
        }),
    );
    minimal(json!({ "percent": 7 }), &RunProgress { percent: 7, message: String::new() });
}

#[test]
fn status_message_batched_and_alone() {
    golden(
        &StatusMessage::Batch { reports: vec![report(), report()] },
        json!({ "reports": [report_json(), report_json()] }),
    );
    golden(&StatusMessage::Batch { reports: Vec::new() }, json!({ "reports": [] }));
    golden(&StatusMessage::One(Box::new(report())), report_json());
}

#[test]
fn claims() {
    golden(
        &ClaimRequest { occurrence_id: occurrence(), attempt: 2, instance_id: "mail-0a1b2c3d".into(), starts_at: None },
        json!({ "occurrenceId": OCCURRENCE_ID, "attempt": 2, "instanceId": "mail-0a1b2c3d" }),
    );
    golden(
        &ClaimRequest {
            occurrence_id: occurrence(),
            attempt: 2,
            instance_id: "mail-0a1b2c3d".into(),
            starts_at: Some(chrono::DateTime::UNIX_EPOCH),
        },
        json!({
            "occurrenceId": OCCURRENCE_ID, "attempt": 2, "instanceId": "mail-0a1b2c3d", "startsAt": "1970-01-01T00:00:00Z"
        }),
    );
    let granted = ClaimReply { occurrence_id: occurrence(), attempt: 2, granted: true, reason: None, by: None };
    golden(&granted, json!({ "occurrenceId": OCCURRENCE_ID, "attempt": 2, "granted": true }));
    for (reason, word) in [
        (ClaimDenial::Running, "running"),
        (ClaimDenial::Ended, "ended"),
        (ClaimDenial::Cancelled, "cancelled"),
        (ClaimDenial::Superseded, "superseded"),
        (ClaimDenial::Waiting, "waiting"),
        (ClaimDenial::Unknown, "unknown"),
    ] {
        golden(
            &ClaimReply { granted: false, reason: Some(reason), by: Some("mail-9f8e7d6c".into()), ..granted.clone() },
            json!({ "occurrenceId": OCCURRENCE_ID, "attempt": 2, "granted": false, "reason": word, "by": "mail-9f8e7d6c" }),
        );
    }
}

/// A log line with all fields.
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

#[test]
fn log_message() {
    let without_data = LogLine { level: LogLevel::Info, data: None, ..line() };
    golden(
        &LogMessage { occurrence_id: occurrence(), lines: vec![line(), without_data.clone()] },
        json!({
            "occurrenceId": OCCURRENCE_ID,
            "lines": [
                line_json(),
                { "seq": 2_000_017, "at": LATER_TIME, "level": "info", "message": "slow answer\nfrom the mailbox" },
            ],
        }),
    );
    minimal(json!({ "seq": 2_000_017, "at": LATER_TIME, "message": "slow answer\nfrom the mailbox" }), &without_data);
}

#[test]
fn registration_hello() {
    let info = JobTypeInfo {
        job_type: "send".into(),
        description: "Sends a letter.".into(),
        schema: json!({ "type": "object", "properties": { "to": { "type": "string" } } }),
        concurrency: 10,
        timeout_seconds: Some(60),
        ..JobTypeInfo::default()
    };
    let hello = InstanceHello {
        worker_id: "mail".into(),
        instance_id: "mail-0a1b2c3d".into(),
        host: "post-office".into(),
        pid: 4_711,
        version: "1.2.3".into(),
        protocol: 1,
        features: vec!["claims".into()],
        capacity: 50,
        critical_slots: 2,
        job_types: vec![info.clone()],
        timestamp: at(LATER_TIME),
    };
    golden(
        &RegistrationMessage::Hello(hello.clone()),
        json!({
            "kind": "hello",
            "workerId": "mail",
            "instanceId": "mail-0a1b2c3d",
            "host": "post-office",
            "pid": 4711,
            "version": "1.2.3",
            "protocol": 1,
            "features": ["claims"],
            "capacity": 50,
            "criticalSlots": 2,
            "jobTypes": [{
                "jobType": "send",
                "description": "Sends a letter.",
                "schema": { "type": "object", "properties": { "to": { "type": "string" } } },
                "concurrency": 10,
                "timeoutSeconds": 60,
            }],
            "timestamp": LATER_TIME,
        }),
    );
    let bare =
        JobTypeInfo { description: String::new(), schema: Value::Null, concurrency: 0, timeout_seconds: None, ..info };
    minimal(
        json!({
            "kind": "hello", "workerId": "mail", "instanceId": "mail-0a1b2c3d", "jobTypes": [{ "jobType": "send" }],
            "timestamp": LATER_TIME,
        }),
        &RegistrationMessage::Hello(InstanceHello {
            host: String::new(),
            pid: 0,
            version: String::new(),
            features: Vec::new(),
            capacity: 0,
            critical_slots: 0,
            job_types: vec![bare],
            ..hello
        }),
    );
}

#[test]
fn registration_heartbeat_and_goodbye() {
    let beat = InstanceHeartbeat {
        worker_id: "mail".into(),
        instance_id: "mail-0a1b2c3d".into(),
        running: vec![occurrence()],
        priorities: vec![PriorityLoad { priority: 5, running: 1, waiting: 3 }],
        notice: Some("The disk is full.".into()),
        stopping: true,
        timestamp: at(LATER_TIME),
    };
    golden(
        &RegistrationMessage::Heartbeat(beat.clone()),
        json!({
            "kind": "heartbeat", "workerId": "mail", "instanceId": "mail-0a1b2c3d", "running": [OCCURRENCE_ID],
            "priorities": [{ "priority": 5, "running": 1, "waiting": 3 }], "notice": "The disk is full.",
            "stopping": true, "timestamp": LATER_TIME,
        }),
    );
    minimal(json!({ "priority": 4 }), &PriorityLoad { priority: 4, running: 0, waiting: 0 });
    let beat = InstanceHeartbeat { priorities: Vec::new(), notice: None, stopping: false, ..beat };
    golden(
        &RegistrationMessage::Heartbeat(beat.clone()),
        json!({
            "kind": "heartbeat", "workerId": "mail", "instanceId": "mail-0a1b2c3d", "running": [OCCURRENCE_ID],
            "timestamp": LATER_TIME,
        }),
    );
    minimal(
        json!({ "kind": "heartbeat", "workerId": "mail", "instanceId": "mail-0a1b2c3d", "timestamp": LATER_TIME }),
        &RegistrationMessage::Heartbeat(InstanceHeartbeat { running: Vec::new(), ..beat }),
    );
    golden(
        &RegistrationMessage::Goodbye { instance_id: "mail-0a1b2c3d".into() },
        json!({ "kind": "goodbye", "instanceId": "mail-0a1b2c3d" }),
    );
}

#[test]
fn declarations_of_a_job_type() {
    let defaults = JobDefaults {
        max_retries: Some(3),
        base_retry_delay_seconds: Some(10),
        retry_jitter_percent: Some(20),
        priority: Some(4),
        max_concurrent: Some(2),
        overlap: Some("skip".into()),
        misfire: Some("fire_once".into()),
        on_lost: Some("requeue".into()),
        start_within_seconds: Some(30),
        unique: Some(UniqueRule { for_seconds: Some(3_600) }),
        tags: vec!["mail".into()],
    };
    let defaults_json = json!({
        "maxRetries": 3, "baseRetryDelaySeconds": 10, "retryJitterPercent": 20, "priority": 4, "maxConcurrent": 2,
        "overlap": "skip", "misfire": "fire_once", "onLost": "requeue", "startWithinSeconds": 30,
        "unique": { "forSeconds": 3600 }, "tags": ["mail"],
    });
    golden(&defaults, defaults_json.clone());
    golden(&JobDefaults::default(), json!({}));
    let cron = DeclaredTiming::Cron { expression: "0 2 * * *".into(), zone: "Europe/Berlin".into() };
    let cron_json = json!({ "kind": "cron", "expression": "0 2 * * *", "zone": "Europe/Berlin" });
    golden(&cron, cron_json.clone());
    golden(&DeclaredTiming::Every { seconds: 60 }, json!({ "kind": "every", "seconds": 60 }));
    minimal(
        json!({ "kind": "cron", "expression": "0 2 * * *" }),
        &DeclaredTiming::Cron { expression: "0 2 * * *".into(), zone: "UTC".into() },
    );
    let schedule = DeclaredSchedule {
        name: "nightly".into(),
        timing: cron,
        input: json!({ "month": "last" }),
        display_name: Some("Nightly report".into()),
        rules: defaults.clone(),
        timeout_seconds: Some(60),
    };
    golden(
        &schedule,
        json!({
            "name": "nightly", "timing": cron_json, "input": { "month": "last" }, "displayName": "Nightly report",
            "rules": defaults_json, "timeoutSeconds": 60,
        }),
    );
    let bare = DeclaredSchedule {
        input: Value::Null,
        display_name: None,
        rules: JobDefaults::default(),
        timeout_seconds: None,
        ..schedule.clone()
    };
    minimal(json!({ "name": "nightly", "timing": cron_json }), &bare);
    let info = JobTypeInfo {
        job_type: "send".into(),
        bundle_size: Some(10),
        defaults,
        schedules: vec![bare],
        ..JobTypeInfo::default()
    };
    golden(
        &info,
        json!({
            "jobType": "send", "description": "", "schema": null, "concurrency": 0, "timeoutSeconds": null,
            "bundleSize": 10, "defaults": defaults_json, "schedules": [{ "name": "nightly", "timing": cron_json, "input": null }],
        }),
    );
}

#[test]
fn hello_reply() {
    let problem = HelloProblem {
        job_type: Some("send".into()),
        schedule: Some("nightly".into()),
        text: "cron: five or six fields".into(),
    };
    let reply =
        HelloReply { accepted: true, protocol: 1, features: vec!["claims".into()], problems: vec![problem.clone()] };
    golden(
        &reply,
        json!({
            "accepted": true, "protocol": 1, "features": ["claims"],
            "problems": [{ "jobType": "send", "schedule": "nightly", "text": "cron: five or six fields" }],
        }),
    );
    golden(&HelloProblem { job_type: None, schedule: None, ..problem }, json!({ "text": "cron: five or six fields" }));
    minimal(
        json!({ "accepted": false }),
        &HelloReply { accepted: false, features: Vec::new(), problems: Vec::new(), ..reply },
    );
}

#[test]
fn ingest() {
    let new = NewOccurrence {
        id: occurrence(),
        job_key: Some("nightly-report".into()),
        worker_id: Some("mail".into()),
        job_type: Some("send".into()),
        input: Some(json!({ "to": "ada@example.org" })),
        not_before: Some(at(LATER_TIME)),
        priority: Some(5),
        uniqueness_key: Some("invoice-7".into()),
        unique_for_seconds: Some(3_600),
        parent_id: Some(occurrence()),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
    };
    golden(
        &IngestMessage { occurrences: vec![new], producer: "billing".into() },
        json!({
            "occurrences": [{
                "id": OCCURRENCE_ID, "jobKey": "nightly-report", "workerId": "mail", "jobType": "send",
                "input": { "to": "ada@example.org" }, "notBefore": LATER_TIME, "priority": 5,
                "uniquenessKey": "invoice-7", "uniqueForSeconds": 3600, "parentId": OCCURRENCE_ID,
                "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            }],
            "producer": "billing",
        }),
    );
    let bare = NewOccurrence { id: occurrence(), ..NewOccurrence::default() };
    golden(
        &IngestMessage { occurrences: vec![bare], producer: String::new() },
        json!({ "occurrences": [{ "id": OCCURRENCE_ID }] }),
    );
    let result = IngestResult {
        id: occurrence(),
        outcome: IngestOutcome::Duplicate,
        existing_id: Some(occurrence()),
        reason: Some("the uniqueness key is in use".into()),
        retryable: true,
    };
    golden(
        &IngestReply { results: vec![result.clone()], error: None },
        json!({ "results": [{
            "id": OCCURRENCE_ID, "outcome": "duplicate", "existingId": OCCURRENCE_ID,
            "reason": "the uniqueness key is in use", "retryable": true,
        }] }),
    );
    golden(
        &IngestReply { results: Vec::new(), error: Some("too many".into()) },
        json!({ "results": [], "error": "too many" }),
    );
    for (outcome, word) in [(IngestOutcome::Accepted, "accepted"), (IngestOutcome::Rejected, "rejected")] {
        golden(&IngestResult::new(occurrence(), outcome), json!({ "id": OCCURRENCE_ID, "outcome": word }));
    }
}
