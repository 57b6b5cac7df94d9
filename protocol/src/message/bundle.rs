//! The bundle: one message with the runs of several occurrences. The broker's work depends on the number of messages, so
//! runs of one job type and priority that are sent together share one.

use serde::{Deserialize, Serialize};

use super::JobMessage;

/// The maximum number of runs in a bundle.
pub const MAX_BUNDLE_RUNS: usize = 10;
/// The maximum size of a bundle, in bytes. A prefetched bundle counts as one message, so it must not be much larger than one.
pub const MAX_BUNDLE_BYTES: usize = 64 * 1024;

/// The text before the first run of a bundle.
const BUNDLE_START: &[u8] = br#"{"runs":["#;
/// The text after its last run.
const BUNDLE_END: &[u8] = b"]}";

/// Server → worker: run the first attempts of several occurrences of one job type and priority. Its AMQP property `type` is
/// `bundle`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobBundle {
    /// The runs, each as in a message of its own.
    pub runs: Vec<JobMessage>,
}

/// Returns the number of bytes that a bundle of runs of these lengths has.
#[must_use]
pub fn bundle_bytes(runs: usize, bytes: usize) -> usize {
    BUNDLE_START.len() + bytes + runs.saturating_sub(1) + BUNDLE_END.len()
}

/// Joins the JSON of several [`JobMessage`]s to that of a [`JobBundle`].
#[must_use]
pub fn bundle_body<'a>(runs: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut body = BUNDLE_START.to_vec();
    for (number, run) in runs.into_iter().enumerate() {
        if number > 0 {
            body.push(b',');
        }
        body.extend_from_slice(run);
    }
    body.extend_from_slice(BUNDLE_END);
    body
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::id::{JobId, OccurrenceId};

    fn run(number: u8) -> JobMessage {
        let id = OccurrenceId::from_parts(DateTime::UNIX_EPOCH, [number; 10]);
        JobMessage {
            occurrence_id: id,
            job_id: JobId::default(),
            job_name: "Bill".into(),
            job_type: "bill".into(),
            job_data: serde_json::json!({ "number": number }),
            correlation_id: id,
            scheduled_for: DateTime::UNIX_EPOCH,
            timestamp: DateTime::UNIX_EPOCH,
            attempt: 1,
            retry_count: 0,
            max_retries: 3,
            timeout_seconds: None,
            priority: 3,
            traceparent: None,
            checkpoint: None,
            parent_id: None,
        }
    }

    #[test]
    fn joined_bodies_are_a_bundle() {
        for count in 1..=3 {
            let bundle = JobBundle { runs: (0..count).map(run).collect() };
            let bodies: Vec<_> = bundle.runs.iter().map(|run| serde_json::to_vec(run).expect("JSON")).collect();
            let body = bundle_body(bodies.iter().map(Vec::as_slice));
            assert_eq!(body, serde_json::to_vec(&bundle).expect("JSON"));
            assert_eq!(body.len(), bundle_bytes(bodies.len(), bodies.iter().map(Vec::len).sum()));
        }
    }
}
