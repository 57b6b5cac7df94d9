//! A request to cancel an occurrence, as it stands on the wire.
//!
//! The message on the channel, and the value at the key:
//!
//! ```json
//! {"occurrenceId": "0190a0a0-0000-7000-8000-000000000000", "attempt": 2, "reason": "cancelled by ann: wrong customer"}
//! ```
//!
//! Without an attempt it means whichever runs; with one, that one and those before it. A value that is not of this form
//! is taken for the reason.

use milvaion_protocol::id::OccurrenceId;
use serde::Deserialize;

/// What is told when no reason is given.
const DEFAULT_CANCEL_REASON: &str = "cancelled on request";

/// What somebody wants.
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
    /// Reads what stands at a `cancel:` key.
    pub(crate) fn read(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_else(|_| Self { reason: Some(text.trim().to_owned()), ..Self::default() })
    }

    /// Whether this attempt is to end.
    pub(crate) fn applies_to(&self, attempt: u32) -> bool {
        self.attempt.is_none_or(|highest| attempt <= highest)
    }

    /// The reason, for people.
    pub(crate) fn reason(&self) -> &str {
        self.reason.as_deref().filter(|reason| !reason.is_empty()).unwrap_or(DEFAULT_CANCEL_REASON)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_means_the_attempts_it_names() {
        let request = CancelRequest::read(r#"{"attempt": 2, "reason": "wrong customer"}"#);
        assert!(request.applies_to(1) && request.applies_to(2) && !request.applies_to(3));
        assert_eq!(request.reason(), "wrong customer");
        assert!(CancelRequest::read("{}").applies_to(7));
        assert_eq!(CancelRequest::read("{}").reason(), DEFAULT_CANCEL_REASON);
    }

    #[test]
    fn a_text_of_another_form_is_the_reason() {
        assert_eq!(CancelRequest::read("by ann\n").reason(), "by ann");
        assert_eq!(CancelRequest::read("").reason(), DEFAULT_CANCEL_REASON);
        assert_eq!(CancelRequest::read("1").reason(), "1");
    }
}
