//! The REST API, `/api/v1`: what the dashboard can do, for programs.
//!
//! The operations run the same commands as the server functions of the dashboard and need the same permissions. Their
//! documents are those of [`milvaion_api::rest`]. [`endpoint`] describes how an operation is declared and carried out;
//! the other modules declare the operations by noun. `/api/openapi.json` describes them all, and `/api/docs` shows that
//! description as a page. `/api/jobs-file.schema.json` describes the documents of files, for editors.

mod alerts;
mod calendars;
mod cluster;
mod docs;
pub mod endpoint;
mod failures;
mod files;
pub mod guard;
mod idempotency;
mod input;
mod jobs;
mod log_tail;
mod occurrences;
mod openapi;
pub mod operation;
mod people;
mod problem;
mod singletons;
mod streams;
mod tokens;

use std::sync::{Arc, LazyLock};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    response::IntoResponse,
    routing::{MethodFilter, MethodRouter, any, get, on},
};
use http::{HeaderValue, Method, StatusCode, header};
use milvaion_api::permissions::Permission;
use milvaion_app::backend::Backend;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use self::{
    endpoint::Endpoint,
    guard::RateLimits,
    operation::{Operation, TagScope},
    problem::ApiError,
};
use super::health::HealthCheck;
use crate::{
    clock::Clock,
    command::{cluster::ClusterCommands, jobs::JobCommands},
    config::http::HttpConfig,
    live::Hub,
    store::Store,
};

/// The state of the operations.
#[derive(Clone)]
pub struct ApiState {
    /// The operations of the dashboard.
    pub backend: Arc<dyn Backend>,
    /// The commands that change jobs and occurrences.
    pub jobs: JobCommands,
    /// Access to PostgreSQL, with the connections of requests.
    pub store: Store,
    /// The clock of this server.
    pub clock: Clock,
    /// The live events.
    pub hub: Hub,
    /// The addresses at which clients reach this server.
    pub config: Arc<HttpConfig>,
    /// The commands that pause and resume the cluster.
    pub cluster: ClusterCommands,
    /// The health checks of the services and of the dispatcher.
    pub health: HealthCheck,
    /// The rate limits of the callers.
    pub limits: RateLimits,
    /// The token that ends streams when the server stops.
    pub stop: CancellationToken,
}

/// The scrape of the metrics. It is no operation of the API, and admits the same callers.
pub const METRICS: Operation = Operation {
    method: "GET",
    path: "/metrics",
    id: "scrapeMetrics",
    group: "Metrics",
    summary: "Read the metrics of this server",
    permission: Permission::Read,
    scope: TagScope::Refused,
    success: 200,
    has_secret: false,
    is_versioned: false,
};

/// Returns every operation.
#[must_use]
pub fn endpoints() -> Vec<Endpoint> {
    [
        jobs::endpoints(),
        occurrences::endpoints(),
        failures::endpoints(),
        files::endpoints(),
        calendars::endpoints(),
        alerts::endpoints(),
        singletons::endpoints(),
        cluster::endpoints(),
        people::endpoints(),
        tokens::endpoints(),
        streams::endpoints(),
    ]
    .concat()
}

/// Returns the OpenAPI document.
#[must_use]
pub fn document() -> Value {
    openapi::document(&endpoints())
}

/// Returns the JSON Schema of the documents of files, for editors.
#[must_use]
pub fn files_schema() -> Value {
    files::schema()
}

/// The OpenAPI document as JSON. Like the two texts below, it is made on first use, so that no start pays for it.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());
/// The page that shows the OpenAPI document.
static DOCUMENT_PAGE: LazyLock<Bytes> = LazyLock::new(|| docs::page(&document()).into());
/// The JSON Schema of the documents of files.
static FILES_SCHEMA: LazyLock<Bytes> = LazyLock::new(|| files_schema().to_string().into());

/// Builds the router of the operations, of the OpenAPI document and of the page that shows it.
pub fn router(state: &ApiState) -> Router {
    let endpoints = endpoints();
    let mut paths: Vec<&'static str> = endpoints.iter().map(|endpoint| endpoint.operation.path).collect();
    paths.sort_unstable();
    paths.dedup();
    let operations = paths.into_iter().fold(Router::new(), |router, path| {
        let here = endpoints.iter().filter(|endpoint| endpoint.operation.path == path);
        let methods = here.clone().map(|endpoint| endpoint.operation.method);
        let methods: Vec<&str> =
            methods.flat_map(|method| [Some(method), (method == "GET").then_some("HEAD")]).flatten().collect();
        let allowed = methods.join(", ");
        let refuse = move || {
            let detail = format!("This path supports {allowed}.");
            let refusal = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, detail).allow(allowed.clone());
            async move { refusal.into_response() }
        };
        let routes = here.fold(MethodRouter::new(), |routes, endpoint| routes.merge(route(endpoint, state)));
        router.route(path, routes.fallback(refuse))
    });
    let not_found = async || {
        ApiError::new(StatusCode::NOT_FOUND, "There is no such path. /api/docs lists the operations.").into_response()
    };
    Router::new()
        .nest("/api/v1", operations.route("/", any(not_found)).route("/{*path}", any(not_found)))
        .route("/api/v1/", any(not_found))
        .route("/api/openapi.json", text_route("application/json", || DOCUMENT.clone()))
        .route("/api/jobs-file.schema.json", text_route("application/schema+json", || FILES_SCHEMA.clone()))
        .route("/api/docs.css", text_route("text/css; charset=utf-8", || Bytes::from_static(docs::STYLE.as_bytes())))
        .route("/api/docs", text_route("text/html; charset=utf-8", || DOCUMENT_PAGE.clone()))
}

/// Answers GET with a text that is always the same.
fn text_route(content_type: &'static str, text: fn() -> Bytes) -> MethodRouter {
    get(move || async move { ([(header::CONTENT_TYPE, HeaderValue::from_static(content_type))], text()) })
}

fn route(endpoint: &Endpoint, state: &ApiState) -> MethodRouter {
    let (endpoint, state) = (Arc::new(endpoint.clone()), state.clone());
    let filter = MethodFilter::try_from(endpoint.method()).unwrap_or(MethodFilter::GET);
    let filter = if endpoint.method() == Method::GET { filter.or(MethodFilter::HEAD) } else { filter };
    on(filter, move |request: Request<Body>| {
        let (endpoint, state) = (endpoint.clone(), state.clone());
        async move { endpoint.handle(state, request).await }
    })
}
