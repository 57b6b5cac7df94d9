//! Duplicate starts: an attempt that two instances start is recorded once, regardless of the order of their reports.

use milvaion_api::{
    duplicates::{self, DuplicateStart},
    views::OccurrenceView,
};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{RunProgress, StatusReport},
    status::OccurrenceStatus::{self, Cancelled, Completed, Running},
};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    clock::Clock,
    engine::activators::Activators,
    ingest::status::StatusConsumer,
    live::Hub,
    store::{Store, jobs::AuditStamp},
};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs, runs,
};

struct DuplicateHarness {
    url: String,
    store: Store,
    clock: Clock,
    consumer: StatusConsumer,
    events: tokio::sync::mpsc::Receiver<Vec<milvaion_api::events::EventEnvelope>>,
}

impl DuplicateHarness {
    async fn new() -> Self {
        let url = database::create().await;
        let store = database::open(&url).await;
        let clock = Clock::system();
        let (hub, events) = Hub::new();
        let consumer =
            StatusConsumer { store: store.clone(), activators: Activators::default(), hub, clock: clock.clone() };
        Self { url, store, clock, consumer, events }
    }

    async fn queued(&self) -> OccurrenceId {
        let job_id = jobs::insert(&self.store, &self.clock, Schedule::Manual, None).await;
        runs::insert_manual(&self.store, &self.clock, job_id).await
    }

    /// Applies one batch of reports of the first attempt.
    async fn report(&self, id: OccurrenceId, batch: &[(&str, OccurrenceStatus)]) {
        let reports = batch.iter().map(|(instance, status)| report(id, instance, *status)).collect();
        self.consumer.apply(reports).await.expect("the query succeeds");
    }

    async fn view(&self, id: OccurrenceId) -> OccurrenceView {
        self.store.occurrence(id, 1, self.clock.now()).await.expect("the query succeeds").expect("it exists")
    }

    /// Returns the number of duplicate starts in the occurrence's row.
    async fn counted(&self, id: OccurrenceId) -> i64 {
        let sql = format!("SELECT count(*) FROM late_starts WHERE run_id = '{id}'");
        TestConnection::open(&self.url).await.count(sql).await
    }
}

fn report(id: OccurrenceId, instance: &str, status: OccurrenceStatus) -> StatusReport {
    StatusReport::new(id, 1, instance, status, milvaion_server::clock::machine_now())
}

#[tokio::test]
async fn duplicate_start_is_recorded_in_any_order() {
    let harness = DuplicateHarness::new().await;
    let (a, b) = ("w-a", "w-b");
    let orders: [&[&[(&str, OccurrenceStatus)]]; 8] = [
        &[&[(a, Running)], &[(b, Running)]],
        // The first instance sends no more reports.
        &[&[(a, Running)], &[(b, Running), (b, Completed)]],
        &[&[(a, Running), (b, Running)]],
        &[&[(a, Running)], &[(a, Completed)], &[(b, Running)]],
        &[&[(a, Running), (a, Completed)], &[(b, Running), (b, Completed)]],
        &[&[(a, Running), (a, Completed), (b, Running), (b, Completed)]],
        &[&[(a, Running)], &[(b, Running), (b, Completed)], &[(a, Completed)]],
        &[&[(a, Running)], &[(b, Running)], &[(a, Completed), (b, Completed)]],
    ];
    for batches in orders {
        let id = harness.queued().await;
        for batch in batches {
            harness.report(id, batch).await;
        }
        let view = harness.view(id).await;
        let expected = DuplicateStart { attempt: 1, first: a.into(), others: vec![b.into()] };
        assert_eq!(duplicates::find_duplicate_starts(&view.changes), [expected], "{batches:?}");
        assert_eq!(harness.counted(id).await, 1, "{batches:?}");
        assert_eq!(
            view.changes.last().map(|step| step.status),
            Some(if view.row.ended_at.is_some() { Completed } else { Running })
        );
        // All reports again, as after a crash between the commit and the acknowledgement.
        for batch in batches {
            harness.report(id, batch).await;
        }
        assert_eq!(harness.view(id).await, view, "{batches:?}");
    }
}

#[tokio::test]
async fn each_duplicate_start_is_published() {
    let mut harness = DuplicateHarness::new().await;
    let id = harness.queued().await;
    harness.report(id, &[("w-a", Running)]).await;
    let first = harness.view(id).await.row.version;
    for instance in ["w-b", "w-c"] {
        while harness.events.try_recv().is_ok() {}
        harness.report(id, &[(instance, Running)]).await;
        let events = harness.events.try_recv().expect("an event");
        let milvaion_api::events::LiveEvent::Occurrences { rows } = &events[0].event else { panic!("{events:?}") };
        assert!(rows[0].id == id && rows[0].version > first);
    }
    assert_eq!(duplicates::find_duplicate_starts(&harness.view(id).await.changes)[0].others, ["w-b", "w-c"]);
    assert_eq!(harness.counted(id).await, 2);
}

#[tokio::test]
async fn other_reports_are_no_duplicate_starts() {
    let harness = DuplicateHarness::new().await;
    let id = harness.queued().await;
    harness.report(id, &[("w-a", Running)]).await;
    // A cancel request is no start.
    let edit = AuditStamp { by: "ann@example.org", at: harness.clock.now(), address: None };
    assert_eq!(harness.store.cancel(&[id], Some("too slow"), edit).await.expect("the query succeeds").len(), 1);
    harness.report(id, &[("w-a", Running)]).await;
    // Neither is the report of a second instance whose copy of the message was cancelled, nor a late progress report.
    harness.report(id, &[("w-a", Cancelled)]).await;
    harness.report(id, &[("w-b", Cancelled)]).await;
    let progress = Some(RunProgress { percent: 7, message: String::new() });
    harness
        .consumer
        .apply(vec![StatusReport { progress, ..report(id, "w-b", Running) }])
        .await
        .expect("the query succeeds");
    // Neither is a report about another attempt or an unknown occurrence.
    harness
        .consumer
        .apply(vec![StatusReport { attempt: 2, ..report(id, "w-b", Running) }])
        .await
        .expect("the query succeeds");
    harness.report(harness.clock.occurrence_id(), &[("w-b", Running)]).await;
    let view = harness.view(id).await;
    assert_eq!(duplicates::find_duplicate_starts(&view.changes), []);
    assert_eq!((view.changes.len(), harness.counted(id).await), (4, 0), "{:?}", view.changes);
}
