//! An attempt that two instances start is put on record once, whatever the order in which they speak.

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
    background::activators::Activators,
    clock::Clock,
    ingest::status::StatusConsumer,
    live::Hub,
    store::{Store, jobs::AuditStamp, manual_runs::NewManualRun},
};

use milvaion_test_support as common;

struct DuplicateHarness {
    url: String,
    store: Store,
    clock: Clock,
    intake: StatusConsumer,
    events: tokio::sync::mpsc::Receiver<Vec<milvaion_api::events::EventEnvelope>>,
}

impl DuplicateHarness {
    async fn new() -> Self {
        let url = common::database_url().await;
        let store = common::open(&url).await;
        let clock = Clock::system();
        let (hub, events) = Hub::new();
        let intake =
            StatusConsumer { store: store.clone(), activators: Activators::default(), hub, clock: clock.clone() };
        Self { url, store, clock, intake, events }
    }

    async fn queued(&self) -> OccurrenceId {
        let job_id = common::insert(&self.store, &self.clock, Schedule::Manual, None).await;
        let asked =
            NewManualRun { id: self.clock.occurrence_id(), job_id, by: "test".into(), ..NewManualRun::default() };
        self.store.insert_manual_run(&asked, self.clock.now()).await.expect("answered").into_created().expect("made");
        asked.id
    }

    async fn tell(&self, id: OccurrenceId, batch: &[(&str, OccurrenceStatus)]) {
        let reports = batch.iter().map(|(instance, status)| report(id, instance, *status)).collect();
        self.intake.apply(reports).await.expect("answered");
    }

    async fn view(&self, id: OccurrenceId) -> OccurrenceView {
        self.store.occurrence(id, 1, self.clock.now()).await.expect("answered").expect("there")
    }

    /// How many are counted in the row.
    async fn counted(&self, id: OccurrenceId) -> i16 {
        use sqlx::Connection;
        let mut connection = sqlx::PgConnection::connect(&self.url).await.expect("PostgreSQL answers");
        let count = sqlx::query_scalar("SELECT duplicate_starts FROM occurrences WHERE id = $1").bind(id.0);
        count.fetch_one(&mut connection).await.expect("answered")
    }
}

fn report(id: OccurrenceId, instance: &str, status: OccurrenceStatus) -> StatusReport {
    StatusReport::new(id, 1, instance, status, milvaion_server::clock::machine_now())
}

#[tokio::test]
async fn two_instances_that_start_one_attempt_are_noted_whatever_the_order() {
    let harness = DuplicateHarness::new().await;
    let (a, b) = ("w-a", "w-b");
    let orders: [&[&[(&str, OccurrenceStatus)]]; 8] = [
        &[&[(a, Running)], &[(b, Running)]],
        // The first one is never heard of again.
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
            harness.tell(id, batch).await;
        }
        let view = harness.view(id).await;
        let expected = DuplicateStart { attempt: 1, first: a.into(), others: vec![b.into()] };
        assert_eq!(duplicates::find_duplicate_starts(&view.changes), [expected], "{batches:?}");
        assert_eq!(harness.counted(id).await, 1, "{batches:?}");
        assert_eq!(
            view.changes.last().map(|step| step.status),
            Some(if view.row.ended_at.is_some() { Completed } else { Running })
        );
        // All of it once more, as after a crash between the commit and the acknowledgement.
        for batch in batches {
            harness.tell(id, batch).await;
        }
        assert_eq!(harness.view(id).await, view, "{batches:?}");
    }
}

#[tokio::test]
async fn three_instances_are_two_duplicates_and_pages_hear_of_each() {
    let mut harness = DuplicateHarness::new().await;
    let id = harness.queued().await;
    harness.tell(id, &[("w-a", Running)]).await;
    let first = harness.view(id).await.row.version;
    for instance in ["w-b", "w-c"] {
        while harness.events.try_recv().is_ok() {}
        harness.tell(id, &[(instance, Running)]).await;
        let heard = harness.events.try_recv().expect("an event");
        let milvaion_api::events::LiveEvent::Occurrences { rows } = &heard[0].event else { panic!("{heard:?}") };
        assert!(rows[0].id == id && rows[0].version > first);
    }
    assert_eq!(duplicates::find_duplicate_starts(&harness.view(id).await.changes)[0].others, ["w-b", "w-c"]);
    assert_eq!(harness.counted(id).await, 2);
}

#[tokio::test]
async fn what_is_no_second_start_is_not_taken_for_one() {
    let harness = DuplicateHarness::new().await;
    let id = harness.queued().await;
    harness.tell(id, &[("w-a", Running)]).await;
    // A person who wants it to end is no instance that runs it.
    let edit = AuditStamp { by: "ann@example.org", at: harness.clock.now() };
    assert_eq!(harness.store.cancel(&[id], Some("too slow"), edit).await.expect("answered").len(), 1);
    harness.tell(id, &[("w-a", Running)]).await;
    // Neither is who found a copy and was told that it is cancelled, nor who is late with its progress.
    harness.tell(id, &[("w-a", Cancelled)]).await;
    harness.tell(id, &[("w-b", Cancelled)]).await;
    let progress = Some(RunProgress { percent: 7, message: String::new() });
    harness.intake.apply(vec![StatusReport { progress, ..report(id, "w-b", Running) }]).await.expect("answered");
    // Nor is a word about another attempt, or about nothing.
    harness.intake.apply(vec![StatusReport { attempt: 2, ..report(id, "w-b", Running) }]).await.expect("answered");
    harness.tell(harness.clock.occurrence_id(), &[("w-b", Running)]).await;
    let view = harness.view(id).await;
    assert_eq!(duplicates::find_duplicate_starts(&view.changes), []);
    assert_eq!((view.changes.len(), harness.counted(id).await), (4, 0), "{:?}", view.changes);
}
