//! The context of an attempt under test, with every field of the message that a worker would receive.

use std::{fmt, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::{AttemptLogBounds, JobMessage},
};
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use super::report::{Recorder, TestReport};
use crate::{
    api::context::JobContext,
    clock,
    run::{report_sink::ReportSink, stop_signal::StopSignal},
};
#[cfg(feature = "client")]
use crate::{api::context::enqueue::JobEnqueuer, client::RecordingClient};

/// The context of an attempt under test: the first attempt of a job named `test`, without retries, due now, on the instance
/// `test` of the worker `test`.
///
/// ```
/// use milvaion_worker::testing::TestContext;
///
/// let test = TestContext::new().attempt(2).retries(1, 3).checkpoint(&500);
/// let ctx = test.context();
/// ctx.info("continues");
/// assert_eq!(ctx.last_checkpoint::<u64>().unwrap_or_default(), Some(500));
/// assert!(test.report().has_line("continues"));
/// ```
#[must_use]
#[derive(Clone)]
pub struct TestContext {
    pub(super) message: JobMessage,
    pub(super) stop: StopSignal,
    pub(super) recorder: Arc<Recorder>,
    pub(super) worker_id: Arc<str>,
    pub(super) instance_id: String,
    /// True if the retries were set, so that those of a job's options do not apply.
    pub(super) has_retries: bool,
    #[cfg(feature = "client")]
    pub(super) enqueuer: JobEnqueuer,
    pub(super) timeout: Option<Duration>,
}

impl Default for TestContext {
    fn default() -> Self {
        Self::new()
    }
}

impl TestContext {
    /// Creates a context.
    pub fn new() -> Self {
        let now = clock::now();
        let occurrence_id = OccurrenceId(clock::random_id());
        let message = JobMessage {
            occurrence_id,
            job_id: JobId(clock::random_id()),
            job_name: "test".to_owned(),
            job_type: "test".to_owned(),
            job_data: Value::Null,
            correlation_id: occurrence_id,
            scheduled_for: now,
            timestamp: now,
            attempt: 1,
            retry_count: 0,
            max_retries: 0,
            timeout_seconds: None,
            priority: 3,
            traceparent: None,
            checkpoint: None,
            parent_id: None,
        };
        Self {
            message,
            stop: StopSignal::default(),
            recorder: Arc::default(),
            worker_id: "test".into(),
            instance_id: "test".to_owned(),
            has_retries: false,
            #[cfg(feature = "client")]
            enqueuer: JobEnqueuer {
                worker_id: "test".into(),
                unique: Arc::default(),
                transport: Arc::new(RecordingClient::new()),
            },
            timeout: None,
        }
    }

    /// Sets the id of the occurrence.
    pub fn occurrence_id(mut self, id: OccurrenceId) -> Self {
        (self.message.occurrence_id, self.message.correlation_id) = (id, id);
        self
    }

    /// Sets the id of the job.
    pub fn job_id(mut self, id: JobId) -> Self {
        self.message.job_id = id;
        self
    }

    /// Sets the name of the job.
    pub fn job_name(mut self, name: impl Into<String>) -> Self {
        self.message.job_name = name.into();
        self
    }

    /// Sets the name of the job type. In a [`TestRun`](super::TestRun) that of the job applies.
    pub fn job_type(mut self, job_type: impl Into<String>) -> Self {
        self.message.job_type = job_type.into();
        self
    }

    /// Sets the id of the worker, for which the job also enqueues occurrences unless it names another one.
    pub fn worker_id(mut self, worker_id: impl Into<Arc<str>>) -> Self {
        self.worker_id = worker_id.into();
        #[cfg(feature = "client")]
        self.enqueuer.worker_id.clone_from(&self.worker_id);
        self
    }

    /// Sets the id of the instance.
    pub fn instance_id(mut self, instance_id: impl Into<String>) -> Self {
        self.instance_id = instance_id.into();
        self
    }

    /// Sets the number of the attempt.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.message.attempt = attempt;
        self
    }

    /// Sets the number of attempts that have failed, and the maximum number of retries.
    pub fn retries(mut self, failures: u32, max_retries: u32) -> Self {
        self.has_retries = true;
        (self.message.retry_count, self.message.max_retries) = (failures, max_retries);
        self
    }

    /// Sets the due time.
    pub fn scheduled_for(mut self, at: DateTime<Utc>) -> Self {
        self.message.scheduled_for = at;
        self
    }

    /// Sets the priority.
    pub fn priority(mut self, priority: u8) -> Self {
        self.message.priority = priority;
        self
    }

    /// Sets the position in a trace, as a `traceparent`.
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.message.traceparent = Some(traceparent.into());
        self
    }

    /// Sets the checkpoint of an earlier attempt.
    ///
    /// # Panics
    /// Panics if the value cannot be written as JSON.
    pub fn checkpoint(mut self, value: &impl Serialize) -> Self {
        self.message.checkpoint = Some(serde_json::to_value(value).expect("the checkpoint is JSON"));
        self
    }

    /// Sets the occurrence that enqueued this one.
    pub fn parent_id(mut self, id: OccurrenceId) -> Self {
        self.message.parent_id = Some(id);
        self
    }

    /// Sets the timeout, from which [`JobContext::deadline`] follows. In a [`TestRun`](super::TestRun) it ends the run.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.message.timeout_seconds = Some(u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX));
        self.timeout = Some(timeout);
        self
    }

    /// Records in `recording` what the contexts enqueue, as occurrences of the worker `test` unless the job names another one.
    /// Without it, they are accepted and forgotten.
    #[cfg(feature = "client")]
    pub fn client(mut self, recording: &RecordingClient) -> Self {
        self.enqueuer.transport = Arc::new(recording.clone());
        self
    }

    /// Declares the uniqueness of a job type, as [`JobOptions::unique`](crate::JobOptions::unique) does in a worker.
    #[cfg(feature = "client")]
    pub fn unique(mut self, job_type: &'static str, unique: crate::Unique) -> Self {
        Arc::make_mut(&mut self.enqueuer.unique).insert(job_type, unique);
        self
    }

    /// Returns a context. All contexts share the report and the end.
    #[must_use]
    pub fn context(&self) -> JobContext {
        let ctx = self.reporting_to(self.recorder.clone());
        if let Some(timeout) = self.timeout {
            ctx.set_deadline(Instant::now() + timeout);
        }
        ctx
    }

    /// Returns a context that reports to `sink`.
    pub(crate) fn reporting_to(&self, sink: Arc<dyn ReportSink>) -> JobContext {
        JobContext::new(
            self.message.clone(),
            self.worker_id.clone(),
            self.instance_id.clone(),
            sink,
            self.stop.clone(),
            AttemptLogBounds::default(),
            #[cfg(feature = "client")]
            self.enqueuer.clone(),
        )
    }

    /// Asks the contexts to end, like a user who cancels the run in the dashboard. In a [`TestRun`](super::TestRun), this and
    /// the other ways to end a context end the run, so a clone of the context is kept for it.
    pub fn cancel(&self, reason: &str) {
        self.stop.cancel(reason);
    }

    /// Asks the contexts to end, like a timeout that has expired.
    pub fn time_out(&self) {
        self.stop.time_out(self.timeout.unwrap_or_default());
    }

    /// Asks the contexts to end, like a server that gives the attempt to another instance.
    pub fn revoke(&self) {
        self.stop.revoke();
    }

    /// Asks the contexts to end, like a worker that stops.
    pub fn shut_down(&self) {
        self.stop.token().cancel();
    }

    /// Returns what the contexts have reported and logged so far.
    #[must_use]
    pub fn report(&self) -> TestReport {
        self.recorder.lock().clone()
    }
}

impl fmt::Debug for TestContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestContext").field("message", &self.message).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StopReason;

    #[test]
    fn stop_reason_names_who_ends_the_run() {
        let test = TestContext::new().timeout(Duration::from_secs(5));
        assert_eq!(test.context().stop_reason(), None);
        test.time_out();
        assert_eq!(test.context().stop_reason(), Some(StopReason::Timeout { after: Duration::from_secs(5) }));
        let test = TestContext::new();
        test.cancel("ada: wrong customer");
        let reason = StopReason::Cancelled { reason: "ada: wrong customer".into() };
        assert_eq!(test.context().stop_reason(), Some(reason));
        let test = TestContext::new();
        test.shut_down();
        assert_eq!(test.context().stop_reason(), Some(StopReason::Shutdown));
        assert!(test.context().cancelled().is_cancelled());
        let test = TestContext::new();
        test.revoke();
        assert_eq!(test.context().stop_reason(), Some(StopReason::Revoked));
    }

    #[test]
    fn context_names_its_worker_instance_and_job_type() {
        let ctx = TestContext::new().context();
        assert_eq!((ctx.worker_id(), ctx.instance_id(), ctx.job_type()), ("test", "test", "test"));
        let test = TestContext::new().worker_id("mail").instance_id("mail-0a1b2c3d").job_type("send-mail");
        let ctx = test.context();
        assert_eq!((ctx.worker_id(), ctx.instance_id(), ctx.job_type()), ("mail", "mail-0a1b2c3d", "send-mail"));
        ctx.progress(50, "half");
        assert_eq!(test.report().end().instance_id, "mail-0a1b2c3d");
    }

    #[test]
    fn every_field_of_the_context_can_be_set() {
        let at = crate::clock::now() - chrono::Duration::minutes(3);
        let (occurrence, parent) = (OccurrenceId::from_parts(at, [7; 10]), OccurrenceId::from_parts(at, [8; 10]));
        let job = JobId::from_parts(at, [9; 10]);
        let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let test = TestContext::new().occurrence_id(occurrence).job_id(job).job_name("Nightly").parent_id(parent);
        let ctx = test.attempt(3).retries(2, 5).scheduled_for(at).priority(5).traceparent(traceparent).context();
        assert_eq!((ctx.occurrence_id(), ctx.job_id(), ctx.job_name()), (occurrence, job, "Nightly"));
        assert_eq!((ctx.parent_id(), ctx.traceparent()), (Some(parent), Some(traceparent)));
        assert_eq!((ctx.attempt(), ctx.max_retries(), ctx.priority()), (3, 5, 5));
        assert_eq!((ctx.scheduled_for(), ctx.deadline()), (at, None));
    }

    #[test]
    fn checkpoint_is_bounded_and_typed() {
        let test = TestContext::new().checkpoint(&"row 7");
        let ctx = test.context();
        assert_eq!(ctx.last_checkpoint::<String>().expect("a text"), Some("row 7".to_owned()));
        assert!(ctx.last_checkpoint::<u8>().expect_err("no number").is_permanent());
        let error = ctx.checkpoint(&"x".repeat(40_000)).expect_err("too large");
        assert!(error.is_permanent() && error.to_string().contains("40002 bytes"), "{error}");
        ctx.checkpoint(&8).expect("fits");
        assert_eq!(test.report().checkpoint::<u8>(), Some(8));
    }

    #[tokio::test]
    async fn blocking_code_returns_its_result_its_error_or_its_panic() {
        let test = TestContext::new();
        let ctx = test.context();
        assert_eq!(ctx.blocking(|| Ok(6 * 7)).await.expect("a result"), 42);
        let error = ctx.blocking::<()>(|| Err(JobErrorText)?).await.expect_err("an error");
        assert_eq!(error.to_string(), "no milk");
        let error = ctx.blocking::<()>(|| panic!("no bread")).await.expect_err("a panic");
        assert!(error.to_string().starts_with("panicked: no bread"), "{error}");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("no milk")]
    struct JobErrorText;
}
