//! The spans of an occurrence on the server: its creation, each message to a worker, and each report that is stored.
//!
//! They are built here, and not with the macros of `tracing`, because they belong to the trace of the occurrence and not to
//! that of the batch in which they happen. Each is linked with the span of its batch, where the statements are. Without a
//! receiver of traces, none of these functions does anything.

use std::{cell::Cell, time::SystemTime};

use milvaion_protocol::{id::OccurrenceId, trace::Traceparent};
use opentelemetry::{
    Context, KeyValue,
    trace::{Link, Span, SpanBuilder, SpanId, SpanKind, Status, TraceContextExt, TraceId, Tracer},
};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, Span as SdkSpan};

use crate::{Recorder, position, recorder, span_context};

thread_local! {
    /// The ids of the next span, if they are given.
    static NEXT_IDS: Cell<Option<(TraceId, SpanId)>> = const { Cell::new(None) };
}

/// Generates the ids of spans. The first span of an occurrence has ids that follow from that of the occurrence, so that a
/// span of another process can name it as its parent.
#[derive(Debug, Default)]
pub(crate) struct SpanIds(RandomIdGenerator);

impl IdGenerator for SpanIds {
    fn new_trace_id(&self) -> TraceId {
        NEXT_IDS.get().map_or_else(|| self.0.new_trace_id(), |(trace_id, _)| trace_id)
    }

    fn new_span_id(&self) -> SpanId {
        NEXT_IDS.get().map_or_else(|| self.0.new_span_id(), |(_, span_id)| span_id)
    }
}

/// A reading of the clock at the start of a batch, from which the spans of its occurrences count. It is empty if nothing is
/// recorded.
#[derive(Clone, Copy, Debug)]
pub struct SpanStart(Option<SystemTime>);

impl SpanStart {
    /// Returns the present time.
    #[must_use]
    pub fn now() -> Self {
        Self(recorder().map(|_| opentelemetry::time::now()))
    }
}

/// Records the creation of an occurrence as the first span of its own trace.
pub fn record_creation(id: OccurrenceId, name: &'static str, job: &str, start: SpanStart) {
    let (Some(recorder), Some(first)) = (recorder(), Traceparent::of_occurrence(id, true)) else { return };
    if !recorder.sampler.records(first.trace_id()) {
        return;
    }
    let mut builder = recorder.builder(name, SpanKind::Internal, start.0);
    builder.attributes =
        Some(vec![KeyValue::new("occurrence.id", id.to_string()), KeyValue::new("job.name", job.to_owned())]);
    NEXT_IDS.set(Some((TraceId::from_bytes(first.trace_id()), SpanId::from_bytes(first.span_id()))));
    let mut span = recorder.tracer.build_with_context(builder, &Context::new());
    NEXT_IDS.set(None);
    span.end();
}

/// The span of a message on its way to the broker, and the position in the trace that the message carries.
#[derive(Debug)]
pub struct MessageSpan {
    span: Option<SdkSpan>,
    traceparent: Traceparent,
}

impl MessageSpan {
    /// Begins the span of a message. `continued` is the trace that the occurrence continues; without it, the occurrence has
    /// a trace of its own. Returns `None` if this process records nothing.
    #[must_use]
    pub fn begin(id: OccurrenceId, attempt: u32, continued: Option<&str>, destination: &str) -> Option<Self> {
        let recorder = recorder()?;
        let (parent, is_recorded) = match continued.and_then(Traceparent::parse) {
            Some(parent) => (parent, recorder.sampler.continues(&parent)),
            None => {
                let first = Traceparent::of_occurrence(id, true)?;
                let is_recorded = recorder.sampler.records(first.trace_id());
                (Traceparent::new(first.trace_id(), first.span_id(), is_recorded)?, is_recorded)
            }
        };
        if !is_recorded {
            let traceparent = Traceparent::new(parent.trace_id(), parent.span_id(), false)?;
            return Some(Self { span: None, traceparent });
        }
        let mut builder = recorder.builder("publish", SpanKind::Producer, None);
        builder.attributes = Some(vec![
            KeyValue::new("messaging.system", "rabbitmq"),
            KeyValue::new("messaging.operation.type", "send"),
            KeyValue::new("messaging.destination.name", destination.to_owned()),
            KeyValue::new("occurrence.id", id.to_string()),
            KeyValue::new("occurrence.attempt", i64::from(attempt)),
        ]);
        let span = recorder.tracer.build_with_context(builder, &remote(&parent));
        let traceparent = position(span.span_context())?;
        Some(Self { span: Some(span), traceparent })
    }

    /// Returns the position in the trace that the message carries.
    #[must_use]
    pub const fn traceparent(&self) -> Traceparent {
        self.traceparent
    }

    /// Ends the span; `failure` is the reason why the broker did not confirm the message.
    pub fn end(self, failure: Option<&str>) {
        let Some(mut span) = self.span else { return };
        if let Some(reason) = failure {
            span.set_status(Status::error(reason.to_owned()));
        }
        span.end();
    }
}

/// Records that a report of a worker is stored. `reported` is the `traceparent` of the report; a malformed or an unsampled
/// one is ignored, so that a report of an untraced occurrence costs nothing.
pub fn record_stored(reported: &str, id: OccurrenceId, attempt: i32, status: &'static str, start: SpanStart) {
    let (Some(recorder), Some(parent)) = (recorder(), Traceparent::parse(reported)) else { return };
    if !recorder.sampler.continues(&parent) {
        return;
    }
    let mut builder = recorder.builder("store report", SpanKind::Consumer, start.0);
    builder.attributes = Some(vec![
        KeyValue::new("occurrence.id", id.to_string()),
        KeyValue::new("occurrence.attempt", i64::from(attempt)),
        KeyValue::new("occurrence.status", status),
    ]);
    recorder.tracer.build_with_context(builder, &remote(&parent)).end();
}

impl Recorder {
    /// Returns a span that is linked with the active one.
    fn builder(&self, name: &'static str, kind: SpanKind, start: Option<SystemTime>) -> SpanBuilder {
        let mut builder = self.tracer.span_builder(name).with_kind(kind);
        builder.start_time = start;
        let batch = Context::map_current(|context| context.span().span_context().clone());
        if batch.is_valid() && batch.is_sampled() {
            builder.links = Some(vec![Link::with_context(batch)]);
        }
        builder
    }
}

/// Returns a context whose active span is one of another process.
fn remote(parent: &Traceparent) -> Context {
    Context::new().with_remote_span_context(span_context(parent))
}
