//! Blackouts.

use chrono::{Datelike, Duration};
use milvaion_api::request::JobForm;
use milvaion_schedule::{
    calendar::{Calendar, Window},
    rules::{Blackout, Rules},
    schedule::Schedule,
};

use milvaion_server::store::jobs::Edit;

use super::house::House;
use milvaion_test_support::stack;

#[tokio::test]
async fn a_changed_calendar_moves_the_jobs_that_keep_to_it() {
    let house = House::open().await;
    let me = stack::admin();
    let today = house.clock.now().date_naive();
    let calendar = Calendar {
        name: "Holidays".into(),
        zone: "UTC".into(),
        dates: vec![today + Duration::days(40)],
        windows: Vec::new(),
    };
    let jobs = &house.server.jobs;
    let id = jobs.save_calendar(&me, None, &calendar).await.expect("saved");
    let rules = Rules { calendars: vec![id], ..Rules::default() };
    let daily = Schedule::Cron { expression: "0 12 * * *".into(), zone: "UTC".into() };
    let job =
        house.job(daily, rules, Some((today + Duration::days(1)).and_hms_opt(12, 0, 0).expect("noon").and_utc())).await;

    let dates = vec![today, today + Duration::days(1), today + Duration::days(2)];
    let busy = Calendar { dates, ..calendar.clone() };
    jobs.save_calendar(&me, Some((id, 1)), &busy).await.expect("saved");
    assert_eq!(house.next(job).await.map(|at| at.date_naive()), Some(today + Duration::days(3)));

    let refused = jobs.save_calendar(&me, Some((id, 1)), &calendar).await;
    assert!(
        matches!(refused, Err(milvaion_app::error::AppError::Conflict(_))),
        "the loser of two edits is told: {refused:?}"
    );
    let Err(milvaion_app::error::AppError::Conflict(refused)) = jobs.delete_calendar(&me, id).await else {
        panic!("a calendar in use stays");
    };
    let name = jobs.store.job(job).await.expect("read").expect("there").definition.display_name;
    assert_eq!(refused, format!("{name} still keeps to Holidays: take it out there first."));
    let twin = jobs.save_calendar(&me, None, &calendar).await;
    assert!(matches!(twin, Err(milvaion_app::error::AppError::Fields(_))), "a name is taken once: {twin:?}");

    jobs.delete(&me, job).await.expect("deleted");
    assert_eq!(jobs.delete_calendar(&me, id).await, Ok("Holidays".to_owned()));
    let gone = jobs.delete_calendar(&me, id).await;
    assert!(matches!(gone, Err(milvaion_app::error::AppError::NotFound(_))), "{gone:?}");
    house.close().await;
}

#[tokio::test]
async fn a_changed_calendar_takes_nothing_away_that_is_due_already() {
    let house = House::open().await;
    let me = stack::admin();
    let jobs = &house.server.jobs;
    let edit = || Edit { by: "test", at: house.clock.now() };
    assert!(jobs.store.pause_cluster("maintenance", edit()).await.expect("answered"));
    let now = house.clock.now();
    let in_a_year = now.date_naive() + Duration::days(365);
    let calendar =
        Calendar { name: "Holidays".into(), zone: "UTC".into(), dates: vec![in_a_year], windows: Vec::new() };
    let id = jobs.save_calendar(&me, None, &calendar).await.expect("saved");
    let due = now - Duration::minutes(1);
    let job = house.job(Schedule::Once { at: due }, Rules { calendars: vec![id], ..Rules::default() }, Some(due)).await;
    let longer = Calendar { dates: vec![in_a_year, in_a_year + Duration::days(1)], ..calendar };
    jobs.save_calendar(&me, Some((id, 1)), &longer).await.expect("saved");
    assert_eq!(house.next(job).await, Some(due));
    assert!(jobs.store.resume_cluster(edit()).await.expect("answered").is_some());
    house.starts(1).await;
    assert_eq!(house.rows(job).await.len(), 1);
    house.gate.let_one_end();
    house.close().await;
}

#[tokio::test]
async fn a_postponed_fire_runs_when_the_blackout_ends() {
    let house = House::open().await;
    let me = stack::admin();
    let now = house.clock.now();
    let weekday = u8::try_from(now.weekday().num_days_from_sunday()).expect("a weekday");
    let window = Window { weekday, from: now.time(), to: (now + Duration::minutes(10)).time() };
    let calendar =
        Calendar { name: "Maintenance".into(), zone: "UTC".into(), dates: Vec::new(), windows: vec![window] };
    let id = house.server.jobs.save_calendar(&me, None, &calendar).await.expect("saved");
    let form = JobForm {
        kind: "cron".into(),
        cron: "* * * * *".into(),
        rules: milvaion_api::rules_form::write(
            &Rules { calendars: vec![id], blackout: Blackout::Postpone, ..Rules::default() },
            "UTC",
        ),
        ..stack::form("Postponed")
    };
    let job = house.server.jobs.save(&me, &form).await.expect("saved");
    assert_eq!(house.next(job).await, Some(now + Duration::minutes(10)));
    house.pass(Duration::minutes(10)).await;
    house.starts(1).await;
    assert_eq!(house.rows(job).await.len(), 1, "ten fires in the window are one");
    house.close().await;
}
