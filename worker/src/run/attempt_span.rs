//! The span of an attempt.
//!
//! The code of a job runs within a span of `tracing` that names its occurrence and, if it is traced, its trace, so that the
//! log lines of the process and those of libraries lead to both. With the feature `otel`, the span continues the trace of the job message:
//! if the subscriber of the process records spans with `tracing-opentelemetry`, the attempt and the job's own spans are a
//! part of the trace that began on the server, or in the program that requested the run.
//!
//! The position in the trace is that of this span if it is recorded, and otherwise that of the message. The job sees it,
//! and the reports carry it back, so that the server can add the last span.

use milvaion_protocol::{message::JobMessage, status::OccurrenceStatus, trace::Traceparent};
use tracing::{Span, field::Empty};

/// The span of an attempt. Clones are the same span.
#[derive(Clone, Debug)]
pub(crate) struct AttemptSpan(Span);

impl AttemptSpan {
    /// Begins the span, and replaces the position in `message` with its own. A malformed position is removed.
    pub(crate) fn begin(message: &mut JobMessage) -> Self {
        let sent = message.traceparent.take().as_deref().and_then(Traceparent::parse);
        let span = new_span(message);
        #[cfg(feature = "otel")]
        let own = recorded::begin(&span, message.occurrence_id, sent);
        #[cfg(not(feature = "otel"))]
        let own: Option<Traceparent> = None;
        let position = own.or(sent);
        message.traceparent = position.map(|position| position.to_string());
        if let Some(position) = position
            && !span.is_disabled()
        {
            span.record("trace_id", position.trace_id_text());
        }
        Self(span)
    }

    /// Returns the span, for the code of the job.
    pub(crate) fn span(&self) -> Span {
        self.0.clone()
    }

    /// Records the end of the attempt.
    pub(crate) fn ended(&self, status: OccurrenceStatus) {
        self.0.record("occurrence.status", status.slug());
        #[cfg(feature = "otel")]
        if matches!(status, OccurrenceStatus::Failed | OccurrenceStatus::TimedOut) {
            self.0.record("otel.status_code", "ERROR");
        }
    }
}

#[cfg(not(feature = "otel"))]
fn new_span(message: &JobMessage) -> Span {
    tracing::info_span!(
        "attempt",
        occurrence.id = %message.occurrence_id,
        occurrence.attempt = message.attempt,
        occurrence.status = Empty,
        job.r#type = message.job_type,
        trace_id = Empty,
    )
}

#[cfg(feature = "otel")]
fn new_span(message: &JobMessage) -> Span {
    tracing::info_span!(
        "attempt",
        occurrence.id = %message.occurrence_id,
        occurrence.attempt = message.attempt,
        occurrence.status = Empty,
        job.r#type = message.job_type,
        trace_id = Empty,
        otel.kind = "consumer",
        otel.status_code = Empty,
    )
}

/// The part that needs the libraries of OpenTelemetry.
#[cfg(feature = "otel")]
mod recorded {
    use milvaion_protocol::{id::OccurrenceId, trace::Traceparent};
    use opentelemetry::{
        Context,
        trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState},
    };
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    /// Continues the trace of a message with a span that is not active yet. Returns the position of the span; `None` if the
    /// subscriber records no spans.
    ///
    /// A message without a position comes from a server that sends no traces. The attempt then belongs to the trace that
    /// the server's page shows, and this process decides whether it is recorded.
    pub(super) fn begin(span: &Span, id: OccurrenceId, sent: Option<Traceparent>) -> Option<Traceparent> {
        let parent = sent.or_else(|| Traceparent::of_occurrence(id, true))?;
        let flags = if parent.is_sampled() { TraceFlags::SAMPLED } else { TraceFlags::default() };
        let parent = SpanContext::new(
            TraceId::from_bytes(parent.trace_id()),
            SpanId::from_bytes(parent.span_id()),
            flags,
            true,
            TraceState::default(),
        );
        span.set_parent(Context::new().with_remote_span_context(parent)).ok()?;
        position(&span.context())
    }

    /// Returns the position of the active span of a context.
    fn position(context: &Context) -> Option<Traceparent> {
        let span = context.span();
        let span = span.span_context();
        Traceparent::new(span.trace_id().to_bytes(), span.span_id().to_bytes(), span.is_sampled())
    }

    /// Returns the ids of the trace and of the active span, if that is recorded.
    pub(super) fn active_ids() -> Option<(String, String)> {
        let span = Context::map_current(|context| context.span().span_context().clone());
        (span.is_valid() && span.is_sampled()).then(|| (span.trace_id().to_string(), span.span_id().to_string()))
    }
}

/// Adds the ids of the trace and of the active span to the fields of a log line, if the span is recorded. Fields that are
/// not an object stay as they are.
#[cfg(feature = "otel")]
pub(crate) fn with_trace_ids(data: Option<serde_json::Value>) -> Option<serde_json::Value> {
    use serde_json::{Map, Value};
    if !data.as_ref().is_none_or(Value::is_object) {
        return data;
    }
    let Some((trace_id, span_id)) = recorded::active_ids() else { return data };
    let mut fields = match data {
        Some(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    fields.insert("trace_id".to_owned(), trace_id.into());
    fields.insert("span_id".to_owned(), span_id.into());
    Some(Value::Object(fields))
}

/// Returns the fields of a log line as they are.
#[cfg(not(feature = "otel"))]
pub(crate) fn with_trace_ids(data: Option<serde_json::Value>) -> Option<serde_json::Value> {
    data
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::{
        id::{JobId, OccurrenceId},
        message::JobMessage,
    };
    use serde_json::json;

    use super::*;

    const SENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn message(traceparent: Option<&str>) -> JobMessage {
        let id = "01920000-0000-7000-8000-000000000000";
        let (occurrence, job): (OccurrenceId, JobId) = (id.parse().expect("an id"), id.parse().expect("an id"));
        let mut message = json!({
            "occurrenceId": occurrence, "jobId": job, "jobType": "t", "correlationId": occurrence,
            "scheduledFor": "2026-01-01T00:00:00Z", "timestamp": "2026-01-01T00:00:00Z",
        });
        if let Some(traceparent) = traceparent {
            message["traceparent"] = traceparent.into();
        }
        serde_json::from_value(message).expect("a message")
    }

    #[test]
    fn position_passes_through_a_worker_that_records_nothing() {
        for (sent, expected) in [(None, None), (Some(SENT), Some(SENT)), (Some("00-no"), None)] {
            let mut message = message(sent);
            let _ = AttemptSpan::begin(&mut message);
            assert_eq!(message.traceparent.as_deref(), expected);
        }
    }
}
