//! The span of each statement. Parameters are not recorded.

use milvaion_telemetry::SPANS;
use tracing::{Level, Span, field::Empty};

/// The longest text of a statement in a span, in bytes.
const MAX_TEXT_BYTES: usize = 2_000;

/// Returns the span of a statement, which is disabled if no spans are recorded.
pub(super) fn statement_span(name: &str, text: &str) -> Span {
    if !tracing::span_enabled!(target: SPANS, Level::INFO) {
        return Span::none();
    }
    tracing::info_span!(
        target: SPANS,
        "statement",
        otel.name = name,
        otel.kind = "client",
        otel.status_code = Empty,
        db.system.name = "postgresql",
        db.query.text = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)],
    )
}

/// Marks a span as failed if the answer is an error.
pub(super) fn note_failure<T>(span: &Span, answer: &sqlx::Result<T>) {
    if answer.is_err() {
        span.record("otel.status_code", "ERROR");
    }
}
