//! Failures are listed, resolved with a note, and retried.

use chrono::Duration;
use milvaion_api::{
    failures::{FailureCause, FailureFilter, FailureSelection, MAX_FAILURE_SELECTION, ResolveFailuresResult},
    requests::JobForm,
    views::TriggerSource,
};
use milvaion_app::error::AppError;
use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus};
use milvaion_schedule::rules::{OverlapPolicy, Rules};
use milvaion_server::{
    command::failures::RetryInput,
    lifecycle::Server,
    store::create::{EnqueueOutcome, NewRun},
};
use milvaion_test_support::{jobs, runs, wait, worker_env};
use serde_json::json;

use super::harness::{failed, harness, report};

#[tokio::test]
async fn failures_are_listed_paged_and_grouped() {
    let (_config, server, job) = harness().await;
    let other = server.jobs.save(&jobs::admin(), &jobs::form("Export")).await.expect("saved");
    for n in 0..5 {
        failed(&server, job, &format!("order {n} not found"), 10 - n).await;
    }
    let disk = failed(&server, other, "disk full\nat 7", 30).await;
    let find = async |filter: FailureFilter| server.store.failures(&filter).await.expect("the query succeeds").rows;
    let all = find(FailureFilter::default()).await;
    assert_eq!(all.len(), 6);
    assert!(all.is_sorted_by(|one, next| one.failed_at >= next.failed_at));
    let mut paged = Vec::new();
    let mut filter = FailureFilter { limit: 4, ..FailureFilter::default() };
    loop {
        let page = server.store.failures(&filter).await.expect("the query succeeds");
        paged.extend(page.rows);
        match page.next {
            Some(next) => filter.after = Some(next),
            None => break,
        }
    }
    assert_eq!(paged, all);
    let fingerprint = all[0].fingerprint.clone();
    assert_eq!(find(FailureFilter { fingerprint: Some(fingerprint.clone()), ..Default::default() }).await.len(), 5);
    assert_eq!(find(FailureFilter { job_id: Some(other), ..Default::default() }).await.len(), 1);
    assert_eq!(find(FailureFilter { cause: Some(FailureCause::Lost), ..Default::default() }).await.len(), 0);
    assert_eq!(find(FailureFilter { text: Some("DISK export".into()), ..Default::default() }).await.len(), 1);
    assert_eq!(find(FailureFilter { text: Some("100%".into()), ..Default::default() }).await.len(), 0);
    let since = Some(server.clock.now() - Duration::minutes(20));
    assert_eq!(find(FailureFilter { since, ..Default::default() }).await.len(), 5);

    let which = FailureSelection::Ids(vec![disk]);
    assert_eq!(
        server.jobs.resolve_failures(&jobs::admin(), &which, "bought one").await.expect("settled"),
        ResolveFailuresResult { count: 1, left: 0, more: false }
    );
    assert_eq!(
        server.jobs.resolve_failures(&jobs::admin(), &which, "twice").await.expect("settled"),
        ResolveFailuresResult { count: 0, left: 1, more: false }
    );
    assert_eq!(find(FailureFilter { resolved: Some(true), ..Default::default() }).await[0].occurrence_id, disk);
    let month = server.clock.now() - Duration::days(30);
    assert_eq!(server.store.open_failures().await.expect("the query succeeds"), 5);
    let mut groups = Vec::new();
    let mut filter = FailureFilter { limit: 1, ..FailureFilter::default() };
    loop {
        let page = server.store.failure_groups(&filter, month).await.expect("the query succeeds");
        groups.extend(page.rows);
        match page.next {
            Some(next) => filter.after = Some(next),
            None => break,
        }
    }
    let summaries: Vec<_> =
        groups.iter().map(|group| (group.count, group.open, group.jobs, group.note.as_str())).collect();
    assert_eq!(summaries, [(5, 5, 1, "order 4 not found"), (1, 0, 1, "disk full")]);
    assert_eq!((groups[0].fingerprint.as_str(), groups[0].job_id), (fingerprint.as_str(), job));

    let open =
        FailureSelection::Filter(FailureFilter { fingerprint: Some(fingerprint.clone()), ..FailureFilter::default() });
    let outdated = server.jobs.confirm_selection(&open, 4).await;
    assert!(
        matches!(&outdated, Err(AppError::Conflict(words)) if words.contains("matches 5 failures")),
        "{outdated:?}"
    );
    let nothing = FailureSelection::Ids(Vec::new());
    for refused in [
        server.jobs.confirm_selection(&nothing, 5).await.map(|_| ()),
        server.jobs.resolve_failures(&jobs::admin(), &nothing, "").await.map(|_| ()),
        server.jobs.retry_failures(&jobs::admin(), &nothing, &RetryInput::default()).await.map(|_| ()),
    ] {
        assert!(refused.is_err_and(|error| error.field_message("ids").is_some()), "an empty choice means nothing");
    }
    let long = FailureFilter { text: Some("a b c d e f g h i".into()), ..FailureFilter::default() };
    let refused = server.jobs.confirm_selection(&FailureSelection::Filter(long), 5).await;
    assert!(refused.is_err_and(|error| error.field_message("text").is_some()), "a text is never searched in part");
    // A filter without a condition would select every failure, also if the user saw more than are counted.
    let blank = FailureFilter { text: Some("  ".into()), resolved: Some(false), ..FailureFilter::default() };
    for every in [FailureFilter::default(), blank].map(FailureSelection::Filter) {
        for refused in [
            server.jobs.confirm_selection(&every, 10_000).await.map(|_| ()),
            server.jobs.resolve_failures(&jobs::admin(), &every, "").await.map(|_| ()),
            server.jobs.retry_failures(&jobs::admin(), &every, &RetryInput::default()).await.map(|_| ()),
        ] {
            assert!(refused.is_err_and(|error| error.field_message("filter").is_some()), "{every:?}");
        }
    }
    assert_eq!(server.store.open_failures().await.expect("the query succeeds"), 5, "nothing was changed");
    let (agreed, more) = server.jobs.confirm_selection(&open, 5).await.expect("the confirmed number is current");
    assert!(matches!(agreed, FailureSelection::Ids(ids) if ids.len() == 5) && !more);
    let none = FailureSelection::Filter(FailureFilter { cause: Some(FailureCause::Lost), ..FailureFilter::default() });
    assert!(server.jobs.confirm_selection(&none, 5).await.is_err_and(|error| error.field_message("ids").is_some()));

    let open = FailureSelection::Filter(FailureFilter {
        fingerprint: Some(fingerprint),
        limit: 1,
        ..FailureFilter::default()
    });
    assert_eq!(
        server.jobs.resolve_failures(&jobs::admin(), &open, "").await.expect("settled"),
        ResolveFailuresResult { count: 5, left: 0, more: false }
    );
    let long = server.jobs.resolve_failures(&jobs::admin(), &open, &"x".repeat(2_001)).await;
    assert!(long.is_err_and(|error| error.field_message("note").is_some()));
    let many = FailureSelection::Ids(vec![OccurrenceId::default(); MAX_FAILURE_SELECTION + 1]);
    let refused = server.jobs.resolve_failures(&jobs::admin(), &many, "").await;
    assert!(refused.is_err_and(|error| error.field_message("ids").is_some()));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_retries_create_one_run() {
    let (config, server, job) = harness().await;
    let me = jobs::admin();
    let mut ids = Vec::new();
    for n in 0..6 {
        ids.push(failed(&server, job, "boom", n).await);
    }
    let mut racing = Vec::new();
    for _ in 0..4 {
        let (jobs, me, which) = (server.jobs.clone(), me.clone(), FailureSelection::Ids(ids.clone()));
        racing.push(tokio::spawn(async move { jobs.retry_failures(&me, &which, &RetryInput::default()).await }));
    }
    let mut created = Vec::new();
    let mut left = 0;
    for one in racing {
        let retried = one.await.expect("the task does not panic").expect("retried");
        created.extend(retried.made);
        left += retried.left;
    }
    assert_eq!((created.len(), left), (6, 18));
    for (old, new) in &created {
        let failure = server.store.failure(*old).await.expect("the query succeeds").expect("it exists");
        assert_eq!((failure.retried_as, failure.resolution_action.as_deref()), (Some(*new), Some("retry")));
        assert!(failure.resolved_at.is_some());
        let view = server.store.occurrence(*new, 1, server.clock.now()).await.expect("the query succeeds");
        let view = view.expect("it exists");
        assert_eq!((view.row.trigger, view.triggered_by.as_deref()), (TriggerSource::Retry, Some(me.email.as_str())));
        assert_eq!(view.repeats, Some(*old));
    }
    let audit =
        server.store.audit_entries(Some(&format!("occurrence:{}", ids[0])), 10).await.expect("the query succeeds");
    assert_eq!(audit.iter().filter(|entry| entry.action == "failure.retry").count(), 1);

    let worker = worker_env::start(&config);
    for (_, new) in &created {
        assert_eq!(runs::ended(&server, *new).await.row.status, OccurrenceStatus::Completed);
    }
    worker.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn retries_of_a_job_without_overlap_run_one_by_one() {
    let (_config, server, job) = harness().await;
    for overlap in [OverlapPolicy::Skip, OverlapPolicy::Queue] {
        let stored = server.store.job(job).await.expect("the query succeeds").expect("it exists");
        let rules = milvaion_api::rules_form::write(&Rules { overlap, ..Rules::default() }, "UTC");
        let (id, version) = (job.to_string(), stored.version.to_string());
        let form = JobForm { id, version, rules, ..jobs::form("Import") };
        server.jobs.save(&jobs::admin(), &form).await.expect("saved");
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(failed(&server, job, "boom", 1).await);
        }
        let again = RetryInput::default();
        let retried =
            server.jobs.retry_failures(&jobs::admin(), &FailureSelection::Ids(ids), &again).await.expect("retried");
        let mut waiting: Vec<OccurrenceId> = retried.made.into_iter().map(|(_, new)| new).collect();
        assert_eq!(waiting.len(), 3);
        while !waiting.is_empty() {
            let free = wait::eventually("a granted slot", || async {
                let known = server.store.recorded_attempts(&waiting).await.expect("the query succeeds");
                let free: Vec<OccurrenceId> = waiting.iter().copied().filter(|id| !known[id].is_held).collect();
                (!free.is_empty()).then_some(free)
            })
            .await;
            assert_eq!(free.len(), 1, "{overlap:?}: {free:?} of {waiting:?}");
            report(&server, free[0], OccurrenceStatus::Completed, None, 0).await;
            server.jobs.activate_slot_granter.notify_one();
            waiting.retain(|id| *id != free[0]);
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn single_failure_is_retried_with_edited_input_or_by_force() {
    let (_config, server, job) = harness().await;
    let me = jobs::admin();
    let id = failed(&server, job, "boom", 1).await;
    let which = FailureSelection::Ids(vec![id]);
    let edited = RetryInput { input_json: r#"{"say": "again"}"#.into(), reason: "typo".into(), force: false };
    let first = server.jobs.retry_failures(&me, &which, &edited).await.expect("retried").made[0].1;
    let view = server.store.occurrence(first, 1, server.clock.now()).await.expect("the query succeeds");
    let view = view.expect("it exists");
    assert_eq!((view.job_data, view.trigger_reason.as_deref()), (json!({"say": "again"}), Some("typo")));

    let again = server.jobs.retry_failures(&me, &which, &RetryInput::default()).await;
    assert!(matches!(&again, Err(AppError::Conflict(words)) if words.contains(&first.to_string())), "{again:?}");
    let forced = RetryInput { force: true, ..RetryInput::default() };
    let second = server.jobs.retry_failures(&me, &which, &forced).await.expect("retried").made[0].1;
    let view = server.store.occurrence(second, 1, server.clock.now()).await.expect("the query succeeds");
    let view = view.expect("it exists");
    assert_eq!(view.job_data, json!({"say": "hello"}), "the input of the failed attempt");
    let same = RetryInput { input_json: "{ \"say\": \"hello\" }".into(), ..forced.clone() };
    server.jobs.retry_failures(&me, &which, &same).await.expect("retried");
    let audit = server.store.audit_entries(Some(&format!("occurrence:{id}")), 10).await.expect("the query succeeds");
    let was_edited: Vec<_> =
        audit.iter().filter_map(|entry| entry.after.as_ref()).map(|after| after["edited"].clone()).collect();
    assert_eq!(
        was_edited,
        [json!(false), json!(false), json!(true)],
        "an input with other white space counts as the same"
    );

    let both = FailureSelection::Ids(vec![id, failed(&server, job, "boom", 1).await]);
    for (input, field) in [(&edited, "input_json"), (&forced, "force")] {
        let refused = server.jobs.retry_failures(&me, &both, input).await;
        assert!(refused.is_err_and(|error| error.field_message(field).is_some()), "{field}");
    }
    let unknown = FailureSelection::Ids(vec![server.clock.occurrence_id()]);
    assert!(matches!(
        server.jobs.retry_failures(&me, &unknown, &RetryInput::default()).await,
        Err(AppError::NotFound(_))
    ));

    retry_takes_the_uniqueness_key_again(&server).await;

    server.jobs.delete(&me, job, None).await.expect("deleted");
    let rest = FailureSelection::Filter(FailureFilter { job_id: Some(job), ..FailureFilter::default() });
    let retried = server.jobs.retry_failures(&me, &rest, &RetryInput::default()).await.expect("the query succeeds");
    assert_eq!((retried.made.len(), retried.left), (0, 1), "a deleted job cannot run");
    server.stop().await;
}

async fn retry_takes_the_uniqueness_key_again(server: &Server) {
    let me = jobs::admin();
    let job = server.jobs.save(&me, &jobs::form("Unique")).await.expect("saved");
    let enqueue = async || {
        let run = NewRun {
            id: server.clock.occurrence_id(),
            job_id: job,
            uniqueness_key: Some("ada".into()),
            ..NewRun::default()
        };
        let outcomes = server.store.enqueue_runs(std::slice::from_ref(&run), None, server.clock.now()).await;
        (run.id, outcomes.expect("the statement succeeds").remove(0))
    };
    let fail = async |id| report(server, id, OccurrenceStatus::Failed, Some("boom"), 0).await;
    let retry = async |ids: &[OccurrenceId]| {
        server.jobs.retry_failures(&me, &FailureSelection::Ids(ids.to_vec()), &RetryInput::default()).await
    };
    let (first, _) = enqueue().await;
    fail(first).await;
    let (second, _) = enqueue().await;
    let refused = retry(&[first]).await;
    assert!(
        matches!(&refused, Err(AppError::Conflict(words)) if words.contains(&second.to_string())),
        "another occurrence has the key: {refused:?}"
    );
    fail(second).await;
    let retried = retry(&[first, second]).await.expect("retried");
    assert_eq!((retried.made.len(), retried.left), (1, 1), "two failures with one key");
    let retry_run = retried.made[0].1;
    let (_, outcome) = enqueue().await;
    assert!(matches!(outcome, EnqueueOutcome::Duplicate(id) if id == retry_run), "the retry has the key: {outcome:?}");
    fail(retry_run).await;
    let (third, _) = enqueue().await;
    assert!(matches!(retry(&[retry_run]).await, Err(AppError::Conflict(words)) if words.contains(&third.to_string())));
}
