//! The web: every route on one page.
//!
//! Outside in, a request meets: a time limit and a size limit, the security headers, the check that a change comes from
//! our own pages, the session; then it is a health check, the stream of events, a server function or a page. Whether
//! somebody *may* do what they ask is not decided here but where they ask for it, by [`guard::authorize`].

pub mod guard;
pub mod headers;
pub mod health;
pub mod session;
pub mod sse;

use std::{sync::Arc, time::Duration};

use axum::{Router, extract::DefaultBodyLimit, middleware, routing::get};
use tokio_util::sync::CancellationToken;

use crate::{clock::Clock, config::http::HttpConfig, live::Hub, store::Store, ui::backend::ServerBackend};

/// The largest request body, in bytes: a job form with a full input fits well.
const MAX_BODY_BYTES: usize = 512 * 1024;
/// How long a page or a server function may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// What handlers outside the pages need.
#[derive(Clone, Debug)]
pub struct WebState {
    /// The truth.
    pub store: Store,
    /// What time it is.
    pub clock: Clock,
    /// What browsers hear.
    pub hub: Hub,
    /// Who reaches us how.
    pub config: Arc<HttpConfig>,
    /// How every part is.
    pub health: health::HealthCheck,
    /// Ends streams when the server stops.
    pub stop: CancellationToken,
}

/// Every route.
pub fn router(state: &WebState, backend: Arc<ServerBackend>) -> Router {
    let pages = crate::ui::router(&state.config, backend)
        .layer(tower_http::timeout::TimeoutLayer::with_status_code(http::StatusCode::GATEWAY_TIMEOUT, REQUEST_TIMEOUT));
    // A stream has no end, so it stays outside the time limit.
    let stream = Router::new().route("/events", get(sse::events)).with_state(state.clone());
    let checks = Router::new()
        .route("/health/live", get(health::live))
        .route("/health/ready", get(health::ready))
        .with_state(state.clone());
    pages
        .merge(stream)
        .layer(session::layer(state.store.clone(), state.clock.clone(), &state.config))
        .merge(checks)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(tower_http::limit::RequestBodyLimitLayer::new(MAX_BODY_BYTES))
        .layer(middleware::from_fn_with_state(state.config.clone(), guard::origin_layer))
        .layer(middleware::from_fn_with_state(state.config.clone(), headers::headers_layer))
}
