//! One occurrence from its due time to the browser, on real services with the real SDK.

use milvaion_api::{events::LiveEvent, page::TimeWindow, requests::JobForm};
use milvaion_protocol::{id::OccurrenceId, message::LogLine, status::OccurrenceStatus};
use milvaion_server::live::hub::InitialReplay;
use milvaion_test_support::{jobs, runs, server_env, wait, worker_env};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn due_job_runs_and_its_states_are_published() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let worker = worker_env::start(&config);
    let (start, mut events) = server.hub.listen(None);
    assert!(matches!(start, InitialReplay::Replay(none) if none.is_empty()));
    let form = JobForm {
        kind: "cron".into(),
        cron: "* * * * * *".into(),
        zone: "Europe/Warsaw".into(),
        ..jobs::form("Every second")
    };
    server.jobs.save(&jobs::admin(), &form).await.expect("saved");

    // The first occurrence's states, as a browser receives them.
    let mut states_seen: Vec<(OccurrenceId, OccurrenceStatus, i32)> = Vec::new();
    let first = loop {
        let frame = tokio::time::timeout(wait::WAIT_TIMEOUT, events.recv()).await;
        let frame = frame.expect("within the timeout").expect("not lagged");
        if let LiveEvent::Occurrences { rows } = &frame.envelope.event {
            states_seen.extend(rows.iter().map(|row| (row.id, row.status, row.version)));
        }
        if let Some((id, ..)) = states_seen.iter().find(|(_, status, _)| *status == OccurrenceStatus::Completed) {
            break *id;
        }
    };
    let states: Vec<_> = states_seen.iter().filter(|(id, ..)| *id == first).collect();
    assert_eq!(states[0].1, OccurrenceStatus::Queued);
    assert!(states.windows(2).all(|pair| pair[0].2 < pair[1].2), "versions increase: {states:?}");

    let view = runs::ended(&server, first).await;
    assert_eq!(view.result.as_deref(), Some("hello"));
    let steps: Vec<_> = view.changes.iter().map(|change| change.status).collect();
    assert_eq!(steps, [OccurrenceStatus::Queued, OccurrenceStatus::Running, OccurrenceStatus::Completed]);
    assert!(view.row.started_at.expect("a start time") >= view.row.scheduled_for, "not before the due time");
    let lines = wait::eventually("the log", || async {
        let view = server.store.occurrence(first, 100, server.clock.now()).await.ok()??;
        Some(view.log).filter(|log: &Vec<LogLine>| !log.is_empty())
    })
    .await;
    assert_eq!(lines[0].message, "received: hello");

    // The statistics contain it.
    let snapshot = server.store.overview_snapshot(server.clock.now(), TimeWindow::Hour, server.clock.now()).await;
    let ended = snapshot.expect("the query succeeds").ended;
    let completed = ended.iter().find(|(status, _)| *status == OccurrenceStatus::Completed);
    assert!(completed.is_some_and(|(_, count)| *count >= 1));
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failure_is_recorded_with_its_exception() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let worker = worker_env::start(&config);
    let form = JobForm { input_json: r#"{"say": "fail"}"#.into(), ..jobs::form("Fails") };
    let id = server.jobs.save(&jobs::admin(), &form).await.expect("saved");
    let occurrence = server.jobs.run_now(&jobs::admin(), id, Default::default()).await.expect("triggered");
    let view = runs::ended(&server, occurrence).await;
    assert_eq!(view.row.status, OccurrenceStatus::Failed);
    assert_eq!(view.row.note.as_deref(), Some("failed on request"));
    assert!(view.exception.expect("an exception").contains("second line"));
    assert_eq!(view.triggered_by.as_deref(), Some("ana@example.org"));
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_one_server_reach_and_resume_at_another() {
    let config = server_env::config().await;
    let one = server_env::start(&config).await;
    let two = server_env::start(&config).await;
    // Both must listen before anything is published.
    let (_, mut at_one) = one.hub.listen(None);
    let (_, mut at_two) = two.hub.listen(None);
    // An event that is published before the second server has opened its channel reaches the first one only. So events are
    // published until one has reached both.
    let id = 'received: loop {
        let job = one.jobs.save(&jobs::admin(), &jobs::form("Shared")).await.expect("saved");
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(2);
        while let Ok(frame) = tokio::time::timeout_at(deadline, at_two.recv()).await {
            let frame = frame.expect("not lagged");
            if frame.envelope.event == (LiveEvent::Job { id: job }) {
                break 'received frame.envelope.id.clone();
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
    assert!(matches!(start, InitialReplay::Replay(_)), "the other server can resume from an id of the first one");
    one.stop().await;
    two.stop().await;
}
