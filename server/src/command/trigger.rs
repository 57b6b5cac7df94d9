//! Running a job by hand.

use milvaion_api::{event::Event, request::parse_json, view::Me};
use milvaion_app::{backend::TriggerInput, error::AppError};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::MAX_JOB_DATA,
};
use milvaion_schedule::rules::Overlap;
use serde_json::Value;

use super::{
    jobs::{Jobs, check_input, gone},
    occurrences::reason,
};
use crate::{
    broker::publisher::Outgoing,
    domain::message::message,
    store::asked::{Asked, Made, MadeRow, Refusal},
};

/// The most characters of an idempotency key.
const MAX_KEY: usize = 200;

impl Jobs {
    /// Runs a job now: an occurrence beside its schedule. One that needs a slot waits for it, unless forced.
    ///
    /// # Errors
    ///
    /// `Fields` for `input_json`, `reason` and `idempotency_key`, `NotFound`, or `Conflict` when the job or the cluster
    /// is paused or the job must not overlap itself, unless forced.
    pub async fn trigger(&self, me: &Me, id: JobId, input: TriggerInput) -> Result<OccurrenceId, AppError> {
        let job = self.store.job(id).await?.ok_or_else(gone)?;
        let reason = reason(&input.reason)?;
        let key = idempotency_key(input.idempotency_key.as_deref())?;
        let definition = &job.definition;
        let job_data = if input.input_json.trim().is_empty() {
            None
        } else {
            Some(self.other_input(&definition.worker_id, &definition.job_type, &input.input_json).await?)
        };
        let now = self.clock.now();
        let asked = Asked {
            id: self.clock.occurrence_id(),
            job_id: id,
            job_data,
            by: me.email.clone(),
            reason,
            force: input.force,
            key,
            alone: definition.rules.overlap == Overlap::Skip,
        };
        match self.store.make_asked(&asked, now).await? {
            Made::New(made) => {
                self.go(vec![*made]);
                Ok(asked.id)
            }
            Made::Before(id) => Ok(id),
            Made::Refused(refusal) => Err(AppError::Conflict(words(&refusal))),
            Made::Gone => Err(gone()),
        }
    }

    /// Checks an input that somebody typed for one occurrence of a job type.
    ///
    /// # Errors
    ///
    /// `Fields` for `input_json`.
    pub(super) async fn other_input(&self, worker_id: &str, job_type: &str, text: &str) -> Result<Value, AppError> {
        let data = parse_json(text).map_err(|message| AppError::field("input_json", message))?;
        if data.to_string().len() > MAX_JOB_DATA {
            return Err(AppError::field("input_json", "the input has more than 64 KiB: keep large data elsewhere"));
        }
        if let Some(schema) = self.store.schema(worker_id, job_type).await? {
            check_input(&schema, &data, true).map_err(AppError::Fields)?;
        }
        Ok(data)
    }

    /// Tells of new occurrences and sends those that need not wait, without making the person wait for the broker.
    pub(super) fn go(&self, made: Vec<MadeRow>) {
        let now = self.clock.now();
        let rows = made.iter().map(|made| made.row.clone()).collect();
        self.hub.publish(now, vec![Event::Occurrences { rows }]);
        if made.iter().any(|made| made.is_held) {
            self.release.notify_one();
        }
        let messages: Vec<Outgoing> = made
            .into_iter()
            .filter(|made| !made.is_held)
            .map(|made| Outgoing {
                worker_id: made.queued.worker_id.clone(),
                message: message(made.queued, now),
                republished: false,
            })
            .collect();
        if messages.is_empty() {
            return;
        }
        let this = self.clone();
        self.flights.spawn(async move {
            let sent = this.publisher.publish(&messages).await;
            if sent.len() < messages.len() {
                this.republish.notify_one();
            }
            if let Err(error) = this.store.mark_published(&sent, this.clock.now()).await {
                tracing::warn!(error = %error, "a published occurrence could not be marked; it will be sent once more and dropped by the worker");
            }
        });
    }
}

fn idempotency_key(text: Option<&str>) -> Result<Option<String>, AppError> {
    let Some(key) = text.map(str::trim).filter(|key| !key.is_empty()) else { return Ok(None) };
    if key.chars().count() > MAX_KEY || key.contains(char::is_control) {
        return Err(AppError::field("idempotency_key", "takes 1 to 200 printable characters"));
    }
    Ok(Some(key.to_owned()))
}

fn words(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Paused => "This job is paused. Resume it, or run it anyway.".into(),
        Refusal::Stopped(reason) => {
            format!("The whole cluster is paused ({reason}). Wait until it goes on, or run the job anyway.")
        }
        Refusal::Open => {
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
