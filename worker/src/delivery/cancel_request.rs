//! The format of a request to cancel an occurrence.
//!
//! The message on the channel and the value of the key have the same format:
//!
//! ```json
//! {"occurrenceId": "0190a0a0-0000-7000-8000-000000000000", "attempt": 2, "reason": "cancelled by ann: wrong customer"}
//! ```
//!
//! Without `attempt`, the request applies to every attempt. With it, the request applies to that attempt and to earlier
//! ones. A value in any other format is used as the reason.

use milvaion_protocol::id::OccurrenceId;
use serde::Deserialize;

/// Reason of a request that gives none.
const DEFAULT_CANCEL_REASON: &str = "cancelled on request";

/// A request to cancel an occurrence.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CancelRequest {
    #[serde(default)]
    pub(crate) occurrence_id: Option<OccurrenceId>,
    #[serde(default)]
    attempt: Option<u32>,
    #[serde(default)]
    reason: Option<String>,
}

impl CancelRequest {
    /// Reads the value of a `cancel:` key.
    pub(crate) fn read(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_else(|_| Self { reason: Some(text.trim().to_owned()), ..Self::default() })
    }

    /// Returns true if the request applies to this attempt.
    pub(crate) fn applies_to(&self, attempt: u32) -> bool {
        self.attempt.is_none_or(|highest| attempt <= highest)
    }

    /// Returns the reason, for users.
    pub(crate) fn reason(&self) -> &str {
        self.reason.as_deref().filter(|reason| !reason.is_empty()).unwrap_or(DEFAULT_CANCEL_REASON)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_applies_to_named_and_earlier_attempts() {
        let request = CancelRequest::read(r#"{"attempt": 2, "reason": "wrong customer"}"#);
        assert!(request.applies_to(1) && request.applies_to(2) && !request.applies_to(3));
        assert_eq!(request.reason(), "wrong customer");
        assert!(CancelRequest::read("{}").applies_to(7));
        assert_eq!(CancelRequest::read("{}").reason(), DEFAULT_CANCEL_REASON);
    }

    #[test]
    fn text_in_another_format_is_the_reason() {
        assert_eq!(CancelRequest::read("by ann\n").reason(), "by ann");
        assert_eq!(CancelRequest::read("").reason(), DEFAULT_CANCEL_REASON);
        assert_eq!(CancelRequest::read("1").reason(), "1");
    }
}
