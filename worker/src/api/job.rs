//! What a user writes: a job type, and what it is given while it runs.

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
};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::{
    api::outcome::{JobError, strip_nul},
    clock,
    run::capture,
    run::log_writer::LogWriter,
    run::report_sink::ReportSink,
};

/// Something a worker can do.
///
/// One value serves all runs at once, so what runs share (a connection pool, a client) is kept in `self`.
pub trait Job: Send + Sync + 'static {
    /// The name jobs choose it by: 1 to 100 letters, digits, `-`, `_` and `.`.
    const TYPE: &'static str;
    /// What it does, in a sentence for whoever defines a job.
    const DESCRIPTION: &'static str;
    /// How many runs at once in one process, 1 to 1000, unless the worker's configuration says otherwise for the type; the
    /// worker's capacity bounds all types together.
    const CONCURRENCY: u16 = 10;
    /// After how long a run is ended unless the job says otherwise; none means the worker's default.
    const TIMEOUT: Option<Duration> = None;
    /// How long a run may tidy up after [`cancelled`](JobContext::cancelled) said that it is to end, before it is dropped
    /// where it stands; at most 60 s. When the worker stops, whose own grace is over by then, it is never more than a
    /// second.
    const GRACE: Duration = Duration::from_secs(1);

    /// What it needs to know. Its JSON Schema is announced to the server, which draws a form from it: doc comments
    /// become the descriptions of the fields.
    type Input: DeserializeOwned + JsonSchema + Send + 'static;
    /// What it returns, kept with the occurrence as JSON: a string as it is, `()` as nothing, everything else as JSON
    /// text; at most 64 KiB, longer ones are cut.
    type Output: Serialize + Send + 'static;

    /// Does the work. Write it as an `async fn`.
    ///
    /// The same occurrence may run again after a failure, with a higher [`attempt`](JobContext::attempt): effects
    /// outside should be keyed by [`occurrence_id`](JobContext::occurrence_id). The future is dropped when its time is
    /// up, it is cancelled or the worker stops: [`GRACE`](Job::GRACE) after [`cancelled`](JobContext::cancelled) said so.
    ///
    /// Only what awaits can be dropped. Code that blocks its thread (a long computation, `spawn_blocking`) goes on, and
    /// another attempt may begin beside it: let it look at `ctx.cancelled().is_cancelled()` from time to time. A process
    /// whose runtime waits for such a thread does not end before it.
    ///
    /// # Errors
    /// Any error ends the attempt as a failure; see [`JobError`].
    fn run(&self, ctx: &JobContext, input: Self::Input) -> impl Future<Output = Result<Self::Output, JobError>> + Send;
}

/// How often at most a run's progress is reported; what comes sooner is thinned out.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// What a run knows and can say. Cloning is cheap and gives the same context.
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
    progressed: Mutex<ProgressState>,
    /// What the run was begun in; none in a test without one.
    runtime: Option<Handle>,
}

/// What of a run's progress was told, and what is still to be.
#[derive(Default)]
struct ProgressState {
    /// The last one told, and when.
    told: Option<(Instant, u8)>,
    /// What came too soon after it; the newest is told when its time has come.
    waiting: Option<RunProgress>,
}

impl JobContextInner {
    fn progressed(&self) -> MutexGuard<'_, ProgressState> {
        self.progressed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of progress, which is not confirmed: a lost one is replaced by the next.
    fn send_progress(&self, mut progressed: MutexGuard<'_, ProgressState>, progress: RunProgress) {
        progressed.told = Some((Instant::now(), progress.percent));
        // Under the lock: what is told later is sent later.
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
                progressed: Mutex::default(),
                runtime: Handle::try_current().ok(),
            }),
        }
    }

    /// The occurrence this run belongs to: the same for all its attempts.
    #[must_use]
    pub fn occurrence_id(&self) -> OccurrenceId {
        self.inner.message.occurrence_id
    }

    /// The job it belongs to.
    #[must_use]
    pub fn job_id(&self) -> JobId {
        self.inner.message.job_id
    }

    /// The job's name.
    #[must_use]
    pub fn job_name(&self) -> &str {
        &self.inner.message.job_name
    }

    /// Which attempt this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.inner.message.attempt
    }

    /// When it was due.
    #[must_use]
    pub fn scheduled_for(&self) -> DateTime<Utc> {
        self.inner.message.scheduled_for
    }

    /// Writes a line into the occurrence's log, seen live on its page. Never waits. A line has at most 8 KiB, an attempt
    /// at most 10,000 lines; what is more is cut, with a mark.
    pub fn log(&self, level: LogLevel, message: impl Into<String>) {
        self.write(level, message.into(), None);
    }

    /// As [`log`](Self::log), with fields beside the text; fields of more than 8 KiB of JSON are left out.
    pub fn log_with(&self, level: LogLevel, message: impl Into<String>, data: Value) {
        self.write(level, message.into(), Some(data));
    }

    /// A line for whoever debugs the job.
    pub fn debug(&self, message: impl Into<String>) {
        self.log(LogLevel::Debug, message);
    }

    /// A line that says what happens.
    pub fn info(&self, message: impl Into<String>) {
        self.log(LogLevel::Info, message);
    }

    /// A line about something that should not be so, yet does not stop the run.
    pub fn warn(&self, message: impl Into<String>) {
        self.log(LogLevel::Warn, message);
    }

    /// A line about what went wrong.
    pub fn error(&self, message: impl Into<String>) {
        self.log(LogLevel::Error, message);
    }

    /// Makes a future part of this run: what it writes with `tracing` goes into the occurrence's log, if the process has
    /// a [`CaptureLayer`](crate::CaptureLayer). A run's own future is that already; what it spawns is not.
    pub async fn scope<T>(&self, part: impl Future<Output = T>) -> T {
        capture::in_run(self.clone(), part).await
    }

    /// How many attempts have failed before this one. One that was lost with its worker or handed back is not among
    /// them, so this may be less than [`attempt`](Self::attempt) − 1.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.inner.message.retry_count
    }

    /// Whether this is the last attempt: if it fails, the occurrence has failed.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.inner.message.retry_count >= self.inner.message.max_retries
    }

    /// Fires when the run should end: its time is up, somebody has cancelled it, or the worker stops.
    /// `ctx.cancelled().cancelled().await` waits for it, `ctx.cancelled().is_cancelled()` looks. [`GRACE`](Job::GRACE)
    /// later the run is dropped where it stands, which is where it awaits something.
    #[must_use]
    pub fn cancelled(&self) -> &CancellationToken {
        &self.inner.cancelled
    }

    /// Tells how far the run is: `percent` from 0 to 100 (more counts as 100), `message` what it is doing, cut at 200
    /// bytes. Never waits. It is told at most four times a second: of what comes sooner the newest is told a little later,
    /// as long as the run goes on; what says 100 is told at once.
    pub fn progress(&self, percent: u8, message: impl Into<String>) {
        let percent = percent.min(100);
        let progress =
            RunProgress { percent, message: strip_nul(milvaion_protocol::message::truncate_text(message.into(), 200)) };
        let mut progressed = self.inner.progressed();
        let soon = progressed
            .told
            .filter(|(at, last)| at.elapsed() < PROGRESS_INTERVAL && (percent < 100 || *last == 100))
            .map(|(at, _)| at + PROGRESS_INTERVAL);
        let Some(due) = soon else {
            progressed.waiting = None;
            return self.inner.send_progress(progressed, progress);
        };
        let is_first = progressed.waiting.replace(progress).is_none();
        drop(progressed);
        // A job may call this from a thread of its own.
        if let (true, Some(runtime)) = (is_first, &self.inner.runtime) {
            let run = Arc::downgrade(&self.inner);
            runtime.spawn(async move {
                tokio::time::sleep_until(due.into()).await;
                let Some(run) = run.upgrade() else { return };
                let mut progressed = run.progressed();
                if let Some(progress) = progressed.waiting.take() {
                    run.send_progress(progressed, progress);
                }
            });
        }
    }

    fn write(&self, level: LogLevel, message: String, data: Option<Value>) {
        if let Some(line) = self.inner.log_writer.line(level, message, data) {
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
        let (sender, told) = unbounded_channel();
        let id = "01920000-0000-7000-8000-000000000000";
        let message = json!({
            "occurrenceId": id, "jobId": id, "jobName": "j", "jobType": "t", "jobData": {}, "correlationId": id,
            "scheduledFor": "2026-01-01T00:00:00Z", "timestamp": "2026-01-01T00:00:00Z", "attempt": 1,
            "retryCount": 0, "maxRetries": 0, "priority": 3,
        });
        let message = serde_json::from_value(message).expect("a message");
        (JobContext::new(message, "w-1".into(), Arc::new(ProgressSender(sender)), CancellationToken::new()), told)
    }

    async fn next(told: &mut UnboundedReceiver<RunProgress>) -> (u8, String) {
        let progress = tokio::time::timeout(Duration::from_secs(10), told.recv()).await.expect("told in time");
        let progress = progress.expect("the run goes on");
        (progress.percent, progress.message)
    }

    #[tokio::test]
    async fn of_progress_that_comes_too_soon_the_newest_is_told_while_the_run_goes_on() {
        let (run, mut told) = run();
        let begun = Instant::now();
        run.progress(1, "one");
        // From a thread of the job's own, which has no runtime.
        let counting = run.clone();
        let thread = std::thread::spawn(move || (2..=9).for_each(|percent| counting.progress(percent, "more")));
        thread.join().expect("counts");
        assert_eq!(next(&mut told).await, (1, "one".into()));
        assert_eq!(next(&mut told).await, (9, "more".into()));
        assert!(begun.elapsed() >= PROGRESS_INTERVAL);
        run.progress(10, "");
        run.progress(100, "done");
        run.progress(42, "");
        assert_eq!(next(&mut told).await, (100, "done".into()), "at once, and instead of what waited");
    }
}
