//! Running a job by hand.

use milvaion_api::{events::LiveEvent, requests::parse_input_json, views::CurrentUser};
use milvaion_app::{backend::TriggerInput, error::AppError};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::MAX_JOB_DATA_BYTES,
};
use milvaion_schedule::rules::OverlapPolicy;
use serde_json::Value;

use super::{
    jobs::{JobCommands, check_input, gone},
    occurrences::reason,
};
use crate::{
    broker::publisher::OutgoingMessage,
    domain::message::message,
    store::manual_runs::{CreatedOccurrence, ManualRunOutcome, ManualRunRefusal, NewManualRun},
};

/// The most characters of an idempotency key.
const MAX_IDEMPOTENCY_KEY_CHARS: usize = 200;

impl JobCommands {
    /// Runs a job now: an occurrence beside its schedule. One that needs a slot waits for it, unless forced.
    ///
    /// # Errors
    ///
    /// `Fields` for `input_json`, `reason` and `idempotency_key`, `NotFound`, or `Conflict` when the job or the cluster
    /// is paused or the job must not overlap itself, unless forced.
    pub async fn run_now(&self, me: &CurrentUser, id: JobId, input: TriggerInput) -> Result<OccurrenceId, AppError> {
        let job = self.store.job(id).await?.ok_or_else(gone)?;
        let reason = reason(&input.reason)?;
        let key = idempotency_key(input.idempotency_key.as_deref())?;
        let definition = &job.definition;
        let job_data = if input.input_json.trim().is_empty() {
            None
        } else {
            Some(self.parse_input_override(&definition.worker_id, &definition.job_type, &input.input_json).await?)
        };
        let now = self.clock.now();
        let asked = NewManualRun {
            id: self.clock.occurrence_id(),
            job_id: id,
            job_data,
            by: me.email.clone(),
            reason,
            force: input.force,
            key,
            exclusive: definition.rules.overlap == OverlapPolicy::Skip,
        };
        match self.store.insert_manual_run(&asked, now).await? {
            ManualRunOutcome::Created(made) => {
                self.send_created(vec![*made]);
                Ok(asked.id)
            }
            ManualRunOutcome::Duplicate(id) => Ok(id),
            ManualRunOutcome::Refused(refusal) => Err(AppError::Conflict(words(&refusal))),
            ManualRunOutcome::JobNotFound => Err(gone()),
        }
    }

    /// Checks an input that somebody typed for one occurrence of a job type.
    ///
    /// # Errors
    ///
    /// `Fields` for `input_json`.
    pub(super) async fn parse_input_override(
        &self,
        worker_id: &str,
        job_type: &str,
        text: &str,
    ) -> Result<Value, AppError> {
        let data = parse_input_json(text).map_err(|message| AppError::field("input_json", message))?;
        if data.to_string().len() > MAX_JOB_DATA_BYTES {
            return Err(AppError::field("input_json", "the input has more than 64 KiB: keep large data elsewhere"));
        }
        if let Some(schema) = self.store.schema(worker_id, job_type).await? {
            check_input(&schema, &data, true).map_err(AppError::Fields)?;
        }
        Ok(data)
    }

    /// Tells of new occurrences and sends those that need not wait, without making the person wait for the broker.
    pub(super) fn send_created(&self, made: Vec<CreatedOccurrence>) {
        let now = self.clock.now();
        let rows = made.iter().map(|made| made.row.clone()).collect();
        self.hub.publish(now, vec![LiveEvent::Occurrences { rows }]);
        if made.iter().any(|made| made.is_held) {
            self.activate_slot_granter.notify_one();
        }
        let messages: Vec<OutgoingMessage> = made
            .into_iter()
            .filter(|made| !made.is_held)
            .map(|made| OutgoingMessage {
                worker_id: made.queued.worker_id.clone(),
                message: message(made.queued, now),
                republished: false,
            })
            .collect();
        if messages.is_empty() {
            return;
        }
        let this = self.clone();
        self.in_flight.spawn(async move {
            let sent = this.publisher.publish(&messages).await;
            if sent.len() < messages.len() {
                this.activate_republisher.notify_one();
            }
            if let Err(error) = this.store.mark_published(&sent, this.clock.now()).await {
                tracing::warn!(error = %error, "a published occurrence could not be marked; it will be sent once more and dropped by the worker");
            }
        });
    }
}

fn idempotency_key(text: Option<&str>) -> Result<Option<String>, AppError> {
    let Some(key) = text.map(str::trim).filter(|key| !key.is_empty()) else { return Ok(None) };
    if key.chars().count() > MAX_IDEMPOTENCY_KEY_CHARS || key.contains(char::is_control) {
        return Err(AppError::field("idempotency_key", "takes 1 to 200 printable characters"));
    }
    Ok(Some(key.to_owned()))
}

fn words(refusal: &ManualRunRefusal) -> String {
    match refusal {
        ManualRunRefusal::JobPaused => "This job is paused. Resume it, or run it anyway.".into(),
        ManualRunRefusal::ClusterPaused(reason) => {
            format!("The whole cluster is paused ({reason}). Wait until it goes on, or run the job anyway.")
        }
        ManualRunRefusal::PreviousRunOpen => {
            "The previous run of this job is still open, and it must not overlap itself. Wait for its end, \
                          cancel it, or run the job anyway."
                .into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_short_and_printable() {
        assert_eq!(idempotency_key(None), Ok(None));
        assert_eq!(idempotency_key(Some("  ")), Ok(None));
        assert_eq!(idempotency_key(Some(" a b ")), Ok(Some("a b".into())));
        assert!(idempotency_key(Some("a\nb")).is_err());
        assert!(idempotency_key(Some(&"ü".repeat(200))).is_ok());
        assert!(idempotency_key(Some(&"ü".repeat(201))).is_err());
    }
}
