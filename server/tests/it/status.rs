//! Reports that come late, twice, out of order or from nobody change nothing they should not.

use chrono::Duration;
use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLevel, LogLine, RunProgress, StatusReport, first_log_seq},
    status::OccurrenceStatus,
};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    clock::Clock,
    domain::transition::fold,
    store::{Store, manual_runs::NewManualRun},
};

use milvaion_test_support as common;

struct StatusHarness {
    store: Store,
    clock: Clock,
    id: OccurrenceId,
}

impl StatusHarness {
    /// A queued occurrence.
    async fn new() -> Self {
        let (store, _) = common::database().await;
        let clock = Clock::system();
        let job_id = common::insert(&store, &clock, Schedule::Manual, None).await;
        let asked = NewManualRun { id: clock.occurrence_id(), job_id, by: "test".into(), ..NewManualRun::default() };
        store.insert_manual_run(&asked, clock.now()).await.expect("answered").into_created().expect("made");
        Self { store, clock, id: asked.id }
    }

    fn report(&self, status: OccurrenceStatus) -> StatusReport {
        StatusReport { duration_ms: Some(3), ..StatusReport::new(self.id, 1, "w-1", status, self.clock.now()) }
    }

    async fn tell(&self, reports: Vec<StatusReport>) -> usize {
        self.store.apply(&fold(reports), self.clock.now()).await.expect("answered").rows.len()
    }

    async fn status(&self) -> (OccurrenceStatus, usize) {
        let view = self.store.occurrence(self.id, 10, self.clock.now()).await.expect("answered").expect("there");
        (view.row.status, view.changes.len())
    }
}

#[tokio::test]
async fn copies_change_nothing() {
    let harness = StatusHarness::new().await;
    let (running, done) = (harness.report(OccurrenceStatus::Running), harness.report(OccurrenceStatus::Completed));
    assert_eq!(harness.tell(vec![running.clone()]).await, 1);
    assert_eq!(harness.tell(vec![running.clone()]).await, 0);
    assert_eq!(harness.tell(vec![running.clone(), done.clone()]).await, 1);
    assert_eq!(harness.status().await, (OccurrenceStatus::Completed, 3), "the step Running is there once");
    assert_eq!(harness.tell(vec![running, done]).await, 0);
    assert_eq!(harness.status().await, (OccurrenceStatus::Completed, 3));
}

#[tokio::test]
async fn mv21_a_late_start_never_reopens_what_has_ended() {
    let harness = StatusHarness::new().await;
    assert_eq!(harness.tell(vec![harness.report(OccurrenceStatus::Failed)]).await, 1);
    assert_eq!(harness.tell(vec![harness.report(OccurrenceStatus::Running)]).await, 0);
    assert_eq!(harness.tell(vec![harness.report(OccurrenceStatus::Completed)]).await, 0);
    assert_eq!(harness.status().await.0, OccurrenceStatus::Failed);
}

#[tokio::test]
async fn another_attempt_and_an_unknown_occurrence_change_nothing() {
    let harness = StatusHarness::new().await;
    let other_attempt = StatusReport { attempt: 2, ..harness.report(OccurrenceStatus::Completed) };
    let nobody =
        StatusReport { occurrence_id: harness.clock.occurrence_id(), ..harness.report(OccurrenceStatus::Completed) };
    let ancient = StatusReport {
        occurrence_id: OccurrenceId::from_parts(harness.clock.now() - Duration::days(4_000), [1; 10]),
        ..harness.report(OccurrenceStatus::Completed)
    };
    assert_eq!(harness.tell(vec![other_attempt, nobody, ancient]).await, 0);
    assert_eq!(harness.status().await, (OccurrenceStatus::Queued, 1));
}

#[tokio::test]
async fn mv29_the_roll_up_counts_what_was_reached_once() {
    let harness = StatusHarness::new().await;
    let (running, done) = (harness.report(OccurrenceStatus::Running), harness.report(OccurrenceStatus::Completed));
    harness.tell(vec![running.clone(), done.clone()]).await;
    harness.tell(vec![running, done]).await;
    let numbers = harness.store.overview_snapshot(harness.clock.now(), harness.clock.now()).await.expect("answered");
    assert_eq!(
        numbers.last_hour,
        [(OccurrenceStatus::Queued, 1), (OccurrenceStatus::Running, 1), (OccurrenceStatus::Completed, 1)]
    );
}

#[tokio::test]
async fn a_log_line_that_comes_twice_is_stored_once_and_a_strangers_not_at_all() {
    let harness = StatusHarness::new().await;
    let line = |n: i64| LogLine {
        seq: first_log_seq(1) + n,
        at: harness.clock.now(),
        level: LogLevel::Warn,
        message: format!("line {n}"),
        data: None,
    };
    let stranger = OccurrenceId::from_parts(harness.clock.now() - Duration::days(4_000), [1; 10]);
    let lines = vec![(harness.id, line(0)), (harness.id, line(1)), (stranger, line(0))];
    assert_eq!(harness.store.append_logs(&lines).await.expect("answered"), 2);
    assert_eq!(harness.store.append_logs(&lines).await.expect("answered"), 0);
    let page = harness.store.log_before(harness.id, first_log_seq(1) + 1, 10).await.expect("answered");
    assert_eq!(page.iter().map(|line| line.message.as_str()).collect::<Vec<_>>(), ["line 0"]);
}

#[tokio::test]
async fn a_run_has_begun_when_it_began_however_often_it_tells_of_its_progress() {
    let harness = StatusHarness::new().await;
    let begun = harness.report(OccurrenceStatus::Running);
    let progress = |percent: u8, seconds: i64| StatusReport {
        progress: Some(RunProgress { percent, message: String::new() }),
        timestamp: begun.timestamp + Duration::seconds(seconds),
        ..begun.clone()
    };
    let row = async || {
        let view =
            harness.store.occurrence(harness.id, 10, harness.clock.now()).await.expect("answered").expect("there");
        (view.row.started_at.map(|at| at - begun.timestamp), view.row.progress.map(|it| it.percent), view.changes.len())
    };
    // What was sent first may come last.
    assert_eq!(harness.tell(vec![progress(10, 5)]).await, 1);
    assert_eq!(row().await.1, Some(10));
    assert_eq!(harness.tell(vec![begun.clone()]).await, 1);
    assert_eq!(row().await, (Some(Duration::zero()), Some(10), 2));
    assert_eq!(harness.tell(vec![begun.clone()]).await, 0, "once");
    assert_eq!(harness.tell(vec![progress(20, 6)]).await, 1);
    assert_eq!(row().await, (Some(Duration::zero()), Some(20), 2));
    assert_eq!(harness.tell(vec![progress(30, 60)]).await, 1);
    assert_eq!(row().await, (Some(Duration::zero()), Some(30), 2));
    let mut done = harness.report(OccurrenceStatus::Completed);
    done.timestamp = begun.timestamp + Duration::seconds(90);
    assert_eq!(harness.tell(vec![progress(40, 89), done]).await, 1);
    assert_eq!(row().await, (Some(Duration::zero()), Some(40), 3));
}

#[tokio::test]
async fn an_end_that_overtakes_its_start_says_when_it_began() {
    let harness = StatusHarness::new().await;
    let done = harness.report(OccurrenceStatus::Completed);
    assert_eq!(harness.tell(vec![done.clone()]).await, 1);
    let view = harness.store.occurrence(harness.id, 10, harness.clock.now()).await.expect("answered").expect("there");
    assert_eq!(view.row.started_at, Some(done.timestamp - Duration::milliseconds(3)));
}
