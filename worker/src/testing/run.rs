//! One attempt of a job under test.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use milvaion_protocol::message::AttemptLogBounds;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{context::TestContext, report::TestReport};
use crate::{
    api::{
        context::JobContext,
        events::{Events, RunObservers},
        job::Job,
        job_fn::FnJob,
        layer::Layer,
        options::JobOptions,
        outcome::JobError,
    },
    control::metrics::WorkerMetrics,
    run::executor::Executor,
    run::registry::RegisteredJob,
};

/// One attempt of a job under test: the first one, with the retries that the job declares, and with a timeout of one minute
/// unless the job has its own.
#[must_use]
pub struct TestRun {
    job: RegisteredJob,
    input: Value,
    context: TestContext,
    attempt: Option<u32>,
    retries: Option<(u32, u32)>,
    timeout_seconds: Option<u32>,
    interrupt: CancellationToken,
    cancel: Option<(CancellationToken, String)>,
    layers: Vec<Arc<dyn Layer>>,
    events: RunObservers,
}

impl TestRun {
    /// Prepares an attempt with an input as JSON, as the server would send it.
    pub fn new<J: Job>(job: J, input: Value) -> Self {
        Self::of_registered(RegisteredJob::with_options(job, |options| options), input)
    }

    /// Prepares an attempt with an input of the job's type.
    ///
    /// # Panics
    /// Panics if the input cannot be written as JSON.
    pub fn typed<J: Job>(job: J, input: J::Input) -> Self
    where
        J::Input: Serialize,
    {
        Self::new(job, serde_json::to_value(input).expect("the input is JSON"))
    }

    /// Prepares an attempt with an input of the job's type and changed options, as
    /// [`WorkerBuilder::job_with`](crate::WorkerBuilder::job_with) registers it.
    ///
    /// # Panics
    /// Panics if the input cannot be written as JSON.
    pub fn typed_with<J: Job>(
        job: J,
        input: J::Input,
        change: impl FnOnce(JobOptions<J::Input>) -> JobOptions<J::Input>,
    ) -> Self
    where
        J::Input: Serialize,
    {
        let input = serde_json::to_value(input).expect("the input is JSON");
        Self::of_registered(RegisteredJob::with_options(job, change), input)
    }

    /// Prepares an attempt of a function, as [`WorkerBuilder::job_fn`](crate::WorkerBuilder::job_fn) registers it.
    ///
    /// # Panics
    /// Panics if the input cannot be written as JSON.
    pub fn of<Input, Output, Running>(
        job_type: &str,
        code: impl Fn(JobContext, Input) -> Running + Send + Sync + 'static,
        input: Input,
    ) -> Self
    where
        Input: Serialize + DeserializeOwned + JsonSchema + Send + 'static,
        Output: Serialize + Send + 'static,
        Running: Future<Output = Result<Output, JobError>> + Send + 'static,
    {
        Self::of_with(job_type, code, input, |options| options)
    }

    /// Prepares an attempt of a function with options, as
    /// [`WorkerBuilder::job_fn_with`](crate::WorkerBuilder::job_fn_with) registers it.
    ///
    /// # Panics
    /// Panics if the input cannot be written as JSON.
    pub fn of_with<Input, Output, Running>(
        job_type: &str,
        code: impl Fn(JobContext, Input) -> Running + Send + Sync + 'static,
        input: Input,
        change: impl FnOnce(JobOptions<Input>) -> JobOptions<Input>,
    ) -> Self
    where
        Input: Serialize + DeserializeOwned + JsonSchema + Send + 'static,
        Output: Serialize + Send + 'static,
        Running: Future<Output = Result<Output, JobError>> + Send + 'static,
    {
        let job = RegisteredJob::of(job_type, "", change(JobOptions::default()), Arc::new(FnJob::new(code)));
        Self::of_registered(job, serde_json::to_value(input).expect("the input is JSON"))
    }

    fn of_registered(job: RegisteredJob, input: Value) -> Self {
        Self {
            job,
            input,
            context: TestContext::new(),
            attempt: None,
            retries: None,
            timeout_seconds: None,
            interrupt: CancellationToken::new(),
            cancel: None,
            layers: Vec::new(),
            events: RunObservers::default(),
        }
    }

    /// Sets the context, for tests of what it contains. The setters of this type have precedence over it, in any order. A
    /// clone of the context ends the run, such as with [`TestContext::cancel`].
    ///
    /// ```
    /// use milvaion_worker::{JobContext, JobError, OccurrenceStatus, testing::{TestContext, TestRun}};
    ///
    /// async fn wait(ctx: JobContext, _: ()) -> Result<(), JobError> {
    ///     ctx.cancelled().cancelled().await;
    ///     Err(JobError::new("stopped at row 7"))
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let context = TestContext::new();
    /// let run = TestRun::of("wait", wait, ()).context(context.clone()).run();
    /// let (report, ()) = tokio::join!(run, async { context.cancel("ada: wrong customer") });
    /// assert_eq!(report.status(), OccurrenceStatus::Cancelled);
    /// assert!(report.has_line("stopped at row 7"));
    /// # }
    /// ```
    pub fn context(mut self, context: TestContext) -> Self {
        self.context = context;
        self
    }

    /// Sets the number of the attempt, for tests of later attempts.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = Some(attempt);
        self
    }

    /// Sets the number of attempts that have failed, and the maximum number of retries. Default 0, and the retries that the
    /// options of the job declare.
    pub fn retries(mut self, failures: u32, max_retries: u32) -> Self {
        self.retries = Some((failures, max_retries));
        self
    }

    /// Sets the timeout in seconds, like the timeout of a job.
    pub fn timeout_seconds(mut self, seconds: u32) -> Self {
        self.timeout_seconds = Some(seconds);
        self
    }

    /// Adds a layer around the run. The first layer is the outermost.
    pub fn layer(mut self, layer: impl Layer) -> Self {
        self.layers.push(Arc::new(layer));
        self
    }

    /// Adds an observer of the run.
    pub fn events(mut self, events: impl Events) -> Self {
        self.events.add(Arc::new(events));
        self
    }

    /// Interrupts the run when `token` fires, like a worker that stops.
    pub fn interrupted_by(mut self, token: CancellationToken) -> Self {
        self.interrupt = token;
        self
    }

    /// Cancels the run with `reason` when `token` fires, like a user in the dashboard.
    pub fn cancelled_by(mut self, token: CancellationToken, reason: impl Into<String>) -> Self {
        self.cancel = Some((token, reason.into()));
        self
    }

    /// Runs the attempt to its end.
    pub async fn run(self) -> TestReport {
        #[cfg(feature = "client")]
        let enqueuer = self.context.enqueuer.clone();
        let TestContext { mut message, stop, recorder, worker_id, instance_id, has_retries, timeout, .. } =
            self.context;
        let mut job = self.job;
        message.job_type = job.job_type.to_owned();
        message.job_data = self.input;
        message.attempt = self.attempt.unwrap_or(message.attempt);
        if let Some(seconds) = self.timeout_seconds {
            message.timeout_seconds = Some(seconds);
        } else if timeout.is_some() {
            // A message has whole seconds, and a test may set less.
            (job.timeout, message.timeout_seconds) = (timeout, None);
        }
        if let Some((failures, max_retries)) = self.retries {
            (message.retry_count, message.max_retries) = (failures, max_retries);
        } else if !has_retries {
            message.max_retries = job.max_retries().unwrap_or_default().into();
        }
        let executor = Executor {
            sink: recorder.clone(),
            worker_id,
            instance_id,
            default_timeout: Duration::from_secs(60),
            log_bounds: AttemptLogBounds::default(),
            metrics: WorkerMetrics::default(),
            interrupt: self.interrupt.clone(),
            layers: self.layers.into(),
            events: self.events,
            #[cfg(feature = "client")]
            enqueuer,
        };
        // Before the start, as in a worker that stops already.
        if self.interrupt.is_cancelled() {
            stop.token().cancel();
        }
        let (_, end) = executor.start(&job, message, stop.clone(), false);
        let interrupting = async {
            self.interrupt.cancelled().await;
            stop.token().cancel();
        };
        let cancelling = async {
            if let Some((token, reason)) = self.cancel {
                token.cancelled().await;
                stop.cancel(&reason);
            }
        };
        tokio::pin!(end);
        tokio::select! {
            _ = &mut end => {}
            ((), ()) = async { tokio::join!(interrupting, cancelling) } => drop(end.await),
        }
        recorder.lock().clone()
    }
}

impl fmt::Debug for TestRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestRun")
            .field("job_type", &self.job.job_type)
            .field("input", &self.input)
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}
