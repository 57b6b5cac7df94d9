//! Log lines and traces of the programs `milvaion` and `milvaion-worker`.
//!
//! Both programs write their log lines and send their spans in the same way, so the code is in one crate. The SDK does not
//! depend on it: a program with jobs of its own installs the subscriber that it likes.
//!
//! Spans are ordinary `tracing` spans. [`install`] adds the layer that records them only if [`TraceSettings`] names a
//! receiver, which is the case if one of the standard variables `OTEL_EXPORTER_OTLP_ENDPOINT` and
//! `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is set. Otherwise the spans of the server, which have the target [`SPANS`], are
//! disabled where they are created, so that each costs the test of one number.
//!
//! The spans of one occurrence are created in several processes. Its trace is therefore a [`Traceparent`], from which
//! [`occurrences`] builds them.
//!
//! Reading order: [`settings`] reads the variables, `export` sends spans, `sampler` decides which traces are recorded,
//! and `log_lines` adds the ids of the active span to the log lines.

mod export;
mod log_lines;
pub mod occurrences;
mod sampler;
pub mod settings;

use std::{
    error::Error,
    io::IsTerminal,
    sync::{Arc, OnceLock},
    time::Duration,
};

use milvaion_protocol::trace::Traceparent;
use opentelemetry::{
    Context,
    trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider},
};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::{Level, Metadata, Subscriber};
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::filter_fn,
    fmt::{MakeWriter, format::JsonFields},
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

pub use sampler::TraceSampler;
pub use settings::TraceSettings;

/// The target of the server's own spans. They are for traces only: log lines do not name them.
pub const SPANS: &str = "milvaion::spans";
/// The name of the instrumentation in traces.
const SCOPE: &str = "milvaion";
/// The longest time for which the end of a program waits for its last spans.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);
/// The start of the targets whose spans are recorded. The spans of libraries are about their own details.
const RECORDED_TARGETS: &str = "milvaion";

/// The recorder of spans, if this process records any. It is process-wide, as the subscriber of `tracing` is.
static RECORDER: OnceLock<Recorder> = OnceLock::new();

/// The recorder of the spans that a process sends.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) tracer: SdkTracer,
    pub(crate) sampler: TraceSampler,
}

/// Returns the recorder, if this process records spans.
pub(crate) fn recorder() -> Option<&'static Recorder> {
    RECORDER.get()
}

/// Returns true if this process records spans.
#[must_use]
pub fn is_recording() -> bool {
    RECORDER.get().is_some()
}

/// The format of a program's log lines.
#[derive(Debug)]
pub struct LogFormat<W> {
    /// The events that are written.
    pub filter: EnvFilter,
    /// True if a line is a JSON object.
    pub is_json: bool,
    /// True if a line names the module that writes it.
    pub has_target: bool,
    /// The destination of the lines.
    pub writer: W,
}

/// The sender of the spans of a process. [`stop`](Self::stop) sends the last ones.
#[derive(Debug, Default)]
#[must_use = "the last spans are lost unless it is stopped"]
pub struct SpanSender(Option<SdkTracerProvider>);

impl SpanSender {
    /// Sends the spans that are left. Waits at most five seconds for the receiver.
    pub async fn stop(self) {
        let Some(provider) = self.0 else { return };
        // It waits for a thread that sends with the help of the runtime.
        let stopped = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH_LIMIT)).await;
        if !matches!(stopped, Ok(Ok(()))) {
            tracing::warn!("the last spans were not sent to the receiver of traces within {} s", FLUSH_LIMIT.as_secs());
        }
    }
}

/// Starts the log lines of the process, and its spans if `traces` names a receiver. Must be called once, within a runtime
/// of tokio, which sends the spans.
///
/// # Errors
///
/// Returns a sentence if the exporter refuses the settings.
///
/// # Panics
///
/// Panics if the process has a subscriber already.
pub fn install<W>(logs: LogFormat<W>, traces: Option<&TraceSettings>) -> Result<SpanSender, String>
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    // A filter that the operator set for all spans must not let these into the lines. The directive is valid.
    let without_spans =
        format!("{SPANS}=off").parse().map_err(|error| format!("The log filter is invalid: {error}."))?;
    let filter = logs.filter.add_directive(without_spans);
    let Some(settings) = traces else {
        tracing_subscriber::registry().with(lines(logs.is_json, logs.has_target, logs.writer)).with(filter).init();
        return Ok(SpanSender::default());
    };
    let provider = export::provider(settings)?;
    let tracer = provider.tracer(SCOPE);
    let recorder = Recorder { tracer: tracer.clone(), sampler: settings.sampler.clone() };
    let lines = lines(logs.is_json, logs.has_target, logs.writer).with_filter(filter);
    let spans = span_layer(tracer).with_filter(filter_fn(is_recorded));
    tracing_subscriber::registry().with(lines).with(spans).init();
    // It was empty, because the subscriber was.
    let _ = RECORDER.set(recorder);
    Ok(SpanSender(Some(provider)))
}

/// Returns a layer that records all spans of a subscriber, and the sender of these spans, for a program that installs a
/// subscriber of its own.
///
/// # Errors
///
/// Returns a sentence if the exporter refuses the settings.
pub fn layer<S>(settings: &TraceSettings) -> Result<(OpenTelemetryLayer<S, SdkTracer>, SpanSender), String>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let provider = export::provider(settings)?;
    Ok((span_layer(provider.tracer(SCOPE)), SpanSender(Some(provider))))
}

fn span_layer<S>(tracer: SdkTracer) -> OpenTelemetryLayer<S, SdkTracer>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    tracing_opentelemetry::layer()
        .with_tracer(tracer)
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
}

/// Returns true for a span that is recorded. Log lines are not: the texts of a worker's lines are redacted only where they
/// are written.
fn is_recorded(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && *metadata.level() <= Level::INFO && metadata.target().starts_with(RECORDED_TARGETS)
}

fn lines<W>(is_json: bool, has_target: bool, writer: W) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    let format = tracing_subscriber::fmt::format().with_target(has_target);
    if is_json {
        let format = log_lines::WithTraceIds::json(format.json());
        layer.fmt_fields(JsonFields::new()).event_format(format).boxed()
    } else {
        let format = log_lines::WithTraceIds::text(format);
        layer.with_ansi(std::io::stderr().is_terminal()).event_format(format).boxed()
    }
}

/// Marks a context whose trace a request continues, whether it is recorded or not.
#[derive(Debug)]
struct ContinuedTrace;

/// Returns the context in which a request continues a trace.
#[must_use]
pub fn continued(traceparent: &Traceparent) -> Context {
    Context::new().with_remote_span_context(span_context(traceparent)).with_value(ContinuedTrace)
}

/// Returns the position in the trace that new work continues: that of the active span if it is recorded, or that of the
/// request if it continues a trace.
#[must_use]
pub fn current() -> Option<Traceparent> {
    Context::map_current(|context| {
        let traceparent = position(context.span().span_context())?;
        (traceparent.is_sampled() || context.get::<ContinuedTrace>().is_some()).then_some(traceparent)
    })
}

/// Returns the position of a span; `None` if there is none.
pub(crate) fn position(span: &SpanContext) -> Option<Traceparent> {
    Traceparent::new(span.trace_id().to_bytes(), span.span_id().to_bytes(), span.is_sampled())
}

/// Returns the context of a span of another process.
pub(crate) fn span_context(traceparent: &Traceparent) -> SpanContext {
    SpanContext::new(
        TraceId::from_bytes(traceparent.trace_id()),
        SpanId::from_bytes(traceparent.span_id()),
        if traceparent.is_sampled() { TraceFlags::SAMPLED } else { TraceFlags::default() },
        true,
        TraceState::default(),
    )
}

/// Formats an error and all its causes on one line.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    while let Some(source) = at {
        text.push_str(": ");
        text.push_str(&source.to_string());
        at = source.source();
    }
    text.replace('\n', " ")
}

/// Polls a future in a context, if there is one.
pub async fn within<T>(context: Option<Context>, future: impl Future<Output = T>) -> T {
    match context {
        Some(context) => opentelemetry::trace::FutureExt::with_context(future, context).await,
        None => future.await,
    }
}

/// The endpoint of the receiver, for log lines.
pub(crate) type Endpoint = Arc<str>;
