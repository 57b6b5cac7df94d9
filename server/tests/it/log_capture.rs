//! Log capture: the `tracing` events of a job's libraries are in the log of the occurrence that called them.

use milvaion_api::requests::JobForm;
use milvaion_protocol::message::LogLevel;
use milvaion_test_support::{jobs, runs, server_env, wait, worker_env};
use milvaion_worker::{CaptureLayer, Job, JobContext, JobError};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::prelude::*;

/// A job that calls a library.
struct LibraryCallerJob;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct GreetingInput {
    say: String,
}

/// A library without a dependency on the SDK.
mod library {
    pub(crate) async fn greet(name: &str) {
        tokio::task::yield_now().await;
        tracing::warn!(name, attempts = 3, "no response");
        tracing::debug!("below the captured level");
    }
}

impl Job for LibraryCallerJob {
    const TYPE: &'static str = "echo";
    const DESCRIPTION: &'static str = "Calls a library.";
    type Input = GreetingInput;
    type Output = ();

    async fn run(&self, ctx: &JobContext, input: GreetingInput) -> Result<(), JobError> {
        library::greet(&input.say).await;
        let (ctx, name) = (ctx.clone(), input.say);
        let spawned = tokio::spawn(async move { ctx.scope(library::greet(&format!("{name} spawned"))).await });
        spawned.await.map_err(JobError::new)
    }
}

#[tokio::test]
async fn library_events_are_in_the_log_of_their_run() {
    // A worker's main function installs it for the whole process. Here it is installed for this thread, the only one of
    // this runtime: the worker's tasks use it, and other tests in the process do not.
    let _subscriber = tracing_subscriber::registry().with(CaptureLayer::new()).set_default();
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let stop = CancellationToken::new();
    let running = worker_env::start_with(&config, &stop, |worker| worker.job(LibraryCallerJob));

    let mut runs = Vec::new();
    for name in ["Ana", "Ben"] {
        let form = JobForm { input_json: format!(r#"{{"say": "{name}"}}"#), ..jobs::form(name) };
        let job = server.jobs.save(&jobs::admin(), &form).await.expect("saved");
        let run = server.jobs.run_now(&jobs::admin(), job, Default::default()).await.expect("triggered");
        runs.push((name, run));
    }
    for (name, run) in runs {
        runs::ended(&server, run).await;
        let lines = wait::eventually("both lines", || async {
            let view = server.store.occurrence(run, 100, server.clock.now()).await.ok()??;
            (view.log.len() >= 2).then_some(view.log)
        })
        .await;
        assert_eq!(lines.len(), 2, "{lines:?}");
        for (line, logged_name) in lines.iter().zip([name.to_owned(), format!("{name} spawned")]) {
            assert_eq!((line.level, line.message.as_str()), (LogLevel::Warn, "no response"));
            let data = line.data.as_ref().expect("fields");
            assert_eq!((data["name"].as_str(), data["attempts"].as_i64()), (Some(logged_name.as_str()), Some(3)));
            assert!(data["target"].as_str().is_some_and(|target| target.ends_with("library")), "{data}");
        }
    }
    stop.cancel();
    running.await.expect("the worker stops");
    server.stop().await;
}
