//! Workers in another language: the ones in `examples/python-worker`, which know nothing of ours but the page
//! `docs/protocol`, against a real server and real services.
//!
//! What they and the server say to each other is listened to, and held against the schemas beside that page.

mod harness;
mod protocol_tap;

use harness::{PythonWorker, PythonWorkerHarness};
use milvaion_api::{duplicates, failures::FailureCause};
use milvaion_protocol::{message::LogLevel, status::OccurrenceStatus};
use serde_json::json;

use milvaion_test_support::stack;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_runs_jobs_and_everything_said_is_what_the_schemas_say() {
    let harness = PythonWorkerHarness::open().await;
    let tap = protocol_tap::ProtocolTap::open(&harness.config).await;
    let worker = harness.worker(true);
    let types = harness.announced("python").await;
    let greet = types.iter().find(|one| one.info.job_type == "greet").expect("it is announced");
    assert_eq!(greet.info.description, "Greets somebody, with a line in the log for each time.");
    assert_eq!(greet.info.schema["properties"]["name"]["type"], "string");

    let id = harness.run("greet", json!({ "name": "Ann", "times": 2 }), 0).await;
    let done = stack::ended(&harness.server, id).await;
    assert_eq!(done.row.status, OccurrenceStatus::Completed, "{:?}", done.exception);
    // Lines come by another way than reports.
    let done = stack::eventually("both lines", async || {
        let view = harness.server.store.occurrence(id, 10, harness.server.clock.now()).await.ok()??;
        (view.log.len() == 2).then_some(view)
    })
    .await;
    assert_eq!(done.result.as_deref(), Some(r#"{"greeted": "Ann", "times": 2}"#));
    assert_eq!(done.row.progress.map(|progress| progress.percent), Some(100));
    let log: Vec<_> = done.log.iter().map(|line| (line.seq, line.message.as_str())).collect();
    assert_eq!(log, [(1_000_000, "Hello, Ann!"), (1_000_001, "Hello, Ann!")], "before its end was known");
    assert_eq!(done.log[1].data, Some(json!({ "time": 2 })));

    // Input that the schema lets through and the job does not, and input that does not fit its type.
    for (input, why) in
        [(json!({ "orders": ["x1"] }), "'x1' is no order number"), (json!({ "orders": "x1" }), "the input's orders")]
    {
        let id = harness.run("refund", input, 3).await;
        let failed = stack::ended(&harness.server, id).await;
        assert_eq!((failed.row.status, failed.row.attempt), (OccurrenceStatus::Failed, 1));
        assert!(failed.exception.expect("a reason").starts_with(why));
        assert_eq!(harness.cause(id).await, Some(FailureCause::Permanent));
    }

    // Ours keeps to the same page.
    let ours = stack::worker(&harness.config);
    let id = harness.run_on("w", "echo", json!({ "say": "hello" }), 0).await;
    assert_eq!(stack::ended(&harness.server, id).await.row.status, OccurrenceStatus::Completed);
    ours.stop().await;

    worker.stop().await;
    stack::eventually("both have said goodbye", async || {
        let now = harness.server.clock.now();
        let workers = harness.server.store.workers(now - chrono::Duration::hours(1), now).await.ok()?;
        workers.iter().all(|worker| worker.instances[0].stopped).then_some(())
    })
    .await;
    tap.wait_for_messages("registration", 4).await;
    let kinds = tap.close().await;
    for (exchange, least) in [("jobs", 4), ("status", 4), ("logs", 2), ("registration", 4)] {
        let heard = kinds.get(exchange).copied().unwrap_or_default();
        assert!(heard >= least, "only {heard} messages were heard on {exchange}");
    }
    harness.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_that_fail_are_repeated_until_one_succeeds_or_none_is_left() {
    let harness = PythonWorkerHarness::open().await;
    let worker = harness.worker(true);
    harness.announced("python").await;
    let steady = harness.run("unsteady", json!({ "failures": 2 }), 2).await;
    let hopeless = harness.run("unsteady", json!({ "failures": 9 }), 1).await;
    let locked = harness.run("refund", json!({ "orders": ["19"] }), 1).await;
    let snoozed = harness.run("refund", json!({ "orders": ["18"] }), 0).await;

    let done = stack::ended(&harness.server, steady).await;
    assert_eq!((done.row.status, done.row.attempt), (OccurrenceStatus::Completed, 3), "{:?}", done.exception);
    assert_eq!(done.result.as_deref(), Some("succeeded on attempt 3"));
    let failures: Vec<_> = done.log.iter().filter(|line| line.level == LogLevel::Error).collect();
    assert_eq!(failures.len(), 2, "the log keeps what each attempt failed with");
    assert!(failures[1].message.contains("hung up on attempt 2") && failures[1].message.contains("Traceback"));

    let failed = stack::ended(&harness.server, hopeless).await;
    assert_eq!((failed.row.status, failed.row.attempt), (OccurrenceStatus::Failed, 2));
    assert_eq!(harness.cause(hopeless).await, Some(FailureCause::Exhausted));
    let failed = stack::ended(&harness.server, locked).await;
    assert_eq!((failed.row.status, failed.row.attempt), (OccurrenceStatus::Failed, 2));
    let done = stack::ended(&harness.server, snoozed).await;
    assert_eq!((done.row.status, done.row.attempt), (OccurrenceStatus::Completed, 2), "a snooze needs no retry");
    assert!(harness.cause(snoozed).await.is_none());
    worker.stop().await;
    harness.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_it_cannot_read_becomes_a_dead_letter_and_holds_up_nothing() {
    let harness = PythonWorkerHarness::open().await;
    let worker = harness.worker(false);
    harness.announced("python").await;
    let bodies: [&[u8]; 4] = [b"no json", b"[]", br#"{"occurrenceId": "7", "jobType": "greet"}"#, b"\xff\xfe"];
    for body in bodies {
        harness.publish("python.greet.nobody", body).await;
    }
    let kept = stack::eventually("the dead letters", || async {
        let page = harness.server.store.dead_letters(&Default::default()).await.ok()?;
        (page.rows.len() == bodies.len()).then_some(page.rows)
    })
    .await;
    assert!(kept.iter().all(|letter| letter.source.ends_with(".jobs.python.greet")), "{kept:?}");
    let id = harness.run("greet", json!({ "name": "Bob" }), 0).await;
    assert_eq!(stack::ended(&harness.server, id).await.row.status, OccurrenceStatus::Completed);
    worker.stop().await;
    harness.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_cancelled_and_one_that_is_interrupted_is_handed_back() {
    let harness = PythonWorkerHarness::open().await;
    let worker = harness.worker(true);
    harness.announced("python").await;
    let cancelled = harness.run("wait", json!({ "seconds": 600 }), 0).await;
    harness.runs(cancelled, 1).await;
    harness.server.jobs.cancel(&stack::admin(), cancelled, "wrong customer").await.expect("asked");
    let view = stack::ended(&harness.server, cancelled).await;
    assert_eq!(view.row.status, OccurrenceStatus::Cancelled);
    assert!(view.exception.expect("a reason").contains("wrong customer"));

    let interrupted = harness.run("wait", json!({ "seconds": 600 }), 0).await;
    harness.runs(interrupted, 1).await;
    worker.stop().await;
    let next = harness.worker(true);
    let view = harness.runs(interrupted, 2).await;
    assert!(view.changes.iter().any(|step| step.note.as_deref() == Some("Handed back; attempt 2 at once")));
    assert_eq!(duplicates::find_duplicate_starts(&view.changes), [], "two attempts are no duplicate");
    harness.server.jobs.cancel(&stack::admin(), interrupted, "").await.expect("asked");
    assert_eq!(stack::ended(&harness.server, interrupted).await.row.status, OccurrenceStatus::Cancelled);
    next.stop().await;
    harness.close().await;
}

/// A worker is killed while it runs something; the detector of lost runs gives it to another one, as the next attempt.
async fn killed(with_redis: bool) {
    let harness = PythonWorkerHarness::open().await;
    let first = harness.worker(with_redis);
    harness.announced("python").await;
    let id = harness.run("wait", json!({ "seconds": 600 }), 0).await;
    let begun = harness.runs(id, 1).await;
    let second = harness.worker(with_redis);
    first.kill().await;
    let view = harness.runs(id, 2).await;
    assert_ne!(view.row.instance_id, begun.row.instance_id);
    assert_eq!(
        duplicates::find_duplicate_starts(&view.changes),
        [],
        "attempt 1 was started once, whatever the broker redelivered"
    );
    assert!(view.changes.iter().any(|step| step.note.as_deref().is_some_and(|note| note.contains("fell silent"))));
    second.stop().await;
    harness.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_workers_run_goes_to_another_one() {
    killed(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_workers_run_goes_to_another_one_without_redis_too() {
    killed(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_claim_nothing_start_a_copy_again_and_that_is_seen() {
    let harness = PythonWorkerHarness::open().await;
    let tap = protocol_tap::ProtocolTap::open(&harness.config).await;
    let first = harness.minimal();
    let id = harness.run_on("minimal", "echo", json!({ "say": "hello" }), 0).await;
    let done = stack::ended(&harness.server, id).await;
    assert_eq!((done.row.status, done.result.as_deref()), (OccurrenceStatus::Completed, Some(r#"{"say": "hello"}"#)));
    assert_eq!(duplicates::find_duplicate_starts(&done.changes), []);
    first.kill().await;

    // The same message once more, as from a publisher that never heard of its arrival.
    let second = harness.minimal();
    let copy = tap.first("jobs").await;
    harness.publish(&format!("minimal.echo.{id}"), &copy).await;
    let view = stack::eventually("the second start", || async {
        let view = harness.server.store.occurrence(id, 1, harness.server.clock.now()).await.ok()??;
        (!duplicates::find_duplicate_starts(&view.changes).is_empty()).then_some(view)
    })
    .await;
    let found = duplicates::find_duplicate_starts(&view.changes);
    assert_eq!((found.len(), found[0].attempt, found[0].others.len()), (1, 1, 1));
    assert_eq!(Some(&found[0].first), done.row.instance_id.as_ref());
    assert_eq!(view.row.status, OccurrenceStatus::Completed);
    assert!(view.row.version > done.row.version, "pages hear of it");
    assert_eq!(harness.count("SELECT sum(duplicate_starts)::bigint FROM occurrences").await, 1);
    assert_eq!(view.changes.last().map(|step| step.status), Some(OccurrenceStatus::Completed), "the end stays the end");
    second.kill().await;
    tap.close().await;
    harness.close().await;
}

#[test]
fn the_examples_need_only_what_their_list_says() {
    let list = std::fs::read_to_string(harness::example("requirements.txt")).expect("the list can be read");
    for name in ["pika", "redis"] {
        assert!(list.lines().any(|line| line.starts_with(name)), "{name} is not listed");
    }
    PythonWorker::check();
}
