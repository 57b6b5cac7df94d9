//! The spans of the program `milvaion` and of a worker with the SDK, sent to a receiver.
//!
//! The server is a process of its own, because what it records is process-wide. The worker is in the test's thread.

use std::process::Stdio;

use milvaion_protocol::id::OccurrenceId;
use milvaion_server::config::ServerConfig;
use milvaion_telemetry::{SpanSender, TraceSettings};
use milvaion_test_support::{
    budget::{self, CountedEvent},
    net,
    trace_receiver::{ReceivedSpan, TraceReceiver},
    wait, worker_env,
};
use milvaion_worker::{CaptureLayer, Job, JobContext, JobError};
use serde_json::{Value, json};
use tokio::{
    process::{Child, Command},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, subscriber::DefaultGuard};
use tracing_subscriber::prelude::*;

use crate::rest::harness::{Answer, ApiHarness, echo, send};

const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER_SPAN: &str = "b7ad6b7169203331";

/// A job with a span of its own.
struct CountingJob;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct CountingInput {
    say: String,
}

impl Job for CountingJob {
    const TYPE: &'static str = "echo";
    const DESCRIPTION: &'static str = "Counts letters.";
    type Input = CountingInput;
    type Output = String;

    async fn run(&self, ctx: &JobContext, input: CountingInput) -> Result<String, JobError> {
        let count = async {
            tokio::task::yield_now().await;
            tracing::info!("counted {} letters", input.say.len());
        };
        count.instrument(tracing::info_span!("count letters")).await;
        Ok(ctx.traceparent().unwrap_or_default().to_owned())
    }
}

/// A server process and a worker that send their spans to one receiver.
struct TracedInstallation {
    receiver: TraceReceiver,
    base: String,
    token: String,
    server: Child,
    worker: JoinHandle<()>,
    stop: CancellationToken,
    spans: SpanSender,
    _subscriber: DefaultGuard,
}

impl TracedInstallation {
    async fn start() -> Self {
        let receiver = TraceReceiver::start().await;
        // A first server creates the user and the token.
        let api = ApiHarness::new().await;
        let token = api.token(&api.admin).await;
        let ApiHarness { config, server, .. } = api;
        server.stop().await;
        let port = net::free_port().expect("a free port");
        let server = server_process(&config, port, &receiver.endpoint);
        let base = format!("http://127.0.0.1:{port}");
        wait::until("the server", async || {
            reqwest::get(format!("{base}/health/live")).await.is_ok_and(|answer| answer.status().is_success())
        })
        .await;

        let endpoint = receiver.endpoint.clone();
        let settings = TraceSettings::read("test-worker", &|name| {
            (name == "OTEL_EXPORTER_OTLP_ENDPOINT").then(|| endpoint.clone())
        });
        let settings = settings.expect("valid").expect("a receiver");
        let (layer, spans) = milvaion_telemetry::layer(&settings).expect("valid");
        let is_own = tracing_subscriber::filter::Targets::new()
            .with_target("milvaion_worker", tracing::Level::INFO)
            .with_target(module_path!(), tracing::Level::INFO);
        let subscriber = tracing_subscriber::registry().with(layer.with_filter(is_own)).with(CaptureLayer::new());
        let subscriber = subscriber.set_default();
        let stop = CancellationToken::new();
        let worker = worker_env::start_with(&config, &stop, |worker| worker.job(CountingJob));
        Self { receiver, base, token, server, worker, stop, spans, _subscriber: subscriber }
    }

    async fn call(&self, method: &str, path: &str, body: Value, traceparent: Option<&str>) -> Answer {
        let method = method.parse().expect("a method");
        let mut request = reqwest::Client::new().request(method, format!("{}/api/v1{path}", self.base));
        if let Some(traceparent) = traceparent {
            request = request.header("traceparent", traceparent);
        }
        send(request.bearer_auth(&self.token), body).await
    }

    /// Waits for the end of an occurrence and returns it.
    async fn ended(&self, id: &str) -> Value {
        wait::eventually("the end of the occurrence", async || {
            let occurrence = self.call("GET", &format!("/occurrences/{id}"), Value::Null, None).await.ok();
            (occurrence["status"] == "completed").then_some(occurrence)
        })
        .await
    }

    /// Stops the worker and sends its last spans. The server sends its spans by itself.
    async fn stop_worker(self) -> (TraceReceiver, Child) {
        self.stop.cancel();
        self.worker.await.expect("the worker stops");
        self.spans.stop().await;
        (self.receiver, self.server)
    }
}

fn server_process(config: &ServerConfig, port: u16, endpoint: &str) -> Child {
    budget::count(CountedEvent::Server);
    Command::new(env!("CARGO_BIN_EXE_milvaion"))
        .arg("run")
        .env("DATABASE_URL", &config.database.url)
        .env("REDIS_URL", &config.cache.url)
        .env("AMQP_URL", &config.broker.url)
        .env("MILVAION_PREFIX", &config.broker.prefix)
        .env("MILVAION_KEY_PREFIX", &config.cache.key_prefix)
        .env("SITE_ROOT", &config.http.site_root)
        .env("PORT", port.to_string())
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        .env("OTEL_BSP_SCHEDULE_DELAY", "50")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the program starts")
}

/// Checks the spans after the creation of an occurrence, each of which is the parent of the next. `first` is the id of the
/// span of the creation.
async fn check_chain(receiver: &TraceReceiver, trace_id: &str, first: &str, id: &str) {
    let in_trace = |span: &ReceivedSpan, name: &str| span.trace_id == trace_id && span.name == name;
    let publish = receiver.span("the message", |span| in_trace(span, "publish")).await;
    assert_eq!((publish.service.as_str(), publish.parent_id.as_str()), ("milvaion", first));
    assert_eq!((publish.attribute("occurrence.id"), publish.attribute("occurrence.attempt")), (id, "1"));
    let attempt = receiver.span("the attempt", |span| in_trace(span, "attempt")).await;
    assert_eq!((attempt.service.as_str(), &attempt.parent_id), ("test-worker", &publish.span_id));
    assert_eq!((attempt.attribute("occurrence.id"), attempt.attribute("occurrence.status")), (id, "completed"));
    let own = receiver.span("the job's own span", |span| in_trace(span, "count letters")).await;
    assert_eq!(own.parent_id, attempt.span_id);
    let stored = receiver.span("the stored report", |span| {
        in_trace(span, "store report") && span.attribute("occurrence.status") == "completed"
    });
    let stored = stored.await;
    assert_eq!((stored.service.as_str(), &stored.parent_id), ("milvaion", &attempt.span_id));
    // The statement is in the trace of the batch, which the link leads to.
    let (batch_trace, batch) = stored.links.first().expect("a link").clone();
    receiver
        .span("the statement that ends occurrences", |span| {
            span.trace_id == batch_trace && span.parent_id == batch && span.name == "finish_runs"
        })
        .await;
}

#[tokio::test]
async fn invalid_variable_prevents_the_start() {
    let output = Command::new(env!("CARGO_BIN_EXE_milvaion"))
        .arg("run")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
        .env("OTEL_TRACES_SAMPLER", "sometimes")
        .output()
        .await
        .expect("the program starts");
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("OTEL_TRACES_SAMPLER is invalid: set it to always_on"), "{error}");
}

#[tokio::test]
async fn requested_run_is_one_trace_from_the_caller_to_the_report() {
    let installation = TracedInstallation::start().await;
    let job = installation.call("POST", "/jobs", echo("Traced"), None).await.ok();
    let path = format!("/jobs/{}/run", job["id"].as_str().expect("an id"));
    let traceparent = format!("00-{TRACE_ID}-{CALLER_SPAN}-01");
    let run = installation.call("POST", &path, json!({}), Some(&traceparent)).await.ok();
    let id = run["id"].as_str().expect("an id").to_owned();
    let ended = installation.ended(&id).await;
    assert_eq!(ended["traceId"], TRACE_ID);
    let log = wait::eventually("the log", async || {
        let log = installation.call("GET", &format!("/occurrences/{id}/log"), Value::Null, None).await.ok();
        log["lines"].as_array().filter(|lines| !lines.is_empty()).cloned()
    })
    .await;

    let (receiver, server) = installation.stop_worker().await;
    let request = receiver.span("the request", |span| span.parent_id == CALLER_SPAN).await;
    assert_eq!((request.name.as_str(), request.kind), ("POST /api/v1/jobs/{id}/run", 2));
    assert_eq!(request.attribute("http.response.status_code"), "202");
    check_chain(&receiver, TRACE_ID, &request.span_id, &id).await;
    let attempt = receiver.span("the attempt", |span| span.name == "attempt").await;
    let own = receiver.span("the job's own span", |span| span.name == "count letters").await;
    assert_eq!(ended["result"], format!("00-{TRACE_ID}-{}-01", attempt.span_id), "what the job saw");
    let data = &log[0]["data"];
    assert_eq!((data["trace_id"].as_str(), data["span_id"].as_str()), (Some(TRACE_ID), Some(own.span_id.as_str())));
    drop(server);
}

#[tokio::test]
async fn scheduled_run_is_one_trace_with_the_id_of_the_occurrence() {
    let installation = TracedInstallation::start().await;
    let mut definition = echo("Every second");
    definition["schedule"] = json!({ "kind": "cron", "expression": "* * * * * *", "zone": "UTC" });
    let job = installation.call("POST", "/jobs", definition, None).await.ok();
    let path = format!("/occurrences?jobId={}&status=completed", job["id"].as_str().expect("an id"));
    let id = wait::eventually("the first occurrence", async || {
        let page = installation.call("GET", &path, Value::Null, None).await.ok();
        page["items"].as_array()?.last()?["id"].as_str().map(str::to_owned)
    })
    .await;
    let (receiver, mut server) = installation.stop_worker().await;
    let occurrence: OccurrenceId = id.parse().expect("an occurrence id");
    let trace_id = occurrence.0.simple().to_string();
    let dispatch =
        receiver.span("the dispatch", |span| span.name == "dispatch" && span.attribute("occurrence.id") == id).await;
    assert_eq!((&dispatch.trace_id, dispatch.parent_id.as_str()), (&trace_id, ""));
    assert_eq!(dispatch.span_id, trace_id[16..]);
    check_chain(&receiver, &trace_id, &dispatch.span_id, &id).await;
    // The batch in which it was created is a trace of its own.
    let (tick_trace, tick) = dispatch.links.first().expect("a link").clone();
    let tick = receiver.span("the tick", |span| span.span_id == tick).await;
    assert_eq!((tick.name.as_str(), tick.parent_id.as_str()), ("tick dispatcher", ""));
    receiver.span("the statement", |span| span.trace_id == tick_trace && span.name == "create_runs").await;

    // An orderly stop sends the last spans.
    let pid = nix::unistd::Pid::from_raw(server.id().expect("it runs").try_into().expect("a process id"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("the signal is sent");
    assert!(server.wait().await.expect("it ends").success());
    receiver.span("the lease", |span| span.name == "tick lease").await;
}
