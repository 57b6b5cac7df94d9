//! A rolling upgrade: an old server leaves to a newer one what it cannot read, and nothing else.

use std::collections::HashSet;

use chrono::{DateTime, Duration, Utc};
use milvaion_api::requests::JobInput;
use milvaion_app::{backend::Backend, error::AppError};
use milvaion_protocol::id::{CalendarId, JobId};
use milvaion_schedule::{
    calendar::Calendar,
    rules::Rules,
    schedule::{IntervalAnchor, Schedule},
};
use milvaion_server::{
    clock::Clock,
    lifecycle::Server,
    store::{Store, jobs::AuditStamp},
    ui::calendars,
};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs, runs, server_env, wait,
};

fn calendar(name: &str, now: DateTime<Utc>) -> Calendar {
    let dates = vec![now.date_naive() + Duration::days(40)];
    Calendar { name: name.into(), zone: "UTC".into(), dates, windows: Vec::new() }
}

async fn save(store: &Store, clock: &Clock, id: CalendarId, version: Option<i32>, calendar: &Calendar) {
    let edit = AuditStamp { by: "test", at: clock.now(), address: None };
    store.save_calendar(id, version, calendar, edit).await.expect("stored").expect("the version is current");
}

async fn insert(store: &Store, clock: &Clock, calendars: Vec<CalendarId>, due: DateTime<Utc>) -> JobId {
    let job = JobInput { rules: Rules { calendars, ..Rules::default() }, ..jobs::echo_job(Schedule::every(3_600)) };
    jobs::insert_job(store, clock, &job, Some(due)).await
}

async fn unreadable(server: &Server, id: JobId) -> Option<String> {
    server.backend.job(&jobs::admin(), id, None).await.expect("the page is shown").unreadable
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_that_only_a_newer_server_can_read_waits_for_it() {
    let config = server_env::config().await;
    let (store, clock) = (database::open(&config.database.url).await, Clock::system());
    let holidays = clock.calendar_id();
    save(&store, &clock, holidays, None, &calendar("Holidays", clock.now())).await;
    let due = clock.now() - Duration::seconds(10);
    let plain = async || insert(&store, &clock, Vec::new(), due).await;
    let (misfire, overlap, lost, schedule) = (plain().await, plain().await, plain().await, plain().await);
    let blacked_out = insert(&store, &clock, vec![holidays], due).await;
    let mut newer = TestConnection::open(&config.database.url).await;
    newer.execute("ALTER TABLE jobs DROP CONSTRAINT jobs_schedule_check").await;
    for (id, change) in [
        (misfire, r#"rules = rules || '{"misfire": "later"}'"#),
        (overlap, r#"rules = rules || '{"overlap": "sometimes"}'"#),
        (lost, r#"rules = rules || '{"onLost": "ask"}'"#),
        (schedule, r#"schedule = '{"kind": "lunar"}'"#),
    ] {
        newer.execute(format!("UPDATE jobs SET {change} WHERE id = '{id}'")).await;
    }
    newer.execute(r#"UPDATE calendars SET definition = definition || '{"years": [2030]}'"#).await;
    let left = [misfire, overlap, lost, schedule, blacked_out];
    let readable = insert(&store, &clock, Vec::new(), due + Duration::seconds(1)).await;

    // A batch of the size of the unreadable jobs, which are due longer.
    let mut config = config;
    config.background.dispatch_batch = 5;
    let server = server_env::start(&config).await;
    wait::eventually("the run of the readable job", || async { runs::of_job(&server, readable).await.pop() }).await;
    for id in left {
        assert_eq!(runs::of_job(&server, id).await, [], "job {id} is not dispatched");
    }
    let ids: Vec<_> = left.iter().map(|id| id.0).collect();
    let stored: HashSet<JobId> =
        store.due_times(&ids).await.expect("the query succeeds").into_iter().map(|(id, _)| id).collect();
    assert_eq!(stored, HashSet::from(left), "the due times stay for a newer server");

    // The dispatcher does not find them again, and does not wake for them.
    let again = server.dispatcher.tick().await.expect("the tick succeeds");
    assert_eq!((again.due, again.unreadable), (0, 0));
    wait::until("an index whose first entry is in the future", async || {
        server.cache.earliest().await.is_ok_and(|(at, _)| at.is_some_and(|at| at > clock.now()))
    })
    .await;

    let parts = [
        "the misfire policy “later”",
        "the overlap policy “sometimes”",
        "the policy for lost runs “ask”",
        "the schedule",
        "the calendar “Holidays”",
    ];
    for (id, part) in left.into_iter().zip(parts) {
        assert_eq!(unreadable(&server, id).await.as_deref(), Some(part));
    }
    assert_eq!(unreadable(&server, readable).await, None);
    let me = jobs::admin();
    let paused = server.jobs.set_active(&me, misfire, false, "").await.map(drop);
    for refused in [paused, server.jobs.skip_due(&me, misfire, due).await] {
        let Err(AppError::Conflict(text)) = &refused else { panic!("not refused: {refused:?}") };
        assert!(text.contains(parts[0]) && text.contains("upgrade this server"), "{text}");
    }

    // An edit makes the job readable.
    let edit = r#"rules = rules || '{"misfire": "skip"}', version = 2"#;
    newer.execute(format!("UPDATE jobs SET {edit} WHERE id = '{misfire}'")).await;
    newer.execute(format!("UPDATE job_due SET version = 2 WHERE job_id = '{misfire}'")).await;
    server.cache.announce_schedule_change().await.expect("Redis responds");
    wait::eventually("the run of the edited job", || async { runs::of_job(&server, misfire).await.pop() }).await;
    server.stop().await;
}

#[tokio::test]
async fn edit_of_an_unreadable_calendar_is_left_to_a_newer_server() {
    let url = database::create().await;
    let (store, clock) = (database::open(&url).await, Clock::system());
    let (newer, own) = (clock.calendar_id(), clock.calendar_id());
    for (id, name) in [(newer, "Newer"), (own, "Own")] {
        save(&store, &clock, id, None, &calendar(name, clock.now())).await;
        save(&store, &clock, id, Some(1), &calendar(name, clock.now())).await;
    }
    let mut connection = TestConnection::open(&url).await;
    connection
        .execute(format!(r#"UPDATE calendars SET definition = '{{"rule": "lunar"}}' WHERE id = '{newer}'"#))
        .await;
    let change = store.edited_calendar().await.expect("the query succeeds").expect("the readable one");
    assert_eq!(change.id, own);
    store.note_applied(change, None).await.expect("stored");
    assert_eq!(store.edited_calendar().await.expect("the query succeeds"), None);

    // The pages show it by its name.
    let rows = calendars::rows(store.calendars().await.expect("the query succeeds"), clock.now());
    let shown: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.words.contains("Upgrade this server"))).collect();
    assert_eq!(shown, [("Newer", true), ("Own", false)]);
    let refused = calendars::view(&store, newer).await;
    assert!(matches!(refused, Err(AppError::Conflict(_))), "{refused:?}");
}

#[tokio::test]
async fn unreadable_pause_does_not_stop_the_pauses_of_other_jobs() {
    let url = database::create().await;
    let (store, clock) = (database::open(&url).await, Clock::system());
    let after_end = Schedule::Every { seconds: 60, from: IntervalAnchor::End };
    let newer = jobs::insert(&store, &clock, after_end.clone(), None).await;
    let own = jobs::insert(&store, &clock, after_end, None).await;
    let mut connection = TestConnection::open(&url).await;
    let change = r#"schedule || '{"seconds": "PT1M"}'"#;
    connection.execute(format!("UPDATE jobs SET schedule = {change} WHERE id = '{newer}'")).await;
    let now = clock.now();
    let paused = store.schedule_after_end(None, now).await.expect("the query succeeds");
    assert_eq!(paused.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [own]);
}

#[tokio::test]
async fn run_with_the_trigger_of_a_newer_server_can_end() {
    let url = database::create().await;
    let (store, clock) = (database::open(&url).await, Clock::system());
    let job = jobs::insert(&store, &clock, Schedule::Manual, None).await;
    let id = runs::insert_manual(&store, &clock, job).await;
    let mut connection = TestConnection::open(&url).await;
    connection.execute("ALTER TABLE runs DROP CONSTRAINT runs_trigger_check").await;
    connection.execute("UPDATE runs SET trigger = 'webhook'").await;
    let later = clock.now() + Duration::days(2);
    let ended = store.expire_queued(Duration::days(1), 10, later).await.expect("the statement succeeds");
    assert_eq!(ended.iter().map(|run| run.row.id).collect::<Vec<_>>(), [id]);
}
