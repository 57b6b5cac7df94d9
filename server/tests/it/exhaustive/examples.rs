//! The examples of the SDK, as the programs that users start: each registers, runs and ends in an orderly way.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use milvaion_client::{BrokerClient, Enqueue, EnqueueClient};
use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus};
use milvaion_server::{config::ServerConfig, lifecycle::Server};
use milvaion_test_support::{runs, server_env, wait};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
};

/// An example that runs, with the worker id that is its name.
struct ExampleProcess(Child);

impl ExampleProcess {
    /// Starts it. A test that pipes the output must read it, because the program waits when the pipe is full.
    fn start(name: &str, config: &ServerConfig, output: Stdio) -> Self {
        let child = Self::command(name, config).stdout(output).stderr(Stdio::inherit()).spawn();
        Self(child.expect("it starts"))
    }

    /// Returns the command that starts it with the services of the server.
    fn command(name: &str, config: &ServerConfig) -> Command {
        let test = std::env::current_exe().expect("the path of this test");
        let profile = test.parent().and_then(Path::parent).expect("the folder of the profile");
        let program = profile.join("examples").join(name);
        assert!(program.exists(), "build it: cargo build --package milvaion-worker --examples");
        let folder: PathBuf = config.data_dir.join(&config.broker.prefix);
        std::fs::create_dir_all(&folder).expect("created");
        let mut command = Command::new(program);
        command
            .env("AMQP_URL", &config.broker.url)
            .env("REDIS_URL", &config.cache.url)
            .env("MILVAION_PREFIX", &config.broker.prefix)
            .env("MILVAION_KEY_PREFIX", &config.cache.key_prefix)
            .env("MILVAION_WORKER_ID", name)
            .env("MILVAION_OUTBOX", "off")
            .env("TMPDIR", folder)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Waits for a line of the output that contains `text`.
    async fn prints(&mut self, text: &str) {
        await_lines(self.0.stdout.as_mut().expect("it is read"), [text]).await;
    }

    async fn stop(mut self) {
        let pid = self.0.id().expect("it runs");
        kill(Pid::from_raw(pid.try_into().expect("a process id")), Signal::SIGTERM).expect("sent");
        let status = self.0.wait().await.expect("it can be awaited");
        assert!(status.success(), "{status}");
    }
}

/// Waits for lines that contain these texts, in their order, and returns them.
async fn await_lines<const N: usize>(output: impl AsyncRead + Unpin, texts: [&str; N]) -> [String; N] {
    let mut lines = BufReader::new(output).lines();
    let mut found = texts.map(str::to_owned);
    for text in &mut found {
        let line = async {
            loop {
                let line = lines.next_line().await.expect("UTF-8").unwrap_or_else(|| panic!("{text:?} is not printed"));
                if line.contains(&**text) {
                    return line;
                }
            }
        };
        *text =
            tokio::time::timeout(wait::WAIT_TIMEOUT, line).await.unwrap_or_else(|_| panic!("{text:?} is not printed"));
    }
    found
}

struct ExamplesHarness {
    config: ServerConfig,
    server: Server,
    broker: BrokerClient,
}

impl ExamplesHarness {
    async fn new() -> Self {
        let config = server_env::config().await;
        let server = server_env::start(&config).await;
        let broker = BrokerClient::new(&config.broker.url, &config.broker.prefix).expect("a valid address");
        Self { config, server, broker }
    }

    /// Starts an example and waits until it has registered.
    async fn start(&self, name: &str) -> ExampleProcess {
        let example = ExampleProcess::start(name, &self.config, Stdio::inherit());
        wait::until("the registration", async || {
            let now = self.server.clock.now();
            let since = now - chrono::Duration::hours(1);
            let workers = self.server.store.workers(since, now).await.expect("read");
            workers.iter().any(|worker| worker.id == name)
        })
        .await;
        example
    }

    async fn enqueue(&self, example: &str, job_type: &str, input: Value) -> OccurrenceId {
        let occurrence = Enqueue::job_type(example, job_type).input(input);
        EnqueueClient::new(self.broker.clone()).enqueue(occurrence).await.expect("accepted").id()
    }

    /// Starts an example, and compares the end of one occurrence for each type and input with the expected one.
    async fn check(&self, name: &str, cases: &[(&str, Value, Result<&str, &str>)]) {
        let example = self.start(name).await;
        for (job_type, input, expected) in cases {
            let id = self.enqueue(name, job_type, input.clone()).await;
            let view = runs::ended(&self.server, id).await;
            let end = match view.row.status {
                OccurrenceStatus::Completed => Ok(view.result.unwrap_or_default()),
                _ => Err(view.exception.unwrap_or_default()),
            };
            let is_expected = match (&end, expected) {
                (Ok(result), Ok(expected)) => result.starts_with(expected),
                (Err(error), Err(expected)) => error.contains(expected),
                _ => false,
            };
            assert!(is_expected, "{name} {job_type} {input}: {end:?}");
        }
        example.stop().await;
    }

    async fn close(self) {
        self.broker.close().await;
        self.server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_with_jobs_run_them() {
    let harness = ExamplesHarness::new().await;
    let ann = json!({"name": "Ann"});
    let order = |number: u32| json!({"number": number});
    let pay = |amount: i64| json!({"amount": amount, "account": "shop"});
    let cases = [
        ("hello", vec![("hello", ann, Ok("Hello, Ann!"))]),
        ("state", vec![("import-eu", json!({"rows": 2}), Ok("2")), ("import-us", json!({"rows": 3}), Ok("5"))]),
        ("progress", vec![("import-file", json!({"rows": 2}), Ok("2"))]),
        ("retries", vec![("charge", pay(5), Ok("charged shop")), ("charge", pay(0), Err("must be positive"))]),
        ("layers", vec![("greet", json!("Ann"), Ok("Hello, Ann!"))]),
        ("testing", vec![("ship", order(7), Ok("order 7 in attempt 1")), ("ship", order(0), Err("not exist"))]),
    ];
    futures::future::join_all(cases.iter().map(|(name, cases)| harness.check(name, cases))).await;
    harness.close().await;
}

/// What a new user sees in the terminal.
#[tokio::test(flavor = "multi_thread")]
async fn first_run_says_what_it_offers_and_where_to_look() {
    let harness = ExamplesHarness::new().await;
    let mut hello = ExampleProcess::command("hello", &harness.config);
    let mut process = hello.stderr(Stdio::piped()).spawn().expect("it starts");
    let texts = ["worker hello starts as instance hello-", "the page Workers of the dashboard shows it"];
    let [line, _] = await_lines(process.stderr.as_mut().expect("it is read"), texts).await;
    assert!(line.contains("it offers hello over the broker at 127.0.0.1:"), "{line}");

    drop(process);
    let mut hello = ExampleProcess::command("hello", &harness.config);
    hello.env("AMQP_URL", "amqp://127.0.0.1:1/%2f").stderr(Stdio::piped());
    let mut process = hello.spawn().expect("it starts");
    let texts = ["cannot connect to the broker"];
    let [line] = await_lines(process.stderr.as_mut().expect("it is read"), texts).await;
    assert!(line.contains("at 127.0.0.1:1; check AMQP_URL if this persists") && line.contains("retry_ms="), "{line}");

    drop(process);
    let mut hello = ExampleProcess::command("hello", &harness.config);
    hello.env("REDIS_URL", "redis://127.0.0.1:1").stderr(Stdio::piped());
    let mut process = hello.spawn().expect("it starts");
    let texts = ["cannot write the heartbeat to Redis at 127.0.0.1:1; check REDIS_URL if this persists"];
    let [line] = await_lines(process.stderr.as_mut().expect("it is read"), texts).await;
    assert!(line.contains("attempts=1"), "{line}");
    harness.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn example_enqueues_and_each_occurrence_has_its_parent() {
    let harness = ExamplesHarness::new().await;
    let example = harness.start("enqueue").await;
    let input = json!({"addresses": ["ann@example.com", "ben@example.com", "ann@example.com"]});
    let parent = harness.enqueue("enqueue", "newsletter", input).await;
    let ended = runs::ended(&harness.server, parent).await;
    assert_eq!(ended.result.as_deref(), Some("new mails: 2; enqueued before: 1; rejected: 0"));
    wait::until("two mails, and one for later", async || {
        let view = harness.server.store.occurrence(parent, 100, harness.server.clock.now()).await.expect("read");
        let children = view.expect("it exists").children;
        let completed = children.iter().filter(|child| child.status == OccurrenceStatus::Completed).count();
        (children.len(), completed) == (3, 2)
    })
    .await;
    example.stop().await;
    harness.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_with_loops_run_them() {
    let harness = ExamplesHarness::new().await;
    let start = |name: &str| ExampleProcess::start(name, &harness.config, Stdio::piped());
    let (mut feed, mut stored) = (start("singleton"), start("singleton_sql"));
    tokio::join!(feed.prints("run 1 with epoch 1"), stored.prints("stored the price 101 with epoch 1"));
    tokio::join!(feed.stop(), stored.stop());
    harness.close().await;
}
