//! Occurrences that a job enqueues.
//!
//! A job reaches the ingest queue over the broker address of its worker, on a connection that is opened at the first use. The
//! occurrence that runs is recorded as the parent, so that the pages of both show the other one, and the new occurrence
//! continues its trace. In a test, a [`RecordingClient`](crate::client::RecordingClient) takes the place of the broker.

use std::{collections::BTreeMap, sync::Arc};

use milvaion_client::{Enqueue, EnqueueClient, EnqueueTransport, Enqueued};
use milvaion_protocol::{message::uniqueness_key_of_input, trace::Traceparent};
use serde::Serialize;

use super::JobContext;
use crate::{Job, JobError, Unique};

/// The way of a worker's jobs to the ingest queue, and what its code declares about enqueued occurrences.
#[derive(Clone, Debug)]
pub(crate) struct JobEnqueuer {
    /// The worker that a job enqueues for unless it names another one.
    pub(crate) worker_id: Arc<str>,
    /// The uniqueness of the job types that declare one.
    pub(crate) unique: Arc<BTreeMap<&'static str, Unique>>,
    /// The transport of all jobs.
    pub(crate) transport: Arc<dyn EnqueueTransport>,
}

impl JobContext {
    /// Returns a client that enqueues occurrences with this one as their parent. For a single one,
    /// [`enqueue`](Self::enqueue) also decides whether its error is worth a retry; with `?`, any error is.
    ///
    /// ```no_run
    /// use milvaion_worker::{JobContext, JobError, client::Enqueue};
    ///
    /// async fn invite(ctx: JobContext, addresses: Vec<String>) -> Result<(), JobError> {
    ///     let invitations = addresses.iter().map(|address| Enqueue::job("invite").input(address).unique(address));
    ///     for result in ctx.client().enqueue_all(invitations).await? {
    ///         if let Some(reason) = result.reason {
    ///             ctx.warn(format!("occurrence {} was not created: {reason}", result.id));
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    #[must_use]
    pub fn client(&self) -> EnqueueClient {
        EnqueueClient::shared(self.inner.enqueuer.transport.clone())
            .with_parent(self.occurrence_id())
            .with_trace(self.traceparent().and_then(Traceparent::parse))
    }

    /// Enqueues one occurrence; see [`client`](Self::client). An occurrence that the server would reject again is a
    /// permanent failure. A missing answer is a retryable one, and so is a reason that passes, such as a paused job.
    ///
    /// An attempt that fails after this call enqueues another occurrence when it is retried, unless the occurrence has a
    /// [uniqueness key](Enqueue::unique) or an [id](Enqueue::id) that the attempts share.
    ///
    /// # Errors
    /// Returns the error of the client as the error of the job.
    pub async fn enqueue(&self, occurrence: Enqueue) -> Result<Enqueued, JobError> {
        self.client().enqueue(occurrence).await.map_err(|error| match error.is_retryable() {
            true => JobError::new(error),
            false => JobError::permanent(error),
        })
    }

    /// Describes an occurrence of a job type of this worker, with the rules that its code declares. The input belongs here: if
    /// the type is [unique](crate::JobOptions::unique), the key is made from it. A job that is registered
    /// under [another name](crate::JobOptions::named) needs [`occurrence_of_type`](Self::occurrence_of_type).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use milvaion_worker::{Job, JobContext, JobError};
    /// # struct SendMail;
    /// # impl Job for SendMail {
    /// #     const TYPE: &'static str = "send-mail";
    /// #     type Input = String;
    /// #     type Output = ();
    /// #     async fn run(&self, _: &JobContext, _: String) -> Result<(), JobError> { Ok(()) }
    /// # }
    /// # async fn example(ctx: JobContext) -> Result<(), JobError> {
    /// let mail = ctx.occurrence_of::<SendMail>("ada@example.com".to_owned());
    /// ctx.enqueue(mail.after(Duration::from_secs(3_600))).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn occurrence_of<J: Job>(&self, input: J::Input) -> Enqueue
    where
        J::Input: Serialize,
    {
        self.occurrence_of_type(J::TYPE, input)
    }

    /// Describes an occurrence of a job type of this worker by its name, such as that of a function.
    pub fn occurrence_of_type(&self, job_type: &str, input: impl Serialize) -> Enqueue {
        let JobEnqueuer { worker_id, unique, .. } = &self.inner.enqueuer;
        let enqueue = Enqueue::job_type(&**worker_id, job_type);
        let Some(unique) = unique.get(job_type) else { return enqueue.input(input) };
        // The error of an input that cannot be written is reported when the occurrence is enqueued.
        let Ok(value) = serde_json::to_value(&input) else { return enqueue.input(input) };
        let key = uniqueness_key_of_input(&value);
        let enqueue = enqueue.input(value).unique(key);
        match unique.period() {
            Some(period) => enqueue.unique_for(period),
            None => enqueue,
        }
    }
}

#[cfg(test)]
mod tests {
    use milvaion_client::RecordingClient;
    use std::time::Duration;

    use super::*;
    use crate::testing::{TestContext, TestRun};

    struct SendMail;

    impl Job for SendMail {
        const TYPE: &'static str = "send-mail";
        type Input = String;
        type Output = ();

        async fn run(&self, _: &JobContext, _: String) -> Result<(), JobError> {
            Ok(())
        }
    }

    async fn sign_up(ctx: JobContext, address: String) -> Result<(), JobError> {
        let mail = ctx.occurrence_of::<SendMail>(address.clone()).after(Duration::from_secs(60));
        ctx.enqueue(mail).await?;
        ctx.enqueue(Enqueue::job("count-users")).await?;
        Ok(())
    }

    #[tokio::test]
    async fn job_enqueues_with_itself_as_parent() {
        let recording = RecordingClient::new();
        let context = TestContext::new().client(&recording).unique("send-mail", Unique::by_input());
        let parent = context.context().occurrence_id();
        let report = TestRun::of("sign-up", sign_up, "ada@example.com".to_owned()).context(context).run().await;
        assert_eq!(report.error(), None);
        let mail = recording.assert_enqueued_type("test", "send-mail");
        assert_eq!((mail.input, mail.parent_id), (Some("ada@example.com".into()), Some(parent)));
        assert_eq!(mail.uniqueness_key.as_deref(), Some(r#""ada@example.com""#));
        assert!(mail.not_before.is_some());
        recording.assert_enqueued_job("count-users");
    }

    #[tokio::test]
    async fn rejected_occurrence_fails_the_job_for_good() {
        let recording = RecordingClient::new();
        recording.reject_with("No worker offers the job type.");
        let context = TestContext::new().client(&recording);
        let report = TestRun::of("sign-up", sign_up, "ada".to_owned()).context(context).run().await;
        assert!(report.end().permanent, "{report:?}");
        assert!(report.error().is_some_and(|error| error.contains("No worker offers the job type.")), "{report:?}");
    }

    #[tokio::test]
    async fn reason_that_passes_is_retried() {
        let recording = RecordingClient::new();
        recording.reject_for_now("The job is paused.");
        let context = TestContext::new().client(&recording);
        let report = TestRun::of("sign-up", sign_up, "ada".to_owned()).context(context).run().await;
        assert!(!report.end().permanent, "{report:?}");
        assert!(report.error().is_some_and(|error| error.contains("The job is paused.")), "{report:?}");
    }
}
