//! One attempt, from its message to its final report.
//!
//! ```text
//!  message ─► report Running ─► decode input ─► run ──┬─ returned ─┐
//!                │                                    ├─ panicked ─┤
//!                ▼                                    ├─ too long ─┼─► outcome ─► settle ─► report the end
//!          confirmed ─► ack                           ├─ cancelled ┤
//!                                                     └─ stopping ─┘
//! ```
//!
//! The run begins at once, in parallel with the confirmation of its *Running* report. Only the acknowledgement of the
//! delivery waits for that confirmation, and a run whose start is recorded nowhere else. The executor depends on neither broker nor Redis: reports and log lines go to
//! a [`ReportSink`].

use std::{future::Future, sync::Arc, time::Duration};

use futures::FutureExt;
use milvaion_protocol::{
    message::{AttemptLogBounds, JobMessage, StatusReport},
    status::OccurrenceStatus,
};
use tokio::{
    task::{JoinError, JoinHandle},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

#[cfg(feature = "client")]
use crate::api::context::enqueue::JobEnqueuer;
use crate::{
    api::config::MAX_TIMEOUT,
    api::context::JobContext,
    api::events::RunObservers,
    api::layer::{Layer, RunChain},
    api::outcome::{JobError, Outcome},
    clock,
    control::metrics::WorkerMetrics,
    faults,
    run::attempt_span::AttemptSpan,
    run::panics::{self, JobPanic},
    run::registry::RegisteredJob,
    run::report_sink::{ConfirmFuture, ReportSink},
    run::stop_signal::{StopReason, StopSignal},
};

/// Maximum time for cleanup of a run that is interrupted because the worker stops.
const SHUTDOWN_CLEANUP_TIMEOUT: Duration = Duration::from_secs(1);

/// The return value of a job, or its panic.
type JobReturn = Result<Result<Option<String>, JobError>, JobPanic>;

/// The end of a run.
pub(crate) struct RunEnd {
    /// True if the run was interrupted, so that the occurrence goes on in another attempt.
    pub(crate) is_interrupted: bool,
    /// Completes when the report of the end survives this process. The reporter sends the report in any case.
    pub(crate) kept: ConfirmFuture,
}

/// Runs attempts and reports them.
#[derive(Clone)]
pub(crate) struct Executor {
    /// The receiver of reports and log lines.
    pub(crate) sink: Arc<dyn ReportSink>,
    /// The worker to which the instance belongs.
    pub(crate) worker_id: Arc<str>,
    /// The instance named in reports.
    pub(crate) instance_id: String,
    /// The timeout of runs for which neither the job nor its type sets one.
    pub(crate) default_timeout: Duration,
    /// The bounds of the log of each attempt.
    pub(crate) log_bounds: AttemptLogBounds,
    /// The metrics that count runs.
    pub(crate) metrics: WorkerMetrics,
    /// Fires when all runs must end because the worker stops.
    pub(crate) interrupt: CancellationToken,
    /// The layers around each run, the outermost first.
    pub(crate) layers: Arc<[Arc<dyn Layer>]>,
    /// The observers of all runs.
    pub(crate) events: RunObservers,
    /// The way of jobs to the ingest queue.
    #[cfg(feature = "client")]
    pub(crate) enqueuer: JobEnqueuer,
}

impl Executor {
    /// Returns the signal that ends one attempt: through an interruption of all runs, or a cancellation of this one.
    pub(crate) fn stop_signal(&self) -> StopSignal {
        StopSignal::child_of(&self.interrupt)
    }

    /// Starts an attempt. The job is running when this function returns; with `awaits_confirm`, its code begins when the
    /// *Running* report is confirmed, and its timeout counts from then.
    ///
    /// The first future completes when the *Running* report is confirmed. The second future enforces the timeout, ends
    /// the run when `stop` fires and reports its end, so it must be awaited.
    pub(crate) fn start(
        &self,
        job: &RegisteredJob,
        mut message: JobMessage,
        stop: StopSignal,
        awaits_confirm: bool,
    ) -> (ConfirmFuture, impl Future<Output = RunEnd> + Send + use<>) {
        let data = message.job_data.take();
        let attempt_span = AttemptSpan::begin(&mut message);
        let timeout = self.timeout(job, &message);
        let running = self.report_template(&message);
        let mut started = Instant::now();
        let confirmed = self.sink.report(running.clone()).shared();
        let gate = awaits_confirm.then(|| confirmed.clone());

        let stopped = stop.token().clone();
        let ctx = JobContext::new(
            message,
            self.worker_id.clone(),
            self.instance_id.clone(),
            self.sink.clone(),
            stop.clone(),
            self.log_bounds,
            #[cfg(feature = "client")]
            self.enqueuer.clone(),
        );
        ctx.set_deadline(started + timeout);
        // A separate task, which contains a panic, and which `abort` can end at any await point.
        let log = ctx.clone();
        let code = RunChain { job: job.handler(), layers: self.layers.clone(), data };
        let (code, begin) = (code.run(ctx.clone()), gate.clone());
        let code = async move {
            if let Some(begin) = begin {
                tokio::select! {
                    () = begin => {}
                    () = stopped.cancelled() => return Err(JobError::new("it was stopped before it began")),
                }
            }
            code.await
        };
        let code = ctx.scope(panics::catch_panic(code));
        let task = tokio::spawn(code.instrument(attempt_span.span()));

        let (sink, metrics, job_type, grace) = (self.sink.clone(), self.metrics.clone(), job.job_type, job.grace);
        let events = self.events.clone();
        metrics.began(job_type);
        events.started(&log);
        let end = async move {
            if let Some(gate) = gate {
                tokio::select! {
                    () = gate => started = Instant::now(),
                    () = stop.token().cancelled() => {}
                }
                log.set_deadline(started + timeout);
            }
            let (outcome, remark) = watch(task, timeout, grace, &stop).await;
            if let Some(remark) = remark {
                log.warn(remark);
            }
            faults::crash_point("executor.before_report");
            let duration = started.elapsed();
            let is_interrupted = matches!(outcome, Outcome::Interrupted);
            let failed = matches!(outcome, Outcome::Failed { .. } | Outcome::TimedOut { .. });
            let report = outcome.into_report();
            metrics.ended(job_type, report.status, duration);
            attempt_span.ended(report.status);
            events.ended(&log, &report, duration);
            // The next attempt continues from the newest checkpoint, also from one that was set a moment ago.
            let checkpoint = log.newest_checkpoint().filter(|_| !matches!(report.status, OccurrenceStatus::Completed));
            // The row stores only the failure of the latest attempt. The log stores the failure of every attempt.
            if let Some(exception) = report.exception.as_ref().filter(|_| failed) {
                log.error(exception.as_str());
            }
            tracing::debug!(
                occurrence.id = %running.occurrence_id,
                occurrence.attempt = running.attempt,
                occurrence.status = report.status.label(),
                duration_ms = duration.as_millis() as u64,
                "occurrence {} ended", running.occurrence_id
            );
            log.flush_log();
            let kept = sink.report_end(StatusReport {
                status: report.status,
                timestamp: clock::now(),
                result: report.result,
                exception: report.exception,
                duration_ms: Some(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)),
                permanent: report.permanent,
                retry_after_ms: report.retry_after.map(|pause| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX)),
                checkpoint,
                ..running
            });
            RunEnd { is_interrupted, kept }
        };
        (confirmed.boxed(), end)
    }

    /// Reports an attempt as cancelled before its start.
    pub(crate) fn report_cancelled(&self, message: &JobMessage, reason: &str) -> ConfirmFuture {
        let report = Outcome::Cancelled { reason: reason.to_owned() }.into_report();
        self.sink.report(StatusReport {
            status: report.status,
            exception: report.exception,
            ..self.report_template(message)
        })
    }

    /// Reports an attempt as lost: the instance that claimed it stopped sending heartbeats before it reported the
    /// start. `holder` is that instance, in whose name the report is sent. It is `None` if, according to the claim, the
    /// attempt ended and no end was reported, because such a claim does not name an instance.
    pub(crate) fn report_lost(&self, message: &JobMessage, holder: Option<&str>) -> ConfirmFuture {
        let reason = match holder {
            Some(holder) => format!(
                "lost: {holder} claimed this attempt and stopped sending heartbeats before it reported the start"
            ),
            None => "lost: according to its claim this attempt ended, but its end was not reported".to_owned(),
        };
        self.sink.report(StatusReport {
            status: OccurrenceStatus::Unknown,
            instance_id: holder.unwrap_or(&self.instance_id).to_owned(),
            exception: Some(reason),
            ..self.report_template(message)
        })
    }

    fn report_template(&self, message: &JobMessage) -> StatusReport {
        let report = StatusReport::new(
            message.occurrence_id,
            message.attempt,
            self.instance_id.clone(),
            OccurrenceStatus::Running,
            clock::now(),
        );
        StatusReport { traceparent: message.traceparent.clone(), ..report }
    }

    fn timeout(&self, job: &RegisteredJob, message: &JobMessage) -> Duration {
        let requested =
            message.timeout_seconds.filter(|seconds| *seconds > 0).map(|seconds| Duration::from_secs(seconds.into()));
        requested.or(job.timeout).unwrap_or(self.default_timeout).min(MAX_TIMEOUT)
    }
}

/// Waits for the end of a run, and ends it if its timeout expires or `stop` fires. Work that was done counts, whatever was
/// requested meanwhile. Such an end has a remark for the log of the run, and so has an error that is not reported because
/// the run was asked to end.
async fn watch(
    mut task: JoinHandle<JobReturn>,
    timeout: Duration,
    grace: Duration,
    stop: &StopSignal,
) -> (Outcome, Option<String>) {
    let outcome = tokio::select! {
        biased;
        // A job that reacts to its token may have ended before this poll. A failure during an interruption is no failure
        // of the job, and a job that gives up because its token fires was cancelled by no user.
        joined = &mut task => {
            return match (stop.stop_reason(), into_outcome(joined)) {
                (None, returned) => (returned, None),
                (Some(StopReason::Revoked | StopReason::Shutdown), returned @ Outcome::Snoozed { .. }) => (returned, None),
                (Some(reason), returned) => settle(returned, requested_end(&reason), &reason),
            };
        }
        () = stop.token().cancelled() => stop.stop_reason().map_or(Outcome::Interrupted, |reason| requested_end(&reason)),
        () = tokio::time::sleep(timeout) => {
            stop.time_out(timeout);
            requested_end(&StopReason::Timeout { after: timeout })
        }
    };
    let grace = if matches!(outcome, Outcome::Interrupted) { grace.min(SHUTDOWN_CLEANUP_TIMEOUT) } else { grace };
    match tokio::time::timeout(grace, &mut task).await {
        Ok(joined) => match stop.stop_reason() {
            Some(reason) => settle(into_outcome(joined), outcome, &reason),
            // Not reached, because the run was asked to end.
            None => (outcome, None),
        },
        Err(_) => {
            task.abort();
            (mark_ignored(outcome, grace), None)
        }
    }
}

/// Returns the end of a run that was asked to end and does so at once.
fn requested_end(reason: &StopReason) -> Outcome {
    match reason {
        StopReason::Cancelled { reason } => Outcome::Cancelled { reason: reason.clone() },
        StopReason::Timeout { after } => Outcome::TimedOut {
            exception: format!(
                "timed out: the run was ended after {} s; increase the timeout of the job if it needs longer",
                after.as_secs()
            ),
        },
        StopReason::Revoked | StopReason::Shutdown => Outcome::Interrupted,
    }
}

/// Decides between the return value of a run and the end that was requested for `reason`. Only completed work replaces a
/// requested end. The error of a run is added to the text of a timeout, and is a remark for the log after another end.
fn settle(returned: Outcome, requested: Outcome, reason: &StopReason) -> (Outcome, Option<String>) {
    let text = match &returned {
        Outcome::Done { .. } => {
            let remark = format!("the run completed its work although it was asked to end: {reason}");
            return (returned, Some(remark));
        }
        Outcome::Failed { exception: text, .. }
        | Outcome::TimedOut { exception: text }
        | Outcome::Snoozed { reason: text, .. }
        | Outcome::Cancelled { reason: text } => text,
        Outcome::Interrupted => return (requested, None),
    };
    // A job that returns the reason as its error adds nothing to it.
    if *text == reason.to_string() {
        return (requested, None);
    }
    let remark = format!("the run returned an error after it was asked to end: {text}");
    match requested {
        // The error says how far the run came, which a timeout needs to be understood. The log contains each exception.
        Outcome::TimedOut { exception } => (Outcome::TimedOut { exception: format!("{exception}\n{remark}") }, None),
        requested => (requested, Some(remark)),
    }
}

/// Adds to an outcome that the run did not end within its grace period.
fn mark_ignored(outcome: Outcome, grace: Duration) -> Outcome {
    let mark = |text: String| {
        format!("{text} (the run did not stop when requested and was dropped after {} s)", grace.as_secs_f64())
    };
    match outcome {
        Outcome::TimedOut { exception } => Outcome::TimedOut { exception: mark(exception) },
        Outcome::Cancelled { reason } => Outcome::Cancelled { reason: mark(reason) },
        outcome => outcome,
    }
}

fn into_outcome(joined: Result<JobReturn, JoinError>) -> Outcome {
    match joined {
        Ok(Ok(returned)) => returned.into(),
        Ok(Err(panic)) => Outcome::Failed { permanent: false, retry_after: None, exception: panic.to_string() },
        // The task is aborted nowhere else, so the runtime is shutting down.
        Err(_) => Outcome::Interrupted,
    }
}
