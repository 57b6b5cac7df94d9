//! Layers: code of the program around every run.
//!
//! What many jobs need (metrics of their own, a tenant from the input, a transaction, a check of permissions) is written
//! once and wraps the code of each job. A layer is called within the run: its events go to the log of the occurrence, its
//! panic is a failure of the attempt, its time counts towards the timeout, and it sees the error that the job returns and
//! may replace it. What it finds out for the job (the tenant, a session of a database) it passes on in the context, see
//! [`JobContext::set_extension`].

use std::{fmt, future::Future, sync::Arc};

use futures::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;

use crate::{
    api::{context::JobContext, outcome::JobError},
    run::registry::{self, JobHandler},
};

/// The return value of a run, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobOutput(pub(crate) Option<String>);

impl JobOutput {
    /// Creates the output of a layer that ends the run without the job, such as one that keeps results.
    ///
    /// # Errors
    /// Returns a permanent failure if the value cannot be written as JSON.
    pub fn of(value: &(impl Serialize + ?Sized)) -> Result<Self, JobError> {
        registry::text(&value).map(Self)
    }

    /// Returns the text that the occurrence's page shows as the result: a string as it is, any other value as JSON. `None`
    /// if the job returned `()`.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

/// Code around every run of a worker. [`WorkerBuilder::layer`](crate::WorkerBuilder::layer) adds it.
///
/// A function from [`JobContext`] and [`Next`] to a future is a layer:
///
/// ```
/// use milvaion_worker::{JobContext, Next, Worker};
///
/// let builder = Worker::builder().layer(async |ctx: JobContext, next: Next| {
///     let started = std::time::Instant::now();
///     let result = next.run(ctx.clone()).await;
///     ctx.info(format!("{} took {:?}", ctx.job_type(), started.elapsed()));
///     result
/// });
/// ```
///
/// A layer with state implements the trait:
///
/// ```
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
///
/// use futures::{FutureExt, future::BoxFuture};
/// use milvaion_worker::{JobContext, JobError, JobOutput, Layer, Next, Worker};
///
/// #[derive(Clone, Default)]
/// struct CountFailures(Arc<AtomicU64>);
///
/// impl Layer for CountFailures {
///     fn around(&self, ctx: JobContext, next: Next) -> BoxFuture<'static, Result<JobOutput, JobError>> {
///         let failures = self.0.clone();
///         async move { next.run(ctx).await.inspect_err(|_| { failures.fetch_add(1, Ordering::Relaxed); }) }.boxed()
///     }
/// }
///
/// let builder = Worker::builder().layer(CountFailures::default());
/// ```
pub trait Layer: Send + Sync + 'static {
    /// Runs around one attempt. Calls `next.run(ctx)` once to run the attempt, or returns without it: an error, or
    /// an output of its own ([`JobOutput::of`]).
    fn around(&self, ctx: JobContext, next: Next) -> BoxFuture<'static, Result<JobOutput, JobError>>;
}

impl<F, Running> Layer for F
where
    F: Fn(JobContext, Next) -> Running + Send + Sync + 'static,
    Running: Future<Output = Result<JobOutput, JobError>> + Send + 'static,
{
    fn around(&self, ctx: JobContext, next: Next) -> BoxFuture<'static, Result<JobOutput, JobError>> {
        Box::pin(self(ctx, next))
    }
}

/// The rest of a run: the inner layers and the job.
pub struct Next {
    chain: RunChain,
    /// The number of layers that have begun.
    begun: usize,
}

impl fmt::Debug for Next {
    /// Leaves out the input, which may be confidential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.chain.layers.len() - self.begun;
        f.debug_struct("Next").field("inner_layers", &waiting).finish_non_exhaustive()
    }
}

impl Next {
    /// Returns the input of the run.
    #[must_use]
    pub fn input(&self) -> &Value {
        &self.chain.data
    }

    /// Replaces the input of the run.
    pub fn set_input(&mut self, input: Value) {
        self.chain.data = input;
    }

    /// Runs the inner layers and the job.
    ///
    /// # Errors
    /// Returns the error of the job or of an inner layer.
    pub async fn run(self, ctx: JobContext) -> Result<JobOutput, JobError> {
        self.chain.run_from(self.begun, ctx).await
    }
}

/// The layers and the job of one run, with its input.
pub(crate) struct RunChain {
    pub(crate) job: Arc<dyn JobHandler>,
    pub(crate) layers: Arc<[Arc<dyn Layer>]>,
    pub(crate) data: Value,
}

impl RunChain {
    /// Runs all layers and the job.
    pub(crate) fn run(self, ctx: JobContext) -> BoxFuture<'static, Result<Option<String>, JobError>> {
        Box::pin(async move { Ok(self.run_from(0, ctx).await?.0) })
    }

    fn run_from(self, begun: usize, ctx: JobContext) -> BoxFuture<'static, Result<JobOutput, JobError>> {
        match self.layers.get(begun).cloned() {
            Some(layer) => layer.around(ctx, Next { chain: self, begun: begun + 1 }),
            None => Box::pin(async move { self.job.run(ctx, self.data).await.map(JobOutput) }),
        }
    }
}
