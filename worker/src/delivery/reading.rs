//! Reads the messages of deliveries: single ones and bundles.

use chrono::{DateTime, Utc};
use lapin::message::Delivery;
use milvaion_protocol::{
    message::{JobBundle, JobMessage, MAX_MESSAGE_BYTES},
    topology::{BUNDLE_TYPE, HEADER_REPUBLISH},
};
use serde::de::DeserializeOwned;

/// The reason that a message cannot run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MessageError {
    #[error("it has {0} bytes; the maximum is {maximum}", maximum = MAX_MESSAGE_BYTES)]
    TooLarge(usize),
    #[error("it is not a valid job message")]
    Decode(#[from] serde_json::Error),
    #[error("its job type is {found:?}, and that of this queue is {expected:?}")]
    WrongJobType { found: String, expected: String },
    #[error("it is a bundle without runs")]
    EmptyBundle,
}

/// Decodes and checks the message of a delivery.
pub(crate) fn read(delivery: &Delivery, job_type: &str) -> Result<JobMessage, MessageError> {
    let message: JobMessage = decode(delivery)?;
    check_job_type(&message, job_type)?;
    Ok(message)
}

/// Decodes and checks the runs of a bundle.
pub(crate) fn read_bundle(delivery: &Delivery, job_type: &str) -> Result<Vec<JobMessage>, MessageError> {
    let JobBundle { runs } = decode(delivery)?;
    if runs.is_empty() {
        return Err(MessageError::EmptyBundle);
    }
    runs.iter().try_for_each(|run| check_job_type(run, job_type))?;
    Ok(runs)
}

fn decode<T: DeserializeOwned>(delivery: &Delivery) -> Result<T, MessageError> {
    if delivery.data.len() > MAX_MESSAGE_BYTES {
        return Err(MessageError::TooLarge(delivery.data.len()));
    }
    Ok(serde_json::from_slice(&delivery.data)?)
}

fn check_job_type(message: &JobMessage, expected: &str) -> Result<(), MessageError> {
    // Queue names are lower case.
    if message.job_type.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    Err(MessageError::WrongJobType { found: message.job_type.clone(), expected: expected.to_owned() })
}

/// Returns true if a delivery is a bundle.
pub(crate) fn is_bundle(delivery: &Delivery) -> bool {
    delivery.properties.kind().as_ref().is_some_and(|kind| kind.as_str() == BUNDLE_TYPE)
}

/// The age from which a message is checked with the server before it starts. While it waited, its occurrence may have been
/// cancelled or skipped, and Redis remembers such an end only for a day.
const OLD_MESSAGE: chrono::Duration = chrono::Duration::hours(1);

/// Returns true if a message has waited for so long that its occurrence may have ended.
pub(crate) fn is_old(message: &JobMessage, now: DateTime<Utc>) -> bool {
    now - message.timestamp > OLD_MESSAGE
}

/// Returns true if the publisher may have published the message before.
pub(crate) fn is_republished(delivery: &Delivery) -> bool {
    delivery.properties.headers().as_ref().is_some_and(|headers| headers.inner().contains_key(HEADER_REPUBLISH))
}
