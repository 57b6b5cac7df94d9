//! The job types of one worker.
//!
//! This is the only place where a typed [`Job`] is erased to a handler that takes JSON and returns text. All code after
//! it treats all job types alike.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use milvaion_protocol::message::JobTypeInfo;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::Value;

use crate::{
    api::config::{MAX_CONCURRENCY, MAX_TIMEOUT, is_valid_name},
    api::error::ConfigErrors,
    api::job::{Job, JobContext},
    api::outcome::JobError,
    run::input,
};

/// Maximum time for cleanup of a run. The user who cancelled the run waits for it.
const MAX_JOB_GRACE: Duration = Duration::from_secs(60);

/// A registered job type, with its Rust types erased.
pub(crate) struct RegisteredJob {
    /// The name of the type.
    pub(crate) job_type: &'static str,
    /// The concurrency limit in this process.
    pub(crate) concurrency: u16,
    /// The timeout of runs whose job sets none.
    pub(crate) timeout: Option<Duration>,
    /// The time for cleanup of a run.
    pub(crate) grace: Duration,
    description: &'static str,
    schema: Value,
    handler: Arc<dyn JobHandler>,
}

/// A job without its Rust types.
trait JobHandler: Send + Sync {
    fn run(self: Arc<Self>, ctx: JobContext, data: Value) -> BoxFuture<'static, Result<Option<String>, JobError>>;
}

struct TypedJob<J>(J);

impl<J: Job> JobHandler for TypedJob<J> {
    fn run(self: Arc<Self>, ctx: JobContext, data: Value) -> BoxFuture<'static, Result<Option<String>, JobError>> {
        Box::pin(async move {
            let input = input::read::<J::Input>(&data)?;
            drop(data);
            let output = self.0.run(&ctx, input).await?;
            text(&output)
                .map_err(|error| JobError::permanent(format!("the job's result cannot be written as JSON: {error}")))
        })
    }
}

/// Formats a result as JSON text, with fields in the order of the type. A string loses its quotes, and null becomes
/// `None`.
fn text(output: &impl Serialize) -> serde_json::Result<Option<String>> {
    let json = serde_json::to_string(output)?;
    match json.as_bytes().first() {
        Some(b'"') => serde_json::from_str(&json).map(Some),
        _ if json == "null" => Ok(None),
        _ => Ok(Some(json)),
    }
}

impl RegisteredJob {
    /// Registers a job.
    pub(crate) fn new<J: Job>(job: J) -> Self {
        // Subschemas are inlined, because the form that is built from the schema cannot follow references.
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        Self {
            job_type: J::TYPE,
            concurrency: J::CONCURRENCY,
            timeout: J::TIMEOUT,
            grace: J::GRACE,
            description: J::DESCRIPTION,
            schema: settings.into_generator().into_root_schema_for::<J::Input>().to_value(),
            handler: Arc::new(TypedJob(job)),
        }
    }

    /// Runs one attempt.
    pub(crate) fn run(&self, ctx: JobContext, data: Value) -> BoxFuture<'static, Result<Option<String>, JobError>> {
        self.handler.clone().run(ctx, data)
    }

    fn info(&self) -> JobTypeInfo {
        JobTypeInfo {
            job_type: self.job_type.to_owned(),
            description: self.description.to_owned(),
            schema: self.schema.clone(),
            concurrency: self.concurrency.into(),
            timeout_seconds: self.timeout.and_then(|timeout| timeout.as_secs().try_into().ok()),
            ..JobTypeInfo::default()
        }
    }

    fn check(&self, errors: &mut ConfigErrors) {
        let name = self.job_type;
        if !is_valid_name(name, 100) {
            errors.add(format!(
                "Job type {name:?} has an invalid name: give 1 to 100 letters, digits, '-', '_' and '.'."
            ));
        }
        if !(1..=MAX_CONCURRENCY).contains(&self.concurrency) {
            errors.add(format!(
                "Job type {name:?} has CONCURRENCY {}: give a number from 1 to {MAX_CONCURRENCY}.",
                self.concurrency
            ));
        }
        if self.timeout.is_some_and(|timeout| !(Duration::from_secs(1)..=MAX_TIMEOUT).contains(&timeout)) {
            errors.add(format!("Job type {name:?} has a TIMEOUT outside its bounds: give 1 second to 7 days."));
        }
        if self.grace > MAX_JOB_GRACE {
            errors.add(format!("Job type {name:?} has a GRACE outside its bounds: give at most 60 seconds."));
        }
    }
}

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
            self.errors
                .add(format!("Job type {:?} is registered twice: give each job its own TYPE.", replaced.job_type));
        }
    }

    /// Overrides the concurrency limits of job types with those of the configuration.
    pub(crate) fn set_concurrency(&mut self, limits: &BTreeMap<String, u16>) {
        for (job_type, concurrency) in limits {
            match self.jobs.get_mut(&job_type.to_lowercase()) {
                Some(job) => job.concurrency = *concurrency,
                None => self.errors.add(format!(
                    "MILVAION_CONCURRENCY names {job_type:?}, which this worker does not have: give one of its job types ({}).",
                    self.jobs.values().map(|job| job.job_type).collect::<Vec<_>>().join(", ")
                )),
            }
        }
    }

    /// Returns the job types in the order of their names, and all errors.
    pub(crate) fn finish(mut self) -> (Vec<Arc<RegisteredJob>>, ConfigErrors) {
        for job in self.jobs.values() {
            job.check(&mut self.errors);
        }
        (self.jobs.into_values().map(Arc::new).collect(), self.errors)
    }
}

/// Returns the description of all job types for the registration of the worker.
pub(crate) fn announce(jobs: &[Arc<RegisteredJob>]) -> Vec<JobTypeInfo> {
    jobs.iter().map(|job| job.info()).collect()
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
    fn configured_concurrency_overrides_the_job_type() {
        let mut registry = JobRegistry::default();
        registry.add(RegisteredJob::new(BadlyNamedJob));
        registry.set_concurrency(&BTreeMap::from([("Not A Name".to_owned(), 1000), ("other".to_owned(), 1)]));
        let (jobs, errors) = registry.finish();
        assert_eq!(jobs[0].concurrency, 1000);
        assert_eq!(errors.messages().len(), 3, "{errors}");
        assert!(errors.messages()[0].contains("\"other\""), "{errors}");
    }

    #[test]
    fn schema_contains_no_references() {
        let info = RegisteredJob::new(BadlyNamedJob).info();
        assert!(!info.schema.to_string().contains("$ref"), "{}", info.schema);
        assert!(info.schema.to_string().contains("The name to greet."), "{}", info.schema);
    }
}
