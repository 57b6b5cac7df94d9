//! What holds between a worker and a real broker.
//!
//! Needs `AMQP_URL` and `REDIS_URL`; each test uses names of its own on them.

mod common;
mod outbox;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use common::{Stack, eventually, nothing, now, tell_of_one_run};
use milvaion_worker::{Job, JobContext, JobError};
use protocol::{
    id::OccurrenceId,
    message::{Denial, RegistrationMessage},
    status::OccurrenceStatus,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
};

/// Counts its runs; each takes as long as its gate is shut.
#[derive(Clone)]
struct Counter {
    runs: Arc<AtomicU32>,
    gate: Arc<Semaphore>,
}

impl Counter {
    fn new(open: bool) -> Self {
        Self { runs: Arc::default(), gate: Arc::new(Semaphore::new(if open { Semaphore::MAX_PERMITS } else { 0 })) }
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    fn open(&self) {
        self.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    }
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

impl Job for Counter {
    const TYPE: &'static str = "count";
    const DESCRIPTION: &'static str = "Counts its runs.";
    const CONCURRENCY: u16 = 1;
    type Input = Nothing;
    type Output = ();

    async fn run(&self, ctx: &JobContext, _: Nothing) -> Result<(), JobError> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        ctx.info("counted");
        let _pass = self.gate.acquire().await?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_published_twice_runs_once() {
    let stack = Stack::new().await;
    let counter = Counter::new(true);
    let workers = [
        stack.start(stack.worker().job(counter.clone()), "count").await,
        stack.start(stack.worker().job(counter.clone()), "count").await,
    ];
    let messages: Vec<_> = (0..20).map(|_| stack.message("count", nothing())).collect();
    for message in &messages {
        stack.publish(message).await;
        stack.publish(message).await;
    }
    for message in &messages {
        let reports = stack.ended(message.occurrence_id).await;
        assert!(tell_of_one_run(&reports), "{reports:?}");
    }
    // Late copies come after the end, and are dropped too.
    stack.publish(&messages[0]).await;
    let queue = stack.topology.job_queue("w", "count");
    eventually("the queue is empty", async || stack.queue(&queue).await.is_some_and(|(waiting, _)| waiting == 0)).await;
    for worker in workers {
        worker.stop().await;
    }
    assert_eq!(counter.runs(), 20);
    // Whatever had not been acknowledged would be back by now.
    assert_eq!(stack.queue(&queue).await, Some((0, 0)));
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_higher_attempt_of_the_same_occurrence_runs() {
    let stack = Stack::new().await;
    let counter = Counter::new(true);
    let worker = stack.start(stack.worker().job(counter.clone()), "count").await;
    let mut message = stack.message("count", nothing());
    stack.publish(&message).await;
    stack.ended(message.occurrence_id).await;
    message.attempt = 2;
    stack.publish(&message).await;
    eventually("the second attempt runs", async || counter.runs() == 2).await;
    message.attempt = 1;
    stack.publish(&message).await;
    worker.stop().await;
    assert_eq!(counter.runs(), 2, "an older attempt does not run after a newer one");
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_dropped_when_its_holder_lives_and_reported_as_lost_when_it_has_died() {
    let stack = Stack::new().await;
    let counter = Counter::new(true);
    let worker = stack.start(stack.worker().job(counter.clone()), "count").await;
    let (orphan, twin, plain, late) = (
        stack.message("count", nothing()),
        stack.message("count", nothing()),
        stack.message("count", nothing()),
        stack.message("count", nothing()),
    );
    stack.claim(plain.occurrence_id, "w-living", 5_000).await;
    stack.publish(&plain).await;
    stack.claim(orphan.occurrence_id, "w-dead", 1_500).await;
    stack.republish(&orphan).await;
    let reports = stack.ended(orphan.occurrence_id).await;
    let said: Vec<_> = reports.iter().map(|report| (report.status, report.instance_id.as_str())).collect();
    assert_eq!(said, [(OccurrenceStatus::Unknown, "w-dead")], "perhaps it had begun: {reports:?}");
    // Nothing on this message says that it may be a copy; the server is asked nevertheless.
    stack.claim_for(late.occurrence_id, "w-dead", 23 * 3_600_000).await;
    stack.publish(&late).await;
    let reports = stack.ended(late.occurrence_id).await;
    assert_eq!(reports.iter().map(|report| report.status).collect::<Vec<_>>(), [OccurrenceStatus::Unknown]);
    assert!(stack.was_asked(late.occurrence_id));

    stack.claim(twin.occurrence_id, "w-living", 5_000).await;
    stack.republish(&twin).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    stack.claim(twin.occurrence_id, "w-living", 15_000).await;
    let queue = stack.topology.job_queue("w", "count");
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    worker.stop().await;
    assert_eq!(stack.queue(&queue).await, Some((0, 0)), "every copy was acknowledged");
    assert_eq!(counter.runs(), 0);
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_what_a_worker_without_marks_had_runs_when_its_lease_is_over() {
    let stack = Stack::new().await;
    let counter = Counter::new(true);
    let worker = stack.start(stack.worker().job(counter.clone()), "count").await;
    let orphan = stack.message("count", nothing());
    stack.claim_for(orphan.occurrence_id, "other", 1_500).await;
    stack.republish(&orphan).await;
    assert!(tell_of_one_run(&stack.ended(orphan.occurrence_id).await));
    assert_eq!(counter.runs(), 1);
    worker.stop().await;
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_not_started_when_redis_has_forgotten_and_the_server_has_not() {
    let stack = Stack::new().await;
    let counter = Counter::new(true);
    let worker = stack.start(stack.worker().job(counter.clone()), "count").await;
    let (copy, lonely, first) =
        (stack.message("count", nothing()), stack.message("count", nothing()), stack.message("count", nothing()));
    stack.deny(copy.occurrence_id, Denial::Running);
    stack.republish(&copy).await;
    // Sent again because its confirmation was lost: nobody ever had it.
    stack.republish(&lonely).await;
    stack.publish(&first).await;
    assert!(tell_of_one_run(&stack.ended(lonely.occurrence_id).await));
    assert!(tell_of_one_run(&stack.ended(first.occurrence_id).await));
    eventually("the server is asked", async || stack.was_asked(copy.occurrence_id)).await;
    worker.stop().await;
    assert_eq!(counter.runs(), 2);
    assert!(stack.was_asked(lonely.occurrence_id));
    assert!(!stack.was_asked(first.occurrence_id), "a first copy costs no question");
    assert_eq!(stack.queue(&stack.topology.job_queue("w", "count")).await, Some((0, 0)));
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_is_acknowledged_only_after_its_start_is_confirmed() {
    let mut stack = Stack::new().await;
    let hold = stack.hold_confirmations().await;
    let counter = Counter::new(true);
    let worker = stack.start(stack.worker().job(counter.clone()), "count").await;
    hold.set(true);
    let messages = [stack.message("count", nothing()), stack.message("count", nothing())];
    stack.publish(&messages[0]).await;
    stack.publish(&messages[1]).await;
    eventually("the first one runs", async || counter.runs() == 1).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    // The type takes one delivery at a time, so the second stays where it is until the first is acknowledged.
    let queue = stack.topology.job_queue("w", "count");
    assert_eq!(stack.queue(&queue).await, Some((1, 1)));
    assert_eq!(counter.runs(), 1, "the run began without waiting, but nothing was acknowledged");
    hold.set(false);
    for message in &messages {
        let reports = stack.ended(message.occurrence_id).await;
        assert!(tell_of_one_run(&reports), "{reports:?}");
    }
    worker.stop().await;
    assert_eq!(stack.queue(&queue).await, Some((0, 0)));
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_run_goes_to_the_dead_letters() {
    let stack = Stack::new().await;
    let counter = Counter::new(true);
    let worker = stack.start(stack.worker().job(counter.clone()), "count").await;
    let mut stranger = stack.message("other", nothing());
    stack.publish_raw("w.count.x", b"not JSON").await;
    stack.publish_raw("w.count.x", &serde_json::to_vec(&stranger).expect("plain data")).await;
    stranger.attempt = 0;
    stranger.job_type = "count".to_owned();
    stack.publish(&stranger).await;
    let letters = stack.topology.dead_letter_queue();
    eventually("three dead letters", async || stack.queue(&letters).await == Some((3, 0))).await;
    worker.stop().await;
    assert_eq!(counter.runs(), 0);
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_worker_ends_what_runs_and_hands_back_the_rest() {
    let stack = Stack::new().await;
    let counter = Counter::new(false);
    let worker = stack.start(stack.worker().job(counter.clone()), "count").await;
    let messages: Vec<_> = (0..3).map(|_| stack.message("count", nothing())).collect();
    for message in &messages {
        stack.publish(message).await;
    }
    eventually("the first one runs", async || counter.runs() == 1).await;
    worker.ask();
    let queue = stack.topology.job_queue("w", "count");
    eventually("two are back", async || stack.queue(&queue).await == Some((2, 0))).await;
    counter.open();
    worker.stop().await;
    assert_eq!(counter.runs(), 1);
    assert!(tell_of_one_run(&stack.ended(messages[0].occurrence_id).await));
    let said = stack.registrations().await;
    assert!(matches!(said.last(), Some(RegistrationMessage::Goodbye { .. })), "{said:?}");

    // The next worker takes what was handed back, though the broker marks it as delivered before.
    let worker = stack.start(stack.worker().job(counter.clone()), "count").await;
    for message in &messages[1..] {
        assert!(tell_of_one_run(&stack.ended(message.occurrence_id).await));
    }
    worker.stop().await;
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_outlives_the_grace_is_interrupted_and_reported() {
    let stack = Stack::new().await;
    let counter = Counter::new(false);
    let worker = stack.start(stack.worker().job(counter.clone()).shutdown_grace(Duration::ZERO), "count").await;
    let message = stack.message("count", nothing());
    stack.publish(&message).await;
    eventually("it runs", async || counter.runs() == 1).await;
    worker.stop().await;
    let reports = stack.ended(message.occurrence_id).await;
    let end = reports.last().expect("an end");
    // Handed back, which is no failure.
    assert_eq!(end.status, OccurrenceStatus::Queued);
    assert_eq!(end.exception.as_deref(), Some("interrupted: the worker stopped"));
    stack.clean(&["count"]).await;
}

/// Takes a while, and writes down who began.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<OccurrenceId>>>);

impl Diary {
    fn began(&self) -> Vec<OccurrenceId> {
        self.0.lock().expect("no test thread panicked").clone()
    }
}

impl Job for Diary {
    const TYPE: &'static str = "diary";
    const DESCRIPTION: &'static str = "Writes down who began.";
    const CONCURRENCY: u16 = 4;
    type Input = Nothing;
    type Output = ();

    async fn run(&self, ctx: &JobContext, _: Nothing) -> Result<(), JobError> {
        self.0.lock().expect("no test thread panicked").push(ctx.occurrence_id());
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_critical_message_overtakes_what_waits() {
    let stack = Stack::new().await;
    let diary = Diary::default();
    let builder = stack.worker().job(diary.clone());
    let worker = stack.start(builder, "diary").await;
    let (low, window) = (500, usize::from(Diary::CONCURRENCY));
    for _ in 0..low {
        let mut message = stack.message("diary", nothing());
        message.priority = 1;
        stack.publish(&message).await;
    }
    let mut critical = stack.message("diary", nothing());
    critical.priority = 5;
    stack.publish(&critical).await;
    let before = diary.began().len();
    assert!(before + 4 * window < low, "too few are left to be overtaken: {before} began before");
    let place = async || diary.began().iter().position(|occurrence| *occurrence == critical.occurrence_id);
    eventually("the critical one begins", async || place().await.is_some()).await;
    let place = place().await.expect("it has begun");
    // Those that wait in the worker, and those that were on their way to it.
    assert!(place <= before + 2 * window, "{} others began first", place - before);
    worker.stop().await;
    stack.clean(&["diary"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_cancelled_by_a_message_and_by_one_that_nobody_heard() {
    let stack = Stack::new().await;
    let counter = Counter::new(false);
    let worker = stack.start(stack.worker().job(counter.clone()).concurrency("count", 2), "count").await;
    let (told, written) = (stack.message("count", nothing()), stack.message("count", nothing()));
    stack.publish(&told).await;
    stack.publish(&written).await;
    eventually("both run", async || counter.runs() == 2).await;
    // The connection breaks, and comes back by itself.
    stack.break_listeners().await;
    eventually("the worker listens", async || stack.tell_cancellation(told.occurrence_id, "by ann").await == 1).await;
    stack.write_cancellation(written.occurrence_id, "by bob").await;
    for (message, reason) in [(&told, "by ann"), (&written, "by bob")] {
        let reports = stack.ended(message.occurrence_id).await;
        let statuses: Vec<_> = reports.iter().map(|report| report.status).collect();
        assert_eq!(statuses, [OccurrenceStatus::Running, OccurrenceStatus::Cancelled]);
        assert!(reports[1].exception.as_deref().is_some_and(|text| text.starts_with(reason)), "{reports:?}");
    }
    worker.stop().await;
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_cancelled_in_its_queue_is_not_started() {
    let stack = Stack::new().await;
    let counter = Counter::new(true);
    let worker = stack.start(stack.worker().job(counter.clone()), "count").await;
    let (cancelled, other) = (stack.message("count", nothing()), stack.message("count", nothing()));
    stack.write_cancellation(cancelled.occurrence_id, "by ann").await;
    stack.publish(&cancelled).await;
    stack.publish(&other).await;
    let reports = stack.ended(cancelled.occurrence_id).await;
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].status, OccurrenceStatus::Cancelled);
    assert_eq!(reports[0].exception.as_deref(), Some("by ann"));
    assert!(tell_of_one_run(&stack.ended(other.occurrence_id).await));
    // A late copy brings no second report.
    stack.publish(&cancelled).await;
    let queue = stack.topology.job_queue("w", "count");
    eventually("the copy is taken", async || stack.queue(&queue).await.is_some_and(|(waiting, _)| waiting == 0)).await;
    worker.stop().await;
    assert_eq!(counter.runs(), 1);
    assert_eq!(stack.ended(cancelled.occurrence_id).await.len(), 1);
    stack.clean(&["count"]).await;
}

/// Holds up its thread, as a job must not.
struct Blocking;

#[derive(Deserialize, JsonSchema)]
struct HowLong {
    seconds: u64,
}

impl Job for Blocking {
    const TYPE: &'static str = "block";
    const DESCRIPTION: &'static str = "Holds up its thread.";
    type Input = HowLong;
    type Output = ();

    async fn run(&self, ctx: &JobContext, input: HowLong) -> Result<(), JobError> {
        ctx.info("now");
        std::thread::sleep(Duration::from_secs(input.seconds));
        Ok(())
    }
}

// One thread for everything, so that the job holds up the test as well.
#[tokio::test]
async fn a_job_that_blocks_the_runtime_does_not_silence_the_worker() {
    let stack = Stack::new().await;
    let worker = stack.start(stack.worker().job(Blocking), "block").await;
    let began = now();
    let message = stack.message("block", json!({"seconds": 6}));
    stack.publish(&message).await;
    let reports = stack.ended(message.occurrence_id).await;
    assert!(
        reports[0].timestamp - began < chrono::TimeDelta::seconds(1),
        "the start was not seen at once: {reports:?}"
    );
    let ended = reports.last().expect("an end").timestamp;
    let beats = stack.registrations().await.into_iter().filter(
        |said| matches!(said, RegistrationMessage::Heartbeat(beat) if beat.timestamp < ended && beat.running.contains(&message.occurrence_id)),
    );
    assert!(beats.count() >= 1, "no heartbeat while the thread was held up");
    let logs = stack.logs().await;
    assert_eq!(
        logs.iter().flat_map(|message| &message.lines).map(|line| line.message.as_str()).collect::<Vec<_>>(),
        ["now"]
    );
    worker.stop().await;
    stack.clean(&["block"]).await;
}

/// Asks a worker how it is: the status line and the body.
async fn ask(port: u16, path: &str) -> (String, String) {
    let mut line = TcpStream::connect(("127.0.0.1", port)).await.expect("the worker answers");
    line.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.expect("asked");
    let mut answer = String::new();
    line.read_to_string(&mut answer).await.expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_says_that_it_lives_whether_it_takes_work_and_how_much_it_did() {
    let stack = Stack::new().await;
    let counter = Counter::new(true);
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = free.local_addr().expect("bound");
    drop(free);
    let worker = stack.start(stack.worker().job(counter.clone()).health(address), "count").await;
    let port = address.port();
    eventually("it is ready", async || ask(port, "/health/ready").await.0.ends_with("200 OK")).await;
    assert_eq!(ask(port, "/health/live").await.1, "alive\n");
    let message = stack.message("count", nothing());
    stack.publish(&message).await;
    stack.ended(message.occurrence_id).await;
    let (_, metrics) = ask(port, "/metrics").await;
    let counted = r#"milvaion_worker_runs_total{job_type="count",outcome="completed"} 1"#;
    assert!(metrics.lines().any(|line| line == counted), "{metrics}");

    // An address that is taken is told at the start.
    let second = stack.worker().job(counter).health(address).build().expect("a valid configuration");
    let refused = second.run_until(milvaion_worker::CancellationToken::new()).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("MILVAION_HEALTH 127.0.0.1")));
    worker.stop().await;
    stack.clean(&["count"]).await;
}
