//! The sample job: the first run of a new installation, with one click.
//!
//! The job is an ordinary one that the user can change and delete. It is found again by its name and its job type, so
//! that the second click runs the same job. Concurrent requests wait for each other and therefore create one job; its
//! idempotency keys then let a repeated request create one run.

use milvaion_api::{requests::JobForm, rules_form, views::DEMO_JOB_TYPE};
use milvaion_app::{
    backend::{RequestUser, TriggerInput},
    error::AppError,
};
use milvaion_protocol::id::{JobId, OccurrenceId};

use super::jobs::JobCommands;
use crate::domain::liveness;

/// The name of the sample job.
const SAMPLE_JOB_NAME: &str = "Sample job";
/// The input of the sample job: long enough to watch its progress.
const SAMPLE_JOB_INPUT: &str = r#"{"steps": 10, "durationSeconds": 10}"#;

impl JobCommands {
    /// Runs the sample job, which is created if no live worker's sample job exists. A repeated `idempotency_key`
    /// returns the same occurrence.
    ///
    /// # Errors
    ///
    /// Returns `Conflict` if no live worker offers the job type, or if the job or the cluster is paused.
    pub async fn run_sample_job(&self, me: &RequestUser, idempotency_key: &str) -> Result<OccurrenceId, AppError> {
        let job_types = self.store.job_types(liveness::alive_since(self.clock.now())).await?;
        let workers: Vec<String> = job_types
            .into_iter()
            .filter(|offer| offer.alive > 0 && offer.info.job_type == DEMO_JOB_TYPE)
            .map(|offer| offer.worker_id)
            .collect();
        let Some(worker) = workers.first() else {
            return Err(AppError::Conflict(format!(
                "No live worker offers the job type {DEMO_JOB_TYPE}. Start milvaion-worker and try again."
            )));
        };
        // The lock keeps a connection, and what follows needs another one: of many clicks, only one may hold it.
        let _turn = self.sample_job.lock().await;
        let lock = self.store.lock_sample_job().await?;
        let found = self.store.job_by_name(SAMPLE_JOB_NAME, DEMO_JOB_TYPE, &workers).await?;
        let id = match found {
            Some(id) => id,
            None => self.create_sample_job(me, worker).await?,
        };
        lock.release().await?;
        let input = TriggerInput {
            reason: "Sample run".into(),
            idempotency_key: Some(idempotency_key.to_owned()),
            ..TriggerInput::default()
        };
        self.run_now(me, id, input).await
    }

    async fn create_sample_job(&self, me: &RequestUser, worker: &str) -> Result<JobId, AppError> {
        let form = JobForm {
            display_name: SAMPLE_JOB_NAME.into(),
            description: "Waits in steps, to show progress, a log and a result. It can be deleted.".into(),
            target: format!("{worker}/{DEMO_JOB_TYPE}"),
            input_mode: "json".into(),
            input_json: SAMPLE_JOB_INPUT.into(),
            kind: "manual".into(),
            zone: "UTC".into(),
            is_active: "on".into(),
            rules: rules_form::default_fields(),
            ..JobForm::default()
        };
        self.save(me, &form).await
    }
}
