//! The job trait, which users implement.

use std::{future::Future, sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};

use crate::api::{context::JobContext, options::JobOptions, outcome::JobError};

/// A job type that a worker can run.
///
/// One value serves all runs of the process at once. Resources that runs share, such as a connection pool or an HTTP
/// client, therefore belong in `self`. An `Arc` of a job is a job too. A plain function can be registered with
/// [`WorkerBuilder::job_fn`](crate::WorkerBuilder::job_fn).
pub trait Job: Send + Sync + 'static {
    /// Name by which jobs select this type: 1 to 100 letters, digits, `-`, `_` and `.`.
    const TYPE: &'static str;
    /// Description of one sentence, for users who define a job of this type.
    const DESCRIPTION: &'static str = "";
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
    /// A run that returns `Ok` is *Completed*, also if its timeout expired or it was cancelled in the meantime: its work is
    /// done. A line in its log says so. A run that gives up because its token has fired returns an error, which is a warning
    /// in its log.
    ///
    /// # Errors
    /// Returns a [`JobError`], which determines what follows. Every other error converts into a retryable failure.
    fn run(&self, ctx: &JobContext, input: Self::Input) -> impl Future<Output = Result<Self::Output, JobError>> + Send;

    /// Declares the rules and the schedules of the job beside its code; see [`JobOptions`]. Without it, there are none.
    ///
    /// ```
    /// # use milvaion_worker::{Cron, Job, JobContext, JobError, JobOptions};
    /// # struct Report;
    /// # impl Job for Report {
    /// #     const TYPE: &'static str = "report";
    /// #     type Input = String;
    /// #     type Output = ();
    /// fn options(&self, options: JobOptions<String>) -> JobOptions<String> {
    ///     options.retries(3).schedule("nightly", Cron::new("0 2 * * *").zone("Europe/Berlin"), "all".to_owned())
    /// }
    /// #     async fn run(&self, _: &JobContext, _: String) -> Result<(), JobError> { Ok(()) }
    /// # }
    /// ```
    fn options(&self, options: JobOptions<Self::Input>) -> JobOptions<Self::Input> {
        options
    }
}

impl<J: Job> Job for Arc<J> {
    const TYPE: &'static str = J::TYPE;
    const DESCRIPTION: &'static str = J::DESCRIPTION;
    const CONCURRENCY: u16 = J::CONCURRENCY;
    const TIMEOUT: Option<Duration> = J::TIMEOUT;
    const GRACE: Duration = J::GRACE;
    type Input = J::Input;
    type Output = J::Output;

    fn run(&self, ctx: &JobContext, input: J::Input) -> impl Future<Output = Result<J::Output, JobError>> + Send {
        J::run(self, ctx, input)
    }

    fn options(&self, options: JobOptions<J::Input>) -> JobOptions<J::Input> {
        J::options(self, options)
    }
}
