//! New occurrences that programs and jobs enqueue, over the broker or over the REST API.
//!
//! Each occurrence is checked by itself: one that is rejected keeps no other from being created. The checks that need the
//! database read it once for all occurrences, so a message costs a few statements whatever its length.
//!
//! An occurrence that names a job type belongs to a job without a schedule that the server keeps for the type, so that it
//! has rules, a page and statistics like any other.

use std::collections::{BTreeSet, HashMap};

use chrono::{DateTime, Duration, Utc};
use jsonschema::Validator;
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::{
        IngestOutcome, IngestResult, MAX_INGEST_ID_AGE_DAYS, MAX_JOB_DATA_BYTES, MAX_UNIQUENESS_KEY_CHARS,
        NewOccurrence, uniqueness_key_of_input,
    },
    storable::is_storable,
    topology::MAX_PRIORITY,
    trace::Traceparent,
};
use serde_json::Value;

use super::jobs::JobCommands;
use crate::{
    domain::{declarations, hello_check::MAX_UNIQUE_SECONDS},
    store::{
        StoreError,
        create::{CreatedRun, EnqueueOutcome, NewRun},
        enqueue::EnqueueTarget,
        jobs::AuditStamp,
    },
};

/// The time by which an id may be ahead of the server's clock.
const MAX_ID_LEAD: Duration = Duration::minutes(1);
/// The longest delay of an occurrence.
const MAX_DELAY: Duration = Duration::days(366);
/// The longest name of a job, a worker or a job type in a reason, in characters.
const MAX_NAME_CHARS: usize = 100;

/// The outcome of a request for new occurrences.
#[derive(Debug, Default)]
pub struct EnqueueReport {
    /// One result for each occurrence, in their order.
    pub results: Vec<IngestResult>,
    /// The occurrences that were created now.
    pub created: Vec<CreatedRun>,
}

/// A worker and one of its job types.
type TypeKey = (String, String);

/// The jobs that the occurrences of a request name.
#[derive(Debug, Default)]
struct EnqueueTargets {
    by_key: HashMap<String, EnqueueTarget>,
    by_type: HashMap<TypeKey, EnqueueTarget>,
    validators: HashMap<TypeKey, Option<Validator>>,
}

impl JobCommands {
    /// Creates occurrences, each at most once, and returns one result for each. `by` is the author, for display. The
    /// messages of the created ones are not sent yet.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails; then none was created, and the request can be repeated.
    pub async fn enqueue(&self, occurrences: &[NewOccurrence], by: Option<&str>) -> Result<EnqueueReport, StoreError> {
        let now = self.clock.now();
        let targets = self.targets(occurrences, by, now).await?;
        let mut results: Vec<Option<IngestResult>> = Vec::with_capacity(occurrences.len());
        let mut runs: Vec<NewRun> = Vec::new();
        let mut seen: HashMap<OccurrenceId, usize> = HashMap::new();
        let checked: Vec<_> = occurrences.iter().map(|occurrence| check(occurrence, &targets, now)).collect();
        // A redelivered message may be refused for what its first delivery has created: a job may be paused at any time.
        let refused = occurrences.iter().zip(&checked).filter(|(_, checked)| checked.is_err());
        let refused: Vec<OccurrenceId> = refused.map(|(occurrence, _)| occurrence.id).collect();
        let known = self.store.known_ids(&refused).await?;
        for (occurrence, checked) in occurrences.iter().zip(checked) {
            results.push(match checked {
                Ok(run) => {
                    // The second of two with one id is the first.
                    if let std::collections::hash_map::Entry::Vacant(entry) = seen.entry(run.id) {
                        entry.insert(runs.len());
                        runs.push(run);
                    }
                    None
                }
                Err(_) if known.contains(&occurrence.id) => Some(accepted(occurrence.id)),
                Err(refusal) => Some(refusal.result(occurrence.id)),
            });
        }
        let mut created = Vec::new();
        let mut answers: Vec<IngestResult> = Vec::with_capacity(runs.len());
        if !runs.is_empty() {
            #[cfg(feature = "faults")]
            self.store.sabotage_receipts(&runs).await?;
            for (run, outcome) in runs.iter().zip(self.store.enqueue_runs(&runs, by, now).await?) {
                answers.push(match outcome {
                    EnqueueOutcome::Created(occurrence) => {
                        created.push(*occurrence);
                        accepted(run.id)
                    }
                    EnqueueOutcome::Known => accepted(run.id),
                    EnqueueOutcome::Duplicate(existing) => IngestResult {
                        outcome: IngestOutcome::Duplicate,
                        existing_id: Some(existing),
                        ..accepted(run.id)
                    },
                    EnqueueOutcome::JobNotFound => {
                        Refusal::for_now("The job was deleted in this moment. Publish the occurrence again.")
                            .result(run.id)
                    }
                });
            }
        }
        let results = results.into_iter().zip(occurrences).map(|(result, occurrence)| {
            let answer = || seen.get(&occurrence.id).and_then(|index| answers.get(*index)).cloned();
            result.or_else(answer).unwrap_or_else(|| rejected(occurrence.id, "It has no result.".into()))
        });
        Ok(EnqueueReport { results: results.collect(), created })
    }

    /// Reads the jobs that the occurrences name, and creates the missing ones of job types.
    async fn targets(
        &self,
        occurrences: &[NewOccurrence],
        by: Option<&str>,
        now: DateTime<Utc>,
    ) -> Result<EnqueueTargets, StoreError> {
        let keys: BTreeSet<String> =
            occurrences.iter().filter_map(|one| one.job_key.clone()).filter(|key| is_text(key)).collect();
        let types: BTreeSet<TypeKey> = occurrences.iter().filter_map(type_key).collect();
        let mut targets = EnqueueTargets::default();
        if !keys.is_empty() {
            targets.by_key = self.store.enqueue_targets_by_key(&keys.into_iter().collect::<Vec<_>>()).await?;
        }
        if !types.is_empty() {
            targets.by_type = self.store.enqueue_targets_by_type(&types.into_iter().collect::<Vec<_>>()).await?;
        }
        for target in targets.by_type.values_mut().filter(|target| target.job_id.is_none()) {
            target.job_id = Some(self.create_enqueue_job(target, by, now).await?);
        }
        for occurrence in occurrences.iter().filter(|occurrence| occurrence.input.is_some()) {
            let Some(target) = targets.of(occurrence) else { continue };
            let key = (target.worker_id.clone(), target.job_type.clone());
            if targets.validators.contains_key(&key) {
                continue;
            }
            let schema = self.store.schema(&key.0, &key.1).await?;
            // The worker itself still checks the input if it has announced an invalid schema.
            let validator = schema.and_then(|schema| jsonschema::validator_for(&schema).ok());
            targets.validators.insert(key, validator);
        }
        Ok(targets)
    }

    /// Creates the job for the occurrences of a job type that are enqueued without a job, with the rules that the code
    /// declares, because the occurrences of this request copy them.
    async fn create_enqueue_job(
        &self,
        target: &EnqueueTarget,
        by: Option<&str>,
        now: DateTime<Utc>,
    ) -> Result<JobId, StoreError> {
        let EnqueueTarget { worker_id, job_type, defaults, .. } = target;
        let job = declarations::definition(worker_id, job_type, defaults, None);
        let edit = AuditStamp { by: by.unwrap_or("system"), at: now, address: None };
        let (id, is_new) = self.store.create_enqueue_job(self.clock.job_id(), &job, edit).await?;
        if is_new {
            self.publisher.ensure_queue(worker_id, job_type).await;
            self.hub.publish(now, vec![milvaion_api::events::LiveEvent::Job { id }]);
        }
        Ok(id)
    }
}

impl EnqueueTargets {
    fn of(&self, occurrence: &NewOccurrence) -> Option<&EnqueueTarget> {
        match &occurrence.job_key {
            Some(key) => self.by_key.get(key),
            None => self.by_type.get(&type_key(occurrence)?),
        }
    }
}

fn accepted(id: OccurrenceId) -> IngestResult {
    IngestResult::new(id, IngestOutcome::Accepted)
}

/// The reason why an occurrence is not created.
#[derive(Debug)]
struct Refusal {
    reason: String,
    /// True if the reason may pass without a change of the occurrence.
    is_retryable: bool,
}

impl Refusal {
    fn for_now(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_retryable: true }
    }

    fn result(self, id: OccurrenceId) -> IngestResult {
        IngestResult { retryable: self.is_retryable, ..rejected(id, self.reason) }
    }
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self { reason, is_retryable: false }
    }
}

impl From<&str> for Refusal {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

/// Returns the result for an occurrence that is rejected for a reason.
pub(crate) fn rejected(id: OccurrenceId, reason: String) -> IngestResult {
    IngestResult { outcome: IngestOutcome::Rejected, reason: Some(reason), ..accepted(id) }
}

/// Returns true if PostgreSQL can compare a text with a name.
fn is_text(text: &str) -> bool {
    text.chars().count() <= MAX_NAME_CHARS && !text.contains('\0')
}

fn type_key(occurrence: &NewOccurrence) -> Option<TypeKey> {
    let (worker_id, job_type) = (occurrence.worker_id.clone()?, occurrence.job_type.clone()?);
    (is_text(&worker_id) && is_text(&job_type)).then_some((worker_id, job_type))
}

/// Checks the values of an occurrence, and returns the reason for a rejection.
fn check(occurrence: &NewOccurrence, targets: &EnqueueTargets, now: DateTime<Utc>) -> Result<NewRun, Refusal> {
    let id = occurrence.id;
    if id.0.get_version_num() != 7 {
        return Err("id: must be a UUID of version 7, which contains the time at which it was made.".into());
    }
    let made_at = id.created_at();
    if made_at < now - Duration::days(MAX_INGEST_ID_AGE_DAYS) {
        return Err(format!(
            "id: is older than {MAX_INGEST_ID_AGE_DAYS} days. The server no longer recognises duplicates of such ids: make a \
             new one if the occurrence was never created."
        )
        .into());
    }
    if made_at > now + MAX_ID_LEAD {
        return Err(
            "id: is more than a minute ahead of the server's clock. Synchronize the clock of the producer.".into()
        );
    }
    let target = target(occurrence, targets)?;
    if let Some(input) = &occurrence.input {
        check_input(input, targets.validators.get(&(target.worker_id.clone(), target.job_type.clone())))?;
    }
    if let Some(priority) = occurrence.priority
        && !(1..=MAX_PRIORITY).contains(&priority)
    {
        return Err(format!("priority: takes 1 (idle) to {MAX_PRIORITY} (critical).").into());
    }
    if occurrence.not_before.is_some_and(|at| at > now + MAX_DELAY) {
        return Err(format!("notBefore: is more than {} days ahead.", MAX_DELAY.num_days()).into());
    }
    let (uniqueness_key, unique_for_seconds) = uniqueness(occurrence, target);
    let unique_until = match (&uniqueness_key, unique_for_seconds) {
        (None, Some(_)) => return Err("uniqueForSeconds: needs a uniquenessKey.".into()),
        (Some(key), _) if key.is_empty() || key.chars().count() > MAX_UNIQUENESS_KEY_CHARS || key.contains('\0') => {
            return Err(format!("uniquenessKey: takes 1 to {MAX_UNIQUENESS_KEY_CHARS} characters without NUL.").into());
        }
        (_, Some(seconds)) if seconds > MAX_UNIQUE_SECONDS => {
            return Err(format!("uniqueForSeconds: takes at most {MAX_UNIQUE_SECONDS}, which is 30 days.").into());
        }
        (_, seconds) => seconds.filter(|seconds| *seconds > 0).map(|seconds| now + Duration::seconds(seconds.into())),
    };
    Ok(NewRun {
        id,
        job_id: target
            .job_id
            .ok_or_else(|| Refusal::for_now("The job of the type does not exist yet. Publish the occurrence again."))?,
        input: occurrence.input.clone(),
        not_before: occurrence.not_before.filter(|at| *at > now),
        priority: occurrence.priority,
        uniqueness_key,
        unique_until,
        parent_id: occurrence.parent_id,
        // A malformed one is ignored, as everywhere.
        traceparent: occurrence.traceparent.as_deref().and_then(Traceparent::parse),
        ..NewRun::default()
    })
}

/// Returns the uniqueness key of an occurrence and the time for which it applies after the creation. Without a key of its own,
/// an occurrence by job type has the one that the code of the type declares.
fn uniqueness(occurrence: &NewOccurrence, target: &EnqueueTarget) -> (Option<String>, Option<u32>) {
    let is_by_type = occurrence.job_key.is_none();
    match target.defaults.unique.filter(|_| is_by_type && occurrence.uniqueness_key.is_none()) {
        Some(rule) => {
            let key = match &occurrence.input {
                Some(input) => uniqueness_key_of_input(input),
                None => "{}".to_owned(),
            };
            (Some(key), occurrence.unique_for_seconds.or(rule.for_seconds))
        }
        None => (occurrence.uniqueness_key.clone(), occurrence.unique_for_seconds),
    }
}

/// Returns the job of an occurrence, or the reason why it has none.
fn target<'a>(occurrence: &NewOccurrence, targets: &'a EnqueueTargets) -> Result<&'a EnqueueTarget, Refusal> {
    let name = |text: &str| text.chars().take(MAX_NAME_CHARS).collect::<String>().escape_default().to_string();
    let has_type = occurrence.worker_id.is_some() || occurrence.job_type.is_some();
    let found = match (&occurrence.job_key, &occurrence.worker_id, &occurrence.job_type) {
        (Some(_), ..) if has_type => {
            return Err("jobKey: excludes workerId and jobType. Name a job, or a worker and a job type.".into());
        }
        (Some(key), ..) => targets.by_key.get(key).ok_or_else(|| {
            format!("jobKey: no job has the key {}. Create the job, or correct the key.", name(key))
        })?,
        (None, Some(worker), Some(job_type)) => {
            targets.by_type.get(&(worker.clone(), job_type.clone())).ok_or_else(|| {
                Refusal::for_now(format!(
                    "jobType: no instance of worker {} has registered the job type {}. Start the worker once, or correct the \
                     names.",
                    name(worker),
                    name(job_type)
                ))
            })?
        }
        (None, ..) => return Err("jobKey: is needed, or workerId and jobType.".into()),
    };
    if !found.is_active {
        return Err(Refusal::for_now("The job is paused. Resume it, and publish the occurrence again."));
    }
    Ok(found)
}

/// Checks an input against its bounds, and against the schema of the job type.
fn check_input(input: &Value, validator: Option<&Option<Validator>>) -> Result<(), String> {
    let bytes = input.to_string().len();
    if bytes > MAX_JOB_DATA_BYTES {
        return Err(format!("input: has {bytes} bytes of JSON; the maximum is {MAX_JOB_DATA_BYTES}."));
    }
    if !is_storable(input) {
        return Err("input: contains the character NUL, which cannot be stored.".into());
    }
    let Some(Some(validator)) = validator else { return Ok(()) };
    match validator.iter_errors(input).next() {
        None => Ok(()),
        Some(error) => {
            let (path, text) = (error.instance_path().to_string(), error.to_string());
            // An error may quote the whole input.
            let text: String = text.chars().take(500).collect();
            Err(format!("input{path}: {text}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::message::{JobDefaults, UniqueRule};
    use serde_json::json;

    use super::*;

    fn now() -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000, 0).expect("a valid instant")
    }

    fn targets() -> EnqueueTargets {
        let target = |is_active| EnqueueTarget {
            job_id: Some(JobId::default()),
            worker_id: "mail".into(),
            job_type: "send".into(),
            is_active,
            defaults: JobDefaults::default(),
        };
        let schema = json!({"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]});
        let key = ("mail".to_owned(), "send".to_owned());
        EnqueueTargets {
            by_key: [("report".to_owned(), target(true)), ("paused".to_owned(), target(false))].into(),
            by_type: [(key.clone(), target(true))].into(),
            validators: [(key, jsonschema::validator_for(&schema).ok())].into(),
        }
    }

    fn report() -> NewOccurrence {
        NewOccurrence {
            id: OccurrenceId::from_parts(now(), [1; 10]),
            job_key: Some("report".into()),
            ..NewOccurrence::default()
        }
    }

    #[test]
    fn values_out_of_bounds_are_rejected_by_name() {
        let at = |age: Duration| OccurrenceId::from_parts(now() - age, [1; 10]);
        let cases = [
            (NewOccurrence { id: OccurrenceId::default(), ..report() }, "id: must be a UUID of version 7"),
            (NewOccurrence { id: at(Duration::days(8)), ..report() }, "id: is older than 7 days"),
            (NewOccurrence { id: at(Duration::minutes(-2)), ..report() }, "id: is more than a minute ahead"),
            (NewOccurrence { job_key: None, ..report() }, "jobKey: is needed"),
            (NewOccurrence { job_key: Some("other".into()), ..report() }, "jobKey: no job has the key other"),
            (NewOccurrence { job_key: Some("paused".into()), ..report() }, "The job is paused"),
            (NewOccurrence { worker_id: Some("mail".into()), ..report() }, "jobKey: excludes"),
            (
                NewOccurrence {
                    job_key: None,
                    worker_id: Some("mail".into()),
                    job_type: Some("print".into()),
                    ..report()
                },
                "no instance of worker mail has registered the job type print",
            ),
            (NewOccurrence { input: Some(json!({})), ..report() }, "\"to\" is a required property"),
            (NewOccurrence { input: Some(json!({"to": 1})), ..report() }, "input/to:"),
            (NewOccurrence { input: Some(json!({"to": "\0"})), ..report() }, "contains the character NUL"),
            (NewOccurrence { input: Some(json!({"to": "x".repeat(70_000)})), ..report() }, "the maximum is 65536"),
            (NewOccurrence { priority: Some(0), ..report() }, "priority: takes 1 (idle) to 5"),
            (NewOccurrence { not_before: Some(now() + Duration::days(367)), ..report() }, "notBefore:"),
            (NewOccurrence { uniqueness_key: Some(String::new()), ..report() }, "uniquenessKey:"),
            (NewOccurrence { unique_for_seconds: Some(1), ..report() }, "uniqueForSeconds: needs"),
        ];
        for (occurrence, expected) in cases {
            let Refusal { reason, is_retryable } = check(&occurrence, &targets(), now()).expect_err("it is rejected");
            assert!(reason.contains(expected), "{reason}");
            assert_eq!(is_retryable, reason.contains("paused") || reason.contains("has registered"), "{reason}");
        }
        check(&NewOccurrence { input: Some(json!({"to": "ada"})), ..report() }, &targets(), now()).expect("accepted");
        check(&NewOccurrence { id: at(Duration::days(6)), ..report() }, &targets(), now()).expect("accepted");
    }

    #[test]
    fn declared_uniqueness_applies_to_occurrences_by_type_without_a_key() {
        let mut targets = targets();
        for target in targets.by_type.values_mut().chain(targets.by_key.values_mut()) {
            target.defaults.unique = Some(UniqueRule { for_seconds: Some(60) });
        }
        let by_type = NewOccurrence {
            job_key: None,
            worker_id: Some("mail".into()),
            job_type: Some("send".into()),
            input: Some(json!({"to": "ada"})),
            ..report()
        };
        let key = |occurrence: &NewOccurrence| {
            let run = check(occurrence, &targets, now()).expect("accepted");
            (run.uniqueness_key, run.unique_until.map(|until| until - now()))
        };
        assert_eq!(key(&by_type), (Some(r#"{"to":"ada"}"#.to_owned()), Some(Duration::seconds(60))));
        assert_eq!(
            key(&NewOccurrence { uniqueness_key: Some("mine".into()), ..by_type }),
            (Some("mine".to_owned()), None)
        );
        assert_eq!(key(&NewOccurrence { input: Some(json!({"to": "ada"})), ..report() }), (None, None), "by its key");
    }

    #[test]
    fn time_that_has_passed_is_no_delay() {
        let run = |at| check(&NewOccurrence { not_before: Some(at), ..report() }, &targets(), now()).expect("accepted");
        assert_eq!(run(now() - Duration::seconds(1)).not_before, None);
        assert_eq!(run(now() + Duration::seconds(1)).not_before, Some(now() + Duration::seconds(1)));
    }
}
