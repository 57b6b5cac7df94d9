//! The cases of start, stop and outages.

use std::time::{Duration, Instant};

use milvaion_protocol::status::OccurrenceStatus;
use serde_json::json;

use super::{CaseOutcome, minimal::echoes};
use crate::{
    context::{CaseContext, END_WITHIN, READY_WITHIN, TestJob},
    failure::CaseFailure,
    proxy::NetworkFault,
    record::WorkerMessage,
    worker_process::WorkerProcess,
};

/// The time within which a worker ends after SIGTERM: its grace of 2 s, the time for its reports, and a margin.
const STOPPED_WITHIN: Duration = Duration::from_secs(20);
/// The time within which a run is reported although its worker has to connect again.
const RECONNECTED_WITHIN: Duration = Duration::from_secs(40);
/// The time for which the broker accepts no messages: longer than the 10 s in which a message must be confirmed.
const BLOCKED_FOR: Duration = Duration::from_secs(12);

pub(crate) async fn worker_first(context: &CaseContext) -> CaseOutcome {
    let mut worker = context.launch().await?;
    let id = context.worker_id();
    let declared = || async { context.server.job_queue(&id, context.job_type(TestJob::Echo)).await };
    let queue =
        context.until_async(READY_WITHIN, "a queue of its job type", declared, || worker_state(&mut worker)).await;
    queue?;
    context.server.start().await?;
    context.server.declare_job_queue(&id, context.job_type(TestJob::Echo)).await?;
    let job = context.job(TestJob::Echo, json!({ "first": "the worker" }));
    context.send(&job).await?;
    echoes(context, &job).await?;
    context.first_hello().await.map(drop)
}

fn worker_state(worker: &mut WorkerProcess) -> String {
    match worker.ended() {
        Some(status) => format!("the worker ended: {status}{}", worker.last_output()),
        None => format!("no such queue{}", worker.last_output()),
    }
}

pub(crate) async fn names(context: &CaseContext) -> CaseOutcome {
    context.set_worker_id("Conf.EU_1");
    let _worker = context.begin(&[TestJob::Echo]).await?;
    let job = context.job(TestJob::Echo, json!({ "worker": "Conf.EU_1" }));
    context.send(&job).await?;
    echoes(context, &job).await.map(drop)
}

pub(crate) async fn stop_idle(context: &CaseContext) -> CaseOutcome {
    let mut worker = context.begin(&[TestJob::Echo]).await?;
    let instance = context.first_hello().await?.instance_id;
    worker.terminate();
    let status = worker.wait(STOPPED_WITHIN).await?;
    context.expect(status.success(), "the exit code 0", || status.to_string())?;
    sends_goodbye(context, &instance).await
}

pub(crate) async fn stop_running(context: &CaseContext) -> CaseOutcome {
    let mut worker = context.begin(&[TestJob::Sleep]).await?;
    let mut job = context.job(TestJob::Sleep, json!({ "ms": 60_000 }));
    context.send(&job).await?;
    let instance = context.is_running(&job).await?.instance_id;
    context.begins(&job).await?;
    worker.terminate();
    context.ends_as_within(&job, OccurrenceStatus::Queued, STOPPED_WITHIN).await?;
    let status = worker.wait(STOPPED_WITHIN).await?;
    context.expect(status.success(), "the exit code 0", || status.to_string())?;
    sends_goodbye(context, &instance).await?;
    let _second = context.worker(&[TestJob::Sleep], 1).await?;
    (job.attempt, job.job_data) = (2, json!({ "ms": 100 }));
    context.send(&job).await?;
    context.ends_as(&job, OccurrenceStatus::Completed).await?;
    context.expect_starts(&job, &[1, 2])
}

pub(crate) async fn stop_finishing(context: &CaseContext) -> CaseOutcome {
    let mut worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 1200 }));
    context.send(&job).await?;
    context.begins(&job).await?;
    worker.terminate();
    context.ends_as_within(&job, OccurrenceStatus::Completed, STOPPED_WITHIN).await?;
    worker.wait(STOPPED_WITHIN).await.map(drop)
}

/// The grace is longer than the time between two heartbeats, so one of them falls into it.
pub(crate) async fn stop_announced(context: &CaseContext) -> CaseOutcome {
    context.set_grace(9);
    let mut worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 7000 }));
    context.send(&job).await?;
    context.begins(&job).await?;
    let instance = context.is_running(&job).await?.instance_id;
    let since = Instant::now();
    worker.terminate();
    let heartbeats = || -> Vec<(bool, bool)> {
        let record = context.server.record();
        let later = record.messages.iter().filter(|received| received.at > since);
        later
            .filter_map(|received| match &received.message {
                WorkerMessage::Heartbeat(heartbeat) => {
                    Some((heartbeat.stopping, heartbeat.running.contains(&job.occurrence_id)))
                }
                _ => None,
            })
            .collect()
    };
    let announced = || heartbeats().contains(&(true, true)).then_some(());
    let expected = "a heartbeat with stopping that lists the run";
    context.until(Duration::from_secs(7), expected, announced, || format!("{:?}", heartbeats())).await?;
    context.ends_as_within(&job, OccurrenceStatus::Completed, STOPPED_WITHIN).await?;
    let status = worker.wait(STOPPED_WITHIN).await?;
    context.expect(status.success(), "the exit code 0", || status.to_string())?;
    sends_goodbye(context, &instance).await
}

pub(crate) async fn stop_with_waiting_messages(context: &CaseContext) -> CaseOutcome {
    let mut worker = context.begin(&[TestJob::Sleep]).await?;
    let jobs = context.send_sleeps(12, 60_000).await?;
    context.all_permits_are_taken().await?;
    worker.terminate();
    worker.wait(STOPPED_WITHIN).await?;
    let mut waiting = 0;
    for job in &jobs {
        if context.starts(job.occurrence_id).is_empty() {
            waiting += 1;
        } else {
            context.ends_as(job, OccurrenceStatus::Queued).await?;
        }
    }
    let (id, job_type) = (context.worker_id(), context.job_type(TestJob::Sleep));
    let count = || async { context.server.job_queue(&id, job_type).await.map(|(_, messages)| messages) };
    let all_back = || async { count().await.filter(|messages| *messages == waiting) };
    let expected = format!("{waiting} messages in the queue, those that had not started");
    let outcome = context.until_async(Duration::from_secs(3), expected.clone(), all_back, String::new).await;
    match outcome {
        Ok(_) => Ok(()),
        Err(_) => Err(CaseFailure::new(expected, format!("{:?}", count().await))),
    }
}

pub(crate) async fn broker_away(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 2500 }));
    context.send(&job).await?;
    context.begins(&job).await?;
    worker.broker.set(NetworkFault { is_down: true, ..NetworkFault::default() });
    // The run ends meanwhile.
    tokio::time::sleep(Duration::from_secs(4)).await;
    worker.broker.heal();
    context.ends_as_within(&job, OccurrenceStatus::Completed, RECONNECTED_WITHIN).await?;
    context.settles(&worker, TestJob::Sleep, RECONNECTED_WITHIN).await?;
    context.expect_starts(&job, &[1])?;
    let next = context.job(TestJob::Sleep, json!({ "ms": 10 }));
    context.send(&next).await?;
    context.ends_as_within(&next, OccurrenceStatus::Completed, RECONNECTED_WITHIN).await.map(drop)
}

/// The end is reported, and its confirm never arrives: the worker must send it again.
pub(crate) async fn unconfirmed_end(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 1500 }));
    context.send(&job).await?;
    context.is_running(&job).await?;
    context.settles(&worker, TestJob::Sleep, END_WITHIN).await?;
    worker.broker.set(NetworkFault { without_confirms: true, ..NetworkFault::default() });
    context.ends_as(&job, OccurrenceStatus::Completed).await?;
    let ends = || {
        let reports = context.server.record().reports(job.occurrence_id, 1);
        reports.iter().filter(|report| report.status == OccurrenceStatus::Completed).count()
    };
    let before = ends();
    worker.broker.heal();
    worker.broker.cut();
    let again = || (ends() > before).then_some(());
    context.until(RECONNECTED_WITHIN, "the report of the end again", again, || context.describe(&job)).await?;
    context.expect_starts(&job, &[1])
}

pub(crate) async fn slow_confirms(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Echo]).await?;
    worker.broker.set(NetworkFault { delay: Duration::from_millis(400), ..NetworkFault::default() });
    let mut jobs = Vec::new();
    for number in 0..5 {
        let job = context.job(TestJob::Echo, json!({ "number": number }));
        context.send(&job).await?;
        jobs.push(job);
    }
    for job in &jobs {
        context.ends_as_within(job, OccurrenceStatus::Completed, Duration::from_secs(30)).await?;
        context.expect_starts(job, &[1])?;
    }
    context.settles(&worker, TestJob::Echo, Duration::from_secs(30)).await
}

/// The broker falls silent on every connection: neither deliveries nor confirms arrive, and no error.
pub(crate) async fn mute_broker(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 1500 }));
    context.send(&job).await?;
    context.begins(&job).await?;
    worker.broker.set(NetworkFault { is_mute: true, ..NetworkFault::default() });
    let next = context.job(TestJob::Sleep, json!({ "ms": 10 }));
    context.send(&next).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    worker.broker.heal();
    context.ends_as_within(&job, OccurrenceStatus::Completed, RECONNECTED_WITHIN).await?;
    context.ends_as_within(&next, OccurrenceStatus::Completed, RECONNECTED_WITHIN).await?;
    context.settles(&worker, TestJob::Sleep, RECONNECTED_WITHIN).await?;
    context.expect_starts(&job, &[1])?;
    context.expect_starts(&next, &[1])
}

/// The broker is short of memory for longer than a worker waits for a confirm. The run ends meanwhile.
pub(crate) async fn blocked_publisher(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 2000 }));
    context.send(&job).await?;
    context.is_running(&job).await?;
    context.begins(&job).await?;
    context.settles(&worker, TestJob::Sleep, END_WITHIN).await?;
    worker.broker.set(NetworkFault { is_blocked: true, ..NetworkFault::default() });
    tokio::time::sleep(BLOCKED_FOR).await;
    let reports = context.server.record().reports(job.occurrence_id, 1);
    let is_held = reports.iter().all(|report| report.status == OccurrenceStatus::Running);
    context.expect(is_held, "no report while the broker accepts none", || context.describe(&job))?;
    worker.broker.heal();
    let since = Instant::now();
    let next = context.job(TestJob::Sleep, json!({ "ms": 10 }));
    context.send(&next).await?;
    context.ends_as_within(&job, OccurrenceStatus::Completed, RECONNECTED_WITHIN).await?;
    context.ends_as_within(&next, OccurrenceStatus::Completed, RECONNECTED_WITHIN).await?;
    let beats = || {
        let record = context.server.record();
        let is_beat = |message: &WorkerMessage| matches!(message, WorkerMessage::Heartbeat(_));
        let beats = record.messages.iter().filter(|received| received.at > since && is_beat(&received.message)).count();
        // The first one may have waited at the broker.
        (beats >= 2).then_some(())
    };
    context.until(RECONNECTED_WITHIN, "heartbeats after the alarm", beats, || worker.last_output()).await?;
    context.settles(&worker, TestJob::Sleep, RECONNECTED_WITHIN).await?;
    context.expect_starts(&job, &[1])?;
    context.expect_starts(&next, &[1])
}

pub(crate) async fn redis_away_while_running(context: &CaseContext) -> CaseOutcome {
    let worker = context.begin(&[TestJob::Sleep]).await?;
    let job = context.job(TestJob::Sleep, json!({ "ms": 9000 }));
    context.send(&job).await?;
    context.begins(&job).await?;
    worker.redis.set(NetworkFault { is_down: true, ..NetworkFault::default() });
    // Over a renewal of the claim.
    tokio::time::sleep(Duration::from_secs(6)).await;
    worker.redis.heal();
    context.ends_as_within(&job, OccurrenceStatus::Completed, RECONNECTED_WITHIN).await?;
    context.expect_starts(&job, &[1])
}

async fn sends_goodbye(context: &CaseContext, instance: &str) -> CaseOutcome {
    let since = Instant::now();
    let found = || {
        let record = context.server.record();
        let said = record
            .messages
            .iter()
            .any(|received| matches!(&received.message, WorkerMessage::Goodbye(of) if of == instance));
        said.then_some(())
    };
    let seen = || format!("none within {:.1} s after its end", since.elapsed().as_secs_f32());
    context.until(Duration::from_secs(3), format!("a goodbye of {instance}"), found, seen).await
}
