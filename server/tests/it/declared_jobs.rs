//! The jobs of schedules that the code of workers declares.

use chrono::TimeDelta;
use milvaion_api::requests::JobForm;
use milvaion_app::error::AppError;
use milvaion_client::Enqueue;
use milvaion_protocol::message::{
    DeclaredSchedule, DeclaredTiming, IngestOutcome, InstanceHello, JobDefaults, JobTypeInfo, MAX_JOB_DATA_BYTES,
    UniqueRule,
};
use milvaion_schedule::{rules::LostRunPolicy, schedule::Schedule};
use milvaion_server::{lifecycle::Server, store::jobs::StoredJob};
use milvaion_test_support::{jobs, messages, server_env, wait, worker_env};
use milvaion_worker::{CancellationToken, Cron};
use serde_json::json;

/// Returns an instance of the worker `w` whose code declares schedules with an interval each.
fn instance(server: &Server, id: &str, version: &str, schedules: &[(&str, u64)]) -> InstanceHello {
    let schedules = schedules.iter().map(|(name, seconds)| DeclaredSchedule {
        name: (*name).into(),
        timing: DeclaredTiming::Every { seconds: *seconds },
        input: json!({ "of": name }),
        display_name: None,
        rules: JobDefaults::default(),
        timeout_seconds: None,
    });
    let defaults = JobDefaults { max_retries: Some(2), tags: vec!["from-code".into()], ..JobDefaults::default() };
    let job_type = JobTypeInfo { defaults, schedules: schedules.collect(), ..messages::job_type("report") };
    let now = server.clock.now();
    InstanceHello { version: version.into(), job_types: vec![job_type], ..messages::hello(id, now) }
}

/// Registers instances and makes the jobs be as they declare.
async fn register(server: &Server, instances: &[InstanceHello]) {
    server.store.store_hellos(instances, server.clock.now()).await.expect("stored");
    server.jobs.reconcile_declarations(&mut None).await.expect("compared");
}

/// Returns the job of a schedule.
async fn job(server: &Server, name: &str) -> StoredJob {
    let jobs = server.store.declared_jobs().await.expect("the query succeeds");
    let declared = jobs.into_iter().find(|job| job.key.name == name).expect("the schedule has a job");
    server.store.job(declared.job_id).await.expect("the query succeeds").expect("it exists")
}

#[tokio::test]
async fn schedule_in_code_becomes_a_job_and_follows_the_code() {
    let server = server_env::start(&server_env::config().await).await;
    register(&server, &[instance(&server, "w-1", "1.0.0", &[("hourly", 3_600), ("daily", 86_400)])]).await;
    let hourly = job(&server, "hourly").await;
    assert_eq!(hourly.key.as_deref(), Some("w.report.hourly"));
    let definition = &hourly.definition;
    assert_eq!((definition.display_name.as_str(), definition.worker_id.as_str()), ("report: hourly", "w"));
    assert_eq!((&definition.schedule, definition.rules.max_retries), (&Schedule::every(3_600), 2));
    assert_eq!((&definition.job_data, &definition.tags), (&json!({ "of": "hourly" }), &vec!["from-code".to_owned()]));
    assert!(hourly.next_fire_at.is_some());
    // The form of a new job of this type starts with the same rules.
    let job_types =
        server.store.job_types(server.clock.now() - TimeDelta::minutes(1)).await.expect("the query succeeds");
    assert_eq!((job_types[0].target().as_str(), job_types[0].info.defaults.max_retries), ("w/report", Some(2)));

    // An operator pauses one. The next release changes it and no longer has the other one.
    server.jobs.set_active(&jobs::admin(), hourly.id, false, "maintenance").await.expect("paused");
    server.store.store_goodbyes(&["w-1".to_owned()], server.clock.now()).await.expect("stored");
    register(&server, &[instance(&server, "w-2", "1.1.0", &[("hourly", 1_800)])]).await;
    let (hourly, daily) = (job(&server, "hourly").await, job(&server, "daily").await);
    assert_eq!((&hourly.definition.schedule, hourly.definition.is_active), (&Schedule::every(1_800), false));
    assert_eq!(hourly.paused_reason.as_deref(), Some("maintenance"));
    assert!(!daily.definition.is_active && daily.next_fire_at.is_none());
    assert!(daily.paused_reason.is_some_and(|reason| reason.contains("no longer declares")));

    // The release is rolled back.
    server.store.store_goodbyes(&["w-2".to_owned()], server.clock.now()).await.expect("stored");
    register(&server, &[instance(&server, "w-3", "1.0.0", &[("hourly", 3_600), ("daily", 86_400)])]).await;
    let (hourly, daily) = (job(&server, "hourly").await, job(&server, "daily").await);
    assert_eq!((&hourly.definition.schedule, hourly.definition.is_active), (&Schedule::every(3_600), false));
    assert!(daily.definition.is_active && daily.next_fire_at.is_some() && daily.paused_reason.is_none());
    server.stop().await;
}

#[tokio::test]
async fn edited_job_is_detached_from_the_code_until_it_is_attached_again() {
    let server = server_env::start(&server_env::config().await).await;
    let me = jobs::admin();
    register(&server, &[instance(&server, "w-1", "1", &[("hourly", 3_600)])]).await;
    let hourly = job(&server, "hourly").await;
    let form = JobForm::from_job(hourly.id, hourly.version, &hourly.definition);
    server.jobs.save(&me, &JobForm { display_name: "Mine".into(), ..form }).await.expect("saved");
    let edits = server.store.edits_since_source(&[hourly.id]).await.expect("the query succeeds");
    assert_eq!(edits[&hourly.id].by, me.email);

    register(&server, &[instance(&server, "w-1", "2", &[("hourly", 60)])]).await;
    let detached = job(&server, "hourly").await;
    assert_eq!(
        (detached.definition.display_name.as_str(), &detached.definition.schedule),
        ("Mine", &Schedule::every(3_600))
    );

    server.jobs.attach_to_code(&me, hourly.id).await.expect("attached");
    let attached = job(&server, "hourly").await;
    let definition = &attached.definition;
    assert_eq!((definition.display_name.as_str(), &definition.schedule), ("report: hourly", &Schedule::every(60)));
    register(&server, &[instance(&server, "w-1", "3", &[("hourly", 120)])]).await;
    assert_eq!(job(&server, "hourly").await.definition.schedule, Schedule::every(120));

    register(&server, &[instance(&server, "w-1", "4", &[])]).await;
    let refused = server.jobs.attach_to_code(&me, hourly.id).await;
    assert!(matches!(refused, Err(AppError::Conflict(text)) if text.contains("Deploy a worker")));
    server.stop().await;
}

#[tokio::test]
async fn first_occurrence_by_job_type_has_the_declared_rules_until_the_code_drops_them() {
    let server = server_env::start(&server_env::config().await).await;
    let defaults = JobDefaults {
        max_retries: Some(7),
        on_lost: Some("fail".into()),
        unique: Some(UniqueRule::default()),
        ..JobDefaults::default()
    };
    let job_type = JobTypeInfo { defaults, ..messages::job_type("report") };
    let hello = InstanceHello { job_types: vec![job_type], ..messages::hello("w-1", server.clock.now()) };
    server.store.store_hellos(&[hello], server.clock.now()).await.expect("stored");

    // At once: no task has compared the declarations with the jobs.
    let occurrence = || Enqueue::job_type("w", "report").input(json!({ "month": 10 })).build().expect("valid");
    let both = server.jobs.enqueue(&[occurrence(), occurrence()], None).await.expect("stored");
    let outcomes: Vec<IngestOutcome> = both.results.iter().map(|result| result.outcome).collect();
    assert_eq!(outcomes, [IngestOutcome::Accepted, IngestOutcome::Duplicate], "the type is unique by its input");
    let run = &both.created[0].queued;
    let job = server.store.job(run.job_id).await.expect("the query succeeds").expect("it exists");
    assert_eq!((run.max_retries, job.definition.rules.on_lost), (7, LostRunPolicy::Fail));

    // The next release declares nothing.
    let hello = InstanceHello {
        version: "2.0.0".into(),
        job_types: vec![messages::job_type("report")],
        ..messages::hello("w-2", server.clock.now())
    };
    server.jobs.reconcile_declarations(&mut None).await.expect("compared");
    server.store.store_goodbyes(&["w-1".to_owned()], server.clock.now()).await.expect("stored");
    register(&server, &[hello]).await;
    let job = server.store.job(run.job_id).await.expect("the query succeeds").expect("it exists");
    assert_eq!((job.definition.rules.max_retries, job.definition.rules.on_lost), (0, LostRunPolicy::Requeue));
    let types = server.store.job_types(server.clock.now() - TimeDelta::minutes(1)).await.expect("the query succeeds");
    assert!(types[0].info.defaults.is_empty(), "the form of a new job starts without them too");
    let again = server.jobs.enqueue(&[occurrence()], None).await.expect("stored");
    assert_eq!(again.results[0].outcome, IngestOutcome::Accepted, "and no longer unique");
    server.stop().await;
}

#[tokio::test]
async fn refused_declaration_is_shown_at_the_instance() {
    let server = server_env::start(&server_env::config().await).await;
    let mut hello = instance(&server, "w-1", "1", &[("good", 60), ("bad", 60)]);
    hello.job_types[0].schema = json!({ "type": "object", "properties": { "of": { "const": "good" } } });
    register(&server, &[hello]).await;
    register(&server, &[]).await;
    let jobs = server.store.declared_jobs().await.expect("the query succeeds");
    assert_eq!(jobs.iter().map(|job| job.key.name.as_str()).collect::<Vec<_>>(), ["good"]);
    let now = server.clock.now();
    let workers = server.store.workers(now - chrono::Duration::hours(1), now).await.expect("the query succeeds");
    let problems = &workers[0].instances[0].problems;
    assert_eq!(problems.len(), 1, "it is shown once: {problems:?}");
    server.stop().await;
}

#[tokio::test]
async fn key_of_a_user_is_left_alone() {
    let server = server_env::start(&server_env::config().await).await;
    let of_user = jobs::echo_job(Schedule::Manual);
    let created = server.jobs.create_definition(&jobs::admin(), Some("w.report.hourly"), &of_user).await;
    let of_user = created.expect("created");
    register(&server, &[instance(&server, "w-1", "1", &[("hourly", 3_600)])]).await;
    let hourly = job(&server, "hourly").await;
    assert!(hourly.id != of_user && hourly.key.is_none());
    server.stop().await;
}

#[tokio::test]
async fn worker_is_told_what_was_refused_and_says_so_in_its_heartbeat() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let stop = CancellationToken::new();
    let worker = worker_env::start_with(&config, &stop, |worker| {
        worker.job_fn_with(
            "report",
            async |_, pages: String| Ok(pages.len()),
            |options| options.schedule("nightly", Cron::new("0 2 * * *"), "x".repeat(MAX_JOB_DATA_BYTES)),
        )
    });
    let instance = wait::eventually("the notice", || async {
        let now = server.clock.now();
        let workers = server.store.workers(now - chrono::Duration::hours(1), now).await.ok()?;
        let instance = workers.first()?.instances.first()?.clone();
        instance.notice.is_some().then_some(instance)
    })
    .await;
    let notice = instance.notice.expect("it has one");
    assert!(notice.contains("refused a part of the registration"), "{notice}");
    assert!(instance.problems.iter().any(|problem| problem.contains("nightly")), "{:?}", instance.problems);
    stop.cancel();
    worker.await.expect("it stops");
    server.stop().await;
}
