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
use serde_json::Value;

/// Reason of a request that gives none.
const DEFAULT_CANCEL_REASON: &str = "cancelled on request";

/// A request to cancel an occurrence.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CancelRequest {
    pub(crate) occurrence_id: Option<OccurrenceId>,
    attempt: Option<u32>,
    reason: Option<String>,
}

impl CancelRequest {
    /// Reads the value of a `cancel:` key.
    pub(crate) fn read(text: &str) -> Self {
        let Ok(Value::Object(fields)) = serde_json::from_str(text) else {
            return Self { reason: Some(text.trim().to_owned()), ..Self::default() };
        };
        let number = |value: &Value| value.as_f64().filter(|number| number.fract() == 0.0 && *number >= 0.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a whole number from 0 that saturates"
        )]
        let attempt = fields.get("attempt").and_then(number).map(|number| number as u32);
        Self {
            occurrence_id: fields.get("occurrenceId").and_then(|id| OccurrenceId::deserialize(id).ok()),
            attempt,
            reason: fields.get("reason").and_then(Value::as_str).map(str::to_owned),
        }
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
        let written_in_javascript = CancelRequest::read(r#"{"attempt": 2.0, "reason": null}"#);
        assert!(written_in_javascript.applies_to(2) && !written_in_javascript.applies_to(3));
        assert_eq!(written_in_javascript.reason(), DEFAULT_CANCEL_REASON);
        assert_eq!(CancelRequest::read("{}").reason(), DEFAULT_CANCEL_REASON);
    }

    #[test]
    fn text_in_another_format_is_the_reason() {
        assert_eq!(CancelRequest::read("by ann\n").reason(), "by ann");
        assert_eq!(CancelRequest::read("").reason(), DEFAULT_CANCEL_REASON);
        assert_eq!(CancelRequest::read("1").reason(), "1");
    }
}
