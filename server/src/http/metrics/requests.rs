//! Measures requests.
//!
//! The label of a request is the pattern of its path, such as `/jobs/{id}`, never the path itself. Files and paths without a
//! route have no pattern and are one value, so that a client that makes up paths adds nothing.

use std::time::Instant;

use axum::{
    body::Body,
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::Response,
};
use futures::TryStreamExt;
use http::{HeaderMap, Method, header};

use crate::metrics::Metrics;

/// The label of requests without a route: files, and paths that do not exist.
pub const NO_ROUTE: &str = "none";

/// Measures a request. Use this middleware with [`axum::middleware::from_fn_with_state`], as the outermost layer.
pub async fn measure_layer(State(metrics): State<Metrics>, request: Request, next: Next) -> Response {
    let since = Instant::now();
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let route = matched.as_ref().map_or(NO_ROUTE, MatchedPath::as_str);
    let method = method_label(request.method());
    let response = next.run(request).await;
    metrics.request(route, method, response.status().as_u16(), since.elapsed());
    if is_stream(response.headers()) { count_bytes(&metrics, route, response) } else { response }
}

/// Returns the label of a method. A client may make up others.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

fn is_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"))
}

/// Counts the stream as open, and its bytes, until the client leaves.
fn count_bytes(metrics: &Metrics, route: &str, response: Response) -> Response {
    let stream = metrics.stream(route);
    response.map(|body| Body::from_stream(body.into_data_stream().inspect_ok(move |bytes| stream.sent(bytes.len()))))
}
