//! What a worker remembers while nobody listens, and what the next one makes of it.

mod broker_proxy;
mod disk_full;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use broker_proxy::BrokerProxy;
use milvaion_protocol::{
    id::OccurrenceId,
    message::{JobMessage, RegistrationMessage, StatusReport, first_log_seq},
    status::OccurrenceStatus::{self, Completed, Running, Unknown},
};
use milvaion_worker::{Job, JobContext, JobError};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use sqlx::{ConnectOptions, Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use tokio::{
    process::{Child, Command},
    sync::Semaphore,
};

use crate::common::{WorkerTestEnv, eventually};

/// Writes as many lines as it is told, then waits for a pass, unless there are to be none.
#[derive(Clone)]
struct LogWritingJob(Arc<Semaphore>);

#[derive(Deserialize, JsonSchema)]
struct LogWritingInput {
    #[serde(default)]
    lines: u32,
    #[serde(default)]
    waits: bool,
}

impl Job for LogWritingJob {
    const TYPE: &'static str = "scribe";
    const DESCRIPTION: &'static str = "Writes.";
    const CONCURRENCY: u16 = 20;
    type Input = LogWritingInput;
    type Output = ();

    async fn run(&self, ctx: &JobContext, orders: LogWritingInput) -> Result<(), JobError> {
        if orders.waits {
            self.0.acquire().await?.forget();
        }
        for n in 0..orders.lines {
            ctx.info(format!("line {n}"));
        }
        Ok(())
    }
}

impl LogWritingJob {
    fn new() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    /// Lets one run go on: the one that has waited longest.
    fn pass(&self) {
        self.0.add_permits(1);
    }
}

/// The file of the only worker.
fn file(stack: &WorkerTestEnv) -> PathBuf {
    stack.outbox.join(format!("{}-0.sqlite", stack.worker_id))
}

async fn look(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new().filename(path).connect().await.expect("the outbox is there")
}

/// What the outbox holds, in order: reports, the starts of runs that go on, lines.
async fn held(stack: &WorkerTestEnv) -> (Vec<StatusReport>, usize, usize) {
    let mut outbox = look(&file(stack)).await;
    let rows: Vec<(i32, String)> =
        sqlx::query_as("SELECT kind, body FROM entry ORDER BY id").fetch_all(&mut outbox).await.expect("read");
    outbox.close().await.expect("closed");
    let count = |kind| rows.iter().filter(|row| row.0 == kind).count();
    let reports = rows.iter().filter(|row| row.0 == 0).map(|row| serde_json::from_str(&row.1).expect("a report"));
    (reports.collect(), count(1), count(2))
}

async fn is_empty(stack: &WorkerTestEnv) -> bool {
    let (reports, begun, lines) = held(stack).await;
    reports.is_empty() && begun == 0 && lines == 0
}

async fn has_ended(stack: &WorkerTestEnv, message: &JobMessage) -> bool {
    stack.reports().await.iter().any(|report| is_end(report) && report.occurrence_id == message.occurrence_id)
}

fn is_end(report: &StatusReport) -> bool {
    report.status != Running
}

/// Whose ends these are, in order.
fn ends(reports: &[StatusReport]) -> Vec<OccurrenceId> {
    reports.iter().filter(|report| is_end(report)).map(|report| report.occurrence_id).collect()
}

/// Waits until so many runs are on disk, and the worker knows that the broker has their starts.
async fn on_disk(stack: &WorkerTestEnv, runs: usize) {
    eventually("the runs are on disk", async || held(stack).await.1 == runs).await;
}

/// Publishes jobs that wait for a pass, each begun before the next.
async fn begin(stack: &WorkerTestEnv, count: usize) -> Vec<JobMessage> {
    let mut messages = Vec::new();
    for _ in 0..count {
        let message = stack.message("scribe", json!({"waits": true, "lines": 1}));
        stack.publish(&message).await;
        eventually("it runs", async || {
            stack.reports().await.iter().any(|report| report.occurrence_id == message.occurrence_id)
        })
        .await;
        messages.push(message);
    }
    messages
}

#[tokio::test]
async fn reports_wait_in_order_while_the_broker_is_away_and_go_when_it_has_confirmed_them() {
    let mut stack = WorkerTestEnv::new().await;
    let hold = stack.hold_confirmations().await;
    let line = BrokerProxy::new(&mut stack).await;
    let scribe = LogWritingJob::new();
    let worker = stack.start(stack.worker().job(scribe.clone()), "scribe").await;
    let messages = begin(&stack, 10).await;
    on_disk(&stack, 10).await;
    let order: Vec<OccurrenceId> = messages.iter().map(|message| message.occurrence_id).collect();

    // The broker hears and does not answer: what is sent, and what waits behind it, is kept.
    hold.set(true);
    for n in 1..=3 {
        scribe.pass();
        eventually("the end is kept", async || ends(&held(&stack).await.0) == order[..n]).await;
    }
    eventually("the broker has the first", async || has_ended(&stack, &messages[0]).await).await;
    assert_eq!(ends(&held(&stack).await.0), order[..3], "deleted before it was confirmed");
    // Now it is gone.
    line.cut();
    for n in 4..=10 {
        scribe.pass();
        eventually("the end is kept", async || ends(&held(&stack).await.0) == order[..n]).await;
    }
    let (_, begun, lines) = held(&stack).await;
    assert_eq!((begun, lines), (0, 10));
    hold.set(false);
    line.mend();
    eventually("all ends arrive", async || has_ended(&stack, &messages[9]).await).await;
    let mut arrived = ends(&stack.reports().await);
    // What the broker had heard, it hears again.
    arrived.dedup();
    let again = arrived.iter().rposition(|id| *id == order[0]).expect("it is there");
    assert_eq!(arrived[again..], order, "{arrived:?}");
    eventually("the outbox is empty", async || is_empty(&stack).await).await;
    worker.stop().await;
    stack.clean(&["scribe"]).await;
}

#[tokio::test]
async fn lines_beyond_the_bound_are_given_up_and_counted_in_the_log() {
    let mut stack = WorkerTestEnv::new().await;
    let line = BrokerProxy::new(&mut stack).await;
    let scribe = LogWritingJob::new();
    let worker = stack.start(stack.worker().outbox_bounds(100, 1).job(scribe.clone()), "scribe").await;
    let message = stack.message("scribe", json!({"waits": true, "lines": 350}));
    stack.publish(&message).await;
    on_disk(&stack, 1).await;
    line.cut();
    // Not before the worker knows.
    let (queue, mut logs) = (stack.topology.job_queue(&stack.worker_id, "scribe"), Vec::new());
    eventually("nobody consumes", async || stack.queue(&queue).await.is_some_and(|(_, consumers)| consumers == 0))
        .await;
    scribe.pass();
    eventually("the end is kept", async || held(&stack).await.0.len() == 1).await;
    eventually("the file has as many lines as memory", async || held(&stack).await.2 == 100).await;
    line.mend();
    stack.ended(message.occurrence_id).await;
    eventually("the last line arrives", async || {
        logs.extend(stack.logs().await.into_iter().flat_map(|message| message.lines));
        logs.iter().any(|line| line.message == "line 349")
    })
    .await;
    assert!(logs[0].message.starts_with("250 lines before this one were given up"), "{}", logs[0].message);
    let numbers: Vec<i64> = logs.iter().map(|line| line.seq - first_log_seq(1)).collect();
    assert_eq!(numbers, (249..350).collect::<Vec<_>>());
    eventually("the outbox is empty", async || is_empty(&stack).await).await;
    worker.stop().await;
    stack.clean(&["scribe"]).await;
}

#[tokio::test]
async fn what_an_orderly_end_could_not_tell_the_next_process_does() {
    let mut stack = WorkerTestEnv::new().await;
    let line = BrokerProxy::new(&mut stack).await;
    let scribe = LogWritingJob::new();
    let worker = stack.start(stack.worker().job(scribe.clone()), "scribe").await;
    let message = begin(&stack, 1).await.remove(0);
    on_disk(&stack, 1).await;
    line.cut();
    scribe.pass();
    worker.stop().await;
    assert!(!has_ended(&stack, &message).await);
    line.mend();
    let worker = stack.start(stack.worker().job(scribe.clone()), "scribe").await;
    let reports = stack.ended(message.occurrence_id).await;
    assert_eq!(reports.iter().map(|report| report.status).collect::<Vec<_>>(), [Running, Completed]);
    worker.stop().await;
    stack.clean(&["scribe"]).await;
}

#[tokio::test]
async fn an_outbox_that_cannot_be_written_lets_nothing_begin_and_what_runs_go_on() {
    let stack = WorkerTestEnv::new().await;
    let scribe = LogWritingJob::new();
    let worker = stack.start(stack.worker().job(scribe.clone()), "scribe").await;
    // Whoever holds SQLite's lock keeps the worker from writing, as a full disk would.
    let mut intruder = look(&file(&stack)).await;
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut intruder).await.expect("locked");
    let long = begin(&stack, 1).await.remove(0);
    let mut refused = None;
    eventually("nothing begins any more", async || {
        let message = stack.message("scribe", json!({}));
        stack.publish(&message).await;
        let wait = tokio::time::timeout(Duration::from_secs(1), stack.ended(message.occurrence_id));
        if wait.await.is_err() {
            refused = Some(message);
        }
        refused.is_some()
    })
    .await;
    let refused = refused.expect("one was refused");
    scribe.pass();
    assert_eq!(stack.ended(long.occurrence_id).await.last().map(|report| report.status), Some(Completed));
    let is_heard =
        |reports: Vec<StatusReport>| reports.iter().any(|report| report.occurrence_id == refused.occurrence_id);
    assert!(!is_heard(stack.reports().await), "it has begun");
    eventually("a heartbeat says why", async || {
        stack.registrations().await.iter().any(|said| {
            let RegistrationMessage::Heartbeat(beat) = said else { return false };
            beat.notice.as_deref().is_some_and(|notice| notice.starts_with("No new work is taken"))
        })
    })
    .await;
    sqlx::raw_sql("ROLLBACK").execute(&mut intruder).await.expect("unlocked");
    intruder.close().await.expect("closed");
    assert_eq!(stack.ended(refused.occurrence_id).await.last().map(|report| report.status), Some(Completed));
    worker.stop().await;
    stack.clean(&["scribe"]).await;
}

/// The worker that comes with Milvaion, in a process of its own.
pub(crate) fn process(stack: &WorkerTestEnv) -> Command {
    let here = std::env::current_exe().expect("the test has a path");
    let folder = here.ancestors().nth(2).expect("it lies in target/<profile>/deps");
    let mut command = Command::new(folder.join("milvaion-worker"));
    command
        .envs(stack.environment())
        .envs([("MILVAION_SHELL", "1"), ("RUST_LOG", "info")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true);
    command
}

pub(crate) fn pid(process: &Child) -> Pid {
    Pid::from_raw(process.id().expect("it runs").try_into().expect("a pid"))
}

/// Runs a shell until a file of this name is there, and says so. It ends with the test's folder too.
fn until(stack: &WorkerTestEnv, name: &str) -> JobMessage {
    let script = "while [ -d \"$1\" ] && [ ! -e \"$1/$2\" ]; do sleep 0.02; done; echo \"$2\"";
    let argv = json!(["sh", "-c", script, "sh", stack.outbox, name]);
    stack.message("shell-command", json!({ "argv": argv }))
}

#[tokio::test]
async fn a_killed_worker_is_spoken_for_by_the_next_one_at_once() {
    let mut stack = WorkerTestEnv::new().await;
    let line = BrokerProxy::new(&mut stack).await;
    let mut first = process(&stack).spawn().expect("started");
    let queue = stack.topology.job_queue(&stack.worker_id, "shell-command");
    eventually("it takes work", async || stack.queue(&queue).await.is_some_and(|(_, consumers)| consumers > 0)).await;
    let (open, ending) = (until(&stack, "never"), until(&stack, "soon"));
    for message in [&open, &ending] {
        stack.publish(message).await;
    }
    on_disk(&stack, 2).await;
    line.cut();
    fs::write(stack.outbox.join("soon"), "").expect("written");
    eventually("the end of one is on disk", async || {
        let (reports, begun, lines) = held(&stack).await;
        ends(&reports) == [ending.occurrence_id] && begun == 1 && lines == 1
    })
    .await;
    kill(pid(&first), Signal::SIGKILL).expect("killed");
    first.wait().await.expect("it has ended");
    line.mend();
    assert!(!has_ended(&stack, &ending).await);

    let since = Instant::now();
    let second = process(&stack).spawn().expect("started");
    eventually("the next one tells both ends", async || {
        has_ended(&stack, &open).await && has_ended(&stack, &ending).await
    })
    .await;
    assert!(since.elapsed() < Duration::from_secs(10), "the server would have noticed sooner");
    let told = |reports: Vec<StatusReport>, of: &JobMessage| -> Vec<(OccurrenceStatus, Option<u64>)> {
        let of = |report: &StatusReport| report.occurrence_id == of.occurrence_id;
        reports.into_iter().filter(of).map(|report| (report.status, report.retry_after_ms)).collect()
    };
    let reports = stack.reports().await;
    assert_eq!(told(reports.clone(), &open), [(Running, None), (Unknown, None)]);
    assert_eq!(told(reports.clone(), &ending), [(Running, None), (Completed, None)]);
    let interrupted = reports.iter().find(|report| report.status == Unknown).expect("it is there");
    assert!(interrupted.exception.as_deref().is_some_and(|text| text.starts_with("interrupted: ")));
    // In the name of the process that ran it.
    assert!(reports.iter().all(|report| report.instance_id == reports[0].instance_id));
    let lines: Vec<String> =
        stack.logs().await.into_iter().flat_map(|message| message.lines).map(|line| line.message).collect();
    assert_eq!(lines, ["soon"]);
    eventually("the outbox is empty", async || is_empty(&stack).await).await;
    assert_eq!(stack.queue(&queue).await.expect("it is there").0, 0);

    kill(pid(&second), Signal::SIGTERM).expect("told");
    assert!(second.wait_with_output().await.expect("it ends").status.success());
    // What the killed worker left running ends too.
    fs::write(stack.outbox.join("never"), "").expect("written");
    stack.clean(&["http-request", "shell-command"]).await;
}

#[tokio::test]
async fn two_processes_share_a_folder_and_never_a_file() {
    let stack = WorkerTestEnv::new().await;
    let start =
        |outbox: &Path| process(&stack).env("MILVAION_OUTBOX", outbox).stderr(Stdio::piped()).spawn().expect("started");
    let first = start(&stack.outbox);
    let second = start(&stack.outbox);
    let files = || ["w-0.sqlite", "w-1.sqlite"].map(|name| stack.outbox.join(name));
    eventually("each has a file", async || files().iter().all(|file| file.exists())).await;
    let refused = start(&files()[0]).wait_with_output().await.expect("it ends");
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("MILVAION_OUTBOX names") && said.contains("another process holds"), "{said}");
    for running in [first, second] {
        kill(pid(&running), Signal::SIGTERM).expect("told");
        let ended = running.wait_with_output().await.expect("it ends");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
    stack.clean(&["http-request", "shell-command"]).await;
}

#[tokio::test]
async fn a_worker_with_a_damaged_outbox_says_so_and_works() {
    let stack = WorkerTestEnv::new().await;
    fs::create_dir_all(&stack.outbox).expect("made");
    fs::write(file(&stack), "no database at all ".repeat(500)).expect("written");
    let running = process(&stack).stderr(Stdio::piped()).spawn().expect("started");
    let queue = stack.topology.job_queue(&stack.worker_id, "shell-command");
    eventually("it takes work", async || stack.queue(&queue).await.is_some_and(|(_, consumers)| consumers > 0)).await;
    let message = stack.message("shell-command", json!({"argv": ["true"]}));
    stack.publish(&message).await;
    assert_eq!(stack.ended(message.occurrence_id).await.last().map(|report| report.status), Some(Completed));
    kill(pid(&running), Signal::SIGTERM).expect("told");
    let ended = running.wait_with_output().await.expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    let names = ["w-0.sqlite", "w-0.sqlite.damaged-"].map(|name| stack.outbox.join(name).display().to_string());
    let is_said = |line: &str| line.contains("ERROR") && names.iter().all(|name| line.contains(name));
    assert!(said.lines().any(is_said), "{said}");
    stack.clean(&["http-request", "shell-command"]).await;
}
