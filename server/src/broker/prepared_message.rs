//! A job message for the publisher, and the part of an AMQP message that is made from it. Several of them may share one AMQP
//! message, a bundle.

use lapin::types::{AMQPValue, FieldTable};
use milvaion_protocol::{
    message::JobMessage,
    topology::{HEADER_CORRELATION_ID, HEADER_MAX_RETRIES, HEADER_REPUBLISH, HEADER_RETRY_COUNT},
};
use milvaion_telemetry::occurrences::MessageSpan;

use super::topology::QueueKey;
use crate::domain::bundles::{self, BundleKey, CriticalTypes};

/// A job message with its destination.
#[derive(Clone, Debug)]
pub struct OutgoingMessage {
    /// The worker it is addressed to.
    pub worker_id: String,
    /// The message.
    pub message: JobMessage,
    /// True if the message may have been published and delivered before.
    pub republished: bool,
}

impl OutgoingMessage {
    pub(super) fn queue_key(&self) -> QueueKey {
        (self.worker_id.clone(), self.message.job_type.clone())
    }

    /// Returns the worker and the job type of a critical run, which may have a queue of their own.
    #[must_use]
    pub fn critical_type(&self) -> Option<(&str, &str)> {
        let JobMessage { job_type, priority, .. } = &self.message;
        bundles::is_critical(*priority).then_some((self.worker_id.as_str(), job_type.as_str()))
    }

    pub(super) fn is_in(&self, critical: &CriticalTypes<'_>) -> bool {
        self.critical_type().is_some_and(|key| critical.contains(&key))
    }

    /// Returns the key of those that may share a bundle with this one. None if it must have a message of its own: a further
    /// attempt, or one that may have been delivered before.
    #[must_use]
    pub fn bundle_key(&self) -> Option<BundleKey<'_>> {
        let JobMessage { job_type, priority, attempt: 1, .. } = &self.message else { return None };
        (!self.republished).then_some((self.worker_id.as_str(), job_type.as_str(), *priority))
    }
}

/// A message with its span, if it has one, and its body, in which the span is named.
#[derive(Debug)]
pub(super) struct PreparedMessage<'a> {
    pub(super) out: &'a OutgoingMessage,
    span: Option<MessageSpan>,
    pub(super) body: Vec<u8>,
}

impl<'a> PreparedMessage<'a> {
    pub(super) fn new(out: &'a OutgoingMessage, exchange: &str) -> Self {
        let message = &out.message;
        let continued = message.traceparent.as_deref();
        let span = MessageSpan::begin(message.occurrence_id, message.attempt, continued, exchange);
        let body = match span.as_ref().map(MessageSpan::traceparent) {
            Some(position) => {
                serde_json::to_vec(&JobMessage { traceparent: Some(position.to_string()), ..message.clone() })
            }
            None => serde_json::to_vec(message),
        };
        Self { out, span, body: body.unwrap_or_default() }
    }

    /// Returns the headers of a message with this run alone.
    pub(super) fn headers(&self) -> FieldTable {
        let OutgoingMessage { message, republished, .. } = self.out;
        let mut headers = FieldTable::default();
        headers.insert(HEADER_RETRY_COUNT.into(), AMQPValue::LongUInt(message.retry_count));
        headers.insert(HEADER_MAX_RETRIES.into(), AMQPValue::LongUInt(message.max_retries));
        let id = message.occurrence_id.to_string();
        headers.insert(HEADER_CORRELATION_ID.into(), AMQPValue::LongString(id.into()));
        if *republished {
            headers.insert(HEADER_REPUBLISH.into(), AMQPValue::LongUInt(1));
        }
        headers
    }

    /// Ends the span.
    pub(super) fn end(self, failure: Option<&str>) {
        if let Some(span) = self.span {
            span.end(failure);
        }
    }
}
