//! Runs that are ended from outside, by a stopping worker or by a cancel request.

use std::{
    os::unix::process::ExitStatusExt,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use milvaion_protocol::{message::RegistrationMessage, status::OccurrenceStatus};
use milvaion_test_support::{
    broker_env::{ConfirmHold, CountingJob, EmptyInput, WorkerTestEnv, is_one_completed_run, no_input},
    wait::until,
};
use milvaion_worker::{Job, JobContext, JobError};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::io::{AsyncBufReadExt, BufReader};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn graceful_stop_finishes_runs_and_returns_the_rest() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(false);
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    let messages: Vec<_> = (0..3).map(|_| env.message("count", no_input())).collect();
    for message in &messages {
        env.publish(message).await;
    }
    until("the start of the first run", async || counter.runs() == 1).await;
    worker.request_stop();
    let queue = env.topology.job_queue("w", "count");
    until("two messages back in the queue", async || env.queue(&queue).await == Some((2, 0))).await;
    counter.open();
    worker.stop().await;
    assert_eq!(counter.runs(), 1);
    assert!(is_one_completed_run(&env.ended(messages[0].occurrence_id).await));
    let registrations = env.registrations().await;
    assert!(matches!(registrations.last(), Some(RegistrationMessage::Goodbye { .. })), "{registrations:?}");

    // The next worker runs the returned messages, although the broker marks them as redelivered.
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    for message in &messages[1..] {
        assert!(is_one_completed_run(&env.ended(message.occurrence_id).await));
    }
    worker.stop().await;
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_beyond_the_shutdown_grace_is_interrupted() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(false);
    let worker = env.start(env.worker().job(counter.clone()).shutdown_grace(Duration::ZERO), "count").await;
    let message = env.message("count", no_input());
    env.publish(&message).await;
    until("the start of the run", async || counter.runs() == 1).await;
    worker.stop().await;
    let reports = env.ended(message.occurrence_id).await;
    let end = reports.last().expect("a final report");
    // It is queued again, which does not count as a failure.
    assert_eq!(end.status, OccurrenceStatus::Queued);
    assert_eq!(end.exception.as_deref(), Some("interrupted: the worker stopped"));
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_are_cancelled_by_message_and_by_stored_request() {
    let mut env = WorkerTestEnv::new().await;
    let network = env.lossy_redis().await;
    let counter = CountingJob::new(false);
    let worker = env.start(env.worker().job(counter.clone()).concurrency("count", 2), "count").await;
    let (by_message, by_key) = (env.message("count", no_input()), env.message("count", no_input()));
    env.publish(&by_message).await;
    env.publish(&by_key).await;
    until("the start of both runs", async || counter.runs() == 2).await;
    // The worker restores its broken subscription by itself. Until then a published request is lost, and Redis may still
    // count the broken subscriber.
    network.close_open_connections();
    until("the end of the run by a message", async || {
        env.publish_cancel_request(by_message.occurrence_id, "by ann").await;
        env.has_ended(&by_message).await
    })
    .await;
    env.store_cancel_request(by_key.occurrence_id, "by bob").await;
    for (message, reason) in [(&by_message, "by ann"), (&by_key, "by bob")] {
        let reports = env.ended(message.occurrence_id).await;
        let statuses: Vec<_> = reports.iter().map(|report| report.status).collect();
        assert_eq!(statuses, [OccurrenceStatus::Running, OccurrenceStatus::Cancelled]);
        assert!(reports[1].exception.as_deref().is_some_and(|text| text.starts_with(reason)), "{reports:?}");
    }
    worker.stop().await;
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_connections_to_redis_are_replaced() {
    let mut env = WorkerTestEnv::new().await;
    let network = env.lossy_redis().await;
    let counter = CountingJob::new(false);
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    let (cancelled, later) = (env.message("count", no_input()), env.message("count", no_input()));
    env.publish(&cancelled).await;
    until("the start of the run", async || counter.runs() == 1).await;
    until("a subscriber of cancel requests", async || {
        env.publish_cancel_request(later.occurrence_id, "not running").await == 1
    })
    .await;
    network.lose_open_connections();
    // Redis still counts the subscriber that it can no longer reach.
    until("another subscriber", async || env.publish_cancel_request(cancelled.occurrence_id, "by ann").await == 2)
        .await;
    let reports = env.ended(cancelled.occurrence_id).await;
    assert_eq!(reports.last().map(|report| report.status), Some(OccurrenceStatus::Cancelled), "{reports:?}");
    counter.open();
    env.publish(&later).await;
    assert!(is_one_completed_run(&env.ended(later.occurrence_id).await));
    until("the claim of the later run", async || env.claimed(later.occurrence_id).await.as_deref() == Some("done:1"))
        .await;
    worker.stop().await;
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_cancelled_in_its_queue_is_not_started() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    let (cancelled, other) = (env.message("count", no_input()), env.message("count", no_input()));
    env.store_cancel_request(cancelled.occurrence_id, "by ann").await;
    env.publish(&cancelled).await;
    env.publish(&other).await;
    let reports = env.ended(cancelled.occurrence_id).await;
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].status, OccurrenceStatus::Cancelled);
    assert_eq!(reports[0].exception.as_deref(), Some("by ann"));
    assert!(is_one_completed_run(&env.ended(other.occurrence_id).await));
    // A late duplicate causes no second report.
    env.publish(&cancelled).await;
    // The type runs one at a time: when this run has ended, the duplicate has been processed.
    let after = env.message("count", no_input());
    env.publish(&after).await;
    env.ended(after.occurrence_id).await;
    worker.stop().await;
    assert_eq!(counter.runs(), 2);
    assert_eq!(env.ended(cancelled.occurrence_id).await.len(), 1);
    env.clean(&["count"]).await;
}

/// Revokes a run, which is given back. With `awaits_heartbeat`, checks that the heartbeat of a
/// later run does not renew its claim.
async fn revoke_a_run(awaits_heartbeat: bool) {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(false);
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    let (kept, revoked) = (env.message("count", no_input()), env.message("count", no_input()));
    env.publish(&revoked).await;
    until("the claim of the run", async || env.claimed(revoked.occurrence_id).await.is_some()).await;
    until("the run", async || counter.runs() == 1).await;
    env.revoke(revoked.occurrence_id).await;
    until("the release of the claim", async || env.claimed(revoked.occurrence_id).await.is_none()).await;
    let reports = || async {
        let mut reports = env.reports().await;
        reports.retain(|report| report.occurrence_id == revoked.occurrence_id);
        reports.iter().map(|report| report.status).collect::<Vec<_>>()
    };
    until("the report", async || reports().await == [OccurrenceStatus::Running, OccurrenceStatus::Queued]).await;
    // Other runs are not affected.
    env.publish(&kept).await;
    until("the next run", async || counter.runs() == 2).await;
    if awaits_heartbeat {
        until("a later heartbeat", async || {
            let beats = env.registrations().await;
            beats.iter().any(
                |message| matches!(message, RegistrationMessage::Heartbeat(beat) if beat.running == [kept.occurrence_id]),
            )
        })
        .await;
    }
    assert_eq!(env.claimed(revoked.occurrence_id).await, None);
    counter.open();
    env.ended(kept.occurrence_id).await;
    worker.stop().await;
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_run_is_given_back_and_its_claim_released() {
    revoke_a_run(false).await;
}

/// The variable that makes this test binary the process of [`signal_after_the_worker_ends_the_process`].
const CHILD: &str = "MILVAION_TEST_SIGNAL_CHILD";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signal_after_the_worker_ends_the_process() {
    if std::env::var_os(CHILD).is_some() {
        return run_worker_and_go_on().await;
    }
    let mut child = tokio::process::Command::new(std::env::current_exe().expect("the test binary"))
        .args(["--exact", "shutdown::signal_after_the_worker_ends_the_process", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("started");
    let pid = Pid::from_raw(child.id().expect("it runs").cast_signed());
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    while let Some(line) = lines.next_line().await.expect("output") {
        match line.as_str() {
            // A first worker has ended before, so a restored default must not end the process now.
            "runs" => kill(pid, Signal::SIGTERM).expect("the signal is sent"),
            "has ended" => kill(pid, Signal::SIGINT).expect("the signal is sent"),
            _ => {}
        }
    }
    let status = tokio::time::timeout(Duration::from_secs(10), child.wait()).await.expect("it ends").expect("a status");
    assert_eq!(status.signal(), Some(Signal::SIGINT as i32), "{status:?}");
}

/// Runs two workers, one after the other, until SIGTERM, and then goes on with something else.
async fn run_worker_and_go_on() {
    let env = WorkerTestEnv::new().await;
    for _ in 0..2 {
        let worker = env.worker().job(CountingJob::new(true)).build().expect("valid");
        let announce = async {
            // The worker has been polled once, and listens for signals.
            tokio::task::yield_now().await;
            println!("\nruns");
        };
        tokio::join!(biased; worker.run(), announce).0.expect("no error");
    }
    env.clean(&["count"]).await;
    println!("has ended");
    // The signal ends the process. Without it, this one must not outlive a test that was given up.
    std::thread::sleep(Duration::from_secs(30));
}

mod exhaustive {
    use super::*;

    /// A job that counts its runs, which never end by themselves.
    struct EndlessJob(Arc<AtomicU32>);

    impl Job for EndlessJob {
        const TYPE: &'static str = "endless";
        const DESCRIPTION: &'static str = "Never ends.";
        type Input = EmptyInput;
        type Output = ();

        async fn run(&self, _: &JobContext, _: EmptyInput) -> Result<(), JobError> {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::future::pending().await
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn worker_stopped_without_a_broker_leaves_nothing_behind() {
        let mut env = WorkerTestEnv::new().await;
        let hold = ConfirmHold::start(&mut env).await;
        let runs = Arc::new(AtomicU32::new(0));
        let builder = env.worker().shutdown_grace(Duration::ZERO).job(EndlessJob(runs.clone()));
        let worker = env.start(builder, "endless").await;
        let message = env.message("endless", no_input());
        hold.set(true);
        env.publish(&message).await;
        until("the start of the run", async || runs.load(Ordering::SeqCst) == 1).await;
        // The broker never confirms the start or the end of the run.
        worker.stop().await;
        until("the release of the job", async || Arc::strong_count(&runs) == 1).await;
        hold.set(false);
        env.clean(&["endless"]).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn claim_of_a_revoked_run_is_not_renewed() {
        revoke_a_run(true).await;
    }
}
