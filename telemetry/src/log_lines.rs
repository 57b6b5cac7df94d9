//! The ids of the active span on each log line, so that a line leads to its trace.
//!
//! The formats of `tracing-subscriber` cannot be extended, so the line is formatted first and the ids are added at its end,
//! which in both formats is a known place. A line outside a recorded span passes as it is.

use std::fmt;

use opentelemetry::{Context, trace::TraceContextExt};
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Format, Full, Json, Writer},
    },
    registry::LookupSpan,
};

/// A format of log lines that adds the ids of the active span.
#[derive(Debug)]
pub(crate) struct WithTraceIds<F> {
    format: F,
    is_json: bool,
}

impl WithTraceIds<Format<Json>> {
    /// Adds the ids as two members of the JSON object.
    pub(crate) const fn json(format: Format<Json>) -> Self {
        Self { format, is_json: true }
    }
}

impl WithTraceIds<Format<Full>> {
    /// Adds the ids as two fields.
    pub(crate) const fn text(format: Format<Full>) -> Self {
        Self { format, is_json: false }
    }
}

impl<S, N, F> FormatEvent<S, N> for WithTraceIds<F>
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'writer> FormatFields<'writer> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let span = Context::map_current(|context| context.span().span_context().clone());
        if !span.is_valid() || !span.is_sampled() {
            return self.format.format_event(context, writer, event);
        }
        // Without colours: only the library itself can make a writer that has them.
        let mut line = String::new();
        self.format.format_event(context, Writer::new(&mut line), event)?;
        let line = line.trim_end_matches('\n');
        let (trace_id, span_id) = (span.trace_id(), span.span_id());
        match line.strip_suffix('}').filter(|_| self.is_json) {
            Some(members) => {
                writeln!(writer, r#"{members},"trace_id":"{trace_id}","span_id":"{span_id}"}}"#)
            }
            None => writeln!(writer, "{line} trace_id={trace_id} span_id={span_id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing_subscriber::{
        fmt::{MakeWriter, format::JsonFields},
        prelude::*,
    };

    use super::*;

    /// The lines that were written.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("the mutex is not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'writer> MakeWriter<'writer> for Lines {
        type Writer = Self;

        fn make_writer(&'writer self) -> Self {
            self.clone()
        }
    }

    /// Writes a line outside and one within a span. Returns both.
    fn two_lines(is_json: bool) -> (String, String) {
        let lines = Lines::default();
        let layer = tracing_subscriber::fmt::layer().with_writer(lines.clone()).with_ansi(false);
        let format = tracing_subscriber::fmt::format().without_time();
        let provider = SdkTracerProvider::builder().build();
        let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let written = if is_json {
            let format = WithTraceIds { format: format.json(), is_json };
            layer.event_format(format).fmt_fields(JsonFields::new()).boxed()
        } else {
            layer.event_format(WithTraceIds { format, is_json }).boxed()
        };
        let subscriber = tracing_subscriber::registry().with(written).with(spans);
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("outside");
            tracing::info_span!("work").in_scope(|| tracing::info!("within {{it}}"));
        });
        let text = String::from_utf8(lines.0.lock().expect("the mutex is not poisoned").clone()).expect("text");
        let (outside, within) = text.split_once('\n').expect("two lines");
        (outside.to_owned(), within.to_owned())
    }

    #[test]
    fn line_within_a_span_has_its_ids() {
        let (outside, within) = two_lines(false);
        assert!(outside.ends_with("outside"), "{outside}");
        let (_, ids) = within.split_once("within {it} trace_id=").expect("the ids");
        assert_eq!((ids.find(" span_id="), ids.len()), (Some(32), 32 + 9 + 16 + 1), "{within}");

        let (outside, within) = two_lines(true);
        assert!(!outside.contains("trace_id"), "{outside}");
        let line: serde_json::Value = serde_json::from_str(&within).expect("a JSON object");
        assert_eq!(line["fields"]["message"], "within {it}");
        assert_eq!(line["trace_id"].as_str().map(str::len), Some(32));
        assert_eq!(line["span_id"].as_str().map(str::len), Some(16));
    }
}
