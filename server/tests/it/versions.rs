//! The versions of a job, which can be listed, compared and restored.

use milvaion_api::requests::JobForm;
use milvaion_app::error::AppError;
use milvaion_schedule::{rules::Rules, schedule::Schedule};
use milvaion_test_support::{jobs, server_env};

#[tokio::test]
async fn versions_are_listed_compared_and_restored() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let me = jobs::admin();
    let form = JobForm { kind: "every".into(), every: "1".into(), every_unit: "hours".into(), ..jobs::form("First") };
    let id = server.jobs.save(&me, &form).await.expect("saved");
    let unchanged = JobForm { id: id.to_string(), version: "1".into(), ..form };
    server.jobs.save(&me, &unchanged).await.expect("saved");
    let edited = JobForm { display_name: "Second".into(), ..unchanged };
    server.jobs.save(&me, &edited).await.expect("saved");
    server.jobs.set_active(&me, id, false, "holiday").await.expect("paused");

    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = server.store.versions(id, before, 2).await.expect("the query succeeds");
        seen.extend(page.rows.iter().map(|row| row.version));
        match page.next {
            Some(next) => before = next.parse().ok(),
            None => break,
        }
    }
    assert_eq!(seen, [3, 2, 1]);
    let changed_fields = async |one, other| {
        let difference = server.jobs.compare_versions(id, one, other).await.expect("compared");
        difference.changes.into_iter().map(|change| change.field).collect::<Vec<_>>()
    };
    assert_eq!(changed_fields(1, 2).await, ["displayName"]);
    assert_eq!(changed_fields(1, 3).await, ["displayName", "isActive"]);
    assert_eq!(changed_fields(3, 3).await, [""; 0]);

    let history = server.jobs.history(id, None).await.expect("the query succeeds");
    let steps: Vec<_> = history.rows.iter().map(|step| (step.row.version, step.fields.join(" "))).collect();
    let changed = [(3, "isActive"), (2, "displayName"), (1, "")].map(|(version, fields)| (version, fields.to_owned()));
    assert_eq!((steps, history.next), (changed.to_vec(), None));
    let earlier = server.jobs.history(id, Some(3)).await.expect("the query succeeds").rows;
    assert_eq!(earlier.iter().map(|step| step.row.version).collect::<Vec<_>>(), [2, 1]);

    let old = server.jobs.restore(&me, id, 1, 2).await;
    assert!(matches!(old, Err(AppError::Conflict(_))), "the version is outdated");
    let restored = server.jobs.restore(&me, id, 1, 3).await.expect("restored");
    assert_eq!((restored.version, restored.missing_calendars.len()), (4, 0));
    let job = server.store.job(id).await.expect("the query succeeds").expect("it exists");
    assert_eq!((job.definition.display_name.as_str(), job.version), ("First", 4));
    assert_eq!((job.definition.is_active, job.next_fire_at), (false, None), "a paused job stays paused");
    assert_eq!(job.paused_reason.as_deref(), Some("holiday"));
    assert!(matches!(server.jobs.restore(&me, id, 99, 4).await, Err(AppError::NotFound(_))));

    server.jobs.delete(&me, id, None).await.expect("deleted");
    assert_eq!(server.store.versions(id, None, 0).await.expect("the query succeeds").rows.len(), 4);
    assert_eq!(changed_fields(1, 2).await, ["displayName"], "versions of a deleted job can be read");
    assert!(matches!(server.jobs.restore(&me, id, 1, 4).await, Err(AppError::NotFound(_))));
    server.stop().await;
}

#[tokio::test]
async fn missing_calendar_is_left_out_and_reported() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let missing = milvaion_protocol::id::CalendarId::from_parts(server.clock.now(), [3; 10]);
    let mut job = jobs::echo_job(Schedule::every(60));
    job.rules = Rules { calendars: vec![missing], ..Rules::default() };
    let id = jobs::insert_job(&server.store, &server.clock, &job, None).await;
    let restored = server.jobs.restore(&jobs::admin(), id, 1, 1).await.expect("restored");
    assert_eq!(restored.missing_calendars, [missing]);
    let job = server.store.job(id).await.expect("the query succeeds").expect("it exists");
    assert!(job.definition.rules.calendars.is_empty());
    assert!(job.next_fire_at.is_some(), "an active job has a due time");
    server.stop().await;
}
