//! What a job's libraries say with `tracing` is in the log of the occurrence they were called for, as the server has it.

use milvaion_api::requests::JobForm;
use milvaion_protocol::message::LogLevel;
use milvaion_worker::{CaptureLayer, Job, JobContext, JobError};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::prelude::*;

use milvaion_test_support::stack;

/// Calls a library.
struct LibraryCallerJob;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct GreetingInput {
    say: String,
}

/// A library that knows nothing of jobs.
mod library {
    pub(crate) async fn greet(whom: &str) {
        tokio::task::yield_now().await;
        tracing::warn!(whom, attempts = 3, "nobody answers");
        tracing::debug!("nobody is to read this");
    }
}

impl Job for LibraryCallerJob {
    const TYPE: &'static str = "echo";
    const DESCRIPTION: &'static str = "Calls a library.";
    type Input = GreetingInput;
    type Output = ();

    async fn run(&self, ctx: &JobContext, input: GreetingInput) -> Result<(), JobError> {
        library::greet(&input.say).await;
        let (within, whom) = (ctx.clone(), input.say);
        let spawned = tokio::spawn(async move { within.scope(library::greet(&format!("{whom} spawned"))).await });
        spawned.await.map_err(JobError::new)
    }
}

#[tokio::test]
async fn what_a_library_says_stands_in_the_log_of_the_run_it_was_called_in() {
    // A worker's main has one for the whole process. Here it is this thread's, the only one that this runtime has: what
    // the worker spawns finds it, and other tests in the process do not.
    let _subscriber = tracing_subscriber::registry().with(CaptureLayer::new()).set_default();
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let stop = CancellationToken::new();
    let running = stack::worker_with(&config, &stop, |worker| worker.job(LibraryCallerJob));

    let mut runs = Vec::new();
    for name in ["Ana", "Ben"] {
        let form = JobForm { input_json: format!(r#"{{"say": "{name}"}}"#), ..stack::form(name) };
        let job = server.jobs.save(&stack::admin(), &form).await.expect("saved");
        let run = server.jobs.run_now(&stack::admin(), job, Default::default()).await.expect("triggered");
        runs.push((name, run));
    }
    for (name, run) in runs {
        stack::ended(&server, run).await;
        let lines = stack::eventually("both lines", || async {
            let view = server.store.occurrence(run, 100, server.clock.now()).await.ok()??;
            (view.log.len() >= 2).then_some(view.log)
        })
        .await;
        assert_eq!(lines.len(), 2, "{lines:?}");
        for (line, whom) in lines.iter().zip([name.to_owned(), format!("{name} spawned")]) {
            assert_eq!((line.level, line.message.as_str()), (LogLevel::Warn, "nobody answers"));
            let data = line.data.as_ref().expect("fields");
            assert_eq!((data["whom"].as_str(), data["attempts"].as_i64()), (Some(whom.as_str()), Some(3)));
            assert!(data["target"].as_str().is_some_and(|target| target.ends_with("library")), "{data}");
        }
    }
    stop.cancel();
    running.await.expect("the worker stops");
    server.stop().await;
}
