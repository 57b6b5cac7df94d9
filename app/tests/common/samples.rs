//! Sample values for page tests: one instant, one job, one worker, and variations of them.

use chrono::{DateTime, Utc};
use milvaion_api::{
    alerts::FiringAlerts,
    failures::{DeadLetterRow, FailureCause, FailureGroup, FailureRow},
    page::TimeWindow,
    permissions::Role,
    requests::JobInput,
    sources::JobSource,
    team::SessionView,
    versions::{FieldChange, VersionDiff, VersionRow, VersionStep},
    views::{
        BarCount, BlackoutView, CalendarName, CalendarRow, CalendarView, ClusterOverview, ClusterPause, ClusterStatus,
        CurrentUser, HealthItem, HealthState, InstanceState, InstanceView, JobRow, JobTypeView, JobView, OccurrenceRow,
        OccurrenceView, PreviewRun, SchedulePreview, StatusChange, TriggerSource, UpcomingJob, WorkerView,
    },
};
use milvaion_protocol::{
    id::{CalendarId, DeadLetterId, JobId, OccurrenceId, SessionId, UserId},
    message::{JobTypeInfo, LogLevel, LogLine, PriorityLoad},
    status::OccurrenceStatus,
};
use milvaion_schedule::{
    calendar::{Calendar, WeeklyWindow},
    rules::{OverlapPolicy, Rules},
    schedule::Schedule,
};
use serde_json::json;

/// Returns the instant of the samples plus `second` seconds.
pub(crate) fn at(second: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_795_269_720 + second, 0).expect("a timestamp in range")
}

/// Returns the id of the sample job.
pub(crate) fn job_id() -> JobId {
    JobId::from_parts(at(0), [1; 10])
}

/// Returns the id of the occurrence that was due at `second`.
pub(crate) fn occurrence_id(second: i64) -> OccurrenceId {
    OccurrenceId::from_parts(at(second), [2; 10])
}

/// Returns a user with this role.
pub(crate) fn me(role: Role) -> CurrentUser {
    CurrentUser { id: UserId::from_parts(at(0), [3; 10]), name: "Ada".into(), email: "ada@example.org".into(), role }
}

/// Returns the id of an own session.
pub(crate) fn session_id(number: u8) -> SessionId {
    SessionId::from_parts(at(0), [number; 10])
}

/// Returns the own sessions, the current one first.
pub(crate) fn own_sessions() -> Vec<SessionView> {
    let session = |number: u8, device: &str, address: Option<&str>| SessionView {
        id: session_id(number),
        device: device.into(),
        address: address.map(Into::into),
        created_at: at(i64::from(number)),
        last_seen_at: at(60 * i64::from(number)),
        is_current: number == 1,
    };
    vec![
        session(1, "Firefox on Linux", Some("192.0.2.7")),
        session(2, "Chrome on <b>Windows</b>", Some("198.51.100.3")),
        session(3, "Unknown device", None),
    ]
}

/// Returns a cluster pause with this reason.
pub(crate) fn pause(reason: &str) -> ClusterPause {
    ClusterPause { since: at(0), by: "grace@example.org".into(), reason: reason.into() }
}

/// Returns an occurrence as a row of a list.
pub(crate) fn row(second: i64, status: OccurrenceStatus) -> OccurrenceRow {
    let begun = !matches!(status, OccurrenceStatus::Queued | OccurrenceStatus::Skipped);
    let ended = begun && status.is_final();
    OccurrenceRow {
        id: occurrence_id(second),
        job_id: job_id(),
        job_name: "nightly report".into(),
        status,
        version: 1,
        trigger: TriggerSource::Schedule,
        attempt: 1,
        scheduled_for: at(second),
        started_at: begun.then(|| at(second)),
        ended_at: ended.then(|| at(second + 1)),
        duration_ms: ended.then_some(1_234),
        instance_id: begun.then(|| "local-1".into()),
        progress: None,
        note: match status {
            OccurrenceStatus::Failed => Some("status 500 instead of 200".into()),
            OccurrenceStatus::Skipped => Some("Skipped: the due time is in a blackout.".into()),
            _ => None,
        },
        waits_until: None,
        cancel_requested_at: None,
    }
}

/// Returns an occurrence as its page shows it.
pub(crate) fn occurrence(status: OccurrenceStatus) -> OccurrenceView {
    OccurrenceView {
        row: row(0, status),
        worker_id: "local".into(),
        job_type: "http-request".into(),
        job_version: 2,
        job_data: json!({ "url": "http://127.0.0.1:9/<report>" }),
        triggered_by: (status == OccurrenceStatus::Completed).then(|| "ada@example.org".into()),
        trigger_token: (status == OccurrenceStatus::Completed).then(|| "deploy (milvaion_…x7f2)".into()),
        trigger_reason: None,
        repeats: (status == OccurrenceStatus::Completed).then(|| occurrence_id(1)),
        parent_id: None,
        children: Vec::new(),
        has_more_children: false,
        trace_id: "019a9b3f7c007abc8def0123456789ab".into(),
        trace_url: Some("https://traces.example.org/trace/019a9b3f7c007abc8def0123456789ab".into()),
        published_at: Some(at(0)),
        is_held: false,
        result: (status == OccurrenceStatus::Completed).then(|| r#"{"status":200}"#.into()),
        exception: (status == OccurrenceStatus::Failed)
            .then(|| "status 500 instead of 200\nbody: \u{1b}[1moops".into()),
        changes: vec![
            StatusChange { status: OccurrenceStatus::Queued, at: at(0), attempt: 1, by: None, note: None },
            StatusChange { status, at: at(1), attempt: 1, by: Some("local-1".into()), note: None },
        ],
        log: vec![
            log_line(1_000_000, LogLevel::Info, "\u{1b}[32mrequest\u{1b}[0m sent"),
            log_line(1_000_001, LogLevel::Error, "<b>refused</b>"),
        ],
        log_has_earlier: true,
        log_skipped: 0,
        job_exists: true,
        worker_alive: true,
        instance_alive: true,
        instance_unreachable: false,
        is_overdue: false,
    }
}

/// Stores a cancel request in an occurrence.
pub(crate) fn request_cancellation(view: &mut OccurrenceView) {
    let note = Some("Cancellation requested by ada@example.org: wrong input".to_owned());
    let status = view.row.status;
    view.row.cancel_requested_at = Some(at(2));
    view.row.note = note.clone();
    view.changes.push(StatusChange { status, at: at(2), attempt: 1, by: Some("ada@example.org".into()), note });
}

/// Returns a log line.
pub(crate) fn log_line(seq: i64, level: LogLevel, message: &str) -> LogLine {
    LogLine { seq, at: at(0), level, message: message.into(), data: None }
}

/// Returns the sample job as a row of a list.
pub(crate) fn job_row() -> JobRow {
    JobRow {
        id: job_id(),
        key: None,
        display_name: "nightly report".into(),
        worker_id: "local".into(),
        job_type: "http-request".into(),
        schedule_words: "At 09:00".into(),
        next_fire_at: Some(at(3_600)),
        is_active: true,
        tags: vec!["billing".into()],
        recent: vec![(occurrence_id(0), OccurrenceStatus::Completed)],
        worker_alive: true,
    }
}

/// Returns a schedule in words with its next run.
pub(crate) fn preview() -> SchedulePreview {
    SchedulePreview {
        words: "At 09:00".into(),
        zone: "Europe/Warsaw".into(),
        viewer_zone: None,
        runs: vec![PreviewRun {
            at: at(3_600),
            in_zone: "2026-11-22 09:00 CET".into(),
            in_viewer_zone: None,
            blackout: None,
        }],
        warnings: vec![],
    }
}

/// Returns the sample job as its page shows it.
pub(crate) fn job() -> JobView {
    JobView {
        row: job_row(),
        definition: JobInput {
            display_name: "nightly report".into(),
            description: "Requests the report.".into(),
            tags: vec!["billing".into()],
            worker_id: "local".into(),
            job_type: "http-request".into(),
            job_data: json!({ "url": "http://127.0.0.1:9/report" }),
            schedule: Schedule::Cron { expression: "0 9 * * *".into(), zone: "Europe/Warsaw".into() },
            is_active: true,
            priority: 3,
            timeout_seconds: None,
            rules: Rules {
                start_at: Some(at(86_400)),
                jitter_seconds: 30,
                overlap: OverlapPolicy::Queue,
                calendars: vec![calendar_id()],
                max_retries: 4,
                retry_jitter_percent: 25,
                ..Rules::default()
            },
        },
        version: 2,
        unreadable: None,
        paused_reason: None,
        source: JobSource::default(),
        preview: preview(),
        delayed: 3,
        created_at: at(0),
        created_by: "Ada".into(),
        modified_at: at(0),
        modified_by: "Ada".into(),
        schema: Some(schema()),
        calendars: vec![CalendarName { id: calendar_id(), name: "Holidays".into() }],
    }
}

/// Returns the id of the sample calendar.
pub(crate) fn calendar_id() -> CalendarId {
    CalendarId::from_parts(at(0), [5; 10])
}

/// Returns an upcoming blackout.
pub(crate) fn blackout() -> BlackoutView {
    let in_zone = "Thu 2026-12-24 to Sat 2026-12-26".into();
    BlackoutView { from: at(3_600), to: Some(at(7_200)), in_zone, is_now: false }
}

/// Returns the sample calendar as a row of the list.
pub(crate) fn calendar_row() -> CalendarRow {
    CalendarRow {
        id: calendar_id(),
        name: "Holidays".into(),
        zone: "Europe/Warsaw".into(),
        words: "2026-12-24 to 2026-12-26".into(),
        jobs: 1,
        pending_jobs: None,
        next: Some(blackout()),
    }
}

/// Returns the sample calendar as its form shows it.
pub(crate) fn calendar() -> CalendarView {
    let day = |day| chrono::NaiveDate::from_ymd_opt(2026, 12, day).expect("a valid day");
    let time = |hour| chrono::NaiveTime::from_hms_opt(hour, 0, 0).expect("a valid hour");
    CalendarView {
        id: calendar_id(),
        version: 3,
        calendar: Calendar {
            name: "Holidays".into(),
            zone: "Europe/Warsaw".into(),
            dates: (24..=26).map(day).collect(),
            windows: vec![WeeklyWindow { weekday: 5, from: time(22), to: time(6) }],
        },
        jobs: vec![(job_id(), "nightly report".into())],
        jobs_total: 1,
        pending_jobs: Some(1),
        modified_at: at(0),
        modified_by: "ada@example.org".into(),
    }
}

/// Returns the schema of the sample job type.
pub(crate) fn schema() -> serde_json::Value {
    json!({
        "type": "object",
        "required": ["url"],
        "properties": { "url": { "type": "string", "description": "The URL to request." } }
    })
}

/// Returns the sample job type.
pub(crate) fn job_type() -> JobTypeView {
    JobTypeView {
        worker_id: "local".into(),
        info: JobTypeInfo {
            job_type: "http-request".into(),
            description: "Sends an HTTP request.".into(),
            schema: schema(),
            concurrency: 4,
            timeout_seconds: Some(60),
            ..JobTypeInfo::default()
        },
        alive: 1,
    }
}

/// Returns the sample worker: one live and one lost instance.
pub(crate) fn worker() -> WorkerView {
    let instance = |id: &str, state: InstanceState| InstanceView {
        id: id.into(),
        host: "host-a".into(),
        version: "0.1.0".into(),
        capacity: 8,
        critical_slots: 0,
        state,
        running: 1,
        priorities: Vec::new(),
        started_at: at(0),
        last_heartbeat_at: at(5),
        stopped_at: None,
        notice: state.is_alive().then(|| "Its outbox <b>cannot</b> be written.".into()),
        protocol: 1,
        features: Vec::new(),
        problems: Vec::new(),
        unreadable: 0,
        unreadable_at: None,
        unreadable_reason: None,
    };
    let active = InstanceView {
        critical_slots: 2,
        priorities: vec![PriorityLoad { priority: 5, running: 1, waiting: 3 }],
        ..instance("local-1", InstanceState::Active)
    };
    WorkerView {
        id: "local".into(),
        instances: vec![active, instance("local-2", InstanceState::Lost)],
        job_types: vec![job_type()],
    }
}

fn health(name: &str, state: HealthState, detail: &str) -> HealthItem {
    let since = (state != HealthState::Ok).then(|| at(20));
    HealthItem { name: name.into(), state, detail: detail.into(), since }
}

/// Returns the state of a cluster whose RabbitMQ refuses connections.
pub(crate) fn cluster_status(pause: Option<ClusterPause>) -> ClusterStatus {
    ClusterStatus {
        now: at(30),
        health: vec![
            health("PostgreSQL", HealthState::Ok, "1 ms"),
            health("RabbitMQ", HealthState::Down, "does not respond"),
        ],
        is_pause_known: true,
        pause,
        alerts: FiringAlerts::default(),
    }
}

/// Returns the state of a cluster whose PostgreSQL is down.
pub(crate) fn outage_status() -> ClusterStatus {
    let down = health("PostgreSQL", HealthState::Down, "does not respond; nothing can be read until it does");
    ClusterStatus {
        now: at(30),
        health: vec![down],
        is_pause_known: false,
        pause: None,
        alerts: FiringAlerts::default(),
    }
}

/// Returns the overview of a busy installation, or of one without jobs.
pub(crate) fn overview(empty: bool, window: TimeWindow) -> ClusterOverview {
    let counts = vec![(OccurrenceStatus::Completed, 1_234), (OccurrenceStatus::Failed, 1)];
    ClusterOverview {
        now: at(30),
        window,
        open: vec![(OccurrenceStatus::Queued, 10_001), (OccurrenceStatus::Running, 2), (OccurrenceStatus::Unknown, 0)],
        ended: if empty { vec![] } else { counts.clone() },
        bars: if empty { vec![] } else { vec![BarCount { start: at(0), counts }] },
        workers_alive: 1,
        workers_known: 2,
        jobs_active: i64::from(!empty),
        jobs_total: i64::from(!empty),
        next_due: vec![UpcomingJob { job_id: job_id(), job_name: "nightly report".into(), at: at(3_600) }],
        offers_demo: true,
        failures: vec![row(0, OccurrenceStatus::Failed)],
        open_failures: if empty { 0 } else { 10_000 },
    }
}

/// Returns the group of the failures with the sample cause.
pub(crate) fn group() -> FailureGroup {
    FailureGroup {
        fingerprint: "0123456789abcdef".into(),
        count: 1_234,
        open: 12,
        jobs: 3,
        first_at: at(0),
        last_at: at(60),
        occurrence_id: occurrence_id(0),
        job_id: job_id(),
        job_name: "nightly report".into(),
        cause: FailureCause::Exhausted,
        note: "order <b>7</b> not found".into(),
    }
}

/// Returns an open failure.
pub(crate) fn failure(second: i64) -> FailureRow {
    FailureRow {
        occurrence_id: occurrence_id(second),
        job_id: job_id(),
        job_name: "nightly report".into(),
        job_version: 2,
        worker_id: "local".into(),
        job_type: "http-request".into(),
        attempt: 3,
        failed_at: at(second),
        cause: FailureCause::Exhausted,
        exception: Some("order <b>7</b> not found\n  at line 3".into()),
        fingerprint: group().fingerprint,
        job_data: json!({ "order": "</textarea><script>" }),
        resolved_at: None,
        resolved_by: None,
        resolution_note: None,
        resolution_action: None,
        retried_as: None,
    }
}

/// Returns a failure that was retried.
pub(crate) fn resolved_failure(second: i64) -> FailureRow {
    FailureRow {
        resolved_at: Some(at(90)),
        resolved_by: Some("grace@example.org".into()),
        resolution_note: Some("the shop was closed".into()),
        resolution_action: Some("retry".into()),
        retried_as: Some(occurrence_id(0)),
        ..failure(second)
    }
}

/// Returns an unreadable message.
pub(crate) fn dead_letter() -> DeadLetterRow {
    DeadLetterRow {
        id: DeadLetterId::from_parts(at(0), [4; 10]),
        received_at: at(0),
        reason: "it is not a job message: expected value".into(),
        source: "milvaion.dlx/w.echo".into(),
        headers: json!({ "x-death": [{ "reason": "rejected" }] }),
        occurrence_id: Some(occurrence_id(0)),
        occurrence_status: Some(OccurrenceStatus::Queued),
        body: "\u{0}\u{1b}[31m<script>alert(1)</script>".into(),
        body_bytes: 100_000,
        copies: 3,
        resolved_at: None,
        resolved_by: None,
        resolution_note: None,
    }
}

/// Returns the versions of the sample job.
pub(crate) fn history() -> Vec<VersionStep> {
    let row = |version| VersionRow { version, changed_at: at(i64::from(version)), changed_by: "Ada".into() };
    let fields = vec!["displayName".into(), "rules.maxRetries".into()];
    vec![VersionStep { row: row(2), fields, more: false }, VersionStep { row: row(1), fields: vec![], more: false }]
}

/// Returns the difference between the two versions.
pub(crate) fn difference() -> VersionDiff {
    let change = |field: &str, before, after| FieldChange { field: field.into(), before, after };
    VersionDiff {
        changes: vec![
            change("displayName", Some(json!("report")), Some(json!("nightly <report>"))),
            change("rules.maxRetries", None, Some(json!(4))),
        ],
        more: false,
    }
}
