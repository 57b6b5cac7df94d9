//! What users of other job systems look for first, as short as it is in an own program: each part compiles and runs.

use std::{
    error::Error,
    sync::{Arc, Mutex},
    time::Duration,
};

use milvaion_worker::{
    Cron, Events, Job, JobContext, JobError, JobOptions, Next, OccurrenceStatus, RunEnd, StopReason, Unique, Worker,
    WorkerConfig,
    client::RecordingClient,
    prometheus_client::registry::Registry,
    testing::{TestContext, TestRun},
};

const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Clone, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
struct File {
    path: String,
}

fn file() -> File {
    File { path: "a.csv".to_owned() }
}

/// Stands for a pool of connections.
#[derive(Clone, Default)]
struct Pool(Arc<Mutex<Vec<String>>>);

impl Pool {
    fn load(&self, row: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.0.lock().map_err(|_| "the pool is broken")?.push(row.to_owned());
        Ok(())
    }
}

struct Import {
    pool: Pool,
}

impl Job for Import {
    const TYPE: &'static str = "import";
    type Input = File;
    type Output = usize;

    fn options(&self, options: JobOptions<File>) -> JobOptions<File> {
        options
            .retries(3)
            .backoff(Duration::from_secs(10))
            .retry_jitter(20)
            .timeout(HOUR)
            .priority(4)
            .concurrency(5)
            .unique(Unique::by_input().within(HOUR))
            .tag("imports")
            .schedule("nightly", Cron::new("0 2 * * *").zone("Europe/Berlin"), file())
    }

    async fn run(&self, ctx: &JobContext, input: File) -> Result<usize, JobError> {
        let rows = [format!("1 of {}", input.path), format!("2 of {}", input.path)];
        for (n, row) in rows.iter().enumerate() {
            match ctx.stop_reason() {
                Some(StopReason::Cancelled { reason }) => return Err(JobError::cancelled(reason)),
                Some(reason) => return Err(JobError::new(format!("stopped: {reason}"))),
                None => {}
            }
            self.pool.load(row)?;
            ctx.progress((n * 100 / rows.len()) as u8, format!("{n} of {}", rows.len()));
            let (part, row) = (ctx.clone(), row.clone());
            tokio::spawn(ctx.scope(async move { part.info(format!("audited {row}")) })).await?;
        }
        ctx.enqueue(ctx.occurrence_of_type("send-mail", "editor@example.com").after(HOUR)).await?;
        Ok(rows.len())
    }
}

#[tokio::test]
async fn unit_test_has_the_input_the_output_and_what_was_enqueued() {
    let (pool, recording) = (Pool::default(), RecordingClient::new());
    let context = TestContext::new().retries(1, 3).attempt(2).job_name("Import of Monday").client(&recording);
    let record = TestRun::typed(Import { pool: pool.clone() }, file()).context(context).run().await;
    assert_eq!((record.status(), record.output::<usize>()), (OccurrenceStatus::Completed, 2));
    assert!(record.has_line("audited 2 of a.csv"));
    assert_eq!(pool.0.lock().expect("it is whole").len(), 2);
    let mail = recording.assert_enqueued_type("test", "send-mail");
    assert!(mail.not_before.is_some() && mail.parent_id.is_some());
}

struct Metrics;

impl Events for Metrics {
    fn ended(&self, ctx: &JobContext, end: &RunEnd<'_>) {
        println!("{} {}", ctx.job_type(), end.status);
    }
}

#[tokio::test]
async fn worker_has_functions_state_names_layers_observers_and_metrics() {
    let mut registry = Registry::default();
    let mut config = WorkerConfig::default();
    config.capacity = 20;
    let pool = Pool::default();
    let worker = Worker::builder()
        .config(config)
        .job_fn("hello", async |ctx: JobContext, name: String| {
            ctx.info("greets");
            Ok(format!("Hello, {name}!"))
        })
        .job(Import { pool: pool.clone() })
        .job_with(Import { pool }, |options| options.named("import-us").concurrency(1))
        .layer(async |ctx: JobContext, next: Next| next.run(ctx).await)
        .events(Metrics)
        .register_metrics(&mut registry)
        .build();
    assert!(worker.is_ok(), "{:?}", worker.err());
}
