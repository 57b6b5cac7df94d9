//! The job types of one worker.
//!
//! This is the only place where a typed [`Job`] is erased to a handler that takes JSON and returns text. All code after
//! it treats all job types alike. A job that is a function becomes the same handler in `api::job_fn`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use milvaion_protocol::message::{DeclaredSchedule, JobDefaults, JobTypeInfo, MAX_BUNDLE_RUNS, MAX_MESSAGE_BYTES};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::Serialize;
use serde_json::Value;

#[cfg(feature = "client")]
use crate::api::options::Unique;
use crate::{
    api::{context::JobContext, error::ConfigErrors, job::Job, options::JobOptions, outcome::JobError},
    run::input,
};

/// Maximum size of the JSON Schema of an input, in bytes. The server refuses a larger one.
const MAX_SCHEMA_BYTES: usize = 128 * 1024;
/// The part of a registration that its other fields may take, in bytes.
const REGISTRATION_RESERVE_BYTES: usize = 16 * 1024;

/// A registered job type, with its Rust types erased.
pub(crate) struct RegisteredJob {
    /// The name of the type.
    pub(crate) job_type: &'static str,
    /// The concurrency limit in this process.
    pub(crate) concurrency: u16,
    /// The largest bundle that its options allow.
    bundle: Option<u16>,
    /// The timeout of runs whose job sets none.
    pub(crate) timeout: Option<Duration>,
    /// The time for cleanup of a run.
    pub(crate) grace: Duration,
    description: String,
    schema: Value,
    defaults: JobDefaults,
    schedules: Vec<DeclaredSchedule>,
    #[cfg(feature = "client")]
    unique: Option<Unique>,
    handler: Arc<dyn JobHandler>,
    /// The mistakes in its options.
    errors: ConfigErrors,
}

/// A job without its Rust types.
pub(crate) trait JobHandler: Send + Sync {
    /// Runs one attempt with an input.
    fn run(self: Arc<Self>, ctx: JobContext, data: Value) -> BoxFuture<'static, Result<Option<String>, JobError>>;
}

struct TypedJob<J>(J);

impl<J: Job> JobHandler for TypedJob<J> {
    fn run(self: Arc<Self>, ctx: JobContext, data: Value) -> BoxFuture<'static, Result<Option<String>, JobError>> {
        Box::pin(async move {
            let input = input::read::<J::Input>(&data)?;
            drop(data);
            text(&self.0.run(&ctx, input).await?)
        })
    }
}

/// Formats a result as JSON text, with fields in the order of the type. A string loses its quotes, and null becomes
/// `None`.
///
/// # Errors
/// Returns a permanent failure if the result cannot be written as JSON.
pub(crate) fn text(output: &impl Serialize) -> Result<Option<String>, JobError> {
    let text = || {
        let json = serde_json::to_string(output)?;
        match json.as_bytes().first() {
            Some(b'"') => serde_json::from_str(&json).map(Some),
            _ if json == "null" => Ok(None),
            _ => Ok(Some(json)),
        }
    };
    text().map_err(|error: serde_json::Error| {
        JobError::permanent(format!("the job's result cannot be written as JSON: {error}"))
    })
}

impl RegisteredJob {
    /// Registers a job with its own options.
    #[cfg(test)]
    pub(crate) fn new<J: Job>(job: J) -> Self {
        Self::with_options(job, |options| options)
    }

    /// Registers a job with its own options, which `change` may change.
    pub(crate) fn with_options<J: Job>(
        job: J,
        change: impl FnOnce(JobOptions<J::Input>) -> JobOptions<J::Input>,
    ) -> Self {
        let mut options = change(job.options(JobOptions::default()));
        // After both, because a job may return options of its own instead of those that it was given.
        options.concurrency.get_or_insert(J::CONCURRENCY);
        options.grace.get_or_insert(J::GRACE);
        options.timeout = options.timeout.or(J::TIMEOUT);
        Self::of(J::TYPE, J::DESCRIPTION, options, Arc::new(TypedJob(job)))
    }

    /// Registers a handler under a name, which its options may replace.
    pub(crate) fn of<Input: JsonSchema>(
        job_type: &str,
        description: &str,
        options: JobOptions<Input>,
        handler: Arc<dyn JobHandler>,
    ) -> Self {
        // Subschemas are inlined, because the form that is built from the schema cannot follow references.
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        // Names are labels of metrics and live as long as the process, and a program registers each of them once.
        let job_type: &'static str = Box::leak(options.name.as_deref().unwrap_or(job_type).into());
        let mut errors = ConfigErrors::default();
        options.check(job_type, &mut errors);
        let (concurrency, bundle) = (options.concurrency, options.bundle);
        let (timeout, grace) = (options.timeout, options.grace);
        #[cfg(feature = "client")]
        let unique = options.unique;
        let description = options.description.clone().unwrap_or_else(|| description.to_owned());
        let (defaults, schedules) = options.into_wire();
        Self {
            job_type,
            concurrency: concurrency.unwrap_or(DEFAULT_CONCURRENCY),
            bundle,
            timeout,
            grace: grace.unwrap_or(DEFAULT_GRACE),
            description,
            schema: settings.into_generator().into_root_schema_for::<Input>().to_value(),
            defaults,
            schedules,
            #[cfg(feature = "client")]
            unique,
            handler,
            errors,
        }
    }

    /// Returns the handler of one more attempt.
    pub(crate) fn handler(&self) -> Arc<dyn JobHandler> {
        self.handler.clone()
    }

    /// Returns the maximum number of retries that its options declare.
    pub(crate) fn max_retries(&self) -> Option<u16> {
        self.defaults.max_retries
    }

    /// Returns true if its options declare schedules.
    pub(crate) fn declares_schedules(&self) -> bool {
        !self.schedules.is_empty()
    }

    /// Returns the description of the job type for the registration.
    pub(crate) fn info(&self) -> JobTypeInfo {
        JobTypeInfo {
            job_type: self.job_type.to_owned(),
            description: self.description.clone(),
            schema: self.schema.clone(),
            concurrency: self.concurrency.into(),
            timeout_seconds: self.timeout.and_then(|timeout| timeout.as_secs().try_into().ok()),
            bundle_size: self.bundle_size(self.concurrency.into()),
            defaults: self.defaults.clone(),
            schedules: self.schedules.clone(),
        }
    }

    /// Returns the largest bundle for a process that runs at most so many at once: a larger one would wait in part for the
    /// rest of it. `None` means that it takes none.
    fn bundle_size(&self, capacity: u32) -> Option<u32> {
        let largest = self.bundle.map_or(MAX_BUNDLE_RUNS as u32, u32::from);
        Some(largest.min(self.concurrency.into()).min(capacity)).filter(|runs| *runs > 1)
    }

    fn check(&self, errors: &mut ConfigErrors) {
        let name = self.job_type;
        self.errors.messages().iter().for_each(|error| errors.add(error.clone()));
        let size = self.schema.to_string().len();
        if size > MAX_SCHEMA_BYTES {
            errors.add(format!(
                "The JSON Schema of the input of job type {name:?} has {size} bytes: make the type of the input smaller, to at most {MAX_SCHEMA_BYTES} bytes. A type that occurs in several places is repeated in each."
            ));
        }
    }
}

/// Concurrency limit of a job that sets none.
const DEFAULT_CONCURRENCY: u16 = 10;
/// Time for cleanup of a job that sets none.
const DEFAULT_GRACE: Duration = Duration::from_secs(1);

/// All job types, by lower-case name.
#[derive(Default)]
pub(crate) struct JobRegistry {
    jobs: BTreeMap<String, RegisteredJob>,
    errors: ConfigErrors,
}

impl JobRegistry {
    /// Adds a job type.
    pub(crate) fn add(&mut self, registered: RegisteredJob) {
        // Queue names are lower case, so two types that differ only in case would share a queue.
        let key = registered.job_type.to_lowercase();
        if let Some(replaced) = self.jobs.insert(key, registered) {
            self.errors.add(format!(
                "Job type {:?} is registered twice: give each job its own TYPE, or a name with JobOptions::named.",
                replaced.job_type
            ));
        }
    }

    /// Returns the names of the job types.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.jobs.values().map(|job| job.job_type)
    }

    /// Overrides the concurrency limits of job types with those of the configuration.
    pub(crate) fn set_concurrency(&mut self, limits: &BTreeMap<String, u16>) {
        for (job_type, concurrency) in limits {
            match self.jobs.get_mut(&job_type.to_lowercase()) {
                Some(job) => job.concurrency = *concurrency,
                None => self.errors.add(format!(
                    "A concurrency limit (MILVAION_CONCURRENCY or .concurrency(…)) names {job_type:?}, which this worker does not have: give one of its job types ({}).",
                    self.names().collect::<Vec<_>>().join(", ")
                )),
            }
        }
    }

    /// Returns the job types in the order of their names, and all errors.
    pub(crate) fn finish(mut self) -> (Vec<Arc<RegisteredJob>>, ConfigErrors) {
        for job in self.jobs.values() {
            job.check(&mut self.errors);
        }
        let sizes = self.jobs.values().map(|job| serde_json::to_string(&job.info()).map_or(0, |text| text.len()));
        let size = sizes.sum::<usize>();
        if size > MAX_MESSAGE_BYTES - REGISTRATION_RESERVE_BYTES {
            self.errors.add(format!(
                "The registration of the {} job types has {size} bytes, and a message has at most {MAX_MESSAGE_BYTES}: make the types of the inputs smaller, or divide the job types among several workers.",
                self.jobs.len()
            ));
        }
        (self.jobs.into_values().map(Arc::new).collect(), self.errors)
    }
}

/// Returns the description of all job types for the registration of a worker that runs at most `capacity` at once.
pub(crate) fn announce(jobs: &[Arc<RegisteredJob>], capacity: u32) -> Vec<JobTypeInfo> {
    jobs.iter().map(|job| JobTypeInfo { bundle_size: job.bundle_size(capacity), ..job.info() }).collect()
}

/// Returns the uniqueness of the job types that declare one.
#[cfg(feature = "client")]
pub(crate) fn unique_types(jobs: &[Arc<RegisteredJob>]) -> BTreeMap<&'static str, Unique> {
    jobs.iter().filter_map(|job| Some((job.job_type, job.unique?))).collect()
}

/// Returns the names of all job types for a log line.
pub(crate) fn names(jobs: &[Arc<RegisteredJob>]) -> String {
    jobs.iter().map(|job| job.job_type).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct BadlyNamedJob;

    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct NamedInput {
        /// The name to greet.
        _name: Option<NestedInput>,
    }

    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct NestedInput {
        _first: String,
    }

    impl Job for BadlyNamedJob {
        const TYPE: &'static str = "not a name";
        const DESCRIPTION: &'static str = "";
        const CONCURRENCY: u16 = 0;
        const GRACE: Duration = Duration::from_secs(61);
        type Input = NamedInput;
        type Output = ();

        async fn run(&self, _: &JobContext, _: NamedInput) -> Result<(), JobError> {
            Ok(())
        }
    }

    #[test]
    fn registration_errors_are_collected() {
        let mut registry = JobRegistry::default();
        registry.add(RegisteredJob::new(BadlyNamedJob));
        registry.add(RegisteredJob::new(BadlyNamedJob));
        // Its name, its concurrency, its grace, and the second registration.
        assert_eq!(registry.finish().1.messages().len(), 4);
    }

    #[test]
    fn constants_of_a_job_apply_unless_its_options_say_otherwise() {
        struct SlowJob;

        impl Job for SlowJob {
            const TYPE: &'static str = "slow";
            const CONCURRENCY: u16 = 3;
            const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));
            const GRACE: Duration = Duration::from_secs(5);
            type Input = NestedInput;
            type Output = ();

            fn options(&self, _: JobOptions<NestedInput>) -> JobOptions<NestedInput> {
                JobOptions::default().retries(2)
            }

            async fn run(&self, _: &JobContext, _: NestedInput) -> Result<(), JobError> {
                Ok(())
            }
        }

        let job = RegisteredJob::new(SlowJob);
        let seconds = Duration::from_secs;
        assert_eq!((job.concurrency, job.timeout, job.grace), (3, Some(seconds(60)), seconds(5)));
        assert_eq!(job.info().bundle_size, Some(3), "it runs three at once");
        let job = RegisteredJob::with_options(SlowJob, |o| o.concurrency(1).timeout(seconds(9)).grace(seconds(2)));
        assert_eq!((job.concurrency, job.timeout, job.grace), (1, Some(seconds(9)), seconds(2)));
    }

    #[test]
    fn bundle_is_no_larger_than_what_runs_at_once() {
        let announced = |capacity, concurrency, bundle| {
            let change = |options: JobOptions<NamedInput>| options.concurrency(concurrency).bundle(bundle);
            announce(&[Arc::new(RegisteredJob::with_options(BadlyNamedJob, change))], capacity)[0].bundle_size
        };
        assert_eq!(announced(50, 500, 10), Some(10));
        assert_eq!(announced(50, 500, 4), Some(4));
        assert_eq!(announced(50, 3, 10), Some(3));
        assert_eq!(announced(2, 10, 10), Some(2));
        assert_eq!(announced(50, 10, 1), None, "bundles are off");
        assert_eq!(announced(50, 1, 10), None, "one run at a time");
    }

    #[test]
    fn configured_concurrency_overrides_the_job_type() {
        let job =
            || RegisteredJob::with_options(BadlyNamedJob, |o| o.named("good").concurrency(2).grace(DEFAULT_GRACE));
        let mut registry = JobRegistry::default();
        registry.add(job());
        registry.set_concurrency(&BTreeMap::from([("Good".to_owned(), 1000), ("other".to_owned(), 1)]));
        let (jobs, errors) = registry.finish();
        assert_eq!(jobs[0].concurrency, 1000);
        assert_eq!(errors.messages().len(), 1, "{errors}");
        assert!(errors.messages()[0].contains("\"other\""), "{errors}");
    }

    /// An input whose schema repeats a nested type 27 times.
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct WideInput {
        _parts: (WidePart, WidePart, WidePart),
    }

    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct WidePart {
        _parts: (WideLeaf, WideLeaf, WideLeaf),
    }

    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct WideLeaf {
        #[schemars(description = LONG_TEXT)]
        _text: String,
    }

    const LONG_TEXT: &str = {
        const BYTES: [u8; 16_000] = [b'x'; 16_000];
        match std::str::from_utf8(&BYTES) {
            Ok(text) => text,
            Err(_) => "",
        }
    };

    #[test]
    fn schema_that_the_server_would_refuse_is_an_error() {
        let mut registry = JobRegistry::default();
        let handler = RegisteredJob::new(BadlyNamedJob).handler();
        registry.add(RegisteredJob::of("wide", "", JobOptions::<WideInput>::default(), handler));
        let errors = registry.finish().1;
        assert_eq!(errors.messages().len(), 1, "{errors}");
        assert!(errors.messages()[0].contains("\"wide\" has 14"), "{errors}");
    }

    #[test]
    fn registration_that_no_message_can_carry_is_an_error() {
        let mut registry = JobRegistry::default();
        let handler = RegisteredJob::new(BadlyNamedJob).handler();
        for number in 0..70 {
            let (name, options) = (format!("type-{number}"), JobOptions::<WideLeaf>::default());
            registry.add(RegisteredJob::of(&name, "", options, handler.clone()));
        }
        let errors = registry.finish().1;
        assert_eq!(errors.messages().len(), 1, "{errors}");
        assert!(errors.messages()[0].contains("the 70 job types has 11"), "{errors}");
        assert!(errors.messages()[0].contains("divide the job types among several workers"), "{errors}");
    }

    #[test]
    fn schema_contains_no_references() {
        let info = RegisteredJob::new(BadlyNamedJob).info();
        assert!(!info.schema.to_string().contains("$ref"), "{}", info.schema);
        assert!(info.schema.to_string().contains("The name to greet."), "{}", info.schema);
    }
}
