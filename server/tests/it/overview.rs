//! The figures of the overview, which equal the lists behind them, and the sample job.

use std::collections::BTreeSet;

use chrono::{DateTime, Duration, Utc};
use milvaion_api::{
    page::{JobFilter, OccurrenceFilter, TimeWindow},
    requests::JobForm,
    views::DEMO_JOB_TYPE,
};
use milvaion_app::{backend::Backend, error::AppError};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{InstanceHello, StatusReport},
    status::{ALL_STATUSES, OccurrenceStatus},
};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    clock::{Clock, machine_now},
    store::Store,
};
use milvaion_test_support::{database, jobs, messages, runs, server_env, wait};

/// Inserts an occurrence of a new job.
async fn insert(store: &Store, clock: &Clock) -> OccurrenceId {
    let job = jobs::insert(store, clock, Schedule::Manual, None).await;
    runs::insert_manual(store, clock, job).await
}

async fn report(store: &Store, clock: &Clock, id: OccurrenceId, status: OccurrenceStatus) {
    report_at(store, clock, id, status, clock.now()).await;
}

/// Applies a report whose worker dated it `at`, which may differ from the server's clock.
async fn report_at(store: &Store, clock: &Clock, id: OccurrenceId, status: OccurrenceStatus, at: DateTime<Utc>) {
    let changed = runs::report(store, clock, vec![StatusReport::new(id, 1, "w-1", status, at)]).await;
    assert_eq!(changed, 1, "{status}");
}

/// Returns the ids of all pages of a list, one row at a time.
async fn list(
    store: &Store,
    status: Option<OccurrenceStatus>,
    ended_since: Option<DateTime<Utc>>,
) -> BTreeSet<OccurrenceId> {
    let mut ids = BTreeSet::new();
    let mut filter = OccurrenceFilter { status, ended_since, limit: 1, ..OccurrenceFilter::default() };
    loop {
        let page = store.occurrences(&filter).await.expect("the list can be read");
        for row in page.rows {
            assert!(ids.insert(row.id), "{} is listed twice", row.id);
        }
        match page.next {
            Some(next) => filter.before = Some(next.parse().expect("an occurrence id")),
            None => return ids,
        }
    }
}

/// Asserts for each window that the overview counts the rows of the list of each status.
async fn assert_tiles_equal_lists(store: &Store, now: DateTime<Utc>) {
    for window in TimeWindow::ALL {
        let snapshot = store.overview_snapshot(now, window, now).await.expect("the query succeeds");
        for status in ALL_STATUSES {
            let listed = list(store, Some(status), Some(window.start(now))).await.len();
            let counts = if status.is_final() { &snapshot.ended } else { &snapshot.open };
            let counted: i64 = counts.iter().filter(|(of, _)| *of == status).map(|(_, count)| count).sum();
            assert_eq!(usize::try_from(counted), Ok(listed), "{status} in the {}", window.label());
        }
        let in_bars: i64 = snapshot.bars.iter().flat_map(|bar| &bar.counts).map(|(_, count)| count).sum();
        assert_eq!(in_bars, snapshot.ended.iter().map(|(_, count)| count).sum::<i64>());
    }
}

#[tokio::test]
async fn tile_numbers_equal_their_lists() {
    let store = database::fresh().await;
    let real = machine_now().timestamp();
    let clock = Clock::manual(DateTime::from_timestamp(real - real % 60, 0).expect("a valid time"));
    // Ended before the window of one hour.
    let early = insert(&store, &clock).await;
    report(&store, &clock, early, OccurrenceStatus::Failed).await;
    // Created before the window: one ends in it after three hours, one just before it starts, and two stay open.
    let slow = insert(&store, &clock).await;
    let (queued, running) = (insert(&store, &clock).await, insert(&store, &clock).await);
    report(&store, &clock, running, OccurrenceStatus::Running).await;
    clock.advance(Duration::minutes(115));
    let short = insert(&store, &clock).await;
    clock.advance(Duration::minutes(65));
    report(&store, &clock, short, OccurrenceStatus::TimedOut).await;
    report(&store, &clock, slow, OccurrenceStatus::Failed).await;
    let quick = insert(&store, &clock).await;
    report(&store, &clock, quick, OccurrenceStatus::Completed).await;

    assert_tiles_equal_lists(&store, clock.now()).await;
    let now = clock.now();
    let hour = Some(TimeWindow::Hour.start(now));
    assert_eq!(list(&store, Some(OccurrenceStatus::Failed), hour).await, BTreeSet::from([slow]));
    assert_eq!(list(&store, None, hour).await, BTreeSet::from([slow, short, queued, running, quick]));
    assert_eq!(list(&store, None, None).await.len(), 6);
    let snapshot = store.overview_snapshot(now, TimeWindow::Hour, now).await.expect("the query succeeds");
    let failures: BTreeSet<_> = snapshot.failures.iter().map(|row| row.id).collect();
    assert_eq!(failures, BTreeSet::from([early, slow, short]), "timed-out occurrences are failures too");
}

#[tokio::test]
async fn late_report_counts_at_the_end_that_it_states() {
    let store = database::fresh().await;
    let real = machine_now().timestamp();
    let clock = Clock::manual(DateTime::from_timestamp(real - real % 60, 0).expect("a valid time"));
    let (late, skewed, current) =
        (insert(&store, &clock).await, insert(&store, &clock).await, insert(&store, &clock).await);
    let end = clock.now() + Duration::minutes(1);
    clock.advance(Duration::hours(2));
    // One report arrives long after the end that it states, one worker's clock is an hour and a half slow.
    report_at(&store, &clock, late, OccurrenceStatus::Failed, end).await;
    report_at(&store, &clock, skewed, OccurrenceStatus::Completed, clock.now() - Duration::minutes(90)).await;
    report(&store, &clock, current, OccurrenceStatus::Completed).await;
    let now = clock.now();
    assert_tiles_equal_lists(&store, now).await;
    let snapshot = store.overview_snapshot(now, TimeWindow::Hour, now).await.expect("the query succeeds");
    assert_eq!(snapshot.ended, [(OccurrenceStatus::Completed, 1)], "the others ended before the last hour");
    let hour = Some(TimeWindow::Hour.start(now));
    assert_eq!(list(&store, None, hour).await, BTreeSet::from([current]));
}

#[tokio::test]
async fn ends_of_several_minutes_in_one_batch_are_counted_apart() {
    let store = database::fresh().await;
    let real = machine_now().timestamp();
    let clock = Clock::manual(DateTime::from_timestamp(real - real % 60, 0).expect("a valid time"));
    let begun = clock.now();
    let mut reports = Vec::new();
    for minute in [3, 1, 2, 1] {
        let id = insert(&store, &clock).await;
        reports.push(StatusReport::new(id, 1, "w-1", OccurrenceStatus::Failed, begun + Duration::minutes(minute)));
    }
    clock.advance(Duration::minutes(5));
    assert_eq!(runs::report(&store, &clock, reports).await, 4);
    let now = clock.now();
    let snapshot = store.overview_snapshot(now, TimeWindow::Hour, now).await.expect("the query succeeds");
    let bars: Vec<_> = snapshot.bars.iter().map(|bar| (bar.start - begun, bar.counts.clone())).collect();
    let bar = |minute, count| (Duration::minutes(minute), vec![(OccurrenceStatus::Failed, count)]);
    assert_eq!(bars, [bar(1, 2), bar(2, 1), bar(3, 1)]);
    assert_tiles_equal_lists(&store, now).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overview_and_searches_find_a_new_job() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let counted = async || {
        let overview = server.backend.overview(&jobs::admin(), TimeWindow::Hour).await.expect("it can be read");
        (overview.jobs_active, overview.jobs_total)
    };
    assert_eq!(counted().await, (0, 0));
    let mut form = JobForm {
        description: "Sends 100% of them_all".into(),
        tags: "nightly, team-a".into(),
        ..jobs::form("Invoices")
    };
    server.jobs.save(&jobs::admin(), &form).await.expect("saved");
    (form.display_name, form.is_active) = ("Reports".into(), String::new());
    server.jobs.save(&jobs::admin(), &form).await.expect("saved");
    wait::until("both are counted", async || counted().await == (1, 2)).await;
    for (text, active, found) in [
        ("INVO", None, 1),
        ("voice 100% team-a", None, 1),
        ("them_all", None, 2),
        ("themxall", None, 0),
        ("echo", Some(false), 1),
        ("oi", Some(true), 1),
        ("invoicessends", None, 0),
    ] {
        let filter = JobFilter { text: Some(text.into()), active, ..JobFilter::default() };
        let rows = server.backend.jobs(&jobs::admin(), filter).await.expect("it can be read").rows;
        assert_eq!(rows.len(), found, "{text}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn double_click_runs_the_sample_job_once() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let me = jobs::admin();
    let refused = server.jobs.run_sample_job(&me, "key-1").await;
    assert!(matches!(refused, Err(AppError::Conflict(_))), "no live worker offers it: {refused:?}");

    let now = server.clock.now();
    let hello = InstanceHello { job_types: vec![messages::job_type(DEMO_JOB_TYPE)], ..messages::hello("w-1", now) };
    server.store.store_hellos(&[hello], now).await.expect("the query succeeds");
    let snapshot = server.store.overview_snapshot(now, TimeWindow::Hour, now).await.expect("the query succeeds");
    assert!(snapshot.offers_demo);

    let (first, second) =
        tokio::join!(server.jobs.run_sample_job(&me, "key-1"), server.jobs.run_sample_job(&me, "key-1"));
    let first = first.expect("it is queued");
    assert_eq!(first, second.expect("the repeated request succeeds"));
    let all = server.store.jobs(&JobFilter::default(), now).await.expect("the query succeeds").rows;
    assert_eq!(all.iter().map(|job| job.display_name.as_str()).collect::<Vec<_>>(), ["Sample job"]);
    assert_eq!(runs::all(&server, None).await.iter().map(|row| row.id).collect::<Vec<_>>(), [first]);
    server.stop().await;
}
