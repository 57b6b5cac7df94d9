//! The split of many occurrences into messages within the bounds of the ingest queue.

use milvaion_protocol::message::{IngestMessage, MAX_INGEST_OCCURRENCES, MAX_MESSAGE_BYTES, NewOccurrence};

use crate::enqueue::EnqueueError;

/// The bytes of a message besides its occurrences: braces, field names, and a producer of 200 characters that are all
/// escaped.
const ENVELOPE_BYTES: usize = 4 * 1024;

/// One message, and the occurrences that it contains.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) occurrences: Vec<NewOccurrence>,
    pub(super) body: Vec<u8>,
}

/// Splits occurrences into messages of at most 500 occurrences and 1 MiB, in their order.
///
/// # Errors
/// Returns [`EnqueueError::UnwritableInput`] if one cannot be written, and [`EnqueueError::InputTooLong`] if one is longer
/// than a message.
pub(super) fn split(occurrences: Vec<NewOccurrence>, producer: &str) -> Result<Vec<Batch>, EnqueueError> {
    let mut batches = Vec::new();
    let mut current = Vec::new();
    let mut bytes = ENVELOPE_BYTES;
    for occurrence in occurrences {
        // One more for the comma.
        let length = serde_json::to_vec(&occurrence).map_err(|error| EnqueueError::unwritable(&error))?.len() + 1;
        if ENVELOPE_BYTES + length > MAX_MESSAGE_BYTES {
            return Err(EnqueueError::InputTooLong { bytes: length });
        }
        if current.len() == MAX_INGEST_OCCURRENCES || bytes + length > MAX_MESSAGE_BYTES {
            batches.push(batch(std::mem::take(&mut current), producer)?);
            bytes = ENVELOPE_BYTES;
        }
        bytes += length;
        current.push(occurrence);
    }
    if !current.is_empty() {
        batches.push(batch(current, producer)?);
    }
    Ok(batches)
}

fn batch(occurrences: Vec<NewOccurrence>, producer: &str) -> Result<Batch, EnqueueError> {
    let message = IngestMessage { occurrences, producer: producer.to_owned() };
    let body = serde_json::to_vec(&message).map_err(|error| EnqueueError::unwritable(&error))?;
    Ok(Batch { occurrences: message.occurrences, body })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn occurrences(count: usize, input_bytes: usize) -> Vec<NewOccurrence> {
        let input = Some(Value::String("x".repeat(input_bytes)));
        vec![NewOccurrence { job_key: Some("a".into()), input, ..NewOccurrence::default() }; count]
    }

    #[test]
    fn messages_are_within_their_bounds() {
        let sizes = |count, bytes| -> Vec<usize> {
            let batches = split(occurrences(count, bytes), &"\u{1}".repeat(200)).expect("they can be written");
            assert!(batches.iter().all(|batch| batch.body.len() <= MAX_MESSAGE_BYTES));
            batches.iter().map(|batch| batch.occurrences.len()).collect()
        };
        assert_eq!(sizes(0, 1), Vec::<usize>::new());
        assert_eq!(sizes(1_001, 1), [500, 500, 1]);
        let long = sizes(40, 60_000);
        assert!(long.len() == 3 && long.iter().sum::<usize>() == 40, "{long:?}");
    }

    #[test]
    fn occurrence_longer_than_a_message_is_refused() {
        let error = split(occurrences(1, MAX_MESSAGE_BYTES), "").expect_err("it does not fit");
        assert!(matches!(error, EnqueueError::InputTooLong { .. }), "{error}");
    }
}
