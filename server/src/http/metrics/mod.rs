//! `/metrics`: the metrics of this server, for Prometheus.
//!
//! On the main address a scrape needs an API token, or the session of a user, because names of job types and workers are not
//! for outsiders. `METRICS_ADDR` adds an address of its own without authentication, for a network that only Prometheus
//! reaches. There, the number of connections and the time of a request are limited, and the values behind a scrape are
//! kept for some seconds ([`scrape`]), so that no number of scrapes loads PostgreSQL or RabbitMQ.
//!
//! [`requests`] measures all requests to the main address.

pub mod requests;
pub mod scrape;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::get,
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{
    listener::{ConnectionLimits, serve},
    rest::{self, ApiState},
};
use crate::{config::http::HttpConfig, metrics::text};
use scrape::MetricsReader;

/// The most connections to the address of the metrics.
const MAX_CONNECTIONS: usize = 64;
/// The longest time of a scrape, which is also the default of Prometheus.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time for the head of a request. Prometheus keeps its connection between two scrapes.
const HEADER_TIMEOUT: Duration = Duration::from_secs(180);

/// Builds the route of the main address, which admits the callers of the API.
pub fn router(reader: &MetricsReader, api: &ApiState) -> Router {
    let handle = async |State((reader, api)): State<(MetricsReader, ApiState)>, request: Request| {
        let (mut head, _) = request.into_parts();
        match rest::guard::admit(&api, &rest::METRICS, &mut head).await {
            Ok(_) => respond(&reader, &head.headers).await,
            Err(refusal) => refusal,
        }
    };
    Router::new().route("/metrics", get(handle)).with_state((reader.clone(), api.clone()))
}

/// Builds the router of the address without authentication.
fn open_router(reader: &MetricsReader) -> Router {
    let handle = async |State(reader): State<MetricsReader>, headers: HeaderMap| respond(&reader, &headers).await;
    let help = async || (StatusCode::NOT_FOUND, "There is no such path. The metrics are at /metrics.\n");
    let timeout = tower_http::timeout::TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, SCRAPE_TIMEOUT);
    Router::new().route("/metrics", get(handle)).fallback(help).layer(timeout).with_state(reader.clone())
}

/// Binds the address of the metrics. Returns the address and the loop that serves it until its token is cancelled.
///
/// # Errors
///
/// Returns the error of the operating system.
pub async fn listen(
    address: SocketAddr,
    reader: &MetricsReader,
) -> io::Result<(SocketAddr, impl FnOnce(CancellationToken) -> futures::future::BoxFuture<'static, ()> + use<>)> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let router = open_router(reader);
    let limits = ConnectionLimits {
        total: MAX_CONNECTIONS,
        per_network: MAX_CONNECTIONS,
        header_timeout: HEADER_TIMEOUT,
        proxy_header_timeout: HEADER_TIMEOUT,
    };
    // No proxy is trusted here, because no client is told apart.
    let config = Arc::new(HttpConfig::default());
    Ok((address, move |stop| Box::pin(serve(listener, router, config, limits, stop)) as _))
}

/// Formats the metrics as the client accepts them.
async fn respond(reader: &MetricsReader, headers: &HeaderMap) -> Response {
    let Ok(metrics) = reader.text().await else {
        return (StatusCode::INTERNAL_SERVER_ERROR, "The metrics could not be formatted.\n").into_response();
    };
    let (content_type, body) = if text::accepts_open_metrics(headers) {
        (text::OPEN_METRICS, metrics)
    } else {
        (text::PLAIN, text::plain(&metrics))
    };
    let cache = HeaderValue::from_static("no-store");
    let vary = HeaderValue::from_static("accept");
    ([(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, cache), (header::VARY, vary)], body).into_response()
}
