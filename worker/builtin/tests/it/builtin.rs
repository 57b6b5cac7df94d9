//! The program with the built-in jobs, started as in production: its environment, its log and its messages.

use std::{
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, http::HeaderMap, routing::any};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{BasicGetOptions, BasicPublishOptions, QueueDeclareOptions},
    types::FieldTable,
};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{JobMessage, StatusMessage, StatusReport},
    status::OccurrenceStatus,
    topology::{RedisKeys, Topology},
};
use milvaion_test_support::{messages, services, wait::WAIT_TIMEOUT};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpListener,
    process::{Child, Command},
    time::{sleep, timeout},
};

/// A worker process, and the messages it sent.
pub(crate) struct WorkerHarness {
    topology: Topology,
    channel: Channel,
    _connection: Connection,
    worker: Child,
    /// The lines of its standard error.
    log: Arc<Mutex<Vec<String>>>,
    /// The bodies of all its messages to the server.
    messages: Vec<String>,
}

impl WorkerHarness {
    pub(crate) async fn start(variables: &[(&str, &str)]) -> Self {
        let prefix = services::unique("b");
        let connection = Connection::connect(&services::amqp_url(), ConnectionProperties::default())
            .await
            .expect("RabbitMQ at AMQP_URL responds");
        let channel = connection.create_channel().await.expect("a channel");
        services::keep_claims(&RedisKeys::new(format!("{prefix}:"))).await;
        let mut worker = Command::new(env!("CARGO_BIN_EXE_milvaion-worker"))
            .env_clear()
            .env("PATH", std::env::var("PATH").expect("PATH is set"))
            .env("AMQP_URL", services::amqp_url())
            .env("REDIS_URL", services::redis_url())
            .env("MILVAION_PREFIX", &prefix)
            .env("MILVAION_KEY_PREFIX", format!("{prefix}:"))
            .env("MILVAION_WORKER_ID", "w")
            .env("MILVAION_OUTBOX", "off")
            .env("MILVAION_SHUTDOWN_GRACE_SECONDS", "0")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the program starts");
        let log = Arc::new(Mutex::new(Vec::new()));
        let (collected, stderr) = (log.clone(), worker.stderr.take().expect("standard error is piped"));
        tokio::spawn(async move {
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                collected.lock().expect("the mutex is not poisoned").push(line);
            }
        });
        let topology = Topology::new(prefix.as_str());
        Self { topology, channel, _connection: connection, worker, log, messages: Vec::new() }
    }

    /// Waits until the worker consumes messages of a job type, and publishes a run.
    async fn publish(&self, job_type: &str, input: Value) -> OccurrenceId {
        self.publish_in_trace(job_type, input, None).await
    }

    /// As [`publish`](Self::publish), with a position in a trace.
    pub(crate) async fn publish_in_trace(
        &self,
        job_type: &str,
        input: Value,
        traceparent: Option<&str>,
    ) -> OccurrenceId {
        let queue = self.topology.job_queue("w", job_type);
        let ready = async {
            while self.consumers(&queue).await == 0 {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(WAIT_TIMEOUT, ready)
            .await
            .unwrap_or_else(|_| panic!("the worker does not consume {job_type}: {}", self.output()));
        let now = std::time::SystemTime::now().into();
        let occurrence_id = OccurrenceId::from_parts(now, rand::random());
        let message = JobMessage {
            traceparent: traceparent.map(str::to_owned),
            ..messages::job_message(occurrence_id, job_type, input, now)
        };
        let key = Topology::routing_key("w", job_type, occurrence_id);
        let body = serde_json::to_vec(&message).expect("a message can be serialized");
        let exchange = self.topology.jobs_exchange();
        self.channel
            .basic_publish(
                exchange.as_str().into(),
                key.as_str().into(),
                BasicPublishOptions::default(),
                &body,
                BasicProperties::default(),
            )
            .await
            .expect("the message is sent");
        occurrence_id
    }

    /// Publishes a run and waits for its end.
    async fn run(&mut self, job_type: &str, input: Value) -> StatusReport {
        let occurrence = self.publish(job_type, input).await;
        self.ended(occurrence).await
    }

    pub(crate) async fn ended(&mut self, occurrence: OccurrenceId) -> StatusReport {
        let waiting = async {
            loop {
                for body in self.take(&self.topology.status()).await {
                    let message: StatusMessage = serde_json::from_str(&body).expect("a message of the protocol");
                    self.messages.push(body);
                    let is_end = |report: &StatusReport| report.occurrence_id == occurrence && report.status.is_final();
                    if let Some(end) = message.into_reports().into_iter().find(is_end) {
                        return end;
                    }
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        let end = timeout(WAIT_TIMEOUT, waiting).await;
        end.unwrap_or_else(|_| panic!("the occurrence does not end: {}", self.output()))
    }

    async fn consumers(&self, queue: &str) -> u32 {
        // The broker closes a channel on which a missing queue is declared passively.
        let channel = self._connection.create_channel().await.expect("a channel");
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let found = channel.queue_declare(queue.into(), options, FieldTable::default()).await;
        found.map_or(0, |queue| queue.consumer_count())
    }

    async fn take(&self, queue: &str) -> Vec<String> {
        let mut taken = Vec::new();
        while let Ok(Some(got)) = self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await {
            taken.push(String::from_utf8(got.delivery.data).expect("text"));
        }
        taken
    }

    fn output(&self) -> String {
        self.log.lock().expect("the mutex is not poisoned").join("\n")
    }

    /// Stops the worker gracefully. Returns its log and all its messages.
    pub(crate) async fn stop(mut self) -> String {
        let pid = self.worker.id().and_then(|pid| pid.try_into().ok()).expect("the process runs");
        kill(Pid::from_raw(pid), Signal::SIGTERM).expect("the signal is sent");
        timeout(WAIT_TIMEOUT, self.worker.wait()).await.expect("it stops in time").expect("an exit status");
        let topology = &self.topology;
        let queues = [topology.status(), topology.logs(), topology.registration()];
        for queue in &queues {
            let taken = self.take(queue).await;
            self.messages.extend(taken);
        }
        for queue in queues.into_iter().chain([topology.dead_letter_queue()]).chain(
            ["http-request", "sql-query", "send-email", "shell-command"].map(|name| topology.job_queue("w", name)),
        ) {
            let _ = self.channel.queue_delete(queue.as_str().into(), Default::default()).await;
        }
        let exchanges = [
            topology.jobs_exchange(),
            topology.dead_letter_exchange(),
            topology.status(),
            topology.logs(),
            topology.registration(),
        ];
        for exchange in exchanges {
            let _ = self.channel.exchange_delete(exchange.as_str().into(), Default::default()).await;
        }
        format!("{}\n{}", self.output(), self.messages.join("\n"))
    }
}

/// Creates a folder for one test.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("milvaion-builtin-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[tokio::test]
async fn secrets_are_redacted_at_every_log_level() {
    // A site that returns the request in a response with an error status.
    let echo = |headers: HeaderMap, body: String| async move {
        (axum::http::StatusCode::IM_A_TEAPOT, format!("{headers:?} {body}"))
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let site = listener.local_addr().expect("bound");
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/", any(echo))).await });
    let secrets = folder("secrets");
    std::fs::write(secrets.join("file.key"), "canary-of-file\n").expect("written");
    let database = services::database_url();
    let mut harness = WorkerHarness::start(&[
        ("RUST_LOG", "trace"),
        ("MILVAION_SECRET_WORD", "canary/of+env"),
        // A text that the worker itself logs when it stops.
        ("MILVAION_SECRET_LAST", "worker has stopped"),
        ("MILVAION_SECRETS_DIR", secrets.to_str().expect("text")),
        ("MILVAION_HTTP_ALLOW", "127.0.0.0/8"),
        // Nothing listens on this port: if the worker used these proxies, its requests would fail.
        ("HTTP_PROXY", "http://127.0.0.1:1"),
        ("http_proxy", "http://127.0.0.1:1"),
        ("MILVAION_SHELL", "1"),
        ("MILVAION_SQL_MAIN", &database),
        ("MILVAION_SMTP_NEWS", "smtp://u:canary-of-smtp@127.0.0.1:1?from=a@b.test"),
    ])
    .await;

    let input = json!({
        "url": format!("http://{site}/?k={{{{secret:word}}}}"), "method": "POST",
        "headers": {"x-key": "{{secret:file.key}}"}, "body": "{{secret:word}}",
        "auth": {"type": "basic", "username": "u", "password": "{{secret:word}}"}
    });
    let end = harness.run("http-request", input).await;
    let text = end.exception.unwrap_or_default();
    assert!(text.contains("returned status 418") && text.contains("{{secret:file.key}}"), "{text}");

    let input =
        json!({"argv": ["sh", "-c", "echo $0 $1; echo $1 | base64; exit 3", "{{secret:word}}", "{{secret:file.key}}"]});
    let end = harness.run("shell-command", input).await;
    assert!(end.exception.is_some_and(|text| text.contains("{{secret:word}} {{secret:file.key}}")));

    let input = json!({"connection": "main", "query": "select $1::text::int", "parameters": ["{{secret:word}}"]});
    let end = harness.run("sql-query", input).await;
    assert!(end.exception.is_some_and(|text| text.contains("\"{{secret:word}}\"")));

    let input =
        json!({"account": "news", "to": ["a@b.test"], "subject": "{{secret:word}}", "text": "{{secret:file.key}}"});
    let end = harness.run("send-email", input).await;
    assert_eq!(end.status, OccurrenceStatus::Failed);

    harness.run("http-request", json!({"url": "http://127.0.0.1:1/", "body": "{{secret:last}}"})).await;
    let end = harness.run("http-request", json!({"url": "http://x/", "body": "{{secret:missing}}"})).await;
    assert!(end.exception.is_some_and(|text| text.contains("\"missing\" is unknown")));

    let all = harness.stop().await;
    // The enabled job types and the aliases.
    for sentence in ["with the connections main", "with the accounts news", "shell-command is on", "http-request is on"]
    {
        assert!(all.contains(sentence), "{sentence}");
    }
    // The log has its highest level, so the absence of a secret is significant.
    assert!(all.contains("TRACE") && all.contains("{{secret:word}}") && all.contains("{{secret:last}}"));
    let password = url_password(&database);
    for trace in ["canary", "worker has stopped", "Y2FuYXJ5", "NhbmFye", "jYW5hcn", "63616e617279", password.as_str()] {
        let found = all.lines().find(|line| line.contains(trace));
        assert!(found.is_none(), "{trace}: {}", found.unwrap_or_default());
    }
    std::fs::remove_dir_all(secrets).expect("removed");
}

fn url_password(url: &str) -> String {
    let rest = url.split_once("://").expect("a URL").1;
    rest.split_once('@').and_then(|(account, _)| account.split_once(':')).expect("a password").1.to_owned()
}

#[tokio::test]
async fn http_requests_cannot_reach_the_workers_services() {
    let mut harness = WorkerHarness::start(&[("MILVAION_HTTP_ALLOW", "0.0.0.0/0,::/0")]).await;
    for (name, url) in [("AMQP_URL", services::amqp_url()), ("REDIS_URL", services::redis_url())] {
        let port = url.rsplit_once('@').expect("an account").1.split(['/', '?']).next().expect("a host");
        let port = port.rsplit_once(':').expect("a port").1;
        for host in ["127.0.0.1", "127.1", "0", "[::1]", "[::ffff:127.0.0.1]", "localhost", "localhost."] {
            let end = harness.run("http-request", json!({"url": format!("http://{host}:{port}/")})).await;
            let text = end.exception.unwrap_or_default();
            assert!(text.contains("depends on; no job may reach it"), "{name} {host}: {text}");
        }
    }
    let all = harness.stop().await;
    assert!(all.contains("shell-command is off") && all.contains("sql-query is off"), "{all}");
}

#[tokio::test]
async fn stopping_worker_ends_its_child_processes() {
    let mut harness = WorkerHarness::start(&[("MILVAION_SHELL", "1")]).await;
    let note = folder("stops").join("pids");
    // A script that cleans up on SIGTERM, with a child process that ignores it. The run is handed back after a second, and
    // may start elsewhere at once, so nothing of it may run any longer.
    let script = format!(
        "(trap '' TERM; while :; do sleep 0.1; done) & echo $$ $! > {0}; trap 'sleep 0.3; echo tidied >> {0}; exit' TERM; while :; do sleep 0.1; done",
        note.display()
    );
    let occurrence = harness.publish("shell-command", json!({"script": script, "graceSeconds": 30})).await;
    let begun = async {
        while !std::fs::read_to_string(&note).is_ok_and(|text| text.contains('\n')) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(WAIT_TIMEOUT, begun).await.expect("the script starts");
    harness.messages.clear();
    let all = harness.stop().await;
    let text = std::fs::read_to_string(&note).expect("a note");
    assert!(text.ends_with("tidied\n"), "the script could clean up: {text}");
    for pid in text.lines().next().expect("numbers").split(' ') {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z"), "{pid} still runs: {state}");
    }
    assert!(all.contains(&occurrence.to_string()));
    std::fs::remove_file(note).expect("removed");
}

#[tokio::test]
async fn invalid_settings_are_reported_without_passwords() {
    let output = Command::new(env!("CARGO_BIN_EXE_milvaion-worker"))
        .env_clear()
        .envs([
            ("MILVAION_SQL_X", "mysql://u:canary@host/x"),
            ("MILVAION_SMTP_X", "http://u:canary@host"),
            ("MILVAION_HTTP_ALLOW", "localhost"),
            ("MILVAION_CAPACITY", "0"),
        ])
        .output()
        .await
        .expect("the program starts");
    let text = String::from_utf8(output.stderr).expect("text");
    assert!(!output.status.success());
    for name in ["MILVAION_SQL_X", "MILVAION_SMTP_X", "MILVAION_HTTP_ALLOW", "MILVAION_CAPACITY"] {
        assert!(text.contains(name), "{text}");
    }
    assert!(!text.contains("canary"), "{text}");
}
