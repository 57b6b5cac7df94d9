//! What fails is kept until somebody settles it, and what comes out of the dead letter queue is never lost on the way.

mod common;

use app::{backend::TriggerInput, error::AppError};
use chrono::Duration;
use common::stack;
use lapin::{
    BasicProperties, Connection as Amqp, ConnectionProperties,
    options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use protocol::{
    failure::{Cause, DeadLetterFilter, FailureFilter, MAX_AT_ONCE, Resolved, Which},
    id::{JobId, OccurrenceId},
    message::JobMessage,
    status::OccurrenceStatus,
    topology::{HEADER_CAUSE, Topology},
    view::Trigger,
};
use serde_json::{Value, json};
use server::{
    broker::letter::Letter,
    clock::Clock,
    command::failures::RetryInput,
    config::Config,
    domain::{
        message::{Queued, message},
        transition::fold,
    },
    intake::dead_letters::DeadLetterIntake,
    lifecycle::Server,
};

/// A server with a job nobody runs.
async fn house() -> (Config, Server, JobId) {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let id = server.jobs.save(&stack::admin(), &stack::form("Import")).await.expect("saved");
    (config, server, id)
}

async fn queued(server: &Server, job: JobId) -> OccurrenceId {
    server.jobs.trigger(&stack::admin(), job, TriggerInput::default()).await.expect("triggered")
}

/// Tells what a worker would tell.
async fn tell(server: &Server, id: OccurrenceId, status: OccurrenceStatus) {
    report(server, id, status, None, 0).await;
}

/// A worker reports `status`, as of `age` minutes ago.
async fn report(server: &Server, id: OccurrenceId, status: OccurrenceStatus, exception: Option<&str>, age: i64) {
    let report = protocol::message::StatusReport {
        occurrence_id: id,
        attempt: 1,
        instance_id: "w-1".into(),
        status,
        timestamp: server.clock.now() - Duration::minutes(age),
        result: None,
        exception: exception.map(str::to_owned),
        duration_ms: None,
        progress: None,
        permanent: false,
        retry_after_ms: None,
    };
    assert_eq!(server.store.apply(&fold(vec![report]), server.clock.now()).await.expect("answered").rows.len(), 1);
}

/// An occurrence that failed like this, on record.
async fn failed(server: &Server, job: JobId, exception: &str, age: i64) -> OccurrenceId {
    let id = queued(server, job).await;
    report(server, id, OccurrenceStatus::Failed, Some(exception), age).await;
    id
}

fn job_message(id: OccurrenceId, clock: &Clock) -> JobMessage {
    let queued = Queued {
        failures: 0,
        id,
        job_id: JobId::default(),
        job_name: "x".into(),
        worker_id: "w".into(),
        job_type: "echo".into(),
        job_data: Value::Null,
        scheduled_for: clock.now(),
        attempt: 1,
        max_retries: 0,
        priority: 3,
        timeout_seconds: None,
    };
    message(queued, clock.now())
}

fn letter(body: Vec<u8>, headers: Value) -> Letter {
    Letter { body, headers, exchange: "x.dlx".into(), routing_key: "w.echo.1".into() }
}

fn about(server: &Server, id: OccurrenceId, headers: Value) -> Letter {
    letter(serde_json::to_vec(&job_message(id, &server.clock)).expect("writes"), headers)
}

fn intake(server: &Server) -> DeadLetterIntake {
    DeadLetterIntake {
        store: server.store.clone(),
        hub: server.hub.clone(),
        clock: server.clock.clone(),
        release: Default::default(),
        failed: Default::default(),
    }
}

async fn status(server: &Server, id: OccurrenceId) -> OccurrenceStatus {
    server.store.occurrence_status(id).await.expect("answered").expect("there").0
}

async fn kept(server: &Server) -> Vec<protocol::failure::DeadLetterRow> {
    server.store.dead_letters(&DeadLetterFilter::default()).await.expect("answered").rows
}

fn headers(cause: &str) -> Value {
    json!({ HEADER_CAUSE: cause })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mv09_every_letter_that_reaches_the_queue_settles_its_occurrence_or_is_kept() {
    let (config, server, job) = house().await;
    let id = queued(&server, job).await;
    let uri = config.broker.url.clone();
    let amqp = Amqp::connect(&uri, ConnectionProperties::default()).await.expect("the broker answers");
    let channel = amqp.create_channel().await.expect("a channel");
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    let names = Topology::new(config.broker.prefix.clone());
    let send = async |body: &[u8], headers: FieldTable| {
        let properties = BasicProperties::default().with_headers(headers);
        channel
            .basic_publish(
                names.dead_letter_exchange().into(),
                "w.echo".into(),
                BasicPublishOptions::default(),
                body,
                properties,
            )
            .await
            .expect("handed over")
            .await
            .expect("confirmed");
    };
    let mut poison = FieldTable::default();
    poison.insert(HEADER_CAUSE.into(), AMQPValue::LongString("poison".into()));
    let nobody = job_message(server.clock.occurrence_id(), &server.clock);
    send(b"\x00\xff no json", FieldTable::default()).await;
    send(&vec![b'x'; 100_000], FieldTable::default()).await;
    send(b"", FieldTable::default()).await;
    send(&serde_json::to_vec(&nobody).expect("writes"), FieldTable::default()).await;
    send(&serde_json::to_vec(&job_message(id, &server.clock)).expect("writes"), poison).await;

    assert_eq!(stack::ended(&server, id).await.row.status, OccurrenceStatus::Failed, "those before did not hold it up");
    let failure = server.store.failure(id).await.expect("answered").expect("on record");
    assert_eq!((failure.cause, failure.job_id, failure.resolved_at), (Cause::Poison, job, None));
    assert_eq!(failure.job_data, json!({"say": "hello"}));
    let kept = kept(&server).await;
    assert_eq!(kept.len(), 4);
    assert!(kept[0].reason.contains("does not exist"), "{}", kept[0].reason);
    assert!(kept.iter().any(|letter| letter.body_bytes == 100_000 && letter.body.len() == 65_536));
    assert!(kept.iter().all(|letter| letter.source.ends_with("/w.echo") && letter.copies == 1));
    stack::eventually("an empty queue", || async {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue =
            channel.queue_declare(names.dead_letter_queue().into(), passive, FieldTable::default()).await.ok()?;
        (queue.message_count() == 0).then_some(())
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn a_letter_settles_what_is_open_and_leaves_the_rest_alone() {
    let (_config, server, job) = house().await;
    let intake = intake(&server);
    let rejected = queued(&server, job).await;
    let death = json!({"x-death": [{"reason": "rejected", "queue": "q.jobs", "count": 1}]});
    for _ in 0..2 {
        intake.take(&about(&server, rejected, death.clone())).await.expect("stored");
    }
    let view = server.store.occurrence(rejected, 1, server.clock.now()).await.expect("answered").expect("there");
    assert_eq!((view.row.status, view.changes.len()), (OccurrenceStatus::Failed, 2), "the copy changed nothing");
    assert_eq!(view.row.note.as_deref(), Some("no worker could take the message: rejected in q.jobs"));
    assert_eq!(server.store.failure(rejected).await.expect("answered").map(|one| one.cause), Some(Cause::Rejected));

    // Failed by its report: the letter adds why it was not tried again, the first one for good.
    let reported = queued(&server, job).await;
    tell(&server, reported, OccurrenceStatus::TimedOut).await;
    intake.take(&about(&server, reported, headers("exhausted"))).await.expect("stored");
    intake.take(&about(&server, reported, headers("permanent"))).await.expect("stored");
    assert_eq!(status(&server, reported).await, OccurrenceStatus::TimedOut);
    assert_eq!(server.store.failure(reported).await.expect("answered").map(|one| one.cause), Some(Cause::Exhausted));
    assert_eq!(kept(&server).await.len(), 0);

    // A copy that was merely rejected says nothing about the run another worker has in hand; what that worker says does.
    let running = queued(&server, job).await;
    tell(&server, running, OccurrenceStatus::Running).await;
    intake.take(&about(&server, running, death.clone())).await.expect("stored");
    assert_eq!(status(&server, running).await, OccurrenceStatus::Running);
    assert!(kept(&server).await[0].reason.contains("was Running and was left alone"));
    intake.take(&about(&server, running, headers("permanent"))).await.expect("stored");
    assert_eq!(status(&server, running).await, OccurrenceStatus::Failed);

    let done = queued(&server, job).await;
    tell(&server, done, OccurrenceStatus::Completed).await;
    intake.take(&about(&server, done, death)).await.expect("stored");
    assert_eq!(status(&server, done).await, OccurrenceStatus::Completed);
    assert!(server.store.failure(done).await.expect("answered").is_none());
    server.stop().await;
}

#[tokio::test]
async fn copies_of_a_letter_are_counted_and_settled_as_one() {
    let (_config, server, _) = house().await;
    let intake = intake(&server);
    for _ in 0..3 {
        intake.take(&letter(b"what?".to_vec(), Value::Null)).await.expect("stored");
    }
    intake.take(&letter(b"what else?".to_vec(), json!({"a": "b"}))).await.expect("stored");
    let rows = kept(&server).await;
    assert_eq!(
        rows.iter().map(|row| (row.body.as_str(), row.copies)).collect::<Vec<_>>(),
        [("what else?", 1), ("what?", 3)]
    );
    let me = stack::admin();
    let ids = [rows[1].id, rows[1].id, server.clock.dead_letter_id()];
    assert_eq!(server.jobs.resolve_dead_letters(&me, &ids, "noise").await.expect("settled"), 1);
    assert_eq!(server.jobs.resolve_dead_letters(&me, &ids, "noise").await.expect("settled"), 0);
    let open = DeadLetterFilter { resolved: Some(false), ..DeadLetterFilter::default() };
    assert_eq!(server.store.dead_letters(&open).await.expect("answered").rows.len(), 1);
    let page = DeadLetterFilter { limit: 1, ..DeadLetterFilter::default() };
    let first = server.store.dead_letters(&page).await.expect("answered");
    let before = first.next.expect("more").parse().ok();
    let second = server.store.dead_letters(&DeadLetterFilter { before, ..page }).await.expect("answered");
    assert_eq!((second.rows[0].resolution_note.as_deref(), second.next), (Some("noise"), None));
    server.stop().await;
}

#[tokio::test]
async fn failures_are_found_paged_and_grouped() {
    let (_config, server, job) = house().await;
    let other = server.jobs.save(&stack::admin(), &stack::form("Export")).await.expect("saved");
    for n in 0..5 {
        failed(&server, job, &format!("order {n} not found"), 10 - n).await;
    }
    let disk = failed(&server, other, "disk full\nat 7", 30).await;
    let find = async |filter: FailureFilter| server.store.failures(&filter).await.expect("answered").rows;
    let all = find(FailureFilter::default()).await;
    assert_eq!(all.len(), 6);
    assert!(all.is_sorted_by(|one, next| one.failed_at >= next.failed_at));
    let mut paged = Vec::new();
    let mut filter = FailureFilter { limit: 4, ..FailureFilter::default() };
    loop {
        let page = server.store.failures(&filter).await.expect("answered");
        paged.extend(page.rows);
        match page.next {
            Some(next) => filter.after = Some(next),
            None => break,
        }
    }
    assert_eq!(paged, all);
    let kind = all[0].fingerprint.clone();
    assert_eq!(find(FailureFilter { fingerprint: Some(kind.clone()), ..Default::default() }).await.len(), 5);
    assert_eq!(find(FailureFilter { job_id: Some(other), ..Default::default() }).await.len(), 1);
    assert_eq!(find(FailureFilter { cause: Some(Cause::Lost), ..Default::default() }).await.len(), 0);
    assert_eq!(find(FailureFilter { text: Some("DISK export".into()), ..Default::default() }).await.len(), 1);
    assert_eq!(find(FailureFilter { text: Some("100%".into()), ..Default::default() }).await.len(), 0);
    let since = Some(server.clock.now() - Duration::minutes(20));
    assert_eq!(find(FailureFilter { since, ..Default::default() }).await.len(), 5);

    let which = Which::Ids(vec![disk]);
    assert_eq!(
        server.jobs.resolve_failures(&stack::admin(), &which, "bought one").await.expect("settled"),
        Resolved { count: 1, more: false }
    );
    assert_eq!(
        server.jobs.resolve_failures(&stack::admin(), &which, "twice").await.expect("settled"),
        Resolved { count: 0, more: false }
    );
    assert_eq!(find(FailureFilter { resolved: Some(true), ..Default::default() }).await[0].occurrence_id, disk);
    let month = server.clock.now() - Duration::days(30);
    assert_eq!(server.store.open_failures().await.expect("counted"), 5);
    let mut groups = Vec::new();
    let mut filter = FailureFilter { limit: 1, ..FailureFilter::default() };
    loop {
        let page = server.store.failure_groups(&filter, month).await.expect("answered");
        groups.extend(page.rows);
        match page.next {
            Some(next) => filter.after = Some(next),
            None => break,
        }
    }
    let told: Vec<_> = groups.iter().map(|group| (group.count, group.open, group.jobs, group.note.as_str())).collect();
    assert_eq!(told, [(5, 5, 1, "order 4 not found"), (1, 0, 1, "disk full")]);
    assert_eq!((groups[0].fingerprint.as_str(), groups[0].job_id), (kind.as_str(), job));

    let open = Which::Filter(FailureFilter { fingerprint: Some(kind.clone()), ..FailureFilter::default() });
    let grown = server.jobs.agreed(&open, 4).await;
    assert!(matches!(&grown, Err(AppError::Conflict(words)) if words.contains("5 by now")), "{grown:?}");
    let (agreed, more) = server.jobs.agreed(&open, 5).await.expect("as many as were seen");
    assert!(matches!(agreed, Which::Ids(ids) if ids.len() == 5) && !more);
    let none = Which::Filter(FailureFilter { cause: Some(Cause::Lost), ..FailureFilter::default() });
    assert!(server.jobs.agreed(&none, 5).await.is_err_and(|error| error.of("ids").is_some()));

    let open = Which::Filter(FailureFilter { fingerprint: Some(kind), limit: 1, ..FailureFilter::default() });
    assert_eq!(
        server.jobs.resolve_failures(&stack::admin(), &open, "").await.expect("settled"),
        Resolved { count: 5, more: false }
    );
    let long = server.jobs.resolve_failures(&stack::admin(), &open, &"x".repeat(2_001)).await;
    assert!(long.is_err_and(|error| error.of("note").is_some()));
    let many = Which::Ids(vec![OccurrenceId::default(); MAX_AT_ONCE + 1]);
    assert!(
        server.jobs.resolve_failures(&stack::admin(), &many, "").await.is_err_and(|error| error.of("ids").is_some())
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_is_run_again_once_however_many_ask() {
    let (config, server, job) = house().await;
    let me = stack::admin();
    let mut ids = Vec::new();
    for n in 0..6 {
        ids.push(failed(&server, job, "boom", n).await);
    }
    let mut racing = Vec::new();
    for _ in 0..4 {
        let (jobs, me, which) = (server.jobs.clone(), me.clone(), Which::Ids(ids.clone()));
        racing.push(tokio::spawn(async move { jobs.retry_failures(&me, &which, &RetryInput::default()).await }));
    }
    let mut made = Vec::new();
    let mut left = 0;
    for one in racing {
        let retried = one.await.expect("no panic").expect("retried");
        made.extend(retried.made);
        left += retried.left;
    }
    assert_eq!((made.len(), left), (6, 18));
    for (old, new) in &made {
        let failure = server.store.failure(*old).await.expect("answered").expect("there");
        assert_eq!((failure.retried_as, failure.resolution_action.as_deref()), (Some(*new), Some("retry")));
        assert!(failure.resolved_at.is_some());
        let view = server.store.occurrence(*new, 1, server.clock.now()).await.expect("answered").expect("there");
        assert_eq!((view.row.trigger, view.triggered_by.as_deref()), (Trigger::Retry, Some(me.email.as_str())));
        assert_eq!(view.repeats, Some(*old));
    }
    let audit = server.store.audit_entries(Some(&format!("occurrence:{}", ids[0])), 10).await.expect("answered");
    assert_eq!(audit.iter().filter(|entry| entry.action == "failure.retry").count(), 1);

    let worker = stack::worker(&config);
    for (_, new) in &made {
        assert_eq!(stack::ended(&server, *new).await.row.status, OccurrenceStatus::Completed);
    }
    worker.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_single_failure_may_be_run_again_with_another_input_or_by_force() {
    let (_config, server, job) = house().await;
    let me = stack::admin();
    let id = failed(&server, job, "boom", 1).await;
    let which = Which::Ids(vec![id]);
    let edited = RetryInput { input_json: r#"{"say": "again"}"#.into(), reason: "typo".into(), force: false };
    let first = server.jobs.retry_failures(&me, &which, &edited).await.expect("retried").made[0].1;
    let view = server.store.occurrence(first, 1, server.clock.now()).await.expect("answered").expect("there");
    assert_eq!((view.job_data, view.trigger_reason.as_deref()), (json!({"say": "again"}), Some("typo")));

    let again = server.jobs.retry_failures(&me, &which, &RetryInput::default()).await;
    assert!(matches!(&again, Err(AppError::Conflict(words)) if words.contains(&first.to_string())), "{again:?}");
    let forced = RetryInput { force: true, ..RetryInput::default() };
    let second = server.jobs.retry_failures(&me, &which, &forced).await.expect("retried").made[0].1;
    let view = server.store.occurrence(second, 1, server.clock.now()).await.expect("answered").expect("there");
    assert_eq!(view.job_data, json!({"say": "hello"}), "what it failed with");
    let same = RetryInput { input_json: "{ \"say\": \"hello\" }".into(), ..forced.clone() };
    server.jobs.retry_failures(&me, &which, &same).await.expect("retried");
    let audit = server.store.audit_entries(Some(&format!("occurrence:{id}")), 10).await.expect("answered");
    let was_edited: Vec<_> =
        audit.iter().filter_map(|entry| entry.after.as_ref()).map(|after| after["edited"].clone()).collect();
    assert_eq!(
        was_edited,
        [json!(false), json!(false), json!(true)],
        "what is only laid out otherwise is the same input"
    );

    let both = Which::Ids(vec![id, failed(&server, job, "boom", 1).await]);
    assert!(server.jobs.retry_failures(&me, &both, &edited).await.is_err_and(|error| error.of("input_json").is_some()));
    assert!(server.jobs.retry_failures(&me, &both, &forced).await.is_err_and(|error| error.of("force").is_some()));
    let nobody = Which::Ids(vec![server.clock.occurrence_id()]);
    assert!(matches!(
        server.jobs.retry_failures(&me, &nobody, &RetryInput::default()).await,
        Err(AppError::NotFound(_))
    ));

    server.jobs.delete(&me, job).await.expect("deleted");
    let rest = Which::Filter(FailureFilter::default());
    let retried = server.jobs.retry_failures(&me, &rest, &RetryInput::default()).await.expect("answered");
    assert_eq!((retried.made.len(), retried.left), (0, 1), "a deleted job cannot run");
    server.stop().await;
}
