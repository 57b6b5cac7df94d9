//! One occurrence from due to screen, on real services with the real SDK.

use milvaion_api::{events::LiveEvent, requests::JobForm};
use milvaion_protocol::{id::OccurrenceId, message::LogLine, status::OccurrenceStatus};
use milvaion_server::live::hub::InitialReplay;

use milvaion_test_support::stack;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_due_job_runs_and_everybody_hears_of_it() {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let worker = stack::worker(&config);
    let (start, mut events) = server.hub.listen(None);
    assert!(matches!(start, InitialReplay::Replay(none) if none.is_empty()));
    let form = JobForm {
        kind: "cron".into(),
        cron: "* * * * * *".into(),
        zone: "Europe/Warsaw".into(),
        ..stack::form("Every second")
    };
    server.jobs.save(&stack::admin(), &form).await.expect("saved");

    // The first occurrence's states, as a browser hears them.
    let mut heard: Vec<(OccurrenceId, OccurrenceStatus, i32)> = Vec::new();
    let first = loop {
        let frame =
            tokio::time::timeout(stack::WAIT_TIMEOUT, events.recv()).await.expect("in time").expect("not lagged");
        if let LiveEvent::Occurrences { rows } = &frame.envelope.event {
            heard.extend(rows.iter().map(|row| (row.id, row.status, row.version)));
        }
        if let Some((id, ..)) = heard.iter().find(|(_, status, _)| *status == OccurrenceStatus::Completed) {
            break *id;
        }
    };
    let states: Vec<_> = heard.iter().filter(|(id, ..)| *id == first).collect();
    assert_eq!(states[0].1, OccurrenceStatus::Queued);
    assert!(states.windows(2).all(|pair| pair[0].2 < pair[1].2), "versions rise: {states:?}");

    let view = stack::ended(&server, first).await;
    assert_eq!(view.result.as_deref(), Some("hello"));
    let steps: Vec<_> = view.changes.iter().map(|change| change.status).collect();
    assert_eq!(steps, [OccurrenceStatus::Queued, OccurrenceStatus::Running, OccurrenceStatus::Completed]);
    assert!(view.row.started_at.expect("it ran") >= view.row.scheduled_for, "never early");
    let lines = stack::eventually("the log", || async {
        let view = server.store.occurrence(first, 100, server.clock.now()).await.ok()??;
        Some(view.log).filter(|log: &Vec<LogLine>| !log.is_empty())
    })
    .await;
    assert_eq!(lines[0].message, "told: hello");

    // The roll-up knows without anybody counting rows.
    let numbers = server.store.overview_snapshot(server.clock.now(), server.clock.now()).await.expect("answered");
    let completed = numbers.last_hour.iter().find(|(status, _)| *status == OccurrenceStatus::Completed);
    assert!(completed.is_some_and(|(_, count)| *count >= 1));
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_is_told_with_its_exception() {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let worker = stack::worker(&config);
    let form = JobForm { input_json: r#"{"say": "fail"}"#.into(), ..stack::form("Fails") };
    let id = server.jobs.save(&stack::admin(), &form).await.expect("saved");
    let occurrence = server.jobs.run_now(&stack::admin(), id, Default::default()).await.expect("triggered");
    let view = stack::ended(&server, occurrence).await;
    assert_eq!(view.row.status, OccurrenceStatus::Failed);
    assert_eq!(view.row.note.as_deref(), Some("told to fail"));
    assert!(view.exception.expect("an exception").contains("and so it did"));
    assert_eq!(view.triggered_by.as_deref(), Some("ana@example.org"));
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_server_does_the_browsers_of_another_hear_and_can_resume_there() {
    let config = stack::config().await;
    let one = stack::server(&config).await;
    let two = stack::server(&config).await;
    // Both must be listening before anything is said.
    let (_, mut at_one) = one.hub.listen(None);
    let (_, mut at_two) = two.hub.listen(None);
    // What is said before the second server listens is heard only there, so it is said until both heard it.
    let id = 'said: loop {
        let job = one.jobs.save(&stack::admin(), &stack::form("Shared")).await.expect("saved");
        let patience = tokio::time::Instant::now() + std::time::Duration::from_secs(2);
        while let Ok(frame) = tokio::time::timeout_at(patience, at_two.recv()).await {
            let frame = frame.expect("not lagged");
            if frame.envelope.event == (LiveEvent::Job { id: job }) {
                break 'said frame.envelope.id.clone();
            }
        }
    };
    loop {
        let frame = at_one.recv().await.expect("not lagged");
        if frame.envelope.id == id {
            break;
        }
    }
    let (start, _) = two.hub.listen(Some(&id));
    assert!(matches!(start, InitialReplay::Replay(_)), "an id from one server can be resumed at the other");
    one.stop().await;
    two.stop().await;
}
