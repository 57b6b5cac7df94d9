//! A server whose answers a test chooses. It records each request.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::Request,
    response::Response,
};
use futures::{StreamExt, stream};
use http::{HeaderMap, Method};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Notify;

/// A request that the server received.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    /// The method.
    pub(crate) method: Method,
    /// The path with the query.
    pub(crate) target: String,
    /// The headers.
    pub(crate) headers: HeaderMap,
    /// The body.
    pub(crate) body: Vec<u8>,
}

impl Received {
    /// Returns the method and the path with the query.
    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.method, self.target)
    }

    /// Returns a header as text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns the body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the body is JSON")
    }
}

/// A running server.
pub(crate) struct FakeServer {
    /// The address.
    pub(crate) url: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl FakeServer {
    /// Starts a server. `answer` gets each request with its number, from 1.
    pub(crate) async fn start(answer: impl Fn(&Received, usize) -> Response + Send + Sync + 'static) -> Self {
        let received: Arc<Mutex<Vec<Received>>> = Arc::default();
        let (log, answer) = (received.clone(), Arc::new(answer));
        let app = Router::new().fallback(move |request: Request| {
            let (log, answer) = (log.clone(), answer.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = to_bytes(body, usize::MAX).await.expect("a body").to_vec();
                let target = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
                let request = Received { method: head.method, target, headers: head.headers, body };
                let number = {
                    let mut log = lock(&log);
                    log.push(request.clone());
                    log.len()
                };
                answer(&request, number)
            }
        });
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, received }
    }

    /// Returns the requests so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        lock(&self.received).clone()
    }

    /// Returns the first lines of the requests so far, without `/api/v1`.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.received().iter().map(|request| request.line().replace("/api/v1", "")).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no test panics with the lock")
}

/// Returns a port at which no server listens.
pub(crate) async fn unused_address() -> String {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    format!("http://{}", listener.local_addr().expect("an address"))
}

/// Answers with a document.
pub(crate) fn document(status: u16, value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("JSON");
    let response = Response::builder().status(status).header("content-type", "application/json");
    response.body(Body::from(body)).expect("a response")
}

/// Answers with a page of a list.
pub(crate) fn page(items: &[impl Serialize], next: Option<&str>) -> Response {
    document(200, &json!({ "items": items, "next": next }))
}

/// Answers without a body.
pub(crate) fn no_content() -> Response {
    Response::builder().status(204).body(Body::empty()).expect("a response")
}

/// Answers with a problem.
pub(crate) fn problem(status: u16, detail: &str) -> Response {
    problem_with(status, detail, &[])
}

/// Answers with a problem and headers.
pub(crate) fn problem_with(status: u16, detail: &str, headers: &[(&str, &str)]) -> Response {
    let value = json!({ "type": "/api/docs#problem-x", "title": "A title", "status": status, "detail": detail });
    let mut response = Response::builder().status(status).header("content-type", "application/problem+json");
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(Body::from(value.to_string())).expect("a response")
}

/// The end of a stream.
#[derive(Clone, Debug)]
pub(crate) enum StreamEnd {
    /// The server closes it.
    Closed,
    /// The connection breaks at this signal. Without one, the last pieces could be lost with it.
    Broken(Arc<Notify>),
    /// It stays open and silent.
    Silent,
}

/// Answers with a stream of pieces.
pub(crate) fn events(pieces: Vec<String>, end: StreamEnd) -> Response {
    let pieces = stream::iter(pieces.into_iter().map(|piece| Ok::<_, std::io::Error>(Bytes::from(piece))));
    let body = match end {
        StreamEnd::Closed => Body::from_stream(pieces),
        StreamEnd::Broken(signal) => Body::from_stream(pieces.chain(stream::once(async move {
            signal.notified().await;
            Err(std::io::Error::other("the server was killed"))
        }))),
        StreamEnd::Silent => Body::from_stream(pieces.chain(stream::pending())),
    };
    Response::builder().header("content-type", "text/event-stream").body(body).expect("a response")
}

/// Returns a frame of a stream.
pub(crate) fn frame(event: &str, data: &impl Serialize) -> String {
    format!("event: {event}\ndata: {}\n\n", serde_json::to_string(data).expect("JSON"))
}
