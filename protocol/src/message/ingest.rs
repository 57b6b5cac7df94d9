//! New occurrences that a program or a job publishes over the broker, in batches, and the answer to a batch.
//!
//! The producer makes the id of each occurrence, so a batch that is published twice creates each occurrence once. A server
//! answers only if the message names a direct reply-to address; without one the producer relies on the confirm of the
//! broker, and what the server refuses becomes a dead letter with a reason.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::id::OccurrenceId;

/// The maximum number of occurrences in one ingest message.
pub const MAX_INGEST_OCCURRENCES: usize = 500;
/// The maximum age of the id of a new occurrence, in days: the server keeps ids for this long to recognise duplicates.
pub const MAX_INGEST_ID_AGE_DAYS: i64 = 7;
/// The maximum length of a uniqueness key, in characters.
pub const MAX_UNIQUENESS_KEY_CHARS: usize = 200;

/// Producer → server, the body on the ingest queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct IngestMessage {
    /// The new occurrences, at most 500.
    pub occurrences: Vec<NewOccurrence>,
    /// The name of the program, for display on the page of an occurrence, at most 200 characters.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::lenient::or_default")]
    pub producer: String,
}

/// An occurrence to create. It names a job, or a worker and one of its job types.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NewOccurrence {
    /// The id, a UUIDv7 that the producer makes, at most seven days old. An id that the server has already accepted creates
    /// nothing.
    pub id: OccurrenceId,
    /// The key of the job to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_key: Option<String>,
    /// The worker whose job type runs, if no job is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The job type to run, if no job is named. The rules that its code declares apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_type: Option<String>,
    /// The input. Without one, the input of the job. At most 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// The instant before which the occurrence does not start, at most 366 days from now. Without one it is due at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<DateTime<Utc>>,
    /// The priority, from 1 (idle) to 5 (critical). Without one, that of the job.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::lenient::optional")]
    pub priority: Option<u8>,
    /// The uniqueness key, at most 200 characters: nothing is created while an occurrence of the same job with the same key is
    /// open, and within `uniqueForSeconds` of its creation. Without one, an occurrence of a job type that is declared unique
    /// gets its key from the input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uniqueness_key: Option<String>,
    /// The time for which a uniqueness key applies after the creation even if the occurrence has ended, in seconds, at most 30
    /// days.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::lenient::optional")]
    pub unique_for_seconds: Option<u32>,
    /// The occurrence that creates this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<OccurrenceId>,
    /// The position in a trace that the occurrence continues, as the `traceparent` of the W3C Trace Context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// The input is left out, because it may be confidential, and so is the uniqueness key, which may be made from it.
impl fmt::Debug for NewOccurrence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewOccurrence")
            .field("id", &self.id)
            .field("job_key", &self.job_key)
            .field("worker_id", &self.worker_id)
            .field("job_type", &self.job_type)
            .field("has_input", &self.input.is_some())
            .field("not_before", &self.not_before)
            .field("priority", &self.priority)
            .field("unique_for_seconds", &self.unique_for_seconds)
            .field("parent_id", &self.parent_id)
            .finish_non_exhaustive()
    }
}

/// Returns the uniqueness key of an input: its JSON without blanks and with the fields of all objects in the order of their
/// names, because equal inputs of two programs may have another order. A text of more than 200 characters, or with control
/// characters, is replaced by its SHA-256 hash; a shorter one stays readable on a page.
#[must_use]
pub fn uniqueness_key_of_input(input: &Value) -> String {
    let mut input = input.clone();
    input.sort_all_objects();
    let text = input.to_string();
    if text.chars().count() <= MAX_UNIQUENESS_KEY_CHARS && !text.chars().any(char::is_control) {
        return text;
    }
    Sha256::digest(text).iter().fold("sha256:".to_owned(), |key, byte| format!("{key}{byte:02x}"))
}

/// Server → producer, on the queue that the message named in `reply_to`, with its `correlation_id`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct IngestReply {
    /// One result for each occurrence of the message, in its order.
    pub results: Vec<IngestResult>,
    /// The reason why the whole message was refused; then there are no results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The result for one new occurrence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct IngestResult {
    /// The id of the request.
    pub id: OccurrenceId,
    /// The result.
    pub outcome: IngestOutcome,
    /// The existing occurrence, with `duplicate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing_id: Option<OccurrenceId>,
    /// The reason and the remedy, with `rejected`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// True if the same occurrence may be accepted later, such as when its job is resumed.
    #[serde(default, skip_serializing_if = "is_false", deserialize_with = "crate::lenient::or_default")]
    pub retryable: bool,
}

impl IngestResult {
    /// Returns the result for an occurrence, without a reason.
    #[must_use]
    pub const fn new(id: OccurrenceId, outcome: IngestOutcome) -> Self {
        Self { id, outcome, existing_id: None, reason: None, retryable: false }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// The result for one new occurrence, as one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum IngestOutcome {
    /// The occurrence exists, created by this message or by an earlier one with the same id.
    Accepted,
    /// An occurrence with the same uniqueness key exists, so nothing was created.
    Duplicate,
    /// Nothing was created. Publishing the same occurrence again has the same result unless the reason is removed, or unless
    /// the result is marked as retryable.
    Rejected,
    /// A word of a newer server.
    #[serde(other)]
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_input_is_hashed() {
        assert_eq!(uniqueness_key_of_input(&Value::from(7)), "7");
        let key = uniqueness_key_of_input(&Value::from("x".repeat(300)));
        assert!(key.starts_with("sha256:") && key.len() == 71, "{key}");
    }

    #[test]
    fn equal_inputs_have_one_key() {
        let key = |text: &str| uniqueness_key_of_input(&serde_json::from_str(text).expect("JSON"));
        assert_eq!(key(r#"{"b": [{"d": 1, "c": 2}], "a": 3}"#), r#"{"a":3,"b":[{"c":2,"d":1}]}"#);
        assert_ne!(key("[1, 2]"), key("[2, 1]"), "the order of a list has a meaning");
    }

    #[test]
    fn debug_output_has_no_input() {
        let occurrence = NewOccurrence { input: Some("hunter2".into()), ..NewOccurrence::default() };
        assert!(!format!("{occurrence:?}").contains("hunter2"));
    }
}
