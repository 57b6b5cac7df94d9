//! The context that a run receives: its metadata, its log, its progress, its checkpoint and its end.
//!
//! A context is shared by the code of the job, by tasks that it spawns and by threads that it starts, so nothing in it waits
//! and nothing in it belongs to one task. What it reports is thinned out here, because a job may report in each step of a
//! loop.

use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use chrono::{DateTime, Utc};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::{AttemptLogBounds, JobMessage, LogLevel, MAX_CHECKPOINT_BYTES, RunProgress, StatusReport, truncate_text},
    status::OccurrenceStatus,
    storable::clean_text,
    trace::trace_id_text,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{runtime::Handle, time::Instant};
use tokio_util::sync::CancellationToken;

#[cfg(feature = "client")]
pub(crate) mod enqueue;
mod extensions;

#[cfg(feature = "client")]
use enqueue::JobEnqueuer;
use extensions::Extensions;

use crate::{
    api::outcome::JobError,
    clock,
    run::attempt_span::with_trace_ids,
    run::log_writer::{HELD_LINES_INTERVAL, LogWriter, WrittenLine},
    run::panics,
    run::report_sink::ReportSink,
    run::stop_signal::{StopReason, StopSignal},
};

/// Minimum interval between two progress reports of a run, and between two checkpoints. What comes sooner is thinned out.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);

tokio::task_local! {
    /// The run that the current task or thread is a part of.
    static CURRENT_RUN: JobContext;
}

/// The context of a run: its metadata, its log, its progress and its cancellation. Clones share the same state.
#[derive(Clone)]
pub struct JobContext {
    inner: Arc<JobContextInner>,
}

struct JobContextInner {
    message: JobMessage,
    worker_id: Arc<str>,
    instance_id: String,
    sink: Arc<dyn ReportSink>,
    log_writer: LogWriter,
    stop: StopSignal,
    /// Fires with the signal. A child, so that a job that fires its own token does not end the run like a user.
    cancelled: CancellationToken,
    deadline: Mutex<Option<Instant>>,
    reported: Mutex<ReportState>,
    extensions: Extensions,
    /// The runtime in which the run began. `None` in a test without a runtime.
    runtime: Option<Handle>,
    #[cfg(feature = "client")]
    enqueuer: JobEnqueuer,
}

/// The progress and the checkpoint of a run: what was sent, and what waits until the interval is over.
#[derive(Default)]
struct ReportState {
    /// Time and percentage of the last progress report sent.
    last_progress: Option<(Instant, u8)>,
    /// The newest progress that came less than an interval after the last report.
    waiting_progress: Option<RunProgress>,
    /// Time of the last checkpoint sent.
    last_checkpoint: Option<Instant>,
    /// True if the newest checkpoint came less than an interval after the last one.
    is_checkpoint_waiting: bool,
    /// The newest checkpoint.
    checkpoint: Option<Value>,
}

impl JobContextInner {
    fn lock(&self) -> MutexGuard<'_, ReportState> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self) -> StatusReport {
        StatusReport::new(
            self.message.occurrence_id,
            self.message.attempt,
            self.instance_id.clone(),
            OccurrenceStatus::Running,
            clock::now(),
        )
    }

    /// Sends a progress report. It is not confirmed, because the next report replaces a lost one.
    fn send_progress(&self, mut state: MutexGuard<'_, ReportState>, progress: RunProgress) {
        state.last_progress = Some((Instant::now(), progress.percent));
        // Sent under the lock, so that reports keep the order of their progress.
        self.sink.report_unconfirmed(StatusReport { progress: Some(progress), ..self.report() });
    }

    /// Sends the newest checkpoint.
    fn send_checkpoint(&self, mut state: MutexGuard<'_, ReportState>) {
        state.last_checkpoint = Some(Instant::now());
        state.is_checkpoint_waiting = false;
        self.sink.report_unconfirmed(StatusReport { checkpoint: state.checkpoint.clone(), ..self.report() });
    }

    /// Sends the log lines that are held.
    fn send_held_lines(&self, is_end: bool) {
        self.log_writer.send_held(is_end, |line| self.sink.log(self.message.occurrence_id, line));
    }
}

impl Drop for JobContextInner {
    /// Sends what was written after the end, such as by a thread of the job, and what a run held that was dropped.
    fn drop(&mut self) {
        self.send_held_lines(true);
    }
}

impl JobContext {
    /// Creates the context of a run. Its token is a child of that of the signal.
    pub(crate) fn new(
        message: JobMessage,
        worker_id: Arc<str>,
        instance_id: String,
        sink: Arc<dyn ReportSink>,
        stop: StopSignal,
        log_bounds: AttemptLogBounds,
        #[cfg(feature = "client")] enqueuer: JobEnqueuer,
    ) -> Self {
        let log_writer = LogWriter::new(message.attempt, log_bounds);
        Self {
            inner: Arc::new(JobContextInner {
                message,
                worker_id,
                instance_id,
                sink,
                log_writer,
                cancelled: stop.token().child_token(),
                stop,
                deadline: Mutex::default(),
                reported: Mutex::default(),
                extensions: Extensions::default(),
                runtime: Handle::try_current().ok(),
                #[cfg(feature = "client")]
                enqueuer,
            }),
        }
    }

    /// Returns the context of the run that the current task or thread is a part of.
    pub(crate) fn current() -> Option<Self> {
        CURRENT_RUN.try_with(Clone::clone).ok()
    }

    /// Sets the instant at which the timeout of the run expires.
    pub(crate) fn set_deadline(&self, deadline: Instant) {
        *self.inner.deadline.lock().unwrap_or_else(PoisonError::into_inner) = Some(deadline);
    }

    /// Returns the newest checkpoint that this attempt has set, for the report of its end.
    pub(crate) fn newest_checkpoint(&self) -> Option<Value> {
        self.inner.lock().checkpoint.clone()
    }

    /// Sends all log lines that were written so far, because the end is about to be reported.
    pub(crate) fn flush_log(&self) {
        self.inner.send_held_lines(true);
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

    /// Returns the id of the worker that runs the attempt.
    #[must_use]
    pub fn worker_id(&self) -> &str {
        &self.inner.worker_id
    }

    /// Returns the id of the instance that runs the attempt, which the pages show: the worker id and eight hex digits. Another
    /// attempt may run in another instance.
    #[must_use]
    pub fn instance_id(&self) -> &str {
        &self.inner.instance_id
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

    /// Writes a line to the log of the occurrence, which its page shows live. Never waits. A line has at most 8 KiB; a longer
    /// one is cut, with a mark. Of an attempt with more than 10,000 lines or 4 MiB, the first 2,000 and the last 8,000 lines are
    /// kept, and a line between them says how many are missing. Beyond these bounds, which `MILVAION_LOG_LINES` and
    /// `MILVAION_LOG_MEGABYTES` change, lines are sent every ten seconds and at the end of the attempt.
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
    /// not. The returned future owns the context, so it can be spawned: `tokio::spawn(ctx.scope(part()))`.
    pub fn scope<F: Future>(&self, part: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT_RUN.scope(self.clone(), part)
    }

    /// Runs code that blocks its thread, such as a long computation or a library without `async`, on a thread for such
    /// code, as part of this run. A panic becomes a failure of the attempt.
    ///
    /// The thread continues if the run is dropped meanwhile. Code that takes longer than a second or two should check
    /// `ctx.cancelled().is_cancelled()` from time to time and return an error.
    ///
    /// # Errors
    /// Returns the error of the code, or its panic.
    pub async fn blocking<T: Send + 'static>(
        &self,
        code: impl FnOnce() -> Result<T, JobError> + Send + 'static,
    ) -> Result<T, JobError> {
        let (run, span) = (self.clone(), tracing::Span::current());
        let task = tokio::task::spawn_blocking(move || {
            let _entered = span.enter();
            CURRENT_RUN.sync_scope(run, || panics::catch_panic_sync(code))
        });
        match task.await {
            Ok(Ok(returned)) => returned,
            Ok(Err(panic)) => Err(JobError::new(panic)),
            Err(_) => {
                Err(JobError::new("the blocking code did not run, because the runtime of the program is shutting down"))
            }
        }
    }

    /// Returns the number of attempts that failed before this one. It does not count attempts that were lost with their
    /// worker or handed back, so it can be less than [`attempt`](Self::attempt) − 1.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.inner.message.retry_count
    }

    /// Returns the maximum number of retries of the occurrence.
    #[must_use]
    pub fn max_retries(&self) -> u32 {
        self.inner.message.max_retries
    }

    /// Returns true if no retry is left: if this attempt fails, the occurrence fails.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.inner.message.retry_count >= self.inner.message.max_retries
    }

    /// Returns the name of the job type.
    #[must_use]
    pub fn job_type(&self) -> &str {
        &self.inner.message.job_type
    }

    /// Returns the priority of the occurrence, from 1 (idle) to 5 (critical).
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.inner.message.priority
    }

    /// Returns the occurrence that enqueued this one; `None` if a schedule or a user created it.
    #[must_use]
    pub fn parent_id(&self) -> Option<OccurrenceId> {
        self.inner.message.parent_id
    }

    /// Returns the instant at which the timeout of this attempt expires. `None` in a context without a run, which only a
    /// test has.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        *self.inner.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reason why the run should end; `None` while [`cancelled`](Self::cancelled) has not fired.
    ///
    /// ```
    /// # use milvaion_worker::{JobContext, JobError, StopReason};
    /// # fn example(ctx: &JobContext) -> Result<(), JobError> {
    /// match ctx.stop_reason() {
    ///     Some(StopReason::Cancelled { reason }) => Err(JobError::cancelled(reason)),
    ///     Some(reason) => Err(JobError::new(reason)),
    ///     None => Ok(()),
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.inner.stop.stop_reason()
    }

    /// Returns the token that fires when the run should end: its timeout has expired, a user has cancelled it, or the
    /// worker stops; see [`stop_reason`](Self::stop_reason). `ctx.cancelled().cancelled().await` waits for it,
    /// `ctx.cancelled().is_cancelled()` checks it. The run is dropped [`GRACE`](crate::Job::GRACE) later, at the point where
    /// it awaits.
    ///
    /// A job that ends in time can say how far it came with the text of its error, which the log of the occurrence shows, and
    /// after a timeout its error too. The status and its reason remain those of the stop, except for work that was completed.
    #[must_use]
    pub fn cancelled(&self) -> &CancellationToken {
        &self.inner.cancelled
    }

    /// Reports the progress of the run: `percent` from 0 to 100 (more counts as 100), and in `message` the current
    /// activity, truncated to 200 bytes. Never waits. At most four reports a second are sent. Of those that come
    /// sooner, the newest is sent when the interval is over, if the run still exists. A report of 100 is sent at once.
    pub fn progress(&self, percent: u8, message: impl Into<String>) {
        let percent = percent.min(100);
        let progress = RunProgress { percent, message: clean_text(truncate_text(message.into(), 200)) };
        let mut state = self.inner.lock();
        let too_soon = state
            .last_progress
            .filter(|(at, last)| at.elapsed() < REPORT_INTERVAL && (percent < 100 || *last == 100))
            .map(|(at, _)| at + REPORT_INTERVAL);
        let Some(due) = too_soon else {
            state.waiting_progress = None;
            return self.inner.send_progress(state, progress);
        };
        let is_first = state.waiting_progress.replace(progress).is_none();
        drop(state);
        if is_first {
            self.send_later(due, |run| {
                let mut state = run.lock();
                if let Some(progress) = state.waiting_progress.take() {
                    run.send_progress(state, progress);
                }
            });
        }
    }

    /// Stores a value that the next attempt of the occurrence receives from [`last_checkpoint`](Self::last_checkpoint), such
    /// as the number of the last row that was imported. Never waits. A newer checkpoint replaces an older one.
    ///
    /// At most four checkpoints a second are sent, and the newest one is sent with the end of an attempt that fails, is
    /// snoozed or is interrupted. A process that is killed loses what it set in the last quarter of a second, and what it
    /// could not send while the broker was away. So a job must still be able to repeat the work after its last checkpoint.
    ///
    /// # Errors
    /// Returns a permanent failure if the value cannot be written as JSON, or if it has more than 32 KiB as JSON.
    pub fn checkpoint(&self, value: &impl Serialize) -> Result<(), JobError> {
        let value = serde_json::to_value(value)
            .map_err(|error| JobError::permanent(format!("the checkpoint cannot be written as JSON: {error}")))?;
        let size = value.to_string().len();
        if size > MAX_CHECKPOINT_BYTES {
            return Err(JobError::permanent(format!(
                "the checkpoint has {size} bytes of JSON: store a reference of at most {MAX_CHECKPOINT_BYTES} bytes"
            )));
        }
        let mut state = self.inner.lock();
        state.checkpoint = Some(value);
        let too_soon = state.last_checkpoint.filter(|at| at.elapsed() < REPORT_INTERVAL).map(|at| at + REPORT_INTERVAL);
        let Some(due) = too_soon else {
            self.inner.send_checkpoint(state);
            return Ok(());
        };
        let is_first = !std::mem::replace(&mut state.is_checkpoint_waiting, true);
        drop(state);
        if is_first {
            self.send_later(due, |run| {
                let state = run.lock();
                if state.is_checkpoint_waiting {
                    run.send_checkpoint(state);
                }
            });
        }
        Ok(())
    }

    /// Returns the last checkpoint of an earlier attempt; `None` if there is none.
    ///
    /// # Errors
    /// Returns a permanent failure if the checkpoint does not fit `T`, such as after a deployment that changed the type.
    pub fn last_checkpoint<T: DeserializeOwned>(&self) -> Result<Option<T>, JobError> {
        self.inner
            .message
            .checkpoint
            .as_ref()
            .map(|value| {
                T::deserialize(value).map_err(|error| {
                    JobError::permanent(format!("the checkpoint of the previous attempt cannot be read: {error}"))
                })
            })
            .transpose()
    }

    /// Calls `send` at `due` if the run still exists. A job may report from a thread of its own, which has no runtime.
    fn send_later(&self, due: Instant, send: impl FnOnce(&JobContextInner) + Send + 'static) {
        let Some(runtime) = &self.inner.runtime else { return };
        let run = Arc::downgrade(&self.inner);
        runtime.spawn(async move {
            tokio::time::sleep_until(due).await;
            if let Some(run) = run.upgrade() {
                send(&run);
            }
        });
    }

    fn write(&self, level: LogLevel, message: String, data: Option<Value>) {
        match self.inner.log_writer.write(level, message, with_trace_ids(data)) {
            WrittenLine::Due(line) => self.inner.sink.log(self.occurrence_id(), line),
            WrittenLine::Held { is_first: true } => {
                self.send_later(Instant::now() + HELD_LINES_INTERVAL, |run| run.send_held_lines(false));
            }
            WrittenLine::Held { is_first: false } => {}
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
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    use super::*;
    use crate::run::report_sink::ConfirmFuture;

    struct ProgressSender(UnboundedSender<RunProgress>);

    impl ReportSink for ProgressSender {
        fn report(&self, report: StatusReport) -> ConfirmFuture {
            self.report_unconfirmed(report);
            future::ready(()).boxed()
        }

        fn report_end(&self, report: StatusReport) -> ConfirmFuture {
            self.report(report)
        }

        fn report_unconfirmed(&self, report: StatusReport) {
            let _ = report.progress.map(|progress| self.0.send(progress));
        }

        fn log(&self, _: OccurrenceId, _: LogLine) {}
    }

    fn run() -> (JobContext, UnboundedReceiver<RunProgress>) {
        let (sender, reports) = unbounded_channel();
        (crate::testing::TestContext::new().reporting_to(Arc::new(ProgressSender(sender))), reports)
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
        assert!(begun.elapsed() >= REPORT_INTERVAL);
        run.progress(10, "");
        run.progress(100, "done");
        run.progress(42, "");
        assert_eq!(next(&mut reports).await, (100, "done".into()), "sent at once and replaces the waiting report");
    }
}
