//! A receiver of traces: an HTTP server that decodes OTLP as a collector does.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{Arc, Mutex, MutexGuard},
};

use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, StatusCode, header},
    routing::post,
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use prost::Message;
use tokio::net::TcpListener;

use crate::wait;

/// A span that arrived.
#[derive(Clone, Debug)]
pub struct ReceivedSpan {
    /// The name of the service that sent it.
    pub service: String,
    /// Its name.
    pub name: String,
    /// The id of its trace, as hexadecimal digits.
    pub trace_id: String,
    /// Its id.
    pub span_id: String,
    /// The id of its parent; empty for the first span of a trace.
    pub parent_id: String,
    /// Its kind, as the number of the protocol.
    pub kind: i32,
    /// True if its status is an error.
    pub is_error: bool,
    /// Its attributes, as text.
    pub attributes: BTreeMap<String, String>,
    /// The ids of the traces and the spans with which it is linked.
    pub links: Vec<(String, String)>,
}

impl ReceivedSpan {
    /// Returns an attribute; empty if it is missing.
    #[must_use]
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

/// A receiver of traces on a free port. It runs until the end of the test's runtime.
#[derive(Debug)]
pub struct TraceReceiver {
    /// Its address, for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub endpoint: String,
    spans: Arc<Mutex<Vec<ReceivedSpan>>>,
}

impl TraceReceiver {
    /// Starts a receiver.
    ///
    /// # Panics
    ///
    /// Panics if no port is free.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let spans = Arc::<Mutex<Vec<ReceivedSpan>>>::default();
        let received = spans.clone();
        let receive = move |headers: HeaderMap, body: Bytes| {
            let received = received.clone();
            async move {
                if headers.get(header::CONTENT_TYPE).is_none_or(|value| value != "application/x-protobuf") {
                    return StatusCode::UNSUPPORTED_MEDIA_TYPE;
                }
                let Ok(request) = ExportTraceServiceRequest::decode(body) else { return StatusCode::BAD_REQUEST };
                received.lock().expect("the mutex is not poisoned").extend(spans_in(request));
                StatusCode::OK
            }
        };
        let router = Router::new().route("/v1/traces", post(receive));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { endpoint, spans }
    }

    /// Waits for a span and returns it.
    ///
    /// # Panics
    ///
    /// Panics if none arrives in time; the message has all spans that did.
    pub async fn span(&self, what: &str, is_wanted: impl Fn(&ReceivedSpan) -> bool) -> ReceivedSpan {
        let look = async || self.spans().iter().find(|span| is_wanted(span)).cloned();
        let found = tokio::time::timeout(wait::WAIT_TIMEOUT / 2, wait::eventually(what, look)).await;
        found.unwrap_or_else(|_| {
            let names: Vec<String> =
                self.spans().iter().map(|span| format!("{}: {}", span.service, span.name)).collect();
            panic!("{what} did not arrive; these did: {names:#?}")
        })
    }

    /// Returns the spans so far.
    ///
    /// # Panics
    ///
    /// Panics if the receiver panicked.
    #[must_use]
    pub fn all(&self) -> Vec<ReceivedSpan> {
        self.spans().clone()
    }

    fn spans(&self) -> MutexGuard<'_, Vec<ReceivedSpan>> {
        self.spans.lock().expect("the mutex is not poisoned")
    }
}

fn spans_in(request: ExportTraceServiceRequest) -> Vec<ReceivedSpan> {
    let mut spans = Vec::new();
    for resource_spans in request.resource_spans {
        let resource = attributes(&resource_spans.resource.unwrap_or_default().attributes);
        let service = resource.get("service.name").cloned().unwrap_or_default();
        let scopes = resource_spans.scope_spans.into_iter();
        spans.extend(scopes.flat_map(|scope| scope.spans).map(|span| received(&service, span)));
    }
    spans
}

fn received(service: &str, span: Span) -> ReceivedSpan {
    assert!(span.end_time_unix_nano >= span.start_time_unix_nano, "{} ends before it starts", span.name);
    ReceivedSpan {
        service: service.to_owned(),
        name: span.name,
        trace_id: hex(&span.trace_id),
        span_id: hex(&span.span_id),
        parent_id: hex(&span.parent_span_id),
        kind: span.kind,
        is_error: span.status.is_some_and(|status| status.code == 2),
        attributes: attributes(&span.attributes),
        links: span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect(),
    }
}

fn attributes(pairs: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |pair: &KeyValue| match pair.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    pairs.iter().map(|pair| (pair.key.clone(), text(pair))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
