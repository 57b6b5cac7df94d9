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
//! The run begins at once, beside the confirmation of its *Running* report; only the acknowledgement of the delivery
//! waits for that. The executor knows neither broker nor Redis: reports and lines go to a [`ReportSink`].

use std::{future::Future, sync::Arc, time::Duration};

use milvaion_protocol::{
    message::{JobMessage, StatusReport},
    status::OccurrenceStatus,
};
use tokio::{
    task::{JoinError, JoinHandle},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    api::config::MAX_TIMEOUT,
    api::job::JobContext,
    api::outcome::{JobError, Outcome},
    clock,
    control::metrics::WorkerMetrics,
    faults,
    run::capture,
    run::panics,
    run::registry::RegisteredJob,
    run::report_sink::{ConfirmFuture, ReportSink},
    run::stop_signal::StopSignal,
};

/// How long a run may tidy up, at most, when it was told to end because the worker stops.
const SHUTDOWN_CLEANUP_TIMEOUT: Duration = Duration::from_secs(1);

/// What a job returned, or the text of its panic.
type JobReturn = Result<Result<Option<String>, JobError>, String>;

/// Runs attempts.
#[derive(Clone)]
pub(crate) struct Executor {
    pub(crate) sink: Arc<dyn ReportSink>,
    pub(crate) instance_id: String,
    pub(crate) default_timeout: Duration,
    /// Where runs are counted.
    pub(crate) metrics: WorkerMetrics,
    /// Fires when running attempts must end because the worker does.
    pub(crate) interrupt: CancellationToken,
}

impl Executor {
    /// What ends one attempt: an interruption of all, or somebody's wish.
    pub(crate) fn stop_signal(&self) -> StopSignal {
        StopSignal::child_of(&self.interrupt)
    }

    /// Starts an attempt. The job is running when this returns; the second future must be awaited for it to be timed,
    /// to end when `stop` is raised, and for its end to be reported. It answers whether the run was interrupted.
    pub(crate) fn start(
        &self,
        job: &RegisteredJob,
        mut message: JobMessage,
        stop: StopSignal,
    ) -> (ConfirmFuture, impl Future<Output = bool> + Send + use<>) {
        let data = message.job_data.take();
        let timeout = self.timeout(job, &message);
        let blank = self.blank(&message);
        let started = Instant::now();
        let confirmed = self.sink.report(blank.clone());

        // The job's own: a job that fires it must not look like somebody who wants it to end.
        let cancelled = stop.token().child_token();
        let ctx = JobContext::new(message, self.instance_id.clone(), self.sink.clone(), cancelled);
        // A task of its own: a panic ends there, and `abort` reaches it wherever it waits.
        let log = ctx.clone();
        let task = tokio::spawn(capture::in_run(ctx.clone(), panics::catch_panic(job.run(ctx, data))));

        let (sink, metrics, job_type, grace) = (self.sink.clone(), self.metrics.clone(), job.job_type, job.grace);
        metrics.began(job_type);
        let end = async move {
            let outcome = watch(task, timeout, grace, &stop).await;
            faults::point("executor.before_report");
            let duration = started.elapsed();
            let is_interrupted = matches!(outcome, Outcome::Interrupted);
            let failed = matches!(outcome, Outcome::Failed { .. } | Outcome::TimedOut { .. });
            let settled = outcome.into_report();
            metrics.ended(job_type, settled.status, duration);
            // The row keeps what the latest attempt failed with; its log keeps that of every attempt.
            if let Some(exception) = settled.exception.as_ref().filter(|_| failed) {
                log.error(exception.as_str());
            }
            tracing::debug!(
                occurrence.id = %blank.occurrence_id,
                occurrence.attempt = blank.attempt,
                occurrence.status = settled.status.label(),
                duration_ms = duration.as_millis() as u64,
                "occurrence ended"
            );
            // Not waited for: the reporter keeps it until the broker has it.
            sink.report_unconfirmed(StatusReport {
                status: settled.status,
                timestamp: clock::now(),
                result: settled.result,
                exception: settled.exception,
                duration_ms: Some(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)),
                permanent: settled.permanent,
                retry_after_ms: settled.retry_after.map(|pause| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX)),
                ..blank
            });
            is_interrupted
        };
        (confirmed, end)
    }

    /// Reports an attempt as cancelled that is not to start any more.
    pub(crate) fn report_cancelled(&self, message: &JobMessage, reason: &str) -> ConfirmFuture {
        let settled = Outcome::Cancelled { reason: reason.to_owned() }.into_report();
        self.sink.report(StatusReport { status: settled.status, exception: settled.exception, ..self.blank(message) })
    }

    /// Reports an attempt as lost with the instance that claimed it and fell silent before it had told that it began. It is
    /// that instance's run, if there was one; of one that has ended untold it is not known whose it was.
    pub(crate) fn report_lost(&self, message: &JobMessage, holder: Option<&str>) -> ConfirmFuture {
        let reason = match holder {
            Some(holder) => format!("lost: {holder} had claimed it and fell silent before it said that it began"),
            None => "lost: it has ended, and nobody has said how".to_owned(),
        };
        self.sink.report(StatusReport {
            status: OccurrenceStatus::Unknown,
            instance_id: holder.unwrap_or(&self.instance_id).to_owned(),
            exception: Some(reason),
            ..self.blank(message)
        })
    }

    fn blank(&self, message: &JobMessage) -> StatusReport {
        StatusReport::new(
            message.occurrence_id,
            message.attempt,
            self.instance_id.clone(),
            OccurrenceStatus::Running,
            clock::now(),
        )
    }

    fn timeout(&self, job: &RegisteredJob, message: &JobMessage) -> Duration {
        let asked =
            message.timeout_seconds.filter(|seconds| *seconds > 0).map(|seconds| Duration::from_secs(seconds.into()));
        asked.or(job.timeout).unwrap_or(self.default_timeout).min(MAX_TIMEOUT)
    }
}

/// Waits for a run's end, or brings it about.
async fn watch(mut task: JoinHandle<JobReturn>, timeout: Duration, grace: Duration, stop: &StopSignal) -> Outcome {
    let cut_short = tokio::select! {
        biased;
        // A job that heeds its token may have ended before anybody looked here. Whatever it then says, it was cancelled;
        // and what it did not finish because the worker stops, it did not fail at.
        joined = &mut task => {
            return match (stop.reason(), judge(joined)) {
                (Some(reason), _) => Outcome::Cancelled { reason: reason.to_owned() },
                (None, Outcome::Failed { .. }) if stop.token().is_cancelled() => Outcome::Interrupted,
                (None, outcome) => outcome,
            };
        }
        () = stop.token().cancelled() => match stop.reason() {
            Some(reason) => Outcome::Cancelled { reason: reason.to_owned() },
            None => Outcome::Interrupted,
        },
        () = tokio::time::sleep(timeout) => Outcome::TimedOut { seconds: timeout.as_secs(), ignored: false },
    };
    stop.token().cancel();
    let grace = if matches!(cut_short, Outcome::Interrupted) { grace.min(SHUTDOWN_CLEANUP_TIMEOUT) } else { grace };
    let last_words = tokio::time::timeout(grace, &mut task).await;
    match (last_words, &cut_short) {
        // It was told to stop and had finished its work nevertheless.
        (Ok(Ok(Ok(Ok(result)))), Outcome::Interrupted) => Outcome::Done { result },
        (Ok(_), _) => cut_short,
        (Err(_), _) => {
            task.abort();
            ignored(cut_short, grace)
        }
    }
}

/// Says of a run that it went on when it was told to end.
fn ignored(outcome: Outcome, grace: Duration) -> Outcome {
    match outcome {
        Outcome::TimedOut { seconds, .. } => Outcome::TimedOut { seconds, ignored: true },
        Outcome::Cancelled { reason } => Outcome::Cancelled {
            reason: format!(
                "{reason} (it did not end when it was told to and was dropped after {} s)",
                grace.as_secs_f64()
            ),
        },
        outcome => outcome,
    }
}

fn judge(joined: Result<JobReturn, JoinError>) -> Outcome {
    match joined {
        Ok(Ok(returned)) => returned.into(),
        Ok(Err(panic)) => Outcome::Failed { permanent: false, retry_after: None, exception: panic },
        // Nobody else aborts the task; only a runtime on its way down does.
        Err(_) => Outcome::Interrupted,
    }
}
