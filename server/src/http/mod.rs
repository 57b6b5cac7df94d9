//! The HTTP server: all routes and the layers around them.
//!
//! [`listener`] accepts the connections. From the outside in, a request is measured, and passes its span, the security headers, the check that a
//! change comes from the dashboard's own pages, the size limit and, unless it is a health check, the session. It then
//! reaches a health check, the event stream, a download, a server function or a page. Pages and server functions also
//! have a time limit. Permissions are not checked here but in each handler, by [`guard::authorize`]. This module does
//! not depend on `ui`: the caller passes the router of the pages in.

pub mod client_address;
pub mod device_cookie;
pub mod export;
pub mod guard;
pub mod headers;
pub mod health;
pub mod listener;
pub mod metrics;
pub mod rest;
pub mod session;
pub mod sse;
pub mod trace;

use std::{sync::Arc, time::Duration};

use axum::{Router, extract::DefaultBodyLimit, middleware, routing::get};
use tokio_util::sync::CancellationToken;

use crate::{clock::Clock, config::http::HttpConfig, live::Hub, store::Store};

/// The largest request body, in bytes. A job form with an input of 64 KiB, the maximum, fits several times.
const MAX_BODY_BYTES: usize = 512 * 1024;
/// The longest time for a page or a server function.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The state of the handlers that are not pages: health checks and the event stream.
#[derive(Clone, Debug)]
pub struct WebState {
    /// Access to PostgreSQL, for sessions and permissions, with the connections of requests.
    pub store: Store,
    /// The clock of this server.
    pub clock: Clock,
    /// The live events for browsers.
    pub hub: Hub,
    /// The addresses at which browsers reach this server.
    pub config: Arc<HttpConfig>,
    /// The health checks of the services and of the dispatcher.
    pub health: health::HealthCheck,
    /// The name of this server's build of the dashboard; empty without a build.
    pub build: Arc<str>,
    /// The token that ends event streams when the server stops.
    pub stop: CancellationToken,
}

/// Builds the router of the server. `exports` serves the downloads, `api` the REST API, `reader` the metrics, and `pages`
/// the dashboard, its server functions and its files.
pub fn router(
    state: &WebState,
    exports: export::ExportState,
    api: &rest::ApiState,
    reader: &metrics::scrape::MetricsReader,
    pages: Router,
) -> Router {
    let pages = pages
        .layer(tower_http::timeout::TimeoutLayer::with_status_code(http::StatusCode::GATEWAY_TIMEOUT, REQUEST_TIMEOUT));
    // An event stream does not end and a download has a limit of its own, so the time limit does not apply to them.
    let stream = Router::new().route("/events", get(sse::events)).with_state(state.clone());
    let checks = Router::new()
        .route("/health/live", get(health::live))
        .route("/health/ready", get(health::ready))
        .with_state(state.clone());
    pages
        .merge(stream)
        .merge(Router::new().route("/export/{file}", get(export::export)).with_state(exports))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(tower_http::limit::RequestBodyLimitLayer::new(MAX_BODY_BYTES))
        // The API has limits of its own, which answer with a problem document.
        .merge(rest::router(api))
        .merge(metrics::router(reader, api))
        .layer(session::layer(state.store.clone(), state.clock.clone(), &state.config))
        .merge(checks)
        .layer(middleware::from_fn_with_state(state.config.clone(), guard::origin_layer))
        .layer(middleware::from_fn_with_state(state.config.clone(), headers::headers_layer))
        .layer(middleware::from_fn_with_state(reader.metrics.clone(), metrics::requests::measure_layer))
        .layer(middleware::from_fn(trace::trace_layer))
}
