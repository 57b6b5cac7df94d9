//! Jobs that are functions or shared values, layers and observers of runs, and the errors that a job may return.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use milvaion_worker::{
    Events, Job, JobContext, JobError, JobOutput, Next, OccurrenceStatus, RunEnd, Worker, WorkerError,
    testing::{TestContext, TestRun},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Serialize, Deserialize, JsonSchema)]
struct Whom {
    name: String,
}

async fn greet(ctx: JobContext, input: Whom) -> Result<String, JobError> {
    ctx.info("greets");
    match input.name.as_str() {
        "" => Err("give a name")?,
        name => Ok(format!("Hello, {name}!")),
    }
}

fn ann() -> Whom {
    Whom { name: "Ann".to_owned() }
}

#[tokio::test]
async fn function_is_a_job() {
    let record = TestRun::of("hello", greet, ann()).run().await;
    assert_eq!(record.output::<String>(), "Hello, Ann!");
    assert!(record.has_line("greets"));
}

struct Greeter {
    greeting: &'static str,
}

impl Job for Greeter {
    const TYPE: &'static str = "greeter";
    type Input = Whom;
    type Output = String;

    async fn run(&self, _: &JobContext, input: Whom) -> Result<String, JobError> {
        Ok(format!("{}, {}!", self.greeting, input.name))
    }
}

#[tokio::test]
async fn shared_value_is_a_job_and_one_type_may_have_several_names() {
    let shared = Arc::new(Greeter { greeting: "Bye" });
    assert_eq!(TestRun::typed(shared.clone(), ann()).run().await.output::<String>(), "Bye, Ann!");
    let twice = || Worker::builder().job(shared.clone()).job(shared.clone()).build();
    assert!(matches!(twice(), Err(WorkerError::Config(errors)) if errors.to_string().contains("registered twice")));
    let named = Worker::builder().job(shared.clone()).job_with(shared, |options| options.named("other")).build();
    named.expect("two names");
}

#[tokio::test]
async fn public_types_are_shown_without_passwords_and_inputs() {
    use milvaion_worker::{JobOptions, testing::TestLoop};
    use std::time::Duration;
    let builder = || Worker::builder().amqp_url("amqp://u:c4n4ry@mq.test/%2f").job_fn("hello", greet);
    let new_loop = builder().singleton("prices");
    let mut shown = vec![format!("{new_loop:?}")];
    let declared = new_loop.every(Duration::from_secs(1));
    shown.push(format!("{declared:?}"));
    let builder_with_loop = declared.run(|_| async { Ok(()) });
    shown.push(format!("{builder_with_loop:?}"));
    shown.push(format!("{:?}", TestLoop::new(builder_with_loop, "prices")));
    assert!(shown.iter().all(|text| text.contains("prices")), "{shown:?}");
    shown.push(format!("{:?}", builder().build().expect("a worker")));
    assert!(shown[2].contains("hello") && shown[4].contains("hello") && shown[4].contains("mq.test"), "{shown:?}");
    let input = Whom { name: "c4n4ry".to_owned() };
    let options = JobOptions::<Whom>::default().retries(3).schedule("nightly", Duration::from_secs(60), input);
    shown.push(format!("{options:?}"));
    assert!(shown[5].contains("nightly") && shown[5].contains('3'), "{shown:?}");
    assert!(shown.iter().all(|text| !text.contains("c4n4ry")), "{shown:?}");
}

/// The errors that programs have: of a library, of `anyhow` and `eyre`, boxed, and plain texts.
#[tokio::test]
async fn every_error_becomes_a_failure_with_its_causes() {
    async fn fail(_: JobContext, kind: u8) -> Result<(), JobError> {
        let cause = || std::io::Error::other("the disk is full");
        match kind {
            0 => Err(cause())?,
            1 => Err(anyhow::Error::new(cause()).context("cannot write"))?,
            2 => Err(Box::<dyn std::error::Error + Send + Sync>::from(cause()))?,
            3 => Err("the disk is full")?,
            4 => Err(eyre::Report::new(cause()).wrap_err("cannot write"))?,
            _ => Err(format!("disk {kind} is full"))?,
        }
    }
    let expected = [
        "the disk is full",
        "cannot write: the disk is full",
        "the disk is full",
        "the disk is full",
        "cannot write: the disk is full",
        "disk 5 is full",
    ];
    for (kind, text) in (0..).zip(expected) {
        let record = TestRun::of("fail", fail, kind).run().await;
        assert_eq!((record.status(), record.error()), (OccurrenceStatus::Failed, Some(text)));
    }
}

#[tokio::test]
async fn layers_wrap_the_job_from_the_outermost() {
    let outer = async |ctx: JobContext, mut next: Next| {
        ctx.info("outer begins");
        next.set_input(json!({ "name": "Ben" }));
        let result = next.run(ctx.clone()).await;
        ctx.info(format!("outer: {:?}", result.as_ref().map(JobOutput::as_text).unwrap_or_default()));
        result
    };
    let inner = async |ctx: JobContext, next: Next| {
        ctx.info(format!("inner begins with {}", next.input()));
        next.run(ctx).await
    };
    let record = TestRun::of("hello", greet, ann()).layer(outer).layer(inner).run().await;
    let lines: Vec<&str> = record.lines.iter().map(|line| line.message.as_str()).collect();
    let expected = ["outer begins", r#"inner begins with {"name":"Ben"}"#, "greets", r#"outer: Some("Hello, Ben!")"#];
    assert_eq!(lines, expected);
}

#[tokio::test(start_paused = true)]
async fn test_run_has_the_rules_of_its_registration() {
    async fn rules(ctx: JobContext, _: Whom) -> Result<(u32, u64), JobError> {
        let left = ctx.deadline().expect("a run has one").duration_since(tokio::time::Instant::now());
        Ok((ctx.max_retries(), left.as_secs()))
    }
    let run = TestRun::of_with("rules", rules, ann(), |options| options.retries(5).timeout(Duration::from_secs(90)));
    assert_eq!(run.run().await.output::<(u32, u64)>(), (5, 90));
    let name = |ctx: JobContext, _: Next| async move { Err(JobError::permanent(ctx.job_type().to_owned())) };
    let run = TestRun::typed_with(Greeter { greeting: "Bye" }, ann(), |options| options.named("other")).layer(name);
    assert_eq!(run.run().await.error(), Some("other"));
}

#[tokio::test]
async fn layer_passes_a_value_to_the_job() {
    struct Tenant(&'static str);
    async fn import(ctx: JobContext, _: Whom) -> Result<&'static str, JobError> {
        Ok(ctx.extension::<Tenant>().map_or("no tenant", |tenant| tenant.0))
    }
    let tenant = |name| {
        move |ctx: JobContext, next: Next| {
            ctx.set_extension(Tenant(name));
            next.run(ctx)
        }
    };
    let record = TestRun::of("import", import, ann()).layer(tenant("outer")).layer(tenant("inner")).run().await;
    assert_eq!(record.output::<String>(), "inner");
    assert_eq!(TestRun::of("import", import, ann()).run().await.output::<String>(), "no tenant");
}

#[tokio::test]
async fn layer_may_answer_without_the_job() {
    let cached = async |_: JobContext, _: Next| JobOutput::of("kept");
    let record = TestRun::of("hello", greet, ann()).layer(cached).run().await;
    assert_eq!((record.output::<String>(), record.has_line("greets")), ("kept".to_owned(), false));
}

#[tokio::test]
async fn layer_may_refuse_a_run_and_its_panic_is_a_failure() {
    let refusing = async |_: JobContext, _: Next| Err(JobError::permanent("no tenant"));
    let record = TestRun::of("hello", greet, ann()).layer(refusing).run().await;
    assert_eq!((record.error(), record.end().permanent, record.has_line("greets")), (Some("no tenant"), true, false));
    let panicking = async |ctx: JobContext, next: Next| {
        next.run(ctx).await?;
        panic!("the layer fails")
    };
    let record = TestRun::of("hello", greet, ann()).layer(panicking).run().await;
    assert!(record.error().is_some_and(|error| error.starts_with("panicked: the layer fails")), "{record:?}");
}

#[derive(Clone, Default)]
struct Observer(Arc<Mutex<Vec<String>>>);

impl Observer {
    fn push(&self, text: String) {
        self.0.lock().expect("no panic holds it").push(text);
    }
}

impl Events for Observer {
    fn started(&self, ctx: &JobContext) {
        self.push(format!("{} starts attempt {}", ctx.job_type(), ctx.attempt()));
        panic!("a fault of the observer");
    }

    fn ended(&self, _: &JobContext, end: &RunEnd<'_>) {
        self.push(format!("{} {:?} {:?}", end.status, end.result, end.error));
    }
}

#[tokio::test(start_paused = true)]
async fn observers_see_each_end_and_their_panics_change_nothing() {
    let observer = Observer::default();
    let runs = [
        TestRun::of("hello", greet, ann()),
        TestRun::of("hello", greet, Whom { name: String::new() }),
        TestRun::of("slow", async |_, ()| std::future::pending::<Result<(), JobError>>().await, ()).timeout_seconds(5),
    ];
    for run in runs {
        run.attempt(3).events(observer.clone()).run().await;
    }
    let seen = observer.0.lock().expect("no panic holds it").clone();
    assert_eq!(seen.len(), 6);
    assert_eq!(seen[0], "hello starts attempt 3");
    assert_eq!(seen[1], r#"Completed Some("Hello, Ann!") None"#);
    assert_eq!(seen[3], r#"Failed None Some("give a name")"#);
    assert!(seen[5].starts_with("Timed out None") || seen[5].starts_with("TimedOut None"), "{}", seen[5]);
}

#[tokio::test(start_paused = true)]
async fn checkpoints_are_thinned_and_the_newest_is_in_the_report_of_a_failure() {
    async fn import(ctx: JobContext, _: ()) -> Result<(), JobError> {
        let first = ctx.last_checkpoint::<u32>()?.unwrap_or(0);
        (first + 1..=first + 50).try_for_each(|row| ctx.checkpoint(&row))?;
        Err("the connection was lost")?
    }
    let record = TestRun::of("import", import, ()).context(TestContext::new().checkpoint(&100)).run().await;
    let sent: Vec<_> = record.reports.iter().filter_map(|report| report.checkpoint.clone()).collect();
    assert_eq!(sent, [101, 150]);
    assert_eq!(record.end().checkpoint, Some(json!(150)));
}

#[tokio::test]
async fn spawned_part_belongs_to_the_run() {
    async fn audit(ctx: JobContext, _: ()) -> Result<(), JobError> {
        let part = ctx.clone();
        tokio::spawn(ctx.scope(async move { part.info("audited") })).await?;
        Ok(())
    }
    let record = TestRun::of("audit", audit, ()).run().await;
    assert_eq!(record.status(), OccurrenceStatus::Completed);
    assert!(record.has_line("audited"));
}
