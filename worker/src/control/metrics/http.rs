//! The HTTP endpoint of a worker: `/health/live`, `/health/ready` and `/metrics`.
//!
//! It serves three responses and reads no input, so a web framework would cost more maintenance than this code.

use std::{
    convert::Infallible,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{CACHE_CONTROL, CONTENT_TYPE},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::{sync::Semaphore, time::timeout};

use super::WorkerMetrics;
use crate::{api::error::WorkerError, net::publisher::WorkerPublisher, reporting::outbox::WriteGate};

/// Content type of the OpenMetrics text format.
const OPEN_METRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Maximum number of concurrent connections. Further connections wait.
const MAX_CONNECTIONS: usize = 32;
/// Maximum duration of a connection. A request is one line and a response one page.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// The states that the responses show.
#[derive(Clone)]
pub(crate) struct HealthServer {
    pub(crate) metrics: WorkerMetrics,
    /// None for a worker without job types, which uses no broker.
    pub(crate) broker: Option<BrokerState>,
}

/// The parts of a worker with job types that decide whether it is ready.
#[derive(Clone)]
pub(crate) struct BrokerState {
    pub(crate) publisher: WorkerPublisher,
    pub(crate) gate: WriteGate,
}

/// Binds the address, so that an address in use is reported at the start.
///
/// # Errors
/// Returns [`WorkerError::Health`] if the address cannot be bound.
pub(crate) fn open(address: SocketAddr) -> Result<TcpListener, WorkerError> {
    let failed = |source| WorkerError::Health { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

impl HealthServer {
    /// Serves requests until the future is dropped.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let listener = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => {
                return tracing::error!(error = %error, "cannot serve health checks and metrics at MILVAION_HEALTH");
            }
        };
        let permits = std::sync::Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(permit) = permits.clone().acquire_owned().await else { return };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(error = %error, "cannot accept a connection at MILVAION_HEALTH");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let this = self.clone();
            tokio::spawn(async move {
                let answer = service_fn(move |request| {
                    let answer = this.answer(&request);
                    async move { Ok::<_, Infallible>(answer) }
                });
                let mut http = http1::Builder::new();
                http.timer(TokioTimer::new()).header_read_timeout(CONNECTION_TIMEOUT);
                // A client that disconnects early, or does not send HTTP, gets no response.
                let _ = timeout(CONNECTION_TIMEOUT, http.serve_connection(TokioIo::new(stream), answer)).await;
                drop(permit);
            });
        }
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<String> {
        let (status, kind, body) = match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, "/health/live") => (StatusCode::OK, "text/plain", "alive\n".to_owned()),
            (&Method::GET | &Method::HEAD, "/health/ready") => self.ready(),
            (&Method::GET | &Method::HEAD, "/metrics") => match self.metrics.text() {
                Ok(text) => (StatusCode::OK, OPEN_METRICS_CONTENT_TYPE, text),
                Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{error}\n")),
            },
            _ => {
                let help = "Not found. Send a GET request to /health/live, /health/ready or /metrics.\n";
                (StatusCode::NOT_FOUND, "text/plain", help.to_owned())
            }
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
        response.headers_mut().insert(CACHE_CONTROL, hyper::header::HeaderValue::from_static("no-store"));
        response
    }

    /// Builds the response of the readiness check. Each condition is listed, so that operators see which fails. A worker
    /// without job types is ready while Redis answers its loops.
    fn ready(&self) -> (StatusCode, &'static str, String) {
        let (is_ready, body) = if let Some(BrokerState { publisher, gate }) = &self.broker {
            let (consuming, reporting) = (self.metrics.is_consuming(), publisher.is_up());
            let writable = gate.is_open();
            let is_ready = consuming && reporting && writable;
            let body = json!({
                "ready": is_ready, "consuming": consuming, "reporting": reporting, "outboxWritable": writable,
            });
            (is_ready, body)
        } else {
            let is_ready = self.metrics.are_loops_connected();
            (is_ready, json!({ "ready": is_ready, "redis": is_ready }))
        };
        let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        (status, "application/json", body.to_string())
    }
}
