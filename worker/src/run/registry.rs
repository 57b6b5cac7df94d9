//! The job types of one worker.
//!
//! Here, and only here, a typed [`Job`] becomes something that takes JSON and gives text: everything behind this file
//! treats all job types alike.

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

/// The longest a run may tidy up. Whoever asked for its end waits for it.
const MAX_JOB_GRACE: Duration = Duration::from_secs(60);

/// One job type.
pub(crate) struct RegisteredJob {
    pub(crate) job_type: &'static str,
    pub(crate) concurrency: u16,
    pub(crate) timeout: Option<Duration>,
    /// How long a run may tidy up.
    pub(crate) grace: Duration,
    description: &'static str,
    schema: Value,
    handler: Arc<dyn JobHandler>,
}

/// A job without its types.
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

/// JSON text, its fields in the order of the type; a string without its quotes, and nothing for null.
fn text(output: &impl Serialize) -> serde_json::Result<Option<String>> {
    let json = serde_json::to_string(output)?;
    match json.as_bytes().first() {
        Some(b'"') => serde_json::from_str(&json).map(Some),
        _ if json == "null" => Ok(None),
        _ => Ok(Some(json)),
    }
}

impl RegisteredJob {
    pub(crate) fn new<J: Job>(job: J) -> Self {
        // A form is drawn from the schema, and a form has no use for references.
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

    /// Runs it once.
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
        }
    }

    fn check(&self, errors: &mut ConfigErrors) {
        let name = self.job_type;
        if !is_valid_name(name, 100) {
            errors
                .add(format!("the job type {name:?} cannot be used: give 1 to 100 letters, digits, '-', '_' and '.'."));
        }
        if !(1..=MAX_CONCURRENCY).contains(&self.concurrency) {
            errors.add(format!(
                "the job type {name:?} has CONCURRENCY {}: give a number from 1 to {MAX_CONCURRENCY}.",
                self.concurrency
            ));
        }
        if self.timeout.is_some_and(|timeout| !(Duration::from_secs(1)..=MAX_TIMEOUT).contains(&timeout)) {
            errors.add(format!("the job type {name:?} has a TIMEOUT outside its bounds: give 1 second to 7 days."));
        }
        if self.grace > MAX_JOB_GRACE {
            errors.add(format!("the job type {name:?} has a GRACE outside its bounds: give at most 60 seconds."));
        }
    }
}

/// All job types, by name.
#[derive(Default)]
pub(crate) struct JobRegistry {
    jobs: BTreeMap<String, RegisteredJob>,
    errors: ConfigErrors,
}

impl JobRegistry {
    pub(crate) fn add(&mut self, registered: RegisteredJob) {
        // Queues are named in lower case, so two types that differ in case alone would share one.
        let key = registered.job_type.to_lowercase();
        if let Some(twin) = self.jobs.insert(key, registered) {
            self.errors
                .add(format!("the job type {:?} is registered twice: give each job a TYPE of its own.", twin.job_type));
        }
    }

    /// Lets the configuration have its way about how many runs of a type there may be at once.
    pub(crate) fn set_concurrency(&mut self, wanted: &BTreeMap<String, u16>) {
        for (job_type, concurrency) in wanted {
            match self.jobs.get_mut(&job_type.to_lowercase()) {
                Some(job) => job.concurrency = *concurrency,
                None => self.errors.add(format!(
                    "MILVAION_CONCURRENCY names {job_type:?}, which this worker does not have: give one of its job types ({}).",
                    self.jobs.values().map(|job| job.job_type).collect::<Vec<_>>().join(", ")
                )),
            }
        }
    }

    /// The types in order of their names, and what is wrong with them.
    pub(crate) fn finish(mut self) -> (Vec<Arc<RegisteredJob>>, ConfigErrors) {
        if self.jobs.is_empty() {
            self.errors.add("the worker has no job type: add one with .job(…) before .build().");
        }
        for job in self.jobs.values() {
            job.check(&mut self.errors);
        }
        (self.jobs.into_values().map(Arc::new).collect(), self.errors)
    }
}

/// What the worker announces.
pub(crate) fn announce(jobs: &[Arc<RegisteredJob>]) -> Vec<JobTypeInfo> {
    jobs.iter().map(|job| job.info()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct BadlyNamedJob;

    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct NamedInput {
        /// Whom to greet.
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
    fn mistakes_are_gathered() {
        assert_eq!(JobRegistry::default().finish().1.messages().len(), 1);
        let mut registry = JobRegistry::default();
        registry.add(RegisteredJob::new(BadlyNamedJob));
        registry.add(RegisteredJob::new(BadlyNamedJob));
        // Its name, its concurrency, its grace, and that it is there twice.
        assert_eq!(registry.finish().1.messages().len(), 4);
    }

    #[test]
    fn the_configuration_has_the_last_word_on_concurrency() {
        let mut registry = JobRegistry::default();
        registry.add(RegisteredJob::new(BadlyNamedJob));
        registry.set_concurrency(&BTreeMap::from([("Not A Name".to_owned(), 1000), ("other".to_owned(), 1)]));
        let (jobs, errors) = registry.finish();
        assert_eq!(jobs[0].concurrency, 1000);
        assert_eq!(errors.messages().len(), 3, "{errors}");
        assert!(errors.messages()[0].contains("\"other\""), "{errors}");
    }

    #[test]
    fn a_schema_needs_no_references() {
        let info = RegisteredJob::new(BadlyNamedJob).info();
        assert!(!info.schema.to_string().contains("$ref"), "{}", info.schema);
        assert!(info.schema.to_string().contains("Whom to greet."), "{}", info.schema);
    }
}
