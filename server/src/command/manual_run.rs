//! Manual runs of a job.

use milvaion_api::{events::LiveEvent, requests::parse_input_json};
use milvaion_app::{
    backend::{RequestUser, TriggerInput},
    error::AppError,
};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::MAX_JOB_DATA_BYTES,
};
use milvaion_telemetry::occurrences::{SpanStart, record_creation};
use serde_json::Value;

use super::{
    jobs::{JobCommands, check_input, not_found},
    reason,
};
use crate::{
    domain::message::QueuedRun,
    store::{
        create::{CreatedRun, MAX_OPEN_RUNS_PER_JOB, NewRun},
        manual_runs::{ManualRunOutcome, ManualRunRefusal},
    },
};

/// The maximum length of an idempotency key, in characters.
const MAX_IDEMPOTENCY_KEY_CHARS: usize = 200;

impl JobCommands {
    /// Runs a job now, as an occurrence outside its schedule. A run that needs a slot waits for it, unless it is
    /// forced.
    ///
    /// # Errors
    ///
    /// Returns `Fields` for an invalid `input_json`, `reason` or `idempotency_key`, and `NotFound` if the job does not
    /// exist. Returns `Conflict` if the job or the cluster is paused, or if its overlap policy skips the new run, unless
    /// the run is forced.
    pub async fn run_now(&self, me: &RequestUser, id: JobId, input: TriggerInput) -> Result<OccurrenceId, AppError> {
        let reason = reason(&input.reason)?;
        let key = idempotency_key(input.idempotency_key.as_deref())?;
        let own_input = if input.input_json.trim().is_empty() {
            None
        } else {
            let definition = self.store.job_to_show(id).await?.ok_or_else(not_found)?.definition;
            Some(self.parse_input_override(&definition.worker_id, &definition.job_type, &input.input_json).await?)
        };
        let now = self.clock.now();
        let run = NewRun {
            id: self.clock.occurrence_id(),
            job_id: id,
            input: own_input,
            is_script: input.is_script,
            force: input.force,
            key,
            ..requested(me, reason)
        };
        let start = SpanStart::now();
        match self.store.insert_manual_run(&run, now).await? {
            ManualRunOutcome::Created(created) => {
                self.send_created(vec![*created], start);
                Ok(run.id)
            }
            ManualRunOutcome::Duplicate(id) => Ok(id),
            ManualRunOutcome::Refused(refusal) => Err(AppError::Conflict(describe(&refusal))),
            ManualRunOutcome::JobNotFound => Err(not_found()),
        }
    }

    /// Checks an input that a user typed for one occurrence of a job type.
    ///
    /// # Errors
    ///
    /// Returns `Fields` for `input_json`.
    pub(super) async fn parse_input_override(
        &self,
        worker_id: &str,
        job_type: &str,
        text: &str,
    ) -> Result<Value, AppError> {
        let data = parse_input_json(text).map_err(|message| AppError::field("input_json", message))?;
        if data.to_string().len() > MAX_JOB_DATA_BYTES {
            return Err(AppError::field(
                "input_json",
                "the input is larger than 64 KiB: store large data elsewhere and refer to it",
            ));
        }
        if let Some(schema) = self.store.schema(worker_id, job_type).await? {
            check_input(&schema, &data, None).map_err(AppError::Fields)?;
        }
        Ok(data)
    }

    /// Sends the messages of new occurrences, after [announcing](Self::announce_created) them. The user does not wait for
    /// the broker.
    pub(crate) fn send_created(&self, created: Vec<CreatedRun>, start: SpanStart) {
        let queued = self.announce_created(created, "request", start);
        self.sender.send_created_after(std::future::ready(()), queued);
    }

    /// Publishes new occurrences to browsers, activates the slot granter for those that wait for a slot or the end of a
    /// delay, and returns what their messages need. `span` is the name of the first span of each.
    pub(crate) fn announce_created(
        &self,
        created: Vec<CreatedRun>,
        span: &'static str,
        start: SpanStart,
    ) -> Vec<QueuedRun> {
        if created.is_empty() {
            return Vec::new();
        }
        for run in created.iter().filter(|run| run.queued.traceparent.is_none()) {
            record_creation(run.row.id, span, &run.row.job_name, start);
        }
        if created.iter().any(|run| run.queued.is_held) {
            self.activate_slot_granter.notify_one();
        }
        let (rows, queued) = created.into_iter().map(|run| (run.row, run.queued)).unzip();
        self.hub.publish(self.clock.now(), vec![LiveEvent::Occurrences { rows }]);
        queued
    }
}

/// Returns what the occurrences that a request of a user creates have in common.
pub(super) fn requested(me: &RequestUser, reason: Option<String>) -> NewRun {
    NewRun {
        by: me.email.clone(),
        address: me.address,
        reason,
        traceparent: milvaion_telemetry::current(),
        ..NewRun::default()
    }
}

fn idempotency_key(text: Option<&str>) -> Result<Option<String>, AppError> {
    let Some(key) = text.map(str::trim).filter(|key| !key.is_empty()) else { return Ok(None) };
    if key.chars().count() > MAX_IDEMPOTENCY_KEY_CHARS || key.contains(char::is_control) {
        return Err(AppError::field("idempotency_key", "takes 1 to 200 printable characters"));
    }
    Ok(Some(key.to_owned()))
}

fn describe(refusal: &ManualRunRefusal) -> String {
    match refusal {
        ManualRunRefusal::JobPaused => "This job is paused. Resume it, or run it anyway.".into(),
        ManualRunRefusal::ClusterPaused(reason) => {
            format!("All schedules are paused ({reason}). Wait until they are resumed, or run the job anyway.")
        }
        ManualRunRefusal::PreviousRunOpen => {
            "The previous run of this job is still open, and the job's overlap policy is to skip the new run. Wait for \
             its end, cancel it, or run the job anyway."
                .into()
        }
        ManualRunRefusal::TooManyOpenRuns => format!(
            "This job has {MAX_OPEN_RUNS_PER_JOB} open occurrences, which is the limit. Start a worker for it, or cancel \
             some of them."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idempotency_key_is_short_and_printable() {
        assert_eq!(idempotency_key(None), Ok(None));
        assert_eq!(idempotency_key(Some("  ")), Ok(None));
        assert_eq!(idempotency_key(Some(" a b ")), Ok(Some("a b".into())));
        assert!(idempotency_key(Some("a\nb")).is_err());
        assert!(idempotency_key(Some(&"ü".repeat(200))).is_ok());
        assert!(idempotency_key(Some(&"ü".repeat(201))).is_err());
    }
}
