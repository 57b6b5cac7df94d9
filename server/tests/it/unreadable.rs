//! Messages of workers that cannot be read, or not in part: the status counts all the same, and the rest is shown.

use chrono::Duration;
use milvaion_api::{duplicates, report_notes, views::InstanceView};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{MAX_MESSAGE_BYTES, StatusReport},
    status::OccurrenceStatus,
};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    broker::consumer::BatchHandler,
    clock::Clock,
    engine::activators::Activators,
    ingest::{logs::LogConsumer, registration::RegistrationConsumer, status::StatusConsumer},
    live::Hub,
    store::Store,
};
use milvaion_test_support::{database, jobs, messages, runs};
use serde_json::{Value, json};

struct Harness {
    store: Store,
    clock: Clock,
    status: StatusConsumer,
    logs: LogConsumer,
    id: OccurrenceId,
}

impl Harness {
    /// Creates a queued occurrence and the instance `w-1`.
    async fn new() -> Self {
        let (store, clock) = (database::fresh().await, Clock::system());
        let (hub, _) = Hub::new();
        let job_id = jobs::insert(&store, &clock, Schedule::Manual, None).await;
        let id = runs::insert_manual(&store, &clock, job_id).await;
        store.store_hellos(&[messages::hello("w-1", clock.now())], clock.now()).await.expect("stored");
        let status = StatusConsumer {
            store: store.clone(),
            activators: Activators::default(),
            hub: hub.clone(),
            clock: clock.clone(),
        };
        let logs = LogConsumer { store: store.clone(), hub, clock: clock.clone() };
        Self { store, clock, status, logs, id }
    }

    fn report(&self, status: u8) -> Value {
        json!({ "occurrenceId": self.id, "instanceId": "w-1", "status": status, "timestamp": self.clock.now() })
    }

    async fn receive(&self, report: &Value) {
        self.status.handle(vec![report.to_string().into_bytes()]).await.expect("the batch is handled");
    }

    /// Returns the status and the notes about reports.
    async fn shown(&self) -> (OccurrenceStatus, Vec<String>) {
        let view =
            self.store.occurrence(self.id, 10, self.clock.now()).await.expect("the query succeeds").expect("it exists");
        let notes = view.changes.iter().filter(|step| report_notes::is_report_note(step));
        (view.row.status, notes.filter_map(|step| step.note.clone()).collect())
    }

    async fn instance(&self) -> InstanceView {
        let now = self.clock.now();
        let workers = self.store.workers(now - Duration::days(1), now).await.expect("the query succeeds");
        workers[0].instances[0].clone()
    }
}

#[tokio::test]
async fn unreadable_detail_settles_the_status_and_is_shown() {
    let harness = Harness::new().await;
    let mut report = harness.report(1);
    (report["durationMs"], report["attempt"]) = (json!(1163.07), json!(1.0));
    harness.receive(&report).await;
    let (status, notes) = harness.shown().await;
    assert_eq!((status, notes.len(), harness.instance().await.unreadable), (OccurrenceStatus::Running, 0, 0));
    let mut report = harness.report(2);
    report["durationMs"] = json!("12 s");
    harness.receive(&report).await;
    let (status, notes) = harness.shown().await;
    assert_eq!(status, OccurrenceStatus::Completed);
    assert!(notes[0].contains("durationMs: invalid type: string"), "{notes:?}");
    let instance = harness.instance().await;
    assert_eq!(instance.unreadable, 1);
    assert!(instance.unreadable_reason.is_some_and(|reason| reason.starts_with("durationMs: ")));
    // A redelivery counts again, and the note stays one.
    harness.receive(&report).await;
    assert_eq!(harness.shown().await.1.len(), 1);
}

#[tokio::test]
async fn dropped_report_is_noted_at_its_occurrence() {
    let harness = Harness::new().await;
    let mut report = harness.report(2);
    report["status"] = json!("Completed");
    harness.receive(&report).await;
    let (status, notes) = harness.shown().await;
    assert_eq!(status, OccurrenceStatus::Queued);
    assert!(notes[0].contains("a report was dropped") && notes[0].contains("status: "), "{notes:?}");
    assert_eq!(harness.instance().await.unreadable, 1);
    // A report about an unknown occurrence, and one that is no JSON, disturb nothing.
    report["occurrenceId"] = json!(harness.clock.occurrence_id());
    let mut good = harness.report(2);
    good["result"] = json!("cut CUT");
    let good = good.to_string().replace("CUT", "\\ud83d");
    let bodies = vec![report.to_string().into_bytes(), b"no JSON".to_vec(), good.into_bytes()];
    harness.status.handle(bodies).await.expect("the batch is handled");
    let (status, notes) = harness.shown().await;
    assert_eq!(status, OccurrenceStatus::Completed, "half of a character costs nothing else");
    assert!(notes.iter().any(|note| note.contains("were replaced")), "{notes:?}");
    assert_eq!(harness.instance().await.unreadable, 3);
}

#[tokio::test]
async fn bad_log_line_costs_only_that_line() {
    let harness = Harness::new().await;
    let line =
        |seq: Value, level: &str| json!({ "seq": seq, "at": harness.clock.now(), "level": level, "message": "CUT" });
    let lines = [line(json!(1_000_000), "INFO"), line(json!("x"), "info"), line(json!(1_000_001), "fatal")];
    let body = json!({ "occurrenceId": harness.id, "lines": lines }).to_string().replace("CUT", "\\ud83d");
    harness.receive(&harness.report(1)).await;
    harness.logs.handle(vec![body.into_bytes()]).await.expect("the batch is handled");
    let stored = harness.store.log_before(harness.id, i64::MAX, 10).await.expect("the query succeeds");
    let levels: Vec<_> = stored.iter().map(|line| line.level.as_str()).collect();
    assert_eq!((levels.as_slice(), &*stored[0].message), (&["info", "error"][..], "\u{fffd}"));
    assert!(harness.shown().await.1[0].contains("lines[1].seq"));
    assert_eq!(harness.instance().await.unreadable, 2, "the message names no instance; the occurrence does");
}

#[tokio::test]
async fn second_start_by_one_instance_is_recorded() {
    let harness = Harness::new().await;
    let start = |seconds| {
        let at = harness.clock.now() + Duration::seconds(seconds);
        StatusReport::new(harness.id, 1, "w-1", OccurrenceStatus::Running, at)
    };
    let (first, second) = (start(0), start(30));
    let duplicates = async || {
        let view = harness.store.occurrence(harness.id, 10, harness.clock.now()).await;
        duplicates::find_duplicate_starts(&view.expect("the query succeeds").expect("it exists").changes)
    };
    harness.status.apply(vec![first.clone()]).await.expect("applied");
    harness.status.apply(vec![first.clone()]).await.expect("applied");
    for (field, value) in [
        ("progress", json!({ "percent": 7 })),
        ("progress", json!({ "percent": "7" })),
        ("checkpoint", json!({ "row": 7 })),
        ("checkpoint", json!("x".repeat(40_000))),
    ] {
        let mut report = harness.report(1);
        (report["timestamp"], report[field]) = (json!(harness.clock.now() + Duration::seconds(20)), value);
        harness.receive(&report).await;
        assert!(duplicates().await.is_empty(), "a repeated report, progress and a checkpoint are no start: {field}");
    }
    harness.status.apply(vec![second]).await.expect("applied");
    let found = duplicates().await;
    assert_eq!((found.len(), found[0].others.as_slice()), (1, &["w-1".to_owned()][..]));
}

#[tokio::test]
async fn refused_part_of_a_registration_is_shown() {
    let harness = Harness::new().await;
    let (hub, _) = Hub::new();
    let consumer = RegistrationConsumer { store: harness.store.clone(), hub, clock: harness.clock.clone() };
    let hello = |job_types: Value| {
        json!({
            "kind": "hello", "workerId": "w", "instanceId": "w-1", "timestamp": harness.clock.now(), "jobTypes": job_types,
            "features": ["claims"],
        })
    };
    let every = json!({ "kind": "every", "seconds": 60 });
    let schedules = json!([
        { "name": "often", "timing": every }, { "name": "b c" }, { "name": "rounded", "timing": every, "input": "DIGITS" },
    ]);
    let types = json!([{ "jobType": "good", "schedules": schedules }, { "jobType": "not a name" }]);
    let body = hello(types).to_string().replace("\"DIGITS\"", "18446744073709551617");
    consumer.handle(vec![body.into_bytes()]).await.expect("the batch is handled");
    let instance = harness.instance().await;
    assert_eq!(instance.problems.len(), 3, "{:?}", instance.problems);
    assert!(instance.problems.iter().any(|problem| problem.contains("would be rounded")), "{:?}", instance.problems);
    assert_eq!((instance.protocol, instance.features.as_slice()), (1, &["claims".to_owned()][..]));
    consumer.handle(vec![hello(json!([])).to_string().into_bytes()]).await.expect("the batch is handled");
    assert!(harness.instance().await.problems.is_empty(), "the next registration removes them");
    let described = hello(json!([{ "jobType": "good", "description": "CUT" }])).to_string().replace("CUT", "\\ud83d");
    let mut large = hello(json!([])).to_string().into_bytes();
    large.resize(MAX_MESSAGE_BYTES + 1, b' ');
    consumer.handle(vec![described.into_bytes(), large]).await.expect("the batch is handled");
    // The second one, which has no problem, is larger than a message may be.
    let problems = harness.instance().await.problems;
    assert!(problems.len() == 1 && problems[0].contains("were replaced"), "{problems:?}");
}
