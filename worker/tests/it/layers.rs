//! Layers and observers in a worker with real services, and what a job learns from the message that starts it.

use std::sync::{Arc, Mutex};

use milvaion_protocol::id::OccurrenceId;
use milvaion_worker::{Events, JobContext, JobError, Next, RunEnd};
use serde_json::json;

use milvaion_test_support::{broker_env::WorkerTestEnv, wait::until};

/// Records the starts and the ends.
#[derive(Clone, Default)]
struct EventRecorder(Arc<Mutex<Vec<String>>>);

impl EventRecorder {
    fn push(&self, text: String) {
        self.0.lock().expect("no panic holds it").push(text);
    }

    fn events(&self) -> Vec<String> {
        self.0.lock().expect("no panic holds it").clone()
    }
}

impl Events for EventRecorder {
    fn started(&self, ctx: &JobContext) {
        self.push(format!("start of attempt {}", ctx.attempt()));
    }

    fn ended(&self, _: &JobContext, end: &RunEnd<'_>) {
        self.push(format!("end {:?}", end.status));
    }
}

async fn describe(ctx: JobContext, name: String) -> Result<String, JobError> {
    let left = ctx.deadline().expect("a run has one").duration_since(tokio::time::Instant::now());
    let parent = ctx.parent_id().map_or_else(String::new, |id| id.to_string());
    Ok(format!("{name} {} {parent} {}", ctx.scheduled_for(), (50..=60).contains(&left.as_secs())))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_runs_its_layers_and_observers_around_each_run() {
    let env = WorkerTestEnv::new().await;
    let recorder = EventRecorder::default();
    let layer = async |ctx: JobContext, mut next: Next| {
        next.set_input(json!("Ben"));
        next.run(ctx).await
    };
    let builder = env.worker().layer(layer).events(recorder.clone()).job_fn("describe", describe);
    let worker = env.start(builder, "describe").await;
    let mut message = env.message("describe", json!("Ann"));
    let parent = OccurrenceId::from_parts(message.timestamp, [7; 10]);
    (message.parent_id, message.timeout_seconds) = (Some(parent), Some(60));
    env.publish(&message).await;
    let reports = env.ended(message.occurrence_id).await;
    let result = reports.iter().find_map(|report| report.result.clone()).expect("a result");
    assert_eq!(result, format!("Ben {} {parent} true", message.scheduled_for));
    until("both events", async || recorder.events().len() == 2).await;
    assert_eq!(recorder.events(), ["start of attempt 1", "end Completed"]);
    worker.stop().await;
    env.clean(&["describe"]).await;
}
