//! The workers in `examples/python-worker`, which are written from the protocol's documentation in `docs/protocol` alone,
//! with a real server and real services.
//!
//! The messages of both sides are recorded and validated with the schemas in that folder.

mod harness;
mod protocol_tap;

use harness::{PythonWorker, PythonWorkerHarness};
use milvaion_api::{duplicates, failures::FailureCause};
use milvaion_protocol::{message::LogLevel, status::OccurrenceStatus};
use milvaion_test_support::{jobs, runs, wait, worker_env};
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_worker_messages_match_the_schemas() {
    let harness = PythonWorkerHarness::open().await;
    let tap = protocol_tap::ProtocolTap::open(&harness.config).await;
    let worker = harness.worker(true);
    let types = harness.registered("python").await;
    let greet = types.iter().find(|one| one.info.job_type == "greet").expect("the job type is registered");
    assert_eq!(greet.info.description, "Greets a person, with one log line per greeting.");
    assert_eq!(greet.info.schema["properties"]["name"]["type"], "string");

    let id = harness.run("greet", json!({ "name": "Ann", "times": 2 }), 0).await;
    let done = runs::ended(&harness.server, id).await;
    assert_eq!(done.row.status, OccurrenceStatus::Completed, "{:?}", done.exception);
    // Log lines and status reports have different queues.
    let done = wait::eventually("both log lines", async || {
        let view = harness.server.store.occurrence(id, 10, harness.server.clock.now()).await.ok()??;
        (view.log.len() == 2).then_some(view)
    })
    .await;
    assert_eq!(done.result.as_deref(), Some(r#"{"greeted": "Ann", "times": 2}"#));
    assert_eq!(done.row.progress.map(|progress| progress.percent), Some(100));
    let log: Vec<_> = done.log.iter().map(|line| (line.seq, line.message.as_str())).collect();
    assert_eq!(log, [(1_000_000, "Hello, Ann!"), (1_000_001, "Hello, Ann!")]);
    assert_eq!(done.log[1].data, Some(json!({ "time": 2 })));

    // An input that the schema accepts and the job rejects, and an input that does not match the schema.
    for (input, reason) in [
        (json!({ "orders": ["x1"] }), "'x1' is not an order number"),
        (json!({ "orders": "x1" }), "the input's orders"),
    ] {
        let id = harness.run("refund", input, 3).await;
        let failed = runs::ended(&harness.server, id).await;
        assert_eq!((failed.row.status, failed.row.attempt), (OccurrenceStatus::Failed, 1));
        assert!(failed.exception.expect("an exception").starts_with(reason));
        assert_eq!(harness.cause(id).await, Some(FailureCause::Permanent));
    }

    // The Rust worker's messages match the schemas too.
    let rust_worker = worker_env::start(&harness.config);
    let id = harness.run_on("w", "echo", json!({ "say": "hello" }), 0).await;
    assert_eq!(runs::ended(&harness.server, id).await.row.status, OccurrenceStatus::Completed);
    rust_worker.stop().await;

    worker.stop().await;
    wait::eventually("both goodbyes", async || {
        let now = harness.server.clock.now();
        let workers = harness.server.store.workers(now - chrono::Duration::hours(1), now).await.ok()?;
        workers.iter().all(|worker| worker.instances[0].stopped_at.is_some()).then_some(())
    })
    .await;
    tap.wait_for_messages("registration", 4).await;
    let kinds = tap.close().await;
    for (exchange, least) in [("jobs", 4), ("status", 4), ("logs", 2), ("registration", 4)] {
        let count = kinds.get(exchange).copied().unwrap_or_default();
        assert!(count >= least, "only {count} messages on {exchange}");
    }
    harness.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_messages_become_dead_letters() {
    let harness = PythonWorkerHarness::open().await;
    let worker = harness.worker(false);
    harness.registered("python").await;
    let bodies: [&[u8]; 4] = [b"no json", b"[]", br#"{"occurrenceId": "7", "jobType": "greet"}"#, b"\xff\xfe"];
    for body in bodies {
        harness.publish("python.greet.unknown", body).await;
    }
    let dead_letters = wait::eventually("the dead letters", || async {
        let page = harness.server.store.dead_letters(&Default::default()).await.ok()?;
        (page.rows.len() == bodies.len()).then_some(page.rows)
    })
    .await;
    assert!(dead_letters.iter().all(|row| row.source.ends_with(".jobs.python.greet")), "{dead_letters:?}");
    let id = harness.run("greet", json!({ "name": "Bob" }), 0).await;
    assert_eq!(runs::ended(&harness.server, id).await.row.status, OccurrenceStatus::Completed);
    worker.stop().await;
    harness.close().await;
}

#[test]
fn requirements_list_names_the_packages() {
    let list = std::fs::read_to_string(harness::example("requirements.txt")).expect("the list can be read");
    for name in ["pika", "redis"] {
        assert!(list.lines().any(|line| line.starts_with(name)), "{name} is not listed");
    }
    PythonWorker::python();
}

mod exhaustive {
    use super::*;

    /// Kills a worker during a run: the lost run detector requeues the run, and another worker starts the next attempt.
    async fn kill_worker_during_a_run(with_redis: bool) {
        let harness = PythonWorkerHarness::open().await;
        let first = harness.worker(with_redis);
        harness.registered("python").await;
        let id = harness.run("wait", json!({ "seconds": 600 }), 0).await;
        let started = harness.starts(id, 1).await;
        let second = harness.worker(with_redis);
        first.kill().await;
        let view = harness.starts(id, 2).await;
        assert_ne!(view.row.instance_id, started.row.instance_id);
        assert_eq!(
            duplicates::find_duplicate_starts(&view.changes),
            [],
            "attempt 1 was started once in spite of redeliveries"
        );
        assert!(view.changes.iter().any(|step| step.note.as_deref().is_some_and(|note| note.contains("No heartbeat"))));
        second.stop().await;
        harness.close().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn python_worker_retries_failed_attempts() {
        let harness = PythonWorkerHarness::open().await;
        let worker = harness.worker(true);
        harness.registered("python").await;
        let recovering = harness.run("unsteady", json!({ "failures": 2 }), 2).await;
        let exhausted = harness.run("unsteady", json!({ "failures": 9 }), 1).await;
        let locked = harness.run("refund", json!({ "orders": ["19"] }), 1).await;
        let snoozed = harness.run("refund", json!({ "orders": ["18"] }), 0).await;

        let done = runs::ended(&harness.server, recovering).await;
        assert_eq!((done.row.status, done.row.attempt), (OccurrenceStatus::Completed, 3), "{:?}", done.exception);
        assert_eq!(done.result.as_deref(), Some("succeeded on attempt 3"));
        let failures: Vec<_> = done.log.iter().filter(|line| line.level == LogLevel::Error).collect();
        assert_eq!(failures.len(), 2, "the log contains the exception of each attempt");
        assert!(failures[1].message.contains("closed on attempt 2") && failures[1].message.contains("Traceback"));

        let failed = runs::ended(&harness.server, exhausted).await;
        assert_eq!((failed.row.status, failed.row.attempt), (OccurrenceStatus::Failed, 2));
        assert_eq!(harness.cause(exhausted).await, Some(FailureCause::Exhausted));
        let failed = runs::ended(&harness.server, locked).await;
        assert_eq!((failed.row.status, failed.row.attempt), (OccurrenceStatus::Failed, 2));
        let done = runs::ended(&harness.server, snoozed).await;
        assert_eq!((done.row.status, done.row.attempt), (OccurrenceStatus::Completed, 2), "a snooze uses up no retry");
        assert!(harness.cause(snoozed).await.is_none());
        worker.stop().await;
        harness.close().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn run_is_cancelled_or_returned_on_shutdown() {
        let harness = PythonWorkerHarness::open().await;
        let worker = harness.worker(true);
        harness.registered("python").await;
        let cancelled = harness.run("wait", json!({ "seconds": 600 }), 0).await;
        harness.starts(cancelled, 1).await;
        harness.server.jobs.cancel(&jobs::admin(), cancelled, "wrong customer").await.expect("it is requested");
        let view = runs::ended(&harness.server, cancelled).await;
        assert_eq!(view.row.status, OccurrenceStatus::Cancelled);
        assert!(view.exception.expect("a reason").contains("wrong customer"));

        let interrupted = harness.run("wait", json!({ "seconds": 600 }), 0).await;
        harness.starts(interrupted, 1).await;
        worker.stop().await;
        let next = harness.worker(true);
        let view = harness.starts(interrupted, 2).await;
        assert!(view.changes.iter().any(|step| step.note.as_deref()
            == Some("Handed back by the worker: interrupted: its worker is stopping; attempt 2 starts at once")));
        assert_eq!(duplicates::find_duplicate_starts(&view.changes), [], "two attempts are not a duplicate start");
        harness.server.jobs.cancel(&jobs::admin(), interrupted, "").await.expect("it is requested");
        assert_eq!(runs::ended(&harness.server, interrupted).await.row.status, OccurrenceStatus::Cancelled);
        next.stop().await;
        harness.close().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn run_of_a_killed_worker_is_requeued() {
        kill_worker_during_a_run(true).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn run_of_a_killed_worker_is_requeued_without_redis() {
        kill_worker_during_a_run(false).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn duplicate_start_without_claims_is_recorded() {
        let harness = PythonWorkerHarness::open().await;
        let tap = protocol_tap::ProtocolTap::open(&harness.config).await;
        let first = harness.minimal();
        harness.registered("minimal").await;
        let id = harness.run_on("minimal", "echo", json!({ "say": "hello" }), 0).await;
        let done = runs::ended(&harness.server, id).await;
        assert_eq!(
            (done.row.status, done.result.as_deref()),
            (OccurrenceStatus::Completed, Some(r#"{"say": "hello"}"#))
        );
        assert_eq!(duplicates::find_duplicate_starts(&done.changes), []);
        first.kill().await;

        // The same message again, as from a publisher that received no confirm.
        let second = harness.minimal();
        let copy = tap.first("jobs").await;
        harness.publish(&format!("minimal.echo.{id}"), &copy).await;
        let view = wait::eventually("the second start", || async {
            let view = harness.server.store.occurrence(id, 1, harness.server.clock.now()).await.ok()??;
            // Pages are notified. A reading during the commit may have the start already, and not the version.
            let is_newer = view.row.version > done.row.version;
            (is_newer && !duplicates::find_duplicate_starts(&view.changes).is_empty()).then_some(view)
        })
        .await;
        let found = duplicates::find_duplicate_starts(&view.changes);
        assert_eq!((found.len(), found[0].attempt, found[0].others.len()), (1, 1, 1));
        assert_eq!(Some(&found[0].first), done.row.instance_id.as_ref());
        assert_eq!(view.row.status, OccurrenceStatus::Completed);
        assert_eq!(harness.count("SELECT count(*) FROM late_starts").await, 1);
        assert_eq!(
            view.changes.last().map(|step| step.status),
            Some(OccurrenceStatus::Completed),
            "the final status stays"
        );
        second.kill().await;
        tap.close().await;
        harness.close().await;
    }
}
