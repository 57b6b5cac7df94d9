//! The claim check: a worker asks whether an attempt may start, and the server replies. These are the only two messages
//! that form a request and a reply.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::id::OccurrenceId;

/// Worker → server, on the claims queue, with `reply_to` and `correlation_id` set: may this attempt start? A worker
/// sends it for a message that may be a duplicate delivery, before it runs any part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClaimRequest {
    /// The occurrence to check.
    pub occurrence_id: OccurrenceId,
    /// The attempt that the message names.
    #[serde(default = "crate::lenient::one", deserialize_with = "crate::lenient::attempt")]
    pub attempt: u32,
    /// The instance that sends the request.
    pub instance_id: String,
    /// The present time by the worker's clock, if it starts the attempt without a claim in Redis as soon as this is
    /// granted. The server then records the start before it grants it, so that it grants no other instance the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<DateTime<Utc>>,
}

/// Server → worker, on the queue that the request named in `reply_to`, with the request's `correlation_id`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClaimReply {
    /// The occurrence that was checked.
    pub occurrence_id: OccurrenceId,
    /// The attempt that was checked.
    #[serde(deserialize_with = "crate::lenient::attempt")]
    pub attempt: u32,
    /// True if the attempt may start.
    pub granted: bool,
    /// The reason for a denial, for a log line.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::lenient::readable")]
    pub reason: Option<ClaimDenial>,
    /// The instance that runs the attempt, if that is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::lenient::readable")]
    pub by: Option<String>,
}

/// The reason why an attempt must not start. In each case the worker acknowledges the message and drops it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ClaimDenial {
    /// An instance has reported that it runs the attempt. If that instance is lost, another attempt follows.
    Running,
    /// The attempt or its occurrence has ended.
    Ended,
    /// A user cancelled the occurrence.
    Cancelled,
    /// A later attempt has replaced this one.
    Superseded,
    /// The occurrence waits for a slot or for its retry. The server sends its message when the wait is over.
    Waiting,
    /// The server has no such occurrence, or no such attempt of it.
    Unknown,
    /// A reason of a newer server. Whatever the reason, `granted: false` alone decides.
    #[serde(other)]
    Other,
}

impl ClaimDenial {
    /// Returns the reason as text for a log line.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Running => "another instance runs it",
            Self::Ended => "it has ended",
            Self::Cancelled => "it was cancelled",
            Self::Superseded => "a later attempt has replaced it",
            Self::Waiting => "it is waiting for a slot or for its retry",
            Self::Unknown => "the server has no such attempt",
            Self::Other => "the server denied it for a reason that this version does not know",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answer_decides_whatever_explains_it() {
        let id = "019a9b3f-7c00-7abc-8def-0123456789ab";
        for (reason, by) in [(json!(7), json!(null)), (json!({ "text": "x" }), json!(["a"])), (json!(null), json!(1))] {
            let reply = json!({ "occurrenceId": id, "attempt": 1, "granted": false, "reason": reason, "by": by });
            let reply: ClaimReply = serde_json::from_value(reply).expect("the answer is readable");
            assert_eq!((reply.granted, reply.reason, reply.by), (false, None, None));
        }
    }
}
