//! The address at which a worker answers: `/health/live`, `/health/ready`, `/metrics`.
//!
//! Three answers that take no input: a web framework would be more to keep than to write.

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

/// What Prometheus calls its text format.
const OPEN_METRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The most connections at once; whoever comes then waits.
const MAX_CONNECTIONS: usize = 32;
/// How long a connection may take altogether: a question is a line and an answer a page.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// What the answers are made of.
#[derive(Clone)]
pub(crate) struct HealthServer {
    pub(crate) metrics: WorkerMetrics,
    pub(crate) publisher: WorkerPublisher,
    pub(crate) gate: WriteGate,
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

impl HealthServer {
    /// Answers until it is dropped.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let listener = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(error = %error, "health is not answered"),
        };
        let places = std::sync::Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let line = match listener.accept().await {
                Ok((line, _)) => line,
                Err(error) => {
                    tracing::warn!(error = %error, "somebody who asked for health could not be let in");
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
                // Whoever hangs up early, or writes something else than HTTP, has no answer to expect.
                let _ = timeout(CONNECTION_TIMEOUT, http.serve_connection(TokioIo::new(line), answer)).await;
                drop(place);
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
                let there = "There is /health/live, /health/ready and /metrics, to be read with GET.\n";
                (StatusCode::NOT_FOUND, "text/plain", there.to_owned())
            }
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
        response.headers_mut().insert(CACHE_CONTROL, hyper::header::HeaderValue::from_static("no-store"));
        response
    }

    fn ready(&self) -> (StatusCode, &'static str, String) {
        let (consuming, reporting) = (self.metrics.is_consuming(), self.publisher.is_up());
        let remembering = self.gate.is_open();
        let is_ready = consuming && reporting && remembering;
        let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let body = json!({
            "ready": is_ready, "consuming": consuming, "reporting": reporting, "outboxWritable": remembering,
        });
        (status, "application/json", body.to_string())
    }
}
