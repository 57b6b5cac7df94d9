//! The layer between the SDK and a built-in job.
//!
//! The jobs of this program use secrets, and many people read what the jobs log, return or fail with. The jobs
//! therefore implement [`BuiltinJob`] and not [`Job`]. Before a run, the references in its input are resolved, and the
//! job gets a [`BuiltinContext`] in place of the SDK's context. Every text that leaves the job is redacted. Panics are
//! caught here too, because their text may quote anything.

pub(crate) mod secrets;

use std::{any::Any, fmt, future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use milvaion_worker::{CancellationToken, Job, JobContext, JobError, LogLevel, StopReason};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

use crate::redact::Redactor;
use secrets::SecretStore;

/// Maximum size of a result, below the 64 KiB at which the SDK would truncate its JSON.
pub(crate) const MAX_RESULT_BYTES: usize = 60 * 1024;

/// A job of this program. It differs from [`Job`] in its context and in the closed set of errors.
pub(crate) trait BuiltinJob: Send + Sync + 'static {
    const TYPE: &'static str;
    const DESCRIPTION: &'static str;
    const CONCURRENCY: u16 = 10;
    const TIMEOUT: Option<Duration> = None;
    /// The time for which a run may clean up after it was cancelled or its timeout has expired.
    const GRACE: Duration = Duration::from_secs(1);

    /// The input. It is serialized and deserialized again before a run, so that references in its strings can be
    /// resolved.
    type Input: Serialize + DeserializeOwned + JsonSchema + Send + 'static;
    type Output: Serialize + Send + 'static;

    /// Checks an input whose references are not resolved yet.
    fn check_unresolved(_input: &Self::Input) -> Result<(), BuiltinError> {
        Ok(())
    }

    fn run(
        &self,
        context: &BuiltinContext,
        input: Self::Input,
    ) -> impl Future<Output = Result<Self::Output, BuiltinError>> + Send;
}

/// An error of a built-in job.
#[derive(Debug)]
pub(crate) struct BuiltinError {
    text: String,
    kind: BuiltinErrorKind,
}

/// The consequence of an error for further attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BuiltinErrorKind {
    Retry,
    RetryAfter(Duration),
    TimedOut,
    Permanent,
}

impl BuiltinError {
    /// Returns a retryable error: another attempt may succeed.
    pub(crate) fn retry(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), kind: BuiltinErrorKind::Retry }
    }

    /// Returns a retryable error whose next attempt does not start before `pause` is over.
    pub(crate) fn retry_after(pause: Duration, text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), kind: BuiltinErrorKind::RetryAfter(pause) }
    }

    /// Returns the error of a run that exceeded the timeout in its input. Another attempt may succeed.
    pub(crate) fn timed_out(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), kind: BuiltinErrorKind::TimedOut }
    }

    /// Returns a permanent error: every attempt would fail in the same way.
    pub(crate) fn permanent(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), kind: BuiltinErrorKind::Permanent }
    }

    /// Returns the same error with `text` before its own text.
    pub(crate) fn with_context(self, text: impl fmt::Display) -> Self {
        Self { text: format!("{text}: {}", self.text), ..self }
    }

    /// Returns the same error with `text` after its own text.
    pub(crate) fn with_remark(self, text: impl fmt::Display) -> Self {
        Self { text: format!("{}; {text}", self.text), ..self }
    }

    /// Returns true if no further attempt follows.
    #[cfg(test)]
    pub(crate) fn is_permanent(&self) -> bool {
        self.kind == BuiltinErrorKind::Permanent
    }

    /// Returns the minimum pause before the next attempt, if the other side requested one.
    #[cfg(test)]
    pub(crate) fn retry_delay(&self) -> Option<Duration> {
        match self.kind {
            BuiltinErrorKind::RetryAfter(pause) => Some(pause),
            BuiltinErrorKind::Retry | BuiltinErrorKind::TimedOut | BuiltinErrorKind::Permanent => None,
        }
    }

    /// Converts the error to one of the SDK, with its text redacted. No other code does this.
    fn into_job_error(self, redactor: &Redactor) -> JobError {
        let text = redactor.redact(&self.text);
        match self.kind {
            BuiltinErrorKind::Retry => JobError::new(text),
            BuiltinErrorKind::RetryAfter(pause) => JobError::retry_after(pause, text),
            BuiltinErrorKind::TimedOut => JobError::timed_out(text),
            BuiltinErrorKind::Permanent => JobError::permanent(text),
        }
    }
}

impl fmt::Display for BuiltinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The context of a run. Every text that a job shows to users passes through it and is redacted.
pub(crate) struct BuiltinContext {
    ctx: JobContext,
    redactor: Arc<Redactor>,
    secret_store: Arc<SecretStore>,
}

impl BuiltinContext {
    /// Writes a line into the occurrence's log.
    pub(crate) fn log(&self, level: LogLevel, text: impl AsRef<str>) {
        self.ctx.log(level, self.redactor.redact(text.as_ref()));
    }

    /// Writes a line about normal progress.
    pub(crate) fn info(&self, text: impl AsRef<str>) {
        self.log(LogLevel::Info, text);
    }

    /// Writes a line about an unexpected condition.
    pub(crate) fn warn(&self, text: impl AsRef<str>) {
        self.log(LogLevel::Warn, text);
    }

    /// Reports the progress in percent, with a short text.
    pub(crate) fn progress(&self, percent: u32, text: impl AsRef<str>) {
        let percent = u8::try_from(percent.min(100)).unwrap_or(100);
        self.ctx.progress(percent, self.redactor.redact(text.as_ref()));
    }

    /// Registers a secret: from now on, `value` is shown as `shown` in all texts of this run and in the process's log.
    pub(crate) fn add_secret(&self, value: &str, shown: &str) {
        self.redactor.add_secret(value, shown);
        self.secret_store.process_redactor().add_secret(value, shown);
    }

    /// Returns the redactor of this run, for texts that must be redacted before they are truncated.
    pub(crate) fn redactor(&self) -> &Arc<Redactor> {
        &self.redactor
    }

    /// Returns the token that is cancelled when the run has to end. The run is dropped after the grace of its job, and after
    /// one second at the latest if the worker stops.
    pub(crate) fn cancelled(&self) -> &CancellationToken {
        self.ctx.cancelled()
    }

    /// Returns true if the run has to end because the timeout of its job has expired.
    pub(crate) fn is_timed_out(&self) -> bool {
        matches!(self.ctx.stop_reason(), Some(StopReason::Timeout { .. }))
    }

    /// Returns the id of the occurrence, which is the same in all its attempts.
    pub(crate) fn occurrence_id(&self) -> String {
        self.ctx.occurrence_id().to_string()
    }

    /// Awaits `work`, unless the run has to end first.
    ///
    /// # Errors
    /// Returns the error of `work`, or a retryable error that `what` was stopped.
    pub(crate) async fn unless_cancelled<T>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T, BuiltinError>>,
    ) -> Result<T, BuiltinError> {
        tokio::select! {
            done = work => done,
            () = self.cancelled().cancelled() => Err(BuiltinError::retry(format!("{what} was stopped because the run had to end"))),
        }
    }
}

/// A built-in job as a job of the SDK.
pub(crate) struct BuiltinAdapter<B> {
    inner: B,
    secret_store: Arc<SecretStore>,
}

impl<B: BuiltinJob> BuiltinAdapter<B> {
    pub(crate) fn new(inner: B, secret_store: Arc<SecretStore>) -> Self {
        Self { inner, secret_store }
    }

    async fn run_with(&self, context: &BuiltinContext, input: B::Input) -> Result<Box<RawValue>, BuiltinError> {
        B::check_unresolved(&input)?;
        let input = serde_json::to_value(input).map_err(BuiltinError::permanent)?;
        let input = self.secret_store.resolve_references(input, &context.redactor).await?;
        let input =
            serde_json::from_value(input).map_err(|error| BuiltinError::permanent(format!("the input: {error}")))?;
        let running = AssertUnwindSafe(self.inner.run(context, input)).catch_unwind();
        let output =
            running.await.map_err(|panic| BuiltinError::retry(format!("panicked: {}", panic_text(&*panic))))??;
        let text = serde_json::to_string(&output).map_err(BuiltinError::permanent)?;
        // Jobs redact their output themselves, before they truncate it. This pass is for what they missed. It replaces
        // strings inside the value, so that the text stays JSON; only then is the order of fields lost.
        let text = match context.redactor.redact(&text) {
            std::borrow::Cow::Borrowed(_) => text,
            std::borrow::Cow::Owned(_) => {
                let value: Value = serde_json::from_str(&text).map_err(BuiltinError::permanent)?;
                context.redactor.redact_value(value).to_string()
            }
        };
        RawValue::from_string(text).map_err(BuiltinError::permanent)
    }
}

impl<B: BuiltinJob> Job for BuiltinAdapter<B> {
    const TYPE: &'static str = B::TYPE;
    const DESCRIPTION: &'static str = B::DESCRIPTION;
    const CONCURRENCY: u16 = B::CONCURRENCY;
    const TIMEOUT: Option<Duration> = B::TIMEOUT;
    const GRACE: Duration = B::GRACE;
    type Input = B::Input;
    type Output = Box<RawValue>;

    async fn run(&self, ctx: &JobContext, input: B::Input) -> Result<Box<RawValue>, JobError> {
        let context =
            BuiltinContext { ctx: ctx.clone(), redactor: Arc::default(), secret_store: self.secret_store.clone() };
        self.run_with(&context, input).await.map_err(|failure| failure.into_job_error(&context.redactor))
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        (None, None) => "with a value that is not text",
    }
}

/// Truncates `text` until `output` of it fits a result. The flag passed to `output` is true if the text was truncated.
pub(crate) fn truncate_to_fit<T: Serialize>(text: String, output: impl Fn(String, bool) -> T) -> T {
    let size = |output: &T| serde_json::to_string(output).map_or(0, |json| json.len());
    let whole = output(text.clone(), false);
    let mut over = size(&whole).saturating_sub(MAX_RESULT_BYTES);
    if over == 0 {
        return whole;
    }
    let mut kept = text;
    loop {
        // A character takes at most six bytes in JSON, so a pass never removes more than needed, and the loop ends
        // soon.
        let end = kept.floor_char_boundary(kept.len().saturating_sub(over.div_ceil(6).max(1)));
        kept.truncate(end);
        let cut = output(kept.clone(), true);
        over = size(&cut).saturating_sub(MAX_RESULT_BYTES);
        if over == 0 || kept.is_empty() {
            return cut;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use milvaion_worker::testing::{TestReport, TestRun};
    use serde_json::json;

    use super::*;

    /// Returns a store with these secrets.
    pub(crate) fn secret_store(secrets: &'static [(&'static str, &'static str)]) -> Arc<SecretStore> {
        let variables = |name: &str| {
            let wanted = name.strip_prefix("MILVAION_SECRET_")?.to_lowercase();
            secrets.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
        };
        Arc::new(SecretStore::from_variables(variables, None))
    }

    /// Returns a run of `job` on a worker with these secrets.
    pub(crate) fn test_run<B: BuiltinJob>(
        job: B,
        secrets: &'static [(&'static str, &'static str)],
        input: Value,
    ) -> TestRun {
        TestRun::new(BuiltinAdapter::new(job, secret_store(secrets)), input)
    }

    /// Returns everything that a run reported, as text.
    pub(crate) fn all_of(record: &TestReport) -> String {
        format!("{record:?}")
    }

    /// Returns the context of a run that is over; its log is discarded.
    pub(crate) async fn test_context() -> BuiltinContext {
        #[derive(Clone, Default)]
        struct ContextTaker(Arc<std::sync::OnceLock<JobContext>>);
        #[derive(serde::Deserialize, JsonSchema)]
        struct EmptyInput {}
        impl Job for ContextTaker {
            const TYPE: &'static str = "taker";
            const DESCRIPTION: &'static str = "Keeps its context.";
            type Input = EmptyInput;
            type Output = ();

            async fn run(&self, ctx: &JobContext, _: EmptyInput) -> Result<(), JobError> {
                self.0.get_or_init(|| ctx.clone());
                Ok(())
            }
        }
        let context_taker = ContextTaker::default();
        TestRun::new(context_taker.clone(), json!({})).run().await;
        let ctx = context_taker.0.get().expect("it ran").clone();
        BuiltinContext { ctx, redactor: Arc::default(), secret_store: secret_store(&[]) }
    }

    struct LeakyJob;

    #[derive(serde::Deserialize, Serialize, JsonSchema)]
    struct LeakyInput {
        how: String,
        text: String,
    }

    #[derive(Serialize)]
    struct LeakyOutput {
        z: String,
        a: u8,
    }

    impl BuiltinJob for LeakyJob {
        const TYPE: &'static str = "leaky";
        const DESCRIPTION: &'static str = "Repeats its input.";
        type Input = LeakyInput;
        type Output = LeakyOutput;

        async fn run(&self, context: &BuiltinContext, input: LeakyInput) -> Result<LeakyOutput, BuiltinError> {
            context.info(format!("received {}", input.text));
            match input.how.as_str() {
                "panic" => panic!("cannot handle {}", input.text),
                "fail" => Err(BuiltinError::permanent(format!("cannot do {}", input.text))),
                "wait" => Err(BuiltinError::retry_after(Duration::from_secs(7), input.text)),
                _ => Ok(LeakyOutput { z: input.text, a: 1 }),
            }
        }
    }

    const SECRETS: &[(&str, &str)] = &[("bird", "c4n4ry \"quoted\"")];

    #[tokio::test]
    async fn no_output_shows_a_secret() {
        for how in ["return", "fail", "wait", "panic"] {
            let record = test_run(LeakyJob, SECRETS, json!({"how": how, "text": "<{{secret:bird}}>"})).run().await;
            assert!(!all_of(&record).contains("c4n4ry"), "{how}: {record:?}");
            assert_eq!(record.lines[0].message, "received <{{secret:bird}}>");
            let end = record.end();
            let text = end.result.as_deref().or(end.exception.as_deref()).expect("an end");
            assert!(text.contains("<{{secret:bird}}>"), "{how}: {text}");
        }
    }

    #[tokio::test]
    async fn output_without_secrets_is_unchanged() {
        let record = test_run(LeakyJob, SECRETS, json!({"how": "return", "text": "plain"})).run().await;
        assert_eq!(record.end().result.as_deref(), Some(r#"{"z":"plain","a":1}"#));
    }

    #[tokio::test]
    async fn requested_pause_is_reported() {
        let record = test_run(LeakyJob, SECRETS, json!({"how": "wait", "text": "busy"})).run().await;
        assert_eq!((record.end().exception.as_deref(), record.end().retry_after_ms), (Some("busy"), Some(7_000)));
    }

    #[test]
    fn text_is_truncated_until_its_result_fits() {
        for text in ["x".repeat(100_000), "\u{1}".repeat(100_000), "ü".repeat(40_000)] {
            let whole = text.len();
            let (text, cut) = truncate_to_fit(text, |text, cut| (text, cut));
            let size = serde_json::to_string(&(&text, cut)).expect("JSON").len();
            assert!(cut && text.len() < whole && size <= MAX_RESULT_BYTES && size > MAX_RESULT_BYTES - 100, "{size}");
        }
        assert_eq!(truncate_to_fit("short".to_owned(), |text, cut| (text, cut)), ("short".to_owned(), false));
    }
}
