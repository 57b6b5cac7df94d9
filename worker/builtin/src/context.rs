//! What lies between the SDK and a built-in job.
//!
//! The jobs of this program see secrets, and what they log, return or fail with is read by many people. So they are
//! written against [`BuiltinJob`] and not against [`Job`]: before a run the references in its input become values, and a
//! [`BuiltinContext`] stands where the context would; nothing gets past it without being cleaned. A panic is caught here too, for
//! its text may quote anything.

use std::{any::Any, fmt, future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use milvaion_worker::{CancellationToken, Job, JobContext, JobError, LogLevel};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

use crate::{redact::Redactor, secrets::SecretStore};

/// The most bytes of a result, below the 64 KiB at which the SDK would cut its JSON in two.
pub(crate) const MAX_RESULT_BYTES: usize = 60 * 1024;

/// A job of this program. As [`Job`], but for the context and the closed set of failures.
pub(crate) trait BuiltinJob: Send + Sync + 'static {
    const TYPE: &'static str;
    const DESCRIPTION: &'static str;
    const CONCURRENCY: u16 = 10;
    const TIMEOUT: Option<Duration> = None;

    /// Written as JSON and read again on its way, so that references in any of its texts can be resolved.
    type Input: Serialize + DeserializeOwned + JsonSchema + Send + 'static;
    type Output: Serialize + Send + 'static;

    /// Looks at an input whose references are not resolved yet.
    fn check_unresolved(_input: &Self::Input) -> Result<(), BuiltinError> {
        Ok(())
    }

    fn run(
        &self,
        context: &BuiltinContext,
        input: Self::Input,
    ) -> impl Future<Output = Result<Self::Output, BuiltinError>> + Send;
}

/// Why a built-in job did not do its work.
#[derive(Debug)]
pub(crate) struct BuiltinError {
    text: String,
    kind: BuiltinErrorKind,
}

/// What is to happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BuiltinErrorKind {
    Retry,
    RetryAfter(Duration),
    Permanent,
}

impl BuiltinError {
    /// Another attempt may do better.
    pub(crate) fn retry(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), kind: BuiltinErrorKind::Retry }
    }

    /// Another attempt may do better, but not before `pause` is over.
    pub(crate) fn retry_after(pause: Duration, text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), kind: BuiltinErrorKind::RetryAfter(pause) }
    }

    /// Every attempt would end like this one.
    pub(crate) fn permanent(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), kind: BuiltinErrorKind::Permanent }
    }

    /// The same failure with `text` before its own.
    pub(crate) fn with_context(self, text: impl fmt::Display) -> Self {
        Self { text: format!("{text}: {}", self.text), ..self }
    }

    /// Whether it ends the attempts.
    #[cfg(test)]
    pub(crate) fn is_permanent(&self) -> bool {
        self.kind == BuiltinErrorKind::Permanent
    }

    /// How long the other side asks to be left alone.
    #[cfg(test)]
    pub(crate) fn retry_delay(&self) -> Option<Duration> {
        match self.kind {
            BuiltinErrorKind::RetryAfter(pause) => Some(pause),
            BuiltinErrorKind::Retry | BuiltinErrorKind::Permanent => None,
        }
    }

    /// The one place where a failure becomes the SDK's.
    fn into_job_error(self, redactor: &Redactor) -> JobError {
        let text = redactor.redact(&self.text);
        match self.kind {
            BuiltinErrorKind::Retry => JobError::new(text),
            BuiltinErrorKind::RetryAfter(pause) => JobError::retry_after(pause, text),
            BuiltinErrorKind::Permanent => JobError::permanent(text),
        }
    }
}

impl fmt::Display for BuiltinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The only way from a built-in job to people.
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

    /// A line that says what happens.
    pub(crate) fn info(&self, text: impl AsRef<str>) {
        self.log(LogLevel::Info, text);
    }

    /// A line about something that should not be so.
    pub(crate) fn warn(&self, text: impl AsRef<str>) {
        self.log(LogLevel::Warn, text);
    }

    /// From now on `value` is shown as `shown` in everything of this run and in the process's log.
    pub(crate) fn add_secret(&self, value: &str, shown: &str) {
        self.redactor.add_secret(value, shown);
        self.secret_store.process_redactor().add_secret(value, shown);
    }

    /// What cleans this run's texts, for those that must be cleaned before they are cut.
    pub(crate) fn redactor(&self) -> &Arc<Redactor> {
        &self.redactor
    }

    /// Fires when the run should end; a second later it is dropped.
    pub(crate) fn cancelled(&self) -> &CancellationToken {
        self.ctx.cancelled()
    }

    /// A text of its own for every occurrence, the same for all its attempts.
    pub(crate) fn occurrence_id(&self) -> String {
        self.ctx.occurrence_id().to_string()
    }

    /// `work`, unless the run should end before it is done.
    ///
    /// # Errors
    /// What `work` fails with; or that `what` was given up.
    pub(crate) async fn unless_cancelled<T>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T, BuiltinError>>,
    ) -> Result<T, BuiltinError> {
        tokio::select! {
            done = work => done,
            () = self.cancelled().cancelled() => Err(BuiltinError::retry(format!("{what} was given up because the run was to end"))),
        }
    }
}

/// A built-in job as the SDK sees it.
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
        // Jobs clean what they return themselves, before they cut it; this is for what they forgot. As a value, so that
        // it stays JSON whatever is replaced; the order of its fields is lost only then.
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
        (None, None) => "with a value that is no text",
    }
}

/// Shortens `text` at its end until `output` of it fits a result; the text is told to be cut by the returned flag.
pub(crate) fn truncate_to_fit<T: Serialize>(text: String, output: impl Fn(String, bool) -> T) -> T {
    let size = |output: &T| serde_json::to_string(output).map_or(0, |json| json.len());
    let whole = output(text.clone(), false);
    let mut over = size(&whole).saturating_sub(MAX_RESULT_BYTES);
    if over == 0 {
        return whole;
    }
    let mut kept = text;
    loop {
        // A character may take up to six bytes in JSON, so this never takes away more than needed, and soon ends.
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

    /// A secret_store with these secrets.
    pub(crate) fn secret_store(secrets: &'static [(&'static str, &'static str)]) -> Arc<SecretStore> {
        let variables = |name: &str| {
            let wanted = name.strip_prefix("MILVAION_SECRET_")?.to_lowercase();
            secrets.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
        };
        Arc::new(SecretStore::from_variables(variables, None))
    }

    /// A run of `job` in a worker that knows `secrets`.
    pub(crate) fn test_run<B: BuiltinJob>(
        job: B,
        secrets: &'static [(&'static str, &'static str)],
        input: Value,
    ) -> TestRun {
        TestRun::new(BuiltinAdapter::new(job, secret_store(secrets)), input)
    }

    /// Everything that came out of a run, as text.
    pub(crate) fn all_of(record: &TestReport) -> String {
        format!("{record:?}")
    }

    /// A context whose words nobody reads, at the place of a run that is over.
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
        const TYPE: &'static str = "careless";
        const DESCRIPTION: &'static str = "Says what it was told.";
        type Input = LeakyInput;
        type Output = LeakyOutput;

        async fn run(&self, context: &BuiltinContext, input: LeakyInput) -> Result<LeakyOutput, BuiltinError> {
            context.info(format!("was told {}", input.text));
            match input.how.as_str() {
                "panic" => panic!("cannot bear {}", input.text),
                "fail" => Err(BuiltinError::permanent(format!("cannot do {}", input.text))),
                "wait" => Err(BuiltinError::retry_after(Duration::from_secs(7), input.text)),
                _ => Ok(LeakyOutput { z: input.text, a: 1 }),
            }
        }
    }

    const SECRETS: &[(&str, &str)] = &[("bird", "c4n4ry \"quoted\"")];

    #[tokio::test]
    async fn no_way_out_shows_a_secret() {
        for how in ["return", "fail", "wait", "panic"] {
            let record = test_run(LeakyJob, SECRETS, json!({"how": how, "text": "<{{secret:bird}}>"})).run().await;
            assert!(!all_of(&record).contains("c4n4ry"), "{how}: {record:?}");
            assert_eq!(record.lines[0].message, "was told <{{secret:bird}}>");
            let end = record.end();
            let said = end.result.as_deref().or(end.exception.as_deref()).expect("an end");
            assert!(said.contains("<{{secret:bird}}>"), "{how}: {said}");
        }
    }

    #[tokio::test]
    async fn what_is_clean_comes_out_as_it_was() {
        let record = test_run(LeakyJob, SECRETS, json!({"how": "return", "text": "plain"})).run().await;
        assert_eq!(record.end().result.as_deref(), Some(r#"{"z":"plain","a":1}"#));
    }

    #[tokio::test]
    async fn a_pause_that_is_asked_for_is_told() {
        let record = test_run(LeakyJob, SECRETS, json!({"how": "wait", "text": "busy"})).run().await;
        assert_eq!((record.end().exception.as_deref(), record.end().retry_after_ms), (Some("busy"), Some(7_000)));
    }

    #[test]
    fn a_text_is_cut_until_its_result_fits() {
        for text in ["x".repeat(100_000), "\u{1}".repeat(100_000), "ü".repeat(40_000)] {
            let whole = text.len();
            let (text, cut) = truncate_to_fit(text, |text, cut| (text, cut));
            let size = serde_json::to_string(&(&text, cut)).expect("JSON").len();
            assert!(cut && text.len() < whole && size <= MAX_RESULT_BYTES && size > MAX_RESULT_BYTES - 100, "{size}");
        }
        assert_eq!(truncate_to_fit("short".to_owned(), |text, cut| (text, cut)), ("short".to_owned(), false));
    }
}
