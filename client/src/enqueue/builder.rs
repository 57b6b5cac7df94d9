//! The description of a new occurrence.

use std::time::Duration;

use chrono::{DateTime, Utc};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{MAX_JOB_DATA_BYTES, MAX_UNIQUENESS_KEY_CHARS, NewOccurrence},
    topology::MAX_PRIORITY,
};
use serde::Serialize;

use super::EnqueueError;
use crate::clock;

/// A new occurrence, to be enqueued. It names a job, or a worker and one of its job types. A clone has the same
/// [id](Self::id), so that a call can be repeated: both create one occurrence.
#[derive(Clone, Debug)]
#[must_use = "an occurrence is created when a client enqueues it"]
pub struct Enqueue {
    occurrence: NewOccurrence,
    /// The reason why the input cannot be written.
    unwritable: Option<String>,
}

impl Enqueue {
    /// Describes an occurrence of the job with a key.
    pub fn job(key: impl Into<String>) -> Self {
        Self::new(NewOccurrence { job_key: Some(key.into()), ..NewOccurrence::default() })
    }

    /// Describes an occurrence of a job type, without a job that a user has defined. The rules that the code of the worker
    /// declares for the type apply.
    pub fn job_type(worker_id: impl Into<String>, job_type: impl Into<String>) -> Self {
        Self::new(NewOccurrence {
            worker_id: Some(worker_id.into()),
            job_type: Some(job_type.into()),
            ..NewOccurrence::default()
        })
    }

    fn new(occurrence: NewOccurrence) -> Self {
        Self { occurrence: NewOccurrence { id: clock::occurrence_id(), ..occurrence }, unwritable: None }
    }

    /// Sets the id, a UUIDv7 that is at most seven days old. Without it, a new one is used.
    pub fn id(mut self, id: OccurrenceId) -> Self {
        self.occurrence.id = id;
        self
    }

    /// Sets the input, at most 64 KiB of JSON. Without it, the occurrence has the input of its job.
    pub fn input<T: Serialize>(mut self, input: T) -> Self {
        match serde_json::to_value(input) {
            Ok(input) => self.occurrence.input = Some(input),
            Err(error) => self.unwritable = Some(error.to_string()),
        }
        self
    }

    /// Delays the start until an instant, at most 366 days from now.
    pub fn at(mut self, not_before: DateTime<Utc>) -> Self {
        self.occurrence.not_before = Some(not_before);
        self
    }

    /// Delays the start by a duration, at most 366 days.
    pub fn after(self, delay: Duration) -> Self {
        self.at(clock::after(delay))
    }

    /// Sets the priority, from 1 (idle) to 5 (critical). Without it, that of the job applies.
    pub fn priority(mut self, priority: u8) -> Self {
        self.occurrence.priority = Some(priority);
        self
    }

    /// Sets the uniqueness key, at most 200 characters: nothing is created while an occurrence of the same job with the same
    /// key is open.
    pub fn unique(mut self, key: impl Into<String>) -> Self {
        self.occurrence.uniqueness_key = Some(key.into());
        self
    }

    /// Sets the time for which the uniqueness key applies after the creation even if the occurrence has ended, in whole
    /// seconds and at most 30 days.
    pub fn unique_for(mut self, duration: Duration) -> Self {
        let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
        self.occurrence.unique_for_seconds = Some(u32::try_from(seconds).unwrap_or(u32::MAX));
        self
    }

    /// Sets the occurrence that creates this one. In a job it is set by the context.
    pub fn parent(mut self, parent: OccurrenceId) -> Self {
        self.occurrence.parent_id = Some(parent);
        self
    }

    /// Checks the values that need no server, and returns the occurrence as it is transmitted.
    ///
    /// # Errors
    /// Returns [`EnqueueError`] if the input cannot be written or is too long, or if another value is out of its bounds.
    pub fn build(self) -> Result<NewOccurrence, EnqueueError> {
        if let Some(reason) = self.unwritable {
            return Err(EnqueueError::UnwritableInput { reason });
        }
        let occurrence = self.occurrence;
        let bytes = occurrence.input.as_ref().map_or(0, |input| input.to_string().len());
        if bytes > MAX_JOB_DATA_BYTES {
            return Err(EnqueueError::InputTooLong { bytes });
        }
        if let Some(priority) = occurrence.priority
            && !(1..=MAX_PRIORITY).contains(&priority)
        {
            return Err(EnqueueError::InvalidPriority { priority });
        }
        if let Some(key) = &occurrence.uniqueness_key
            && !(1..=MAX_UNIQUENESS_KEY_CHARS).contains(&key.chars().count())
        {
            return Err(EnqueueError::InvalidUniquenessKey { chars: key.chars().count() });
        }
        Ok(occurrence)
    }
}

/// An occurrence as it was transmitted, with its id: enqueued again, it is created once.
impl From<NewOccurrence> for Enqueue {
    fn from(occurrence: NewOccurrence) -> Self {
        Self { occurrence, unwritable: None }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn description_becomes_the_message() {
        let parent = OccurrenceId::from_parts(clock::now(), [7; 10]);
        let built = Enqueue::job_type("mail", "send")
            .input(json!({ "to": "ada" }))
            .after(Duration::from_secs(60))
            .priority(5)
            .unique("ada")
            .unique_for(Duration::from_millis(1_500))
            .parent(parent)
            .build()
            .expect("the values are acceptable");
        assert_eq!((built.worker_id.as_deref(), built.job_type.as_deref()), (Some("mail"), Some("send")));
        assert_eq!(built.input, Some(json!({ "to": "ada" })));
        assert_eq!((built.priority, built.unique_for_seconds), (Some(5), Some(2)));
        assert_eq!((built.uniqueness_key.as_deref(), built.parent_id), (Some("ada"), Some(parent)));
        let delay = built.not_before.expect("a delay") - built.id.created_at();
        assert!((60..=61).contains(&delay.num_seconds()), "{delay}");
    }

    #[test]
    fn values_out_of_bounds_name_the_remedy() {
        let error = |enqueue: Enqueue| enqueue.build().expect_err("the value is not acceptable").to_string();
        assert!(error(Enqueue::job("a").priority(6)).contains("1 (idle) to 5 (critical)"));
        assert!(error(Enqueue::job("a").unique("")).contains("1 to 200 characters"));
        assert!(error(Enqueue::job("a").input("x".repeat(70_000))).contains("at most 65536 bytes"));
        let pairs = std::collections::BTreeMap::from([((1, 2), 3)]);
        assert!(error(Enqueue::job("a").input(pairs)).contains("cannot be written as JSON"));
    }
}
