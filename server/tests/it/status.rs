//! Status reports that are late, repeated, out of order or about unknown occurrences.

use chrono::Duration;
use milvaion_api::page::TimeWindow;
use milvaion_protocol::{
    id::OccurrenceId,
    message::{AttemptLogBounds, LogLevel, LogLine, RunProgress, StatusReport, first_log_seq},
    status::OccurrenceStatus,
};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{clock::Clock, domain::transition, store::Store};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs, runs,
};

struct StatusHarness {
    store: Store,
    clock: Clock,
    id: OccurrenceId,
}

impl StatusHarness {
    /// Creates a queued occurrence.
    async fn new() -> Self {
        Self::on(database::fresh().await).await
    }

    async fn on(store: Store) -> Self {
        let clock = Clock::system();
        let job_id = jobs::insert(&store, &clock, Schedule::Manual, None).await;
        let id = runs::insert_manual(&store, &clock, job_id).await;
        Self { store, clock, id }
    }

    fn report(&self, status: OccurrenceStatus) -> StatusReport {
        StatusReport { duration_ms: Some(3), ..StatusReport::new(self.id, 1, "w-1", status, self.clock.now()) }
    }

    /// Applies reports. Returns the number of occurrences that changed.
    async fn apply(&self, reports: Vec<StatusReport>) -> usize {
        runs::report(&self.store, &self.clock, reports).await
    }

    async fn status(&self) -> (OccurrenceStatus, usize) {
        let view =
            self.store.occurrence(self.id, 10, self.clock.now()).await.expect("the query succeeds").expect("it exists");
        (view.row.status, view.changes.len())
    }
}

#[tokio::test]
async fn repeated_reports_change_nothing() {
    let harness = StatusHarness::new().await;
    let (running, done) = (harness.report(OccurrenceStatus::Running), harness.report(OccurrenceStatus::Completed));
    assert_eq!(harness.apply(vec![running.clone()]).await, 1);
    assert_eq!(harness.apply(vec![running.clone()]).await, 0);
    assert_eq!(harness.apply(vec![running.clone(), done.clone()]).await, 1);
    assert_eq!(harness.status().await, (OccurrenceStatus::Completed, 3), "the step Running is recorded once");
    assert_eq!(harness.apply(vec![running, done]).await, 0);
    assert_eq!(harness.status().await, (OccurrenceStatus::Completed, 3));
}

#[tokio::test]
async fn late_start_does_not_reopen_an_ended_run() {
    let harness = StatusHarness::new().await;
    assert_eq!(harness.apply(vec![harness.report(OccurrenceStatus::Failed)]).await, 1);
    assert_eq!(harness.apply(vec![harness.report(OccurrenceStatus::Running)]).await, 0);
    assert_eq!(harness.apply(vec![harness.report(OccurrenceStatus::Completed)]).await, 0);
    assert_eq!(harness.status().await.0, OccurrenceStatus::Failed);
}

#[tokio::test]
async fn reports_about_other_attempts_change_nothing() {
    let harness = StatusHarness::new().await;
    let other_attempt = StatusReport { attempt: 2, ..harness.report(OccurrenceStatus::Completed) };
    let unknown =
        StatusReport { occurrence_id: harness.clock.occurrence_id(), ..harness.report(OccurrenceStatus::Completed) };
    let ancient = StatusReport {
        occurrence_id: OccurrenceId::from_parts(harness.clock.now() - Duration::days(4_000), [1; 10]),
        ..harness.report(OccurrenceStatus::Completed)
    };
    assert_eq!(harness.apply(vec![other_attempt, unknown, ancient]).await, 0);
    assert_eq!(harness.status().await, (OccurrenceStatus::Queued, 1));
}

#[tokio::test]
async fn statistics_count_each_status_once() {
    let harness = StatusHarness::new().await;
    let (running, done) = (harness.report(OccurrenceStatus::Running), harness.report(OccurrenceStatus::Completed));
    harness.apply(vec![running.clone(), done.clone()]).await;
    harness.apply(vec![running, done]).await;
    let now = harness.clock.now();
    let snapshot = harness.store.overview_snapshot(now, TimeWindow::Hour, now).await.expect("the query succeeds");
    assert_eq!(snapshot.ended, [(OccurrenceStatus::Completed, 1)]);
    assert_eq!(snapshot.bars.len(), 1);
    assert!(snapshot.open.iter().all(|(_, count)| *count == 0), "{:?}", snapshot.open);
}

#[tokio::test]
async fn repeated_log_lines_are_read_once() {
    let harness = StatusHarness::new().await;
    let line = |n: i64| LogLine {
        seq: first_log_seq(1) + n,
        at: harness.clock.now(),
        level: LogLevel::Warn,
        message: format!("line {n}"),
        data: None,
    };
    let unknown = OccurrenceId::from_parts(harness.clock.now() - Duration::days(4_000), [1; 10]);
    let lines = vec![(harness.id, line(0)), (harness.id, line(1)), (unknown, line(0))];
    assert_eq!(harness.store.append_logs(&lines, harness.clock.now()).await.expect("the query succeeds"), 2);
    // The second delivery arrives on the next day and is in another partition.
    let tomorrow = harness.clock.now() + Duration::days(1);
    assert_eq!(harness.store.append_logs(&lines, tomorrow).await.expect("the query succeeds"), 2);
    let page = harness.store.log_before(harness.id, first_log_seq(1) + 2, 10).await.expect("the query succeeds");
    assert_eq!(page.iter().map(|line| line.message.as_str()).collect::<Vec<_>>(), ["line 0", "line 1"]);
    let count = harness.store.count_log_lines(harness.id, 0, i64::MAX).await;
    assert_eq!(count.expect("the query succeeds"), 2);
}

#[tokio::test]
async fn log_is_read_by_range_and_trimmed_to_its_bounds() {
    let harness = StatusHarness::new().await;
    let line = |n: i64| {
        let message = format!("line {n}");
        (harness.id, LogLine { seq: n, at: harness.clock.now(), level: LogLevel::Info, message, data: None })
    };
    let stored: Vec<_> = (1..=10).map(line).collect();
    assert_eq!(harness.store.append_logs(&stored, harness.clock.now()).await.expect("the query succeeds"), 10);
    let view = async |after| {
        let view = harness.store.occurrence_with_log(harness.id, after, 3, harness.clock.now()).await;
        let view = view.expect("the query succeeds").expect("it exists");
        let seqs: Vec<i64> = view.log.iter().map(|line| line.seq).collect();
        (seqs, view.log_has_earlier, view.log_skipped)
    };
    assert_eq!(view(None).await, (vec![8, 9, 10], true, 0), "a first read does not count");
    assert_eq!(view(Some(2)).await, (vec![8, 9, 10], true, 5));
    assert_eq!(view(Some(7)).await, (vec![8, 9, 10], false, 0));
    assert_eq!(view(Some(i64::MAX)).await, (vec![], false, 0));
    let gap = harness.store.oldest_log_lines(harness.id, 2, 8, 3).await.expect("the query succeeds");
    assert_eq!(gap.iter().map(|line| line.seq).collect::<Vec<_>>(), [3, 4, 5], "the oldest lines first");

    // The log of an attempt is trimmed to its bounds.
    let append = async |lines: Vec<(OccurrenceId, LogLine)>| {
        harness.store.append_logs(&lines, harness.clock.now()).await.expect("the query succeeds");
    };
    let trim = async |lines, bytes| {
        let bounds = AttemptLogBounds { lines, bytes };
        harness.store.trim_log(harness.id, 0, bounds, harness.clock.now()).await.expect("the query succeeds");
        let kept = harness.store.oldest_log_lines(harness.id, 0, i64::MAX, 100).await.expect("the query succeeds");
        let notes: Vec<String> = kept
            .iter()
            .filter(|line| line.level == LogLevel::Warn)
            .map(|line| {
                let count = line.message.split(" are").next().unwrap_or_default();
                format!("{count} {}", line.data.clone().unwrap_or_default())
            })
            .collect();
        (kept.iter().map(|line| line.seq).collect::<Vec<_>>(), notes)
    };
    let of_next_attempt = first_log_seq(1);
    append(vec![line(of_next_attempt)]).await;
    assert_eq!(trim(10, 1_000).await.0.len(), 11, "the log is within its bounds");
    let note = r#"5 lines {"linesNotKept":5}"#.to_owned();
    assert_eq!(trim(5, 1_000_000).await, (vec![1, 2, 7, 8, 9, 10, of_next_attempt], vec![note]));
    // Lines come again, and a worker leaves numbers out.
    append(vec![line(2), line(3), line(4), line(20)]).await;
    let trimmed = (vec![1, 2, 8, 9, 10, 20, of_next_attempt], vec![r#"6 lines {"linesNotKept":6}"#.to_owned()]);
    assert_eq!(trim(5, 1_000_000).await, trimmed);
    assert_eq!(trim(5, 1_000_000).await, trimmed);
    // The note would fit in the bytes of the first lines.
    let wide = |n: i64| (harness.id, LogLine { message: "x".repeat(100), ..line(n).1 });
    append((21..=60).map(wide).collect()).await;
    let (kept, notes) = trim(1_000, 2_000).await;
    assert_eq!(kept, [1, 2].into_iter().chain(45..=60).chain([of_next_attempt]).collect::<Vec<_>>());
    assert_eq!(notes, [r#"43 lines {"linesNotKept":43}"#]);
}

#[tokio::test]
async fn failure_without_a_reason_has_no_exception() {
    let url = database::create().await;
    let harness = StatusHarness::on(database::open(&url).await).await;
    assert_eq!(harness.apply(vec![harness.report(OccurrenceStatus::Running)]).await, 1);
    // What the retry of a failed attempt leaves: its exception and note stay until the next attempt ends.
    let retry = "UPDATE runs SET attempt = 2, status = 'queued', exception = 'boom', note = 'Failed: boom'";
    database::TestConnection::open(&url).await.execute(retry).await;
    let failed = StatusReport { attempt: 2, ..harness.report(OccurrenceStatus::Failed) };
    assert_eq!(harness.apply(vec![failed]).await, 1);
    let view = harness.store.occurrence(harness.id, 1, harness.clock.now()).await.expect("the query succeeds");
    let view = view.expect("it exists");
    assert_eq!((view.row.status, view.row.attempt), (OccurrenceStatus::Failed, 2));
    assert_eq!((view.exception, view.row.note), (None, None), "the reason of attempt 1 is not that of attempt 2");
}

#[tokio::test]
async fn progress_does_not_change_the_start_time() {
    let harness = StatusHarness::new().await;
    let started = harness.report(OccurrenceStatus::Running);
    let progress = |percent: u8, seconds: i64| StatusReport {
        progress: Some(RunProgress { percent, message: String::new() }),
        timestamp: started.timestamp + Duration::seconds(seconds),
        ..started.clone()
    };
    let row = async || {
        let view = harness
            .store
            .occurrence(harness.id, 10, harness.clock.now())
            .await
            .expect("the query succeeds")
            .expect("it exists");
        (
            view.row.started_at.map(|at| at - started.timestamp),
            view.row.progress.map(|it| it.percent),
            view.changes.len(),
        )
    };
    // The start report may arrive after the first progress report.
    assert_eq!(harness.apply(vec![progress(10, 5)]).await, 1);
    assert_eq!(row().await.1, Some(10));
    assert_eq!(harness.apply(vec![started.clone()]).await, 1);
    assert_eq!(row().await, (Some(Duration::zero()), Some(10), 2));
    assert_eq!(harness.apply(vec![started.clone()]).await, 0, "a repeated report");
    assert_eq!(harness.apply(vec![progress(20, 6)]).await, 1);
    assert_eq!(row().await, (Some(Duration::zero()), Some(20), 2));
    assert_eq!(harness.apply(vec![progress(30, 60)]).await, 1);
    assert_eq!(row().await, (Some(Duration::zero()), Some(30), 2));
    let mut done = harness.report(OccurrenceStatus::Completed);
    done.timestamp = started.timestamp + Duration::seconds(90);
    assert_eq!(harness.apply(vec![progress(40, 89), done]).await, 1);
    assert_eq!(row().await, (Some(Duration::zero()), Some(40), 3));
}

#[tokio::test]
async fn progress_and_heartbeat_do_not_go_back() {
    let url = database::create().await;
    let harness = StatusHarness::on(database::open(&url).await).await;
    let mut db = TestConnection::open(&url).await;
    let started = harness.report(OccurrenceStatus::Running);
    let progress = |seconds: u8| StatusReport {
        progress: Some(RunProgress { percent: seconds, message: String::new() }),
        timestamp: started.timestamp + Duration::seconds(seconds.into()),
        ..started.clone()
    };
    let percent = async || {
        let view = harness.store.occurrence(harness.id, 1, harness.clock.now()).await.expect("the query succeeds");
        view.expect("it exists").row.progress.map(|progress| progress.percent)
    };
    assert_eq!(harness.apply(vec![started.clone()]).await, 1);
    // One batch in either order, then older reports in batches of their own.
    for batch in [[30, 20], [35, 40]] {
        assert_eq!(harness.apply(batch.map(progress).to_vec()).await, 1);
        assert_eq!(percent().await, batch.into_iter().max());
    }
    assert_eq!(harness.apply(vec![progress(39)]).await, 0, "an older report changes nothing");
    assert_eq!(harness.apply(vec![progress(40)]).await, 1, "an equally old one is a heartbeat");
    assert_eq!(percent().await, Some(40));
    // A statement that waited for the row has an earlier time than the one it waited for.
    let late = db.count("SELECT count(*) FROM runs WHERE last_heartbeat > now() - interval '1 hour'").await;
    let earlier = harness.clock.now() - Duration::days(1);
    harness.store.apply(&transition::fold(vec![progress(50)]), earlier).await.expect("the query succeeds");
    assert_eq!(percent().await, Some(50));
    let still = db.count("SELECT count(*) FROM runs WHERE last_heartbeat > now() - interval '1 hour'").await;
    assert_eq!((late, still), (1, 1));
    let done = StatusReport { timestamp: progress(90).timestamp, ..harness.report(OccurrenceStatus::Completed) };
    assert_eq!(harness.apply(vec![progress(45), done]).await, 1);
    assert_eq!(percent().await, Some(50), "the end keeps the last progress");
}

#[tokio::test]
async fn final_report_without_a_start_sets_the_start_time() {
    let harness = StatusHarness::new().await;
    let done = harness.report(OccurrenceStatus::Completed);
    assert_eq!(harness.apply(vec![done.clone()]).await, 1);
    let view = harness
        .store
        .occurrence(harness.id, 10, harness.clock.now())
        .await
        .expect("the query succeeds")
        .expect("it exists");
    assert_eq!(view.row.started_at, Some(done.timestamp - Duration::milliseconds(3)));
}
