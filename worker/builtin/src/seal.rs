//! What lies between the SDK and a built-in job.
//!
//! The jobs of this program see secrets, and what they log, return or fail with is read by many people. So they are
//! written against [`BuiltIn`] and not against [`Job`]: before a run the references in its input become values, and a
//! [`Desk`] stands where the context would; nothing gets past it without being cleaned. A panic is caught here too, for
//! its text may quote anything.

use std::{any::Any, fmt, future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use milvaion_worker::{CancellationToken, Job, JobContext, JobError, LogLevel};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

use crate::{redact::Redactor, secrets::Vault};

/// The most bytes of a result, below the 64 KiB at which the SDK would cut its JSON in two.
pub(crate) const MAX_RESULT: usize = 60 * 1024;

/// A job of this program. As [`Job`], but for the desk and the closed set of failures.
pub(crate) trait BuiltIn: Send + Sync + 'static {
    const TYPE: &'static str;
    const DESCRIPTION: &'static str;
    const CONCURRENCY: u16 = 10;
    const TIMEOUT: Option<Duration> = None;

    /// Written as JSON and read again on its way, so that references in any of its texts can be resolved.
    type Input: Serialize + DeserializeOwned + JsonSchema + Send + 'static;
    type Output: Serialize + Send + 'static;

    /// Looks at an input whose references are not resolved yet.
    fn preview(_input: &Self::Input) -> Result<(), Failure> {
        Ok(())
    }

    fn run(&self, desk: &Desk, input: Self::Input) -> impl Future<Output = Result<Self::Output, Failure>> + Send;
}

/// Why a built-in job did not do its work.
#[derive(Debug)]
pub(crate) struct Failure {
    text: String,
    next: Next,
}

/// What is to happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Retry,
    RetryAfter(Duration),
    Nothing,
}

impl Failure {
    /// Another attempt may do better.
    pub(crate) fn retry(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), next: Next::Retry }
    }

    /// Another attempt may do better, but not before `pause` is over.
    pub(crate) fn retry_after(pause: Duration, text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), next: Next::RetryAfter(pause) }
    }

    /// Every attempt would end like this one.
    pub(crate) fn permanent(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), next: Next::Nothing }
    }

    /// The same failure with `text` before its own.
    pub(crate) fn within(self, text: impl fmt::Display) -> Self {
        Self { text: format!("{text}: {}", self.text), ..self }
    }

    /// Whether it ends the attempts.
    #[cfg(test)]
    pub(crate) fn is_permanent(&self) -> bool {
        self.next == Next::Nothing
    }

    /// How long the other side asks to be left alone.
    #[cfg(test)]
    pub(crate) fn pause(&self) -> Option<Duration> {
        match self.next {
            Next::RetryAfter(pause) => Some(pause),
            Next::Retry | Next::Nothing => None,
        }
    }

    /// The one place where a failure becomes the SDK's.
    fn told(self, redactor: &Redactor) -> JobError {
        let text = redactor.clean(&self.text);
        match self.next {
            Next::Retry => JobError::new(text),
            Next::RetryAfter(pause) => JobError::retry_after(pause, text),
            Next::Nothing => JobError::permanent(text),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The only way from a built-in job to people.
pub(crate) struct Desk {
    ctx: JobContext,
    redactor: Arc<Redactor>,
    vault: Arc<Vault>,
}

impl Desk {
    /// Writes a line into the occurrence's log.
    pub(crate) fn log(&self, level: LogLevel, text: impl AsRef<str>) {
        self.ctx.log(level, self.redactor.clean(text.as_ref()));
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
    pub(crate) fn hide(&self, value: &str, shown: &str) {
        self.redactor.hide(value, shown);
        self.vault.known().hide(value, shown);
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
    pub(crate) fn occurrence(&self) -> String {
        self.ctx.occurrence_id().to_string()
    }

    /// `work`, unless the run should end before it is done.
    ///
    /// # Errors
    /// What `work` fails with; or that `what` was given up.
    pub(crate) async fn unless_cancelled<T>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            done = work => done,
            () = self.cancelled().cancelled() => Err(Failure::retry(format!("{what} was given up because the run was to end"))),
        }
    }
}

/// A built-in job as the SDK sees it.
pub(crate) struct Sealed<B> {
    inner: B,
    vault: Arc<Vault>,
}

impl<B: BuiltIn> Sealed<B> {
    pub(crate) fn new(inner: B, vault: Arc<Vault>) -> Self {
        Self { inner, vault }
    }

    async fn run_at(&self, desk: &Desk, input: B::Input) -> Result<Box<RawValue>, Failure> {
        B::preview(&input)?;
        let input = serde_json::to_value(input).map_err(Failure::permanent)?;
        let input = self.vault.fill(input, &desk.redactor).await?;
        let input = serde_json::from_value(input).map_err(|error| Failure::permanent(format!("the input: {error}")))?;
        let running = AssertUnwindSafe(self.inner.run(desk, input)).catch_unwind();
        let output = running.await.map_err(|panic| Failure::retry(format!("panicked: {}", panic_text(&*panic))))??;
        let text = serde_json::to_string(&output).map_err(Failure::permanent)?;
        // Jobs clean what they return themselves, before they cut it; this is for what they forgot. As a value, so that
        // it stays JSON whatever is replaced; the order of its fields is lost only then.
        let text = match desk.redactor.clean(&text) {
            std::borrow::Cow::Borrowed(_) => text,
            std::borrow::Cow::Owned(_) => {
                let value: Value = serde_json::from_str(&text).map_err(Failure::permanent)?;
                desk.redactor.clean_value(value).to_string()
            }
        };
        RawValue::from_string(text).map_err(Failure::permanent)
    }
}

impl<B: BuiltIn> Job for Sealed<B> {
    const TYPE: &'static str = B::TYPE;
    const DESCRIPTION: &'static str = B::DESCRIPTION;
    const CONCURRENCY: u16 = B::CONCURRENCY;
    const TIMEOUT: Option<Duration> = B::TIMEOUT;
    type Input = B::Input;
    type Output = Box<RawValue>;

    async fn run(&self, ctx: &JobContext, input: B::Input) -> Result<Box<RawValue>, JobError> {
        let desk = Desk { ctx: ctx.clone(), redactor: Arc::default(), vault: self.vault.clone() };
        self.run_at(&desk, input).await.map_err(|failure| failure.told(&desk.redactor))
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
pub(crate) fn fit<T: Serialize>(text: String, output: impl Fn(String, bool) -> T) -> T {
    let size = |output: &T| serde_json::to_string(output).map_or(0, |json| json.len());
    let whole = output(text.clone(), false);
    let mut over = size(&whole).saturating_sub(MAX_RESULT);
    if over == 0 {
        return whole;
    }
    let mut kept = text;
    loop {
        // A character may take up to six bytes in JSON, so this never takes away more than needed, and soon ends.
        let end = kept.floor_char_boundary(kept.len().saturating_sub(over.div_ceil(6).max(1)));
        kept.truncate(end);
        let cut = output(kept.clone(), true);
        over = size(&cut).saturating_sub(MAX_RESULT);
        if over == 0 || kept.is_empty() {
            return cut;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use milvaion_worker::testing::{Record, Trial};
    use serde_json::json;

    use super::*;

    /// A vault with these secrets.
    pub(crate) fn vault(secrets: &'static [(&'static str, &'static str)]) -> Arc<Vault> {
        let variables = |name: &str| {
            let wanted = name.strip_prefix("MILVAION_SECRET_")?.to_lowercase();
            secrets.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
        };
        Arc::new(Vault::from_variables(variables, None))
    }

    /// A run of `job` in a worker that knows `secrets`.
    pub(crate) fn trial<B: BuiltIn>(job: B, secrets: &'static [(&'static str, &'static str)], input: Value) -> Trial {
        Trial::new(Sealed::new(job, vault(secrets)), input)
    }

    /// Everything that came out of a run, as text.
    pub(crate) fn all_of(record: &Record) -> String {
        format!("{record:?}")
    }

    /// A desk whose words nobody reads, at the place of a run that is over.
    pub(crate) async fn desk() -> Desk {
        #[derive(Clone, Default)]
        struct Taker(Arc<std::sync::OnceLock<JobContext>>);
        #[derive(serde::Deserialize, JsonSchema)]
        struct Nothing {}
        impl Job for Taker {
            const TYPE: &'static str = "taker";
            const DESCRIPTION: &'static str = "Keeps its context.";
            type Input = Nothing;
            type Output = ();

            async fn run(&self, ctx: &JobContext, _: Nothing) -> Result<(), JobError> {
                self.0.get_or_init(|| ctx.clone());
                Ok(())
            }
        }
        let taker = Taker::default();
        Trial::new(taker.clone(), json!({})).run().await;
        let ctx = taker.0.get().expect("it ran").clone();
        Desk { ctx, redactor: Arc::default(), vault: vault(&[]) }
    }

    struct Careless;

    #[derive(serde::Deserialize, Serialize, JsonSchema)]
    struct Input {
        how: String,
        text: String,
    }

    #[derive(Serialize)]
    struct Output {
        z: String,
        a: u8,
    }

    impl BuiltIn for Careless {
        const TYPE: &'static str = "careless";
        const DESCRIPTION: &'static str = "Says what it was told.";
        type Input = Input;
        type Output = Output;

        async fn run(&self, desk: &Desk, input: Input) -> Result<Output, Failure> {
            desk.info(format!("was told {}", input.text));
            match input.how.as_str() {
                "panic" => panic!("cannot bear {}", input.text),
                "fail" => Err(Failure::permanent(format!("cannot do {}", input.text))),
                "wait" => Err(Failure::retry_after(Duration::from_secs(7), input.text)),
                _ => Ok(Output { z: input.text, a: 1 }),
            }
        }
    }

    const SECRETS: &[(&str, &str)] = &[("bird", "c4n4ry \"quoted\"")];

    #[tokio::test]
    async fn no_way_out_shows_a_secret() {
        for how in ["return", "fail", "wait", "panic"] {
            let record = trial(Careless, SECRETS, json!({"how": how, "text": "<{{secret:bird}}>"})).run().await;
            assert!(!all_of(&record).contains("c4n4ry"), "{how}: {record:?}");
            assert_eq!(record.lines[0].message, "was told <{{secret:bird}}>");
            let end = record.end();
            let said = end.result.as_deref().or(end.exception.as_deref()).expect("an end");
            assert!(said.contains("<{{secret:bird}}>"), "{how}: {said}");
        }
    }

    #[tokio::test]
    async fn what_is_clean_comes_out_as_it_was() {
        let record = trial(Careless, SECRETS, json!({"how": "return", "text": "plain"})).run().await;
        assert_eq!(record.end().result.as_deref(), Some(r#"{"z":"plain","a":1}"#));
    }

    #[tokio::test]
    async fn a_pause_that_is_asked_for_is_told() {
        let record = trial(Careless, SECRETS, json!({"how": "wait", "text": "busy"})).run().await;
        assert_eq!((record.end().exception.as_deref(), record.end().retry_after_ms), (Some("busy"), Some(7_000)));
    }

    #[test]
    fn a_text_is_cut_until_its_result_fits() {
        for text in ["x".repeat(100_000), "\u{1}".repeat(100_000), "ü".repeat(40_000)] {
            let whole = text.len();
            let (text, cut) = fit(text, |text, cut| (text, cut));
            let size = serde_json::to_string(&(&text, cut)).expect("JSON").len();
            assert!(cut && text.len() < whole && size <= MAX_RESULT && size > MAX_RESULT - 100, "{size}");
        }
        assert_eq!(fit("short".to_owned(), |text, cut| (text, cut)), ("short".to_owned(), false));
    }
}
