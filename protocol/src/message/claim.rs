//! A worker's question whether an attempt may start, and the server's answer: the only two
//! messages that belong together.

use serde::{Deserialize, Serialize};

use super::one;
use crate::id::OccurrenceId;

/// Worker → server, on the claims queue, with `reply_to` and `correlation_id` set: may this attempt start? Asked about a
/// message that may be a second copy, before anything of it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClaimRequest {
    /// The occurrence.
    pub occurrence_id: OccurrenceId,
    /// The attempt the message names.
    #[serde(default = "one")]
    pub attempt: u32,
    /// Who asks.
    pub instance_id: String,
}

/// Server → worker, to the queue that the request named in `reply_to`, with the request's `correlation_id`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClaimReply {
    /// The occurrence.
    pub occurrence_id: OccurrenceId,
    /// The attempt that was asked about.
    pub attempt: u32,
    /// Whether it may start.
    pub granted: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<ClaimDenial>,
    /// The instance that runs it, where that is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Why an attempt must not start. In each case its message can be acknowledged and forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ClaimDenial {
    /// An instance has reported that it runs it; if that one has died, a next attempt follows.
    Running,
    /// It has ended.
    Ended,
    /// Somebody cancelled it.
    Cancelled,
    /// A later attempt has taken its place.
    Superseded,
    /// It waits for a slot or for its retry; its message is sent when that is over.
    Waiting,
    /// There is no such occurrence, or not this attempt of it.
    Unknown,
}

impl ClaimDenial {
    /// Why, for a log.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Running => "somebody else runs it",
            Self::Ended => "it has ended",
            Self::Cancelled => "it was cancelled",
            Self::Superseded => "a later attempt has taken its place",
            Self::Waiting => "it is not its turn yet",
            Self::Unknown => "the server does not know it",
        }
    }
}
