//! A job's earlier definitions can be read, compared and restored.

use milvaion_api::requests::JobForm;
use milvaion_app::error::AppError;
use milvaion_schedule::{rules::Rules, schedule::Schedule};
use milvaion_server::store::jobs::AuditStamp;

use milvaion_test_support::{self as common, stack};

#[tokio::test]
async fn versions_are_listed_compared_and_restored() {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let me = stack::admin();
    let form = JobForm { kind: "every".into(), every: "1".into(), every_unit: "hours".into(), ..stack::form("First") };
    let id = server.jobs.save(&me, &form).await.expect("saved");
    let edited = JobForm { id: id.to_string(), version: "1".into(), display_name: "Second".into(), ..form };
    server.jobs.save(&me, &edited).await.expect("saved");
    server.jobs.set_active(&me, id, false, "holiday").await.expect("paused");

    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = server.store.versions(id, before, 2).await.expect("answered");
        seen.extend(page.rows.iter().map(|row| row.version));
        match page.next {
            Some(next) => before = next.parse().ok(),
            None => break,
        }
    }
    assert_eq!(seen, [3, 2, 1]);
    let told = async |one, other| {
        let difference = server.jobs.compare_versions(id, one, other).await.expect("compared");
        difference.changes.into_iter().map(|change| change.field).collect::<Vec<_>>()
    };
    assert_eq!(told(1, 2).await, ["displayName"]);
    assert_eq!(told(1, 3).await, ["displayName", "isActive"]);
    assert_eq!(told(3, 3).await, [""; 0]);

    let history = server.jobs.history(id, None).await.expect("answered");
    let steps: Vec<_> = history.rows.iter().map(|step| (step.row.version, step.fields.join(" "))).collect();
    let changed = [(3, "isActive"), (2, "displayName"), (1, "")].map(|(version, fields)| (version, fields.to_owned()));
    assert_eq!((steps, history.next), (changed.to_vec(), None));
    let earlier = server.jobs.history(id, Some(3)).await.expect("answered").rows;
    assert_eq!(earlier.iter().map(|step| step.row.version).collect::<Vec<_>>(), [2, 1]);

    let old = server.jobs.restore(&me, id, 1, 2).await;
    assert!(matches!(old, Err(AppError::Conflict(_))), "the version has moved");
    let restored = server.jobs.restore(&me, id, 1, 3).await.expect("restored");
    assert_eq!((restored.version, restored.missing_calendars.len()), (4, 0));
    let job = server.store.job(id).await.expect("answered").expect("there");
    assert_eq!((job.definition.display_name.as_str(), job.version), ("First", 4));
    assert_eq!((job.definition.is_active, job.next_fire_at), (false, None), "what is paused stays paused");
    assert_eq!(job.paused_reason.as_deref(), Some("holiday"));
    assert!(matches!(server.jobs.restore(&me, id, 99, 4).await, Err(AppError::NotFound(_))));

    server.jobs.delete(&me, id).await.expect("deleted");
    assert_eq!(server.store.versions(id, None, 0).await.expect("answered").rows.len(), 4);
    assert_eq!(told(1, 2).await, ["displayName"], "what is deleted can still be read");
    assert!(matches!(server.jobs.restore(&me, id, 1, 4).await, Err(AppError::NotFound(_))));
    server.stop().await;
}

#[tokio::test]
async fn a_calendar_that_is_gone_is_left_out_and_named() {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let gone = milvaion_protocol::id::CalendarId::from_parts(server.clock.now(), [3; 10]);
    let mut job = common::job(Schedule::every(60));
    job.rules = Rules { calendars: vec![gone], ..Rules::default() };
    let id = server.clock.job_id();
    let edit = AuditStamp { by: "test", at: server.clock.now() };
    server.store.insert_job(id, &job, None, edit).await.expect("stored");
    let restored = server.jobs.restore(&stack::admin(), id, 1, 1).await.expect("restored");
    assert_eq!(restored.missing_calendars, [gone]);
    let job = server.store.job(id).await.expect("answered").expect("there");
    assert!(job.definition.rules.calendars.is_empty());
    assert!(job.next_fire_at.is_some(), "it is active, so it is due");
    server.stop().await;
}
