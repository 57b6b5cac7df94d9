//! Workers in another language: the ones in `examples/python-worker`, which know nothing of ours but the page
//! `docs/protocol`, against a real server and real services.
//!
//! What they and the server say to each other is listened to, and held against the schemas beside that page.

mod house;
mod tap;

use house::{House, Python};
use milvaion_api::{duplicates, failure::Cause};
use milvaion_protocol::{message::LogLevel, status::OccurrenceStatus};
use serde_json::json;

use milvaion_test_support::stack;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_runs_jobs_and_everything_said_is_what_the_schemas_say() {
    let house = House::open().await;
    let tap = tap::Tap::open(&house.config).await;
    let worker = house.worker(true);
    let types = house.announced("python").await;
    let greet = types.iter().find(|one| one.info.job_type == "greet").expect("it is announced");
    assert_eq!(greet.info.description, "Greets somebody, with a line in the log for each time.");
    assert_eq!(greet.info.schema["properties"]["name"]["type"], "string");

    let id = house.run("greet", json!({ "name": "Ann", "times": 2 }), 0).await;
    let done = stack::ended(&house.server, id).await;
    assert_eq!(done.row.status, OccurrenceStatus::Completed, "{:?}", done.exception);
    // Lines come by another way than reports.
    let done = stack::eventually("both lines", async || {
        let view = house.server.store.occurrence(id, 10, house.server.clock.now()).await.ok()??;
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
        let id = house.run("refund", input, 3).await;
        let failed = stack::ended(&house.server, id).await;
        assert_eq!((failed.row.status, failed.row.attempt), (OccurrenceStatus::Failed, 1));
        assert!(failed.exception.expect("a reason").starts_with(why));
        assert_eq!(house.cause(id).await, Some(Cause::Permanent));
    }

    // Ours keeps to the same page.
    let ours = stack::worker(&house.config);
    let id = house.run_on("w", "echo", json!({ "say": "hello" }), 0).await;
    assert_eq!(stack::ended(&house.server, id).await.row.status, OccurrenceStatus::Completed);
    ours.stop().await;

    worker.stop().await;
    stack::eventually("both have said goodbye", async || {
        let now = house.server.clock.now();
        let workers = house.server.store.workers(now - chrono::Duration::hours(1), now).await.ok()?;
        workers.iter().all(|worker| worker.instances[0].stopped).then_some(())
    })
    .await;
    tap.has_heard("registration", 4).await;
    let kinds = tap.close().await;
    for (exchange, least) in [("jobs", 4), ("status", 4), ("logs", 2), ("registration", 4)] {
        let heard = kinds.get(exchange).copied().unwrap_or_default();
        assert!(heard >= least, "only {heard} messages were heard on {exchange}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_that_fail_are_repeated_until_one_succeeds_or_none_is_left() {
    let house = House::open().await;
    let worker = house.worker(true);
    house.announced("python").await;
    let steady = house.run("unsteady", json!({ "failures": 2 }), 2).await;
    let hopeless = house.run("unsteady", json!({ "failures": 9 }), 1).await;
    let locked = house.run("refund", json!({ "orders": ["19"] }), 1).await;
    let snoozed = house.run("refund", json!({ "orders": ["18"] }), 0).await;

    let done = stack::ended(&house.server, steady).await;
    assert_eq!((done.row.status, done.row.attempt), (OccurrenceStatus::Completed, 3), "{:?}", done.exception);
    assert_eq!(done.result.as_deref(), Some("succeeded on attempt 3"));
    let failures: Vec<_> = done.log.iter().filter(|line| line.level == LogLevel::Error).collect();
    assert_eq!(failures.len(), 2, "the log keeps what each attempt failed with");
    assert!(failures[1].message.contains("hung up on attempt 2") && failures[1].message.contains("Traceback"));

    let failed = stack::ended(&house.server, hopeless).await;
    assert_eq!((failed.row.status, failed.row.attempt), (OccurrenceStatus::Failed, 2));
    assert_eq!(house.cause(hopeless).await, Some(Cause::Exhausted));
    let failed = stack::ended(&house.server, locked).await;
    assert_eq!((failed.row.status, failed.row.attempt), (OccurrenceStatus::Failed, 2));
    let done = stack::ended(&house.server, snoozed).await;
    assert_eq!((done.row.status, done.row.attempt), (OccurrenceStatus::Completed, 2), "a snooze needs no retry");
    assert!(house.cause(snoozed).await.is_none());
    worker.stop().await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_it_cannot_read_becomes_a_dead_letter_and_holds_up_nothing() {
    let house = House::open().await;
    let worker = house.worker(false);
    house.announced("python").await;
    let bodies: [&[u8]; 4] = [b"no json", b"[]", br#"{"occurrenceId": "7", "jobType": "greet"}"#, b"\xff\xfe"];
    for body in bodies {
        house.publish("python.greet.nobody", body).await;
    }
    let kept = stack::eventually("the dead letters", || async {
        let page = house.server.store.dead_letters(&Default::default()).await.ok()?;
        (page.rows.len() == bodies.len()).then_some(page.rows)
    })
    .await;
    assert!(kept.iter().all(|letter| letter.source.ends_with(".jobs.python.greet")), "{kept:?}");
    let id = house.run("greet", json!({ "name": "Bob" }), 0).await;
    assert_eq!(stack::ended(&house.server, id).await.row.status, OccurrenceStatus::Completed);
    worker.stop().await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_cancelled_and_one_that_is_interrupted_is_handed_back() {
    let house = House::open().await;
    let worker = house.worker(true);
    house.announced("python").await;
    let cancelled = house.run("wait", json!({ "seconds": 600 }), 0).await;
    house.runs(cancelled, 1).await;
    house.server.jobs.cancel(&stack::admin(), cancelled, "wrong customer").await.expect("asked");
    let view = stack::ended(&house.server, cancelled).await;
    assert_eq!(view.row.status, OccurrenceStatus::Cancelled);
    assert!(view.exception.expect("a reason").contains("wrong customer"));

    let interrupted = house.run("wait", json!({ "seconds": 600 }), 0).await;
    house.runs(interrupted, 1).await;
    worker.stop().await;
    let next = house.worker(true);
    let view = house.runs(interrupted, 2).await;
    assert!(view.changes.iter().any(|step| step.note.as_deref() == Some("Handed back; attempt 2 at once")));
    assert_eq!(duplicates::find(&view.changes), [], "two attempts are no duplicate");
    house.server.jobs.cancel(&stack::admin(), interrupted, "").await.expect("asked");
    assert_eq!(stack::ended(&house.server, interrupted).await.row.status, OccurrenceStatus::Cancelled);
    next.stop().await;
    house.close().await;
}

/// A worker is killed while it runs something; the detector of lost runs gives it to another one, as the next attempt.
async fn killed(with_redis: bool) {
    let house = House::open().await;
    let first = house.worker(with_redis);
    house.announced("python").await;
    let id = house.run("wait", json!({ "seconds": 600 }), 0).await;
    let begun = house.runs(id, 1).await;
    let second = house.worker(with_redis);
    first.kill().await;
    let view = house.runs(id, 2).await;
    assert_ne!(view.row.instance_id, begun.row.instance_id);
    assert_eq!(duplicates::find(&view.changes), [], "attempt 1 was started once, whatever the broker redelivered");
    assert!(view.changes.iter().any(|step| step.note.as_deref().is_some_and(|note| note.contains("fell silent"))));
    second.stop().await;
    house.close().await;
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
    let house = House::open().await;
    let tap = tap::Tap::open(&house.config).await;
    let first = house.minimal();
    let id = house.run_on("minimal", "echo", json!({ "say": "hello" }), 0).await;
    let done = stack::ended(&house.server, id).await;
    assert_eq!((done.row.status, done.result.as_deref()), (OccurrenceStatus::Completed, Some(r#"{"say": "hello"}"#)));
    assert_eq!(duplicates::find(&done.changes), []);
    first.kill().await;

    // The same message once more, as from a publisher that never heard of its arrival.
    let second = house.minimal();
    let copy = tap.first("jobs").await;
    house.publish(&format!("minimal.echo.{id}"), &copy).await;
    let view = stack::eventually("the second start", || async {
        let view = house.server.store.occurrence(id, 1, house.server.clock.now()).await.ok()??;
        (!duplicates::find(&view.changes).is_empty()).then_some(view)
    })
    .await;
    let found = duplicates::find(&view.changes);
    assert_eq!((found.len(), found[0].attempt, found[0].others.len()), (1, 1, 1));
    assert_eq!(Some(&found[0].first), done.row.instance_id.as_ref());
    assert_eq!(view.row.status, OccurrenceStatus::Completed);
    assert!(view.row.version > done.row.version, "pages hear of it");
    assert_eq!(house.count("SELECT sum(duplicate_starts)::bigint FROM occurrences").await, 1);
    assert_eq!(view.changes.last().map(|step| step.status), Some(OccurrenceStatus::Completed), "the end stays the end");
    second.kill().await;
    tap.close().await;
    house.close().await;
}

#[test]
fn the_examples_need_only_what_their_list_says() {
    let list = std::fs::read_to_string(house::example("requirements.txt")).expect("the list can be read");
    for name in ["pika", "redis"] {
        assert!(list.lines().any(|line| line.starts_with(name)), "{name} is not listed");
    }
    Python::check();
}
