//! Blackout calendars and the jobs that reference them.

use chrono::{Datelike, Duration};
use futures::{StreamExt, stream};
use milvaion_api::{
    events::LiveEvent,
    requests::{JobForm, JobInput},
    rest::PutJob,
};
use milvaion_app::error::AppError;
use milvaion_protocol::{
    id::{CalendarId, JobId},
    status::OccurrenceStatus,
};
use milvaion_schedule::{
    calendar::{Calendar, WeeklyWindow},
    rules::{BlackoutPolicy, Rules},
    schedule::Schedule,
};
use milvaion_server::{clock::Clock, store::jobs::AuditStamp, ui::calendars};
use milvaion_test_support::{database, jobs, manual_clock::ManualClockHarness, wait};

/// Skips the next due time of a daily job that uses a calendar, and then computes its due time again in each way.
async fn skipped_due_time_does_not_come_back(
    harness: &ManualClockHarness,
    job: JobId,
    (id, calendar): (CalendarId, &Calendar),
) {
    let (me, jobs) = (jobs::admin(), &harness.server.jobs);
    let due = harness.next_due(job).await.expect("a due time");
    let on_day = |n| Some(due + Duration::days(n));
    jobs.skip_due(&me, job, due).await.expect("skipped");
    assert_eq!(harness.next_due(job).await, on_day(1));
    let rows = harness.rows(job).await;
    assert_eq!((rows.len(), rows[0].status, rows[0].scheduled_for), (1, OccurrenceStatus::Skipped, due));
    assert_eq!(rows[0].note, Some(format!("Skipped: {} has skipped this due time.", me.email)));
    let refused = jobs.skip_due(&me, job, due).await;
    assert!(matches!(refused, Err(AppError::Conflict(_))), "a second request skips no other one: {refused:?}");

    let dates = calendar.dates.iter().copied().chain(on_day(1).map(|at| at.date_naive())).collect();
    let busier = Calendar { dates, ..calendar.clone() };
    jobs.save_calendar(&me, Some((id, 2)), &busier).await.expect("saved");
    assert_eq!(harness.next_due(job).await, on_day(2), "the edited calendar excludes the following day");
    jobs.save_calendar(&me, Some((id, 3)), calendar).await.expect("saved");
    assert_eq!(harness.next_due(job).await, on_day(1));
    assert_eq!(jobs.wake_silent_jobs(JobId::default()).await.expect("the queries succeed").moved, 0);
    assert_eq!(harness.next_due(job).await, on_day(1), "no clock was ahead");
    let mut definition = jobs.store.job(job).await.expect("it can be read").expect("it exists").definition;
    definition.rules.end_at = on_day(99);
    let put = PutJob { definition, is_active: None };
    jobs.replace_definition(&me, job, None, &put, false).await.expect("saved");
    assert_eq!(harness.next_due(job).await, on_day(1), "the edit computes the due time again");

    jobs.set_active(&me, job, false, "").await.expect("paused");
    let refused = jobs.skip_due(&me, job, due).await;
    assert!(matches!(&refused, Err(AppError::Conflict(reason)) if reason.contains("is paused")), "{refused:?}");
    jobs.set_active(&me, job, true, "").await.expect("resumed");
    assert_eq!(harness.next_due(job).await, Some(due), "a resume ends the skip");
    let last = jobs.store.job(job).await.expect("it can be read").expect("it exists").last_fire_at;
    assert_eq!(last, None, "a later edit does not count from it");
}

#[tokio::test]
async fn changed_calendar_moves_the_due_times_of_its_jobs() {
    let harness = ManualClockHarness::open().await;
    let me = jobs::admin();
    let today = harness.clock.now().date_naive();
    let calendar = Calendar {
        name: "Holidays".into(),
        zone: "UTC".into(),
        dates: vec![today + Duration::days(40)],
        windows: Vec::new(),
    };
    let jobs = &harness.server.jobs;
    let id = jobs.save_calendar(&me, None, &calendar).await.expect("saved");
    let rules = Rules { calendars: vec![id], ..Rules::default() };
    let daily = Schedule::Cron { expression: "0 12 * * *".into(), zone: "UTC".into() };
    let job = harness
        .job(daily, rules, Some((today + Duration::days(1)).and_hms_opt(12, 0, 0).expect("noon").and_utc()))
        .await;

    let dates = vec![today, today + Duration::days(1), today + Duration::days(2)];
    let busy = Calendar { dates, ..calendar.clone() };
    jobs.save_calendar(&me, Some((id, 1)), &busy).await.expect("saved");
    assert_eq!(harness.next_due(job).await.map(|at| at.date_naive()), Some(today + Duration::days(3)));
    skipped_due_time_does_not_come_back(&harness, job, (id, &busy)).await;

    let refused = jobs.save_calendar(&me, Some((id, 1)), &calendar).await;
    assert!(
        matches!(refused, Err(milvaion_app::error::AppError::Conflict(_))),
        "the second of two edits is refused: {refused:?}"
    );
    let Err(milvaion_app::error::AppError::Conflict(refused)) = jobs.delete_calendar(&me, id).await else {
        panic!("a calendar in use cannot be deleted");
    };
    let name = jobs.store.job(job).await.expect("it can be read").expect("it exists").definition.display_name;
    assert_eq!(refused, format!("{name} still uses Holidays. Remove it from this job first."));
    let duplicate = jobs.save_calendar(&me, None, &calendar).await;
    assert!(
        matches!(duplicate, Err(milvaion_app::error::AppError::Fields(_))),
        "two calendars cannot have one name: {duplicate:?}"
    );

    jobs.delete(&me, job, None).await.expect("deleted");
    assert_eq!(jobs.delete_calendar(&me, id).await, Ok("Holidays".to_owned()));
    let missing = jobs.delete_calendar(&me, id).await;
    assert!(matches!(missing, Err(milvaion_app::error::AppError::NotFound(_))), "{missing:?}");
    harness.close().await;
}

/// Edits a calendar of `count` jobs, without what the command does after its statement.
async fn apply_edit_to_all_jobs(count: usize) {
    let harness = ManualClockHarness::without_worker().await;
    let store = &harness.server.store;
    let edit = AuditStamp { by: "test", at: harness.clock.now(), address: None };
    let noon = |day: i64| {
        (harness.clock.now().date_naive() + Duration::days(day)).and_hms_opt(12, 0, 0).expect("noon").and_utc()
    };
    let calendar = Calendar {
        name: "Holidays".into(),
        zone: "UTC".into(),
        dates: vec![noon(40).date_naive()],
        windows: Vec::new(),
    };
    let id = harness.clock.calendar_id();
    store.save_calendar(id, None, &calendar, edit).await.expect("stored").expect("it is new");
    let rules = Rules { calendars: vec![id], ..Rules::default() };
    let daily = Schedule::Cron { expression: "0 12 * * *".into(), zone: "UTC".into() };
    let definition = JobInput { rules, ..jobs::echo_job(daily) };
    let insert = |_| jobs::insert_job(store, &harness.clock, &definition, Some(noon(1)));
    let all: Vec<JobId> = stream::iter(0..count).map(insert).buffer_unordered(8).collect().await;
    // The statement of the command, without what follows it.
    let busy = Calendar { dates: vec![noon(0).date_naive(), noon(1).date_naive()], ..calendar };
    store.save_calendar(id, Some(1), &busy, edit).await.expect("stored").expect("the version is current");
    wait::eventually("new due times of all jobs", || async {
        let ids: Vec<_> = all.iter().map(|id| id.0).collect();
        let stored = store.due_times(&ids).await.expect("the query succeeds");
        stored.iter().all(|(_, due)| *due == noon(2)).then_some(())
    })
    .await;
    wait::eventually("the end of the edit", || async {
        store.edited_calendar().await.expect("the query succeeds").is_none().then_some(())
    })
    .await;
    harness.close().await;
}

#[tokio::test]
async fn edit_whose_request_ended_early_is_applied_to_all_jobs() {
    apply_edit_to_all_jobs(50).await;
}

#[tokio::test]
async fn edit_of_a_calendar_is_continued_where_it_ended() {
    let store = database::fresh().await;
    let clock = Clock::system();
    let edit = AuditStamp { by: "test", at: clock.now(), address: None };
    let dates = vec![clock.now().date_naive()];
    let calendar = Calendar { name: "Holidays".into(), zone: "UTC".into(), dates, windows: Vec::new() };
    let id = clock.calendar_id();
    let edited = async || store.edited_calendar().await.expect("the query succeeds");
    store.save_calendar(id, None, &calendar, edit).await.expect("stored").expect("it is new");
    assert_eq!(edited().await, None, "no job uses a new calendar");

    store.save_calendar(id, Some(1), &calendar, edit).await.expect("stored").expect("the version is current");
    let second = edited().await.expect("an edit");
    assert_eq!((second.version, second.applied_to), (2, JobId::default()));
    let upto = clock.job_id();
    store.note_applied(second, Some(upto)).await.expect("stored");
    assert_eq!(edited().await.map(|change| change.applied_to), Some(upto));

    store.save_calendar(id, Some(2), &calendar, edit).await.expect("stored").expect("the version is current");
    store.note_applied(second, None).await.expect("stored");
    let third = edited().await.expect("the later edit");
    assert_eq!((third.version, third.applied_to), (3, JobId::default()), "it starts from the beginning");
    store.note_applied(third, None).await.expect("stored");
    assert_eq!(edited().await, None);
}

#[tokio::test]
async fn page_of_a_calendar_shows_how_far_its_edit_is_applied() {
    let store = database::fresh().await;
    let clock = Clock::system();
    let edit = AuditStamp { by: "test", at: clock.now(), address: None };
    let dates = vec![clock.now().date_naive()];
    let calendar = Calendar { name: "Holidays".into(), zone: "UTC".into(), dates, windows: Vec::new() };
    let id = clock.calendar_id();
    store.save_calendar(id, None, &calendar, edit).await.expect("stored").expect("it is new");
    let rules = Rules { calendars: vec![id], ..Rules::default() };
    let definition = JobInput { rules, ..jobs::echo_job(Schedule::every(3_600)) };
    let due = Some(clock.now() + Duration::days(1));
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(jobs::insert_job(&store, &clock, &definition, due).await);
    }
    all.sort_unstable();
    let pending = async || {
        let page = calendars::view(&store, id).await.expect("it exists").pending_jobs;
        let rows = calendars::rows(store.calendars().await.expect("the query succeeds"), clock.now());
        assert_eq!(rows[0].pending_jobs, page, "the list shows the same");
        page
    };
    assert_eq!(pending().await, None);
    store.save_calendar(id, Some(1), &calendar, edit).await.expect("stored").expect("the version is current");
    assert_eq!(pending().await, Some(3));
    let change = store.edited_calendar().await.expect("the query succeeds").expect("an edit");
    store.note_applied(change, Some(all[0])).await.expect("stored");
    assert_eq!(pending().await, Some(2));
    store.note_applied(change, None).await.expect("stored");
    assert_eq!(pending().await, None);
}

#[tokio::test]
async fn pages_are_told_when_an_edit_is_applied() {
    let harness = ManualClockHarness::without_worker().await;
    let (me, server) = (jobs::admin(), &harness.server);
    let dates = vec![harness.clock.now().date_naive()];
    let calendar = Calendar { name: "Holidays".into(), zone: "UTC".into(), dates, windows: Vec::new() };
    let id = server.jobs.save_calendar(&me, None, &calendar).await.expect("saved");
    let (_, mut events) = server.hub.listen(None);
    // The statement of the command, without what follows it: the background task applies it.
    let edit = AuditStamp { by: "test", at: harness.clock.now(), address: None };
    server.store.save_calendar(id, Some(1), &calendar, edit).await.expect("stored").expect("the version is current");
    wait::eventually("the event of the applied edit", || {
        let found = events.try_recv().filter(|frame| frame.envelope.event == LiveEvent::Calendar { id });
        async move { found }
    })
    .await;
    assert_eq!(calendars::view(&server.store, id).await.expect("it exists").pending_jobs, None);
    harness.close().await;
}

#[tokio::test]
async fn changed_calendar_keeps_due_times_that_passed() {
    let harness = ManualClockHarness::open().await;
    let me = jobs::admin();
    let jobs = &harness.server.jobs;
    let edit = || AuditStamp { by: "test", at: harness.clock.now(), address: None };
    assert!(jobs.store.pause_cluster("maintenance", edit()).await.expect("the query succeeds"));
    let now = harness.clock.now();
    let in_a_year = now.date_naive() + Duration::days(365);
    let calendar =
        Calendar { name: "Holidays".into(), zone: "UTC".into(), dates: vec![in_a_year], windows: Vec::new() };
    let id = jobs.save_calendar(&me, None, &calendar).await.expect("saved");
    let due = now - Duration::minutes(1);
    let job = harness.job(Schedule::once(due), Rules { calendars: vec![id], ..Rules::default() }, Some(due)).await;
    let longer = Calendar { dates: vec![in_a_year, in_a_year + Duration::days(1)], ..calendar };
    jobs.save_calendar(&me, Some((id, 1)), &longer).await.expect("saved");
    assert_eq!(harness.next_due(job).await, Some(due));
    let later = now + Duration::hours(1);
    let hourly = harness.job(Schedule::every(3_600), Rules::default(), Some(later)).await;
    for (job, due, part) in [(job, due, "This is the last due time"), (hourly, later, "All schedules are paused")] {
        let refused = jobs.skip_due(&me, job, due).await;
        assert!(matches!(&refused, Err(AppError::Conflict(reason)) if reason.starts_with(part)), "{refused:?}");
    }
    assert!(jobs.store.resume_cluster(edit()).await.expect("the query succeeds").is_some());
    harness.starts(1).await;
    assert_eq!(harness.rows(job).await.len(), 1);
    harness.gate.complete_one();
    harness.close().await;
}

#[tokio::test]
async fn postponed_occurrence_runs_when_the_blackout_ends() {
    let harness = ManualClockHarness::open().await;
    let me = jobs::admin();
    let now = harness.clock.now();
    let weekday = u8::try_from(now.weekday().num_days_from_sunday()).expect("a weekday");
    let window = WeeklyWindow { weekday, from: now.time(), to: (now + Duration::minutes(10)).time() };
    let calendar =
        Calendar { name: "Maintenance".into(), zone: "UTC".into(), dates: Vec::new(), windows: vec![window] };
    let id = harness.server.jobs.save_calendar(&me, None, &calendar).await.expect("saved");
    let form = JobForm {
        kind: "cron".into(),
        cron: "* * * * *".into(),
        rules: milvaion_api::rules_form::write(
            &Rules { calendars: vec![id], blackout: BlackoutPolicy::Postpone, ..Rules::default() },
            "UTC",
        ),
        ..jobs::form("Postponed")
    };
    let job = harness.server.jobs.save(&me, &form).await.expect("saved");
    assert_eq!(harness.next_due(job).await, Some(now + Duration::minutes(10)));
    harness.advance(Duration::minutes(10)).await;
    harness.starts(1).await;
    assert_eq!(harness.rows(job).await.len(), 1, "ten due times in the window become one occurrence");
    harness.close().await;
}

mod exhaustive {
    use super::*;

    #[tokio::test]
    async fn interrupted_edit_is_applied_to_several_batches_of_jobs() {
        apply_edit_to_all_jobs(1_100).await;
    }
}
