//! The span of each request.
//!
//! A request with a `traceparent` continues the trace of its sender, and so does an occurrence that it creates. The header
//! counts without a receiver of traces too: the trace then passes through this server, to the worker. A request with two
//! such headers continues none, as the standard demands.

use axum::{
    extract::{MatchedPath, Request},
    middleware::Next,
    response::Response,
};
use http::{HeaderMap, HeaderName};
use milvaion_protocol::trace::Traceparent;
use milvaion_telemetry::SPANS;
use tracing::{Instrument, Span, field::Empty};

/// The header with the position in a trace.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Handles a request within its span. Use this middleware as the outermost layer.
pub async fn trace_layer(request: Request, next: Next) -> Response {
    let continued = continued(request.headers()).as_ref().map(milvaion_telemetry::continued);
    milvaion_telemetry::within(continued, async {
        let span = request_span(&request);
        let response = next.run(request).instrument(span.clone()).await;
        span.record("http.response.status_code", response.status().as_u16());
        if response.status().is_server_error() {
            span.record("otel.status_code", "ERROR");
        }
        response
    })
    .await
}

/// Returns the position in the trace that a request continues.
fn continued(headers: &HeaderMap) -> Option<Traceparent> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    Traceparent::parse(value.to_str().ok()?)
}

/// Returns the span of a request. It names the route and the path, but not the query, which may contain the token of a
/// one-time link.
fn request_span(request: &Request) -> Span {
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    tracing::info_span!(
        target: SPANS,
        "request",
        otel.name = format!("{} {route}", request.method()).trim_end(),
        otel.kind = "server",
        http.request.method = %request.method(),
        http.route = route,
        url.path = request.uri().path(),
        http.response.status_code = Empty,
        otel.status_code = Empty,
    )
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn one_wellformed_header_is_continued() {
        let header = HeaderValue::from_static("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        let mut headers = HeaderMap::new();
        assert_eq!(continued(&headers), None);
        headers.append(TRACEPARENT, header.clone());
        assert!(continued(&headers).is_some());
        headers.append(TRACEPARENT, header);
        assert_eq!(continued(&headers), None);
        headers.insert(TRACEPARENT, HeaderValue::from_static("00-0-0-01"));
        assert_eq!(continued(&headers), None);
    }
}
