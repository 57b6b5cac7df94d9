//! The job trait, which users implement, and the context that a run receives.

use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::{JobMessage, LogLevel, RunProgress, StatusReport},
    status::OccurrenceStatus,
    trace::trace_id_text,
};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::{
    api::outcome::{JobError, strip_nul},
    clock,
    run::attempt_span::with_trace_ids,
    run::capture,
    run::log_writer::LogWriter,
    run::report_sink::ReportSink,
};

/// A job type that a worker can run.
///
/// One value serves all runs of the process at once. Resources that runs share, such as a connection pool or an HTTP
/// client, therefore belong in `self`.
pub trait Job: Send + Sync + 'static {
    /// Name by which jobs select this type: 1 to 100 letters, digits, `-`, `_` and `.`.
    const TYPE: &'static str;
    /// Description of one sentence, for users who define a job of this type.
    const DESCRIPTION: &'static str;
    /// Concurrency limit of this type in one process, 1 to 1000. The worker's configuration can override it. The
    /// capacity of the worker limits all types together.
    const CONCURRENCY: u16 = 10;
    /// Timeout of a run unless the job sets one. With `None`, the default timeout of the worker applies.
    const TIMEOUT: Option<Duration> = None;
    /// Time for cleanup after [`cancelled`](JobContext::cancelled) has fired, at most 60 s. The run is dropped when it
    /// is over. At shutdown it is at most one second, because the shutdown grace of the worker has passed by then.
    const GRACE: Duration = Duration::from_secs(1);

    /// Input of a run. Its JSON Schema is announced to the server, and the dashboard builds a form from it. Doc
    /// comments become the descriptions of the fields.
    type Input: DeserializeOwned + JsonSchema + Send + 'static;
    /// Result of a run, stored with the occurrence: a string as it is, `()` as no result, any other value as JSON text.
    /// Results longer than 64 KiB are truncated.
    type Output: Serialize + Send + 'static;

    /// Runs the job. Implement it as an `async fn`.
    ///
    /// The same occurrence can run again after a failure, with a higher [`attempt`](JobContext::attempt). Make external
    /// effects idempotent, with [`occurrence_id`](JobContext::occurrence_id) as the key. The future is dropped when its
    /// timeout expires, it is cancelled or the worker stops, [`GRACE`](Job::GRACE) after
    /// [`cancelled`](JobContext::cancelled) has fired.
    ///
    /// A future can be dropped only while it awaits. Code that blocks its thread (a long computation, `spawn_blocking`)
    /// continues, and another attempt may begin beside it. Such code must check `ctx.cancelled().is_cancelled()` from
    /// time to time. A process whose runtime waits for such a thread does not exit before the thread does.
    ///
    /// # Errors
    /// Returns a [`JobError`], which determines what follows. Every other error converts into a retryable failure.
    fn run(&self, ctx: &JobContext, input: Self::Input) -> impl Future<Output = Result<Self::Output, JobError>> + Send;
}

/// Minimum interval between two progress reports of a run. Reports that come sooner are thinned out.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// The context of a run: its metadata, its log, its progress and its cancellation. Clones share the same state.
#[derive(Clone)]
pub struct JobContext {
    inner: Arc<JobContextInner>,
}

struct JobContextInner {
    message: JobMessage,
    instance_id: String,
    sink: Arc<dyn ReportSink>,
    log_writer: LogWriter,
    cancelled: CancellationToken,
    progress: Mutex<ProgressState>,
    /// The runtime in which the run began. `None` in a test without a runtime.
    runtime: Option<Handle>,
}

/// The last progress report sent, and the one that waits.
#[derive(Default)]
struct ProgressState {
    /// Time and percentage of the last report sent.
    last_sent: Option<(Instant, u8)>,
    /// The newest progress that came less than an interval after the last report; sent when the interval is over.
    waiting: Option<RunProgress>,
}

impl JobContextInner {
    fn lock_progress(&self) -> MutexGuard<'_, ProgressState> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a progress report. It is not confirmed, because the next report replaces a lost one.
    fn send_progress(&self, mut state: MutexGuard<'_, ProgressState>, progress: RunProgress) {
        state.last_sent = Some((Instant::now(), progress.percent));
        // Sent under the lock, so that reports keep the order of their progress.
        self.sink.report_unconfirmed(StatusReport {
            progress: Some(progress),
            ..StatusReport::new(
                self.message.occurrence_id,
                self.message.attempt,
                self.instance_id.clone(),
                OccurrenceStatus::Running,
                clock::now(),
            )
        });
    }
}

impl JobContext {
    pub(crate) fn new(
        message: JobMessage,
        instance_id: String,
        sink: Arc<dyn ReportSink>,
        cancelled: CancellationToken,
    ) -> Self {
        let log_writer = LogWriter::new(message.attempt);
        Self {
            inner: Arc::new(JobContextInner {
                message,
                instance_id,
                sink,
                log_writer,
                cancelled,
                progress: Mutex::default(),
                runtime: Handle::try_current().ok(),
            }),
        }
    }

    /// Returns the id of the occurrence. It is the same for all its attempts.
    #[must_use]
    pub fn occurrence_id(&self) -> OccurrenceId {
        self.inner.message.occurrence_id
    }

    /// Returns the id of the job.
    #[must_use]
    pub fn job_id(&self) -> JobId {
        self.inner.message.job_id
    }

    /// Returns the name of the job.
    #[must_use]
    pub fn job_name(&self) -> &str {
        &self.inner.message.job_name
    }

    /// Returns the number of this attempt, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.inner.message.attempt
    }

    /// Returns the due time of the occurrence.
    #[must_use]
    pub fn scheduled_for(&self) -> DateTime<Utc> {
        self.inner.message.scheduled_for
    }

    /// Returns the position of this attempt in the trace of its occurrence, as the `traceparent` of the W3C Trace Context.
    /// A job that calls other systems sends it as the header of that name, so that they continue the trace. `None` if the
    /// occurrence is not traced.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        self.inner.message.traceparent.as_deref()
    }

    /// Returns the id of the trace of the occurrence, 32 hexadecimal digits, which its page shows. It exists even if the
    /// trace is not recorded.
    #[must_use]
    pub fn trace_id(&self) -> String {
        trace_id_text(self.occurrence_id(), self.traceparent())
    }

    /// Writes a line to the log of the occurrence, which its page shows live. Never waits. A line has at most 8 KiB and
    /// an attempt at most 10,000 lines. Longer lines and further lines are cut, with a mark.
    pub fn log(&self, level: LogLevel, message: impl Into<String>) {
        self.write(level, message.into(), None);
    }

    /// Writes a line with fields beside the text. Fields of more than 8 KiB of JSON are left out.
    pub fn log_with(&self, level: LogLevel, message: impl Into<String>, data: Value) {
        self.write(level, message.into(), Some(data));
    }

    /// Writes a line at debug level: details for the developer of the job.
    pub fn debug(&self, message: impl Into<String>) {
        self.log(LogLevel::Debug, message);
    }

    /// Writes a line at info level: normal progress.
    pub fn info(&self, message: impl Into<String>) {
        self.log(LogLevel::Info, message);
    }

    /// Writes a line at warning level: a problem that does not stop the run.
    pub fn warn(&self, message: impl Into<String>) {
        self.log(LogLevel::Warn, message);
    }

    /// Writes a line at error level: a failure.
    pub fn error(&self, message: impl Into<String>) {
        self.log(LogLevel::Error, message);
    }

    /// Runs a future as part of this run: its `tracing` events go to the log of the occurrence if the process has a
    /// [`CaptureLayer`](crate::CaptureLayer). The future of the run is part of it already; tasks that it spawns are
    /// not.
    pub async fn scope<T>(&self, part: impl Future<Output = T>) -> T {
        capture::in_run(self.clone(), part).await
    }

    /// Returns the number of attempts that failed before this one. It does not count attempts that were lost with their
    /// worker or handed back, so it can be less than [`attempt`](Self::attempt) − 1.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.inner.message.retry_count
    }

    /// Returns true if no retry is left: if this attempt fails, the occurrence fails.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.inner.message.retry_count >= self.inner.message.max_retries
    }

    /// Returns the token that fires when the run should end: its timeout has expired, a user has cancelled it, or the
    /// worker stops. `ctx.cancelled().cancelled().await` waits for it, `ctx.cancelled().is_cancelled()` checks it. The
    /// run is dropped [`GRACE`](Job::GRACE) later, at the point where it awaits.
    #[must_use]
    pub fn cancelled(&self) -> &CancellationToken {
        &self.inner.cancelled
    }

    /// Reports the progress of the run: `percent` from 0 to 100 (more counts as 100), and in `message` the current
    /// activity, truncated to 200 bytes. Never waits. At most four reports a second are sent. Of those that come
    /// sooner, the newest is sent when the interval is over, if the run still exists. A report of 100 is sent at once.
    pub fn progress(&self, percent: u8, message: impl Into<String>) {
        let percent = percent.min(100);
        let progress =
            RunProgress { percent, message: strip_nul(milvaion_protocol::message::truncate_text(message.into(), 200)) };
        let mut state = self.inner.lock_progress();
        let too_soon = state
            .last_sent
            .filter(|(at, last)| at.elapsed() < PROGRESS_INTERVAL && (percent < 100 || *last == 100))
            .map(|(at, _)| at + PROGRESS_INTERVAL);
        let Some(due) = too_soon else {
            state.waiting = None;
            return self.inner.send_progress(state, progress);
        };
        let is_first = state.waiting.replace(progress).is_none();
        drop(state);
        // A job may call this from a thread of its own, which has no runtime.
        if let (true, Some(runtime)) = (is_first, &self.inner.runtime) {
            let run = Arc::downgrade(&self.inner);
            runtime.spawn(async move {
                tokio::time::sleep_until(due.into()).await;
                let Some(run) = run.upgrade() else { return };
                let mut state = run.lock_progress();
                if let Some(progress) = state.waiting.take() {
                    run.send_progress(state, progress);
                }
            });
        }
    }

    fn write(&self, level: LogLevel, message: String, data: Option<Value>) {
        if let Some(line) = self.inner.log_writer.line(level, message, with_trace_ids(data)) {
            self.inner.sink.log(self.occurrence_id(), line);
        }
    }
}

impl fmt::Debug for JobContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobContext")
            .field("occurrence_id", &self.occurrence_id())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, future};
    use milvaion_protocol::message::LogLine;
    use serde_json::json;
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    use super::*;
    use crate::run::report_sink::ConfirmFuture;

    struct ProgressSender(UnboundedSender<RunProgress>);

    impl ReportSink for ProgressSender {
        fn report(&self, report: StatusReport) -> ConfirmFuture {
            self.report_unconfirmed(report);
            future::ready(()).boxed()
        }

        fn report_unconfirmed(&self, report: StatusReport) {
            let _ = report.progress.map(|progress| self.0.send(progress));
        }

        fn log(&self, _: OccurrenceId, _: LogLine) {}
    }

    fn run() -> (JobContext, UnboundedReceiver<RunProgress>) {
        let (sender, reports) = unbounded_channel();
        let id = "01920000-0000-7000-8000-000000000000";
        let message = json!({
            "occurrenceId": id, "jobId": id, "jobName": "j", "jobType": "t", "jobData": {}, "correlationId": id,
            "scheduledFor": "2026-01-01T00:00:00Z", "timestamp": "2026-01-01T00:00:00Z", "attempt": 1,
            "retryCount": 0, "maxRetries": 0, "priority": 3,
        });
        let message = serde_json::from_value(message).expect("a message");
        (JobContext::new(message, "w-1".into(), Arc::new(ProgressSender(sender)), CancellationToken::new()), reports)
    }

    async fn next(reports: &mut UnboundedReceiver<RunProgress>) -> (u8, String) {
        let progress = tokio::time::timeout(Duration::from_secs(10), reports.recv()).await.expect("sent in time");
        let progress = progress.expect("the run exists");
        (progress.percent, progress.message)
    }

    #[tokio::test]
    async fn frequent_progress_is_thinned_to_the_newest() {
        let (run, mut reports) = run();
        let begun = Instant::now();
        run.progress(1, "one");
        // Called from a thread that the job started, which has no runtime.
        let counting = run.clone();
        let thread = std::thread::spawn(move || (2..=9).for_each(|percent| counting.progress(percent, "more")));
        thread.join().expect("the thread does not panic");
        assert_eq!(next(&mut reports).await, (1, "one".into()));
        assert_eq!(next(&mut reports).await, (9, "more".into()));
        assert!(begun.elapsed() >= PROGRESS_INTERVAL);
        run.progress(10, "");
        run.progress(100, "done");
        run.progress(42, "");
        assert_eq!(next(&mut reports).await, (100, "done".into()), "sent at once and replaces the waiting report");
    }
}
