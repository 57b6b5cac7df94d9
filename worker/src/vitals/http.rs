//! The address at which a worker answers: `/health/live`, `/health/ready`, `/metrics`.

use std::net::{SocketAddr, TcpListener};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Vitals;
use crate::{error::WorkerError, outbox::Gate, publisher::Publisher};

/// What Prometheus calls its text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the answers are made of.
#[derive(Clone)]
pub(crate) struct Health {
    pub(crate) vitals: Vitals,
    pub(crate) publisher: Publisher,
    pub(crate) gate: Gate,
}

/// Takes the address, so that one that is taken is told at the start.
///
/// # Errors
/// [`WorkerError::Health`].
pub(crate) fn open(address: SocketAddr) -> Result<TcpListener, WorkerError> {
    let failed = |source| WorkerError::Health { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

impl Health {
    /// Answers until `stop` fires.
    pub(crate) async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        let routes = Router::new()
            .route("/health/live", get(async || "alive\n"))
            .route("/health/ready", get(ready))
            .route("/metrics", get(metrics))
            .with_state(self);
        let listener = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(error = %error, "health is not answered"),
        };
        if let Err(error) = axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await {
            tracing::error!(error = %error, "health is not answered any more");
        }
    }
}

async fn ready(State(health): State<Health>) -> impl IntoResponse {
    let (consuming, reporting) = (health.vitals.is_consuming(), health.publisher.is_up());
    let remembering = health.gate.is_open();
    let is_ready = consuming && reporting && remembering;
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body =
        json!({ "ready": is_ready, "consuming": consuming, "reporting": reporting, "outboxWritable": remembering });
    (status, Json(body))
}

async fn metrics(State(health): State<Health>) -> impl IntoResponse {
    match health.vitals.text() {
        Ok(text) => (StatusCode::OK, [(CONTENT_TYPE, OPEN_METRICS)], text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, [(CONTENT_TYPE, "text/plain")], error.to_string()),
    }
}
