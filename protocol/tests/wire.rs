//! The JSON of everything that crosses a boundary, pinned.
//!
//! Each golden is checked both ways: what we write is the golden, and the golden is read as what we wrote. It is then
//! read again with fields of tomorrow strewn into every object, and once more with nothing but what has no default. A
//! worker in another language, an old server beside a new one and a browser tab from yesterday all rest on these pages,
//! so a test that fails here is not mended by editing the golden: see [`RULE`].

use std::fmt::Debug;

use chrono::{DateTime, Utc};
use protocol::{
    access::Role,
    event::{Envelope, Event},
    id::{JobId, OccurrenceId},
    message::{
        self, Heartbeat, Hello, JobMessage, JobTypeInfo, LogLevel, LogLine, LogMessage, Progress, RegistrationMessage,
        StatusMessage, StatusReport,
    },
    schedule::Schedule,
    status::{ALL, OccurrenceStatus},
    topology::{self, Keys, Topology},
    view::{OccurrenceRow, StatusChange, Trigger},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// Said by every assertion here.
const RULE: &str = "a changed golden is a changed contract: a field may be added with a default, none may be renamed, \
                    removed or given another meaning, and a number keeps what it stands for";

const OCCURRENCE: &str = "019a9b3f-7c00-7abc-8def-0123456789ab";
const JOB: &str = "019a9b3f-0000-7abc-8def-0123456789ab";
const DUE: &str = "2026-11-21T09:00:00Z";
const LATER: &str = "2026-11-21T09:00:00.123456Z";

/// Members whose contents are somebody else's: everything in them is kept, so nothing in them is unknown.
const FREE: [&str; 3] = ["jobData", "data", "schema"];

fn occurrence() -> OccurrenceId {
    OCCURRENCE.parse().expect("an id")
}

fn job() -> JobId {
    JOB.parse().expect("an id")
}

fn at(text: &str) -> DateTime<Utc> {
    text.parse().expect("an instant")
}

/// Strews an unknown field into every object, except into those whose contents are free.
fn of_tomorrow(json: &Value) -> Value {
    match json {
        Value::Object(fields) => {
            let mut wider: serde_json::Map<String, Value> = fields
                .iter()
                .map(|(name, value)| {
                    let value = if FREE.contains(&name.as_str()) { value.clone() } else { of_tomorrow(value) };
                    (name.clone(), value)
                })
                .collect();
            wider.insert("aFieldOfTomorrow".into(), json!({ "nested": [1, null, "two"] }));
            Value::Object(wider)
        }
        Value::Array(items) => Value::Array(items.iter().map(of_tomorrow).collect()),
        other => other.clone(),
    }
}

/// Checks one value against its golden, both ways, and that readers ignore what they do not know.
#[track_caller]
fn golden<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T, json: Value) {
    assert_eq!(serde_json::to_value(value).expect("it can be written"), json, "{RULE}");
    assert_eq!(&read::<T>(of_tomorrow(&json)), value, "an unknown field is ignored; {RULE}");
    assert_eq!(&read::<T>(json), value, "{RULE}");
}

/// Checks that the least a writer may send is read with these defaults.
#[track_caller]
fn least<T: DeserializeOwned + PartialEq + Debug>(json: Value, value: &T) {
    assert_eq!(&read::<T>(json), value, "a missing field takes its default; {RULE}");
}

#[track_caller]
fn read<T: DeserializeOwned>(json: Value) -> T {
    // Through text, as it comes from a broker: borrowed and owned readers may differ.
    serde_json::from_str(&json.to_string()).unwrap_or_else(|error| panic!("{error}; {RULE}\n{json:#}"))
}

// --- The rule itself. ---

#[test]
fn a_changed_golden_is_a_changed_contract() {
    let (essay, here) = (include_str!("../src/lib.rs"), include_str!("wire.rs"));
    assert!(essay.contains("tests/wire.rs"), "the essay of this crate leads its reader here");
    // Whatever is added to the messages and events must get a golden, or somebody changes it unawares.
    for source in [include_str!("../src/message.rs"), include_str!("../src/event.rs")] {
        for line in source.lines() {
            let Some(rest) = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum ")) else {
                continue;
            };
            let name: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
            let made_here = [format!("{name} {{"), format!("{name}::"), format!("{name}(")];
            assert!(
                made_here.iter().any(|made| here.contains(made)),
                "{name} crosses a boundary and has no golden here"
            );
        }
    }
}

// --- Numbers and words. ---

#[test]
fn every_status_has_its_number_for_ever() {
    let numbers = [
        (OccurrenceStatus::Queued, 0),
        (OccurrenceStatus::Running, 1),
        (OccurrenceStatus::Completed, 2),
        (OccurrenceStatus::Failed, 3),
        (OccurrenceStatus::Cancelled, 4),
        (OccurrenceStatus::TimedOut, 5),
        (OccurrenceStatus::Unknown, 6),
        (OccurrenceStatus::Skipped, 7),
    ];
    assert_eq!(numbers.map(|(status, _)| status), ALL, "every status stands in this table");
    for (status, number) in numbers {
        golden(&status, json!(number));
        assert_eq!(status.code(), number, "the database holds the same number; {RULE}");
    }
    for wrong in [json!(8), json!(-1), json!("Completed"), json!(null), json!(70_000)] {
        assert!(serde_json::from_value::<OccurrenceStatus>(wrong.clone()).is_err(), "{wrong} is no status");
    }
}

#[test]
fn words_for_levels_triggers_and_roles() {
    for (level, word, code) in [
        (LogLevel::Debug, "debug", 0),
        (LogLevel::Info, "info", 1),
        (LogLevel::Warn, "warn", 2),
        (LogLevel::Error, "error", 3),
    ] {
        golden(&level, json!(word));
        assert_eq!((level.code(), LogLevel::from_code(code)), (code, level), "{RULE}");
    }
    for (trigger, word) in
        [(Trigger::Schedule, "schedule"), (Trigger::Manual, "manual"), (Trigger::Api, "api"), (Trigger::Retry, "retry")]
    {
        golden(&trigger, json!(word));
        assert_eq!(trigger.word(), word, "the database holds the same word; {RULE}");
    }
    for (role, word) in [(Role::Viewer, "viewer"), (Role::Operator, "operator"), (Role::Admin, "admin")] {
        golden(&role, json!(word));
        assert_eq!(role.slug(), word, "the database holds the same word; {RULE}");
    }
}

#[test]
fn names_on_the_broker_and_in_redis() {
    let names = Topology::default();
    assert_eq!(
        [
            names.jobs_exchange(),
            names.dead_letter_exchange(),
            names.dead_letter_queue(),
            names.status(),
            names.logs(),
            names.registration(),
            names.job_queue("Mail.EU", "send_letter"),
            Topology::job_binding("Mail.EU", "send_letter"),
            Topology::routing_key("Mail.EU", "send_letter", occurrence()),
        ],
        [
            "milvaion.jobs",
            "milvaion.dlx",
            "milvaion.dlq",
            "milvaion.status",
            "milvaion.logs",
            "milvaion.registration",
            "milvaion.jobs.mail_deu.send__letter",
            "mail_deu.send__letter.*",
            "mail_deu.send__letter.019a9b3f-7c00-7abc-8def-0123456789ab",
        ],
        "{RULE}"
    );
    assert_eq!(
        [
            topology::HEADER_RETRY_COUNT,
            topology::HEADER_MAX_RETRIES,
            topology::HEADER_CORRELATION_ID,
            topology::HEADER_REPUBLISH,
        ],
        ["x-retry-count", "x-max-retries", "x-original-correlation-id", "x-republish"],
        "{RULE}"
    );
    let keys = Keys::default();
    assert_eq!(
        [
            keys.schedule(),
            keys.wake_channel(),
            keys.events_channel(),
            keys.cancellation_channel(),
            keys.heartbeat("w-1"),
            keys.running(occurrence()),
        ],
        [
            "Milvaion:JobScheduler:schedule",
            "Milvaion:JobScheduler:wake",
            "Milvaion:JobScheduler:events",
            "Milvaion:JobScheduler:cancellation_channel",
            "Milvaion:JobScheduler:heartbeat:w-1",
            "Milvaion:JobScheduler:running:019a9b3f-7c00-7abc-8def-0123456789ab",
        ],
        "{RULE}"
    );
}

#[test]
fn limits_that_the_other_side_counts_on() {
    // A queue is declared with its number of priorities; another number is refused by the broker that has the first.
    assert_eq!(topology::MAX_PRIORITY, 5, "{RULE}");
    assert_eq!((message::MAX_MESSAGE, message::MAX_JOB_DATA), (1_048_576, 65_536), "{RULE}");
    assert_eq!((message::MAX_RESULT, message::MAX_LOG_LINE), (65_536, 8_192), "{RULE}");
    assert_eq!((message::HEARTBEAT_SECONDS, message::LOST_AFTER_SECONDS), (5, 15), "{RULE}");
    assert_eq!([message::first_seq(1), message::first_seq(3)], [1_000_000, 3_000_000], "{RULE}");
}

// --- Server to worker. ---

#[test]
fn job_message() {
    let message = JobMessage {
        occurrence_id: occurrence(),
        job_id: job(),
        job_name: "Nightly report".into(),
        job_type: "http-request".into(),
        job_data: json!({ "url": "https://example.org", "headers": {} }),
        correlation_id: occurrence(),
        scheduled_for: at(DUE),
        timestamp: at(LATER),
        attempt: 2,
        retry_count: 1,
        max_retries: 3,
        timeout_seconds: Some(90),
        priority: 5,
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
    };
    let json = json!({
        "occurrenceId": OCCURRENCE,
        "jobId": JOB,
        "jobName": "Nightly report",
        "jobType": "http-request",
        "jobData": { "url": "https://example.org", "headers": {} },
        "correlationId": OCCURRENCE,
        "scheduledFor": DUE,
        "timestamp": LATER,
        "attempt": 2,
        "retryCount": 1,
        "maxRetries": 3,
        "timeoutSeconds": 90,
        "priority": 5,
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    });
    golden(&message, json.clone());

    // No limit is told as null; no trace is not told at all.
    let plain = JobMessage { timeout_seconds: None, traceparent: None, ..message.clone() };
    let mut plain_json = json;
    plain_json["timeoutSeconds"] = Value::Null;
    plain_json.as_object_mut().expect("an object").remove("traceparent");
    golden(&plain, plain_json);

    least(
        json!({
            "occurrenceId": OCCURRENCE, "jobId": JOB, "jobType": "http-request", "correlationId": OCCURRENCE,
            "scheduledFor": DUE, "timestamp": LATER,
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
        timestamp: at(LATER),
        result: Some("{\"sent\":3}".into()),
        exception: Some("the mailbox is full".into()),
        duration_ms: Some(1_250),
        progress: Some(Progress { percent: 40, message: "2 of 5".into() }),
    }
}

fn report_json() -> Value {
    json!({
        "occurrenceId": OCCURRENCE,
        "attempt": 2,
        "instanceId": "mail-0a1b2c3d",
        "status": 3,
        "timestamp": LATER,
        "result": "{\"sent\":3}",
        "exception": "the mailbox is full",
        "durationMs": 1250,
        "progress": { "percent": 40, "message": "2 of 5" },
    })
}

#[test]
fn status_report() {
    golden(&report(), report_json());
    let least_json =
        json!({ "occurrenceId": OCCURRENCE, "instanceId": "mail-0a1b2c3d", "status": 1, "timestamp": LATER });
    let running = StatusReport {
        attempt: 1,
        status: OccurrenceStatus::Running,
        result: None,
        exception: None,
        duration_ms: None,
        progress: None,
        ..report()
    };
    least(least_json, &running);
    // What is not there is not written either.
    golden(
        &running,
        json!({
            "occurrenceId": OCCURRENCE, "attempt": 1, "instanceId": "mail-0a1b2c3d", "status": 1, "timestamp": LATER,
        }),
    );
    least(json!({ "percent": 7 }), &Progress { percent: 7, message: String::new() });
}

#[test]
fn status_message_batched_and_alone() {
    golden(
        &StatusMessage::Batch { reports: vec![report(), report()] },
        json!({ "reports": [report_json(), report_json()] }),
    );
    golden(&StatusMessage::Batch { reports: Vec::new() }, json!({ "reports": [] }));
    golden(&StatusMessage::One(report()), report_json());
}

fn line() -> LogLine {
    LogLine {
        seq: 2_000_017,
        at: at(LATER),
        level: LogLevel::Warn,
        message: "slow answer\nfrom the mailbox".into(),
        data: Some(json!({ "elapsedMs": 900 })),
    }
}

fn line_json() -> Value {
    json!({
        "seq": 2_000_017,
        "at": LATER,
        "level": "warn",
        "message": "slow answer\nfrom the mailbox",
        "data": { "elapsedMs": 900 },
    })
}

#[test]
fn log_message() {
    let lean = LogLine { level: LogLevel::Info, data: None, ..line() };
    golden(
        &LogMessage { occurrence_id: occurrence(), lines: vec![line(), lean.clone()] },
        json!({
            "occurrenceId": OCCURRENCE,
            "lines": [
                line_json(),
                { "seq": 2_000_017, "at": LATER, "level": "info", "message": "slow answer\nfrom the mailbox" },
            ],
        }),
    );
    least(json!({ "seq": 2_000_017, "at": LATER, "message": "slow answer\nfrom the mailbox" }), &lean);
}

#[test]
fn registration_hello() {
    let info = JobTypeInfo {
        job_type: "send".into(),
        description: "Sends a letter.".into(),
        schema: json!({ "type": "object", "properties": { "to": { "type": "string" } } }),
        concurrency: 10,
        timeout_seconds: Some(60),
    };
    let hello = Hello {
        worker_id: "mail".into(),
        instance_id: "mail-0a1b2c3d".into(),
        host: "post-office".into(),
        pid: 4_711,
        version: "1.2.3".into(),
        capacity: 50,
        job_types: vec![info.clone()],
        timestamp: at(LATER),
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
            "capacity": 50,
            "jobTypes": [{
                "jobType": "send",
                "description": "Sends a letter.",
                "schema": { "type": "object", "properties": { "to": { "type": "string" } } },
                "concurrency": 10,
                "timeoutSeconds": 60,
            }],
            "timestamp": LATER,
        }),
    );
    let bare =
        JobTypeInfo { description: String::new(), schema: Value::Null, concurrency: 0, timeout_seconds: None, ..info };
    least(
        json!({
            "kind": "hello", "workerId": "mail", "instanceId": "mail-0a1b2c3d", "jobTypes": [{ "jobType": "send" }],
            "timestamp": LATER,
        }),
        &RegistrationMessage::Hello(Hello {
            host: String::new(),
            pid: 0,
            version: String::new(),
            capacity: 0,
            job_types: vec![bare],
            ..hello
        }),
    );
}

#[test]
fn registration_heartbeat_and_goodbye() {
    let beat = Heartbeat {
        worker_id: "mail".into(),
        instance_id: "mail-0a1b2c3d".into(),
        running: vec![occurrence()],
        timestamp: at(LATER),
    };
    golden(
        &RegistrationMessage::Heartbeat(beat.clone()),
        json!({
            "kind": "heartbeat", "workerId": "mail", "instanceId": "mail-0a1b2c3d", "running": [OCCURRENCE],
            "timestamp": LATER,
        }),
    );
    least(
        json!({ "kind": "heartbeat", "workerId": "mail", "instanceId": "mail-0a1b2c3d", "timestamp": LATER }),
        &RegistrationMessage::Heartbeat(Heartbeat { running: Vec::new(), ..beat }),
    );
    golden(
        &RegistrationMessage::Goodbye { instance_id: "mail-0a1b2c3d".into() },
        json!({ "kind": "goodbye", "instanceId": "mail-0a1b2c3d" }),
    );
}

// --- Server to browser. ---

fn row() -> OccurrenceRow {
    OccurrenceRow {
        id: occurrence(),
        job_id: job(),
        job_name: "Nightly report".into(),
        status: OccurrenceStatus::Completed,
        version: 4,
        trigger: Trigger::Manual,
        attempt: 1,
        scheduled_for: at(DUE),
        started_at: Some(at(LATER)),
        ended_at: Some(at("2026-11-21T09:00:01Z")),
        duration_ms: Some(877),
        instance_id: Some("mail-0a1b2c3d".into()),
        progress: Some(Progress { percent: 100, message: "done".into() }),
        note: Some("all well".into()),
    }
}

fn row_json() -> Value {
    json!({
        "id": OCCURRENCE,
        "jobId": JOB,
        "jobName": "Nightly report",
        "status": 2,
        "version": 4,
        "trigger": "manual",
        "attempt": 1,
        "scheduledFor": DUE,
        "startedAt": LATER,
        "endedAt": "2026-11-21T09:00:01Z",
        "durationMs": 877,
        "instanceId": "mail-0a1b2c3d",
        "progress": { "percent": 100, "message": "done" },
        "note": "all well",
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
        ..row()
    };
    // What is unknown yet is told as null, so that a page which patches a row also takes values away.
    let mut queued_json = row_json();
    queued_json["status"] = json!(0);
    let unknown_yet = ["startedAt", "endedAt", "durationMs", "instanceId", "progress", "note"];
    for name in unknown_yet {
        queued_json[name] = Value::Null;
    }
    golden(&queued, queued_json.clone());
    for name in unknown_yet {
        queued_json.as_object_mut().expect("an object").remove(name);
    }
    least(queued_json, &queued);
}

fn enveloped(event: Event, json: Value) {
    let envelope = Envelope { id: "6430a1b2c3d4e-00ff00ff00ff00ff".into(), at: at(LATER), event };
    golden(&envelope, json!({ "id": "6430a1b2c3d4e-00ff00ff00ff00ff", "at": LATER, "event": json }));
}

#[test]
fn every_event() {
    enveloped(Event::Occurrences { rows: vec![row()] }, json!({ "kind": "occurrences", "rows": [row_json()] }));
    enveloped(Event::Job { id: job() }, json!({ "kind": "job", "id": JOB }));
    enveloped(Event::JobDeleted { id: job() }, json!({ "kind": "jobDeleted", "id": JOB }));
    enveloped(
        Event::Log { occurrence_id: occurrence(), lines: vec![line()] },
        json!({ "kind": "log", "occurrenceId": OCCURRENCE, "lines": [line_json()] }),
    );
    enveloped(Event::Workers, json!({ "kind": "workers" }));
    enveloped(Event::Resync, json!({ "kind": "resync" }));
}

#[test]
fn an_event_of_tomorrow_is_an_error_that_the_page_can_see() {
    // The page answers it by reading again; taking it for another event would be worse.
    let json = json!({ "id": "1", "at": LATER, "event": { "kind": "eclipse" } });
    assert!(serde_json::from_value::<Envelope>(json).is_err());
}

// --- Kept in PostgreSQL as JSON: read by every later version. ---

#[test]
fn schedules() {
    golden(
        &Schedule::Cron { expression: "0 9 * * MON-FRI".into(), zone: "Europe/Warsaw".into() },
        json!({ "kind": "cron", "expression": "0 9 * * MON-FRI", "zone": "Europe/Warsaw" }),
    );
    golden(&Schedule::Every { seconds: 30 }, json!({ "kind": "every", "seconds": 30 }));
    golden(&Schedule::Once { at: at(DUE) }, json!({ "kind": "once", "at": DUE }));
    golden(&Schedule::Manual, json!({ "kind": "manual" }));
}

#[test]
fn steps_of_an_occurrences_life() {
    let step = StatusChange {
        status: OccurrenceStatus::Failed,
        at: at(LATER),
        attempt: 1,
        by: Some("mail-0a1b2c3d".into()),
        note: Some("the mailbox is full".into()),
    };
    golden(
        &step,
        json!({ "status": 3, "at": LATER, "attempt": 1, "by": "mail-0a1b2c3d", "note": "the mailbox is full" }),
    );
    // As the statement that fires a job writes the first one.
    golden(
        &StatusChange { status: OccurrenceStatus::Queued, by: None, note: None, ..step },
        json!({ "status": 0, "at": LATER, "attempt": 1 }),
    );
}
