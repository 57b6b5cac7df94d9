//! What a page test gets in one line: the dashboard as the server serves it, over a backend made of plain values.
//!
//! Nothing is mocked between the request and the page: routes, redirects, statuses and server functions are the real
//! ones. Only [`FakeBackend`] stands where the server's backend would, and it judges roles by the same table.

pub(crate) mod fake;
pub(crate) mod samples;

use std::sync::{Arc, OnceLock};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Method, Request, StatusCode, header},
    routing::any,
};
use leptos::{config::LeptosOptions, prelude::provide_context};
use leptos_axum::{AxumRouteListing, LeptosRoutes, generate_route_list, handle_server_fns_with_context};
use milvaion_app::{backend::Backend, owner_isolation::isolate_owner, routes::App, shell::shell};
use tower::ServiceExt;

pub(crate) use fake::FakeBackend;

/// An answer, read whole.
#[derive(Debug)]
pub(crate) struct PageResponse {
    /// Its status.
    pub(crate) status: StatusCode,
    /// Where it leads, if it leads somewhere.
    pub(crate) location: Option<String>,
    /// Its body.
    pub(crate) body: String,
}

impl PageResponse {
    /// Panics unless the page says all of `words`.
    #[track_caller]
    pub(crate) fn assert_contains(&self, words: &[&str]) -> &Self {
        for word in words {
            assert!(self.body.contains(word), "the page does not say {word:?}:\n{}", self.body);
        }
        self
    }

    /// Panics if the page says one of `words`.
    #[track_caller]
    pub(crate) fn assert_lacks(&self, words: &[&str]) -> &Self {
        for word in words {
            assert!(!self.body.contains(word), "the page says {word:?}:\n{}", self.body);
        }
        self
    }
}

/// The site map, read once: while it is read, no page may be drawn, for resources stand still then.
static ROUTES: OnceLock<Vec<AxumRouteListing>> = OnceLock::new();

/// Sends `request` to a dashboard over `fake`.
pub(crate) async fn send(fake: Arc<FakeBackend>, request: Request<Body>) -> PageResponse {
    let options = LeptosOptions::builder().output_name("app").build();
    let routes = ROUTES.get_or_init(|| generate_route_list(App)).clone();
    let provide = {
        let fake = fake.clone();
        move || provide_context::<Arc<dyn Backend>>(fake.clone())
    };
    let calls = {
        let provide = provide.clone();
        move |request: Request<Body>| handle_server_fns_with_context(provide.clone(), request)
    };
    let pages = {
        let options = options.clone();
        move || shell(options.clone())
    };
    let router: Router = Router::new()
        .route("/api/{*call}", any(calls))
        .leptos_routes_with_context(&options, routes, provide, pages)
        .with_state(options);
    // As the server does.
    isolate_owner(answer(router, request)).await
}

async fn answer(router: Router, request: Request<Body>) -> PageResponse {
    let response = router.oneshot(request).await.expect("a router answers");
    let status = response.status();
    let location =
        response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
    let bytes = to_bytes(response.into_body(), 4 << 20).await.expect("a body that ends");
    PageResponse { status, location, body: String::from_utf8(bytes.to_vec()).expect("text") }
}

/// Opens a page as a browser does.
pub(crate) async fn get(fake: &Arc<FakeBackend>, path: &str) -> PageResponse {
    let request = Request::builder().uri(path).header(header::ACCEPT, "text/html").body(Body::empty());
    send(fake.clone(), request.expect("a request")).await
}

/// Sends a form as a browser without a script does.
pub(crate) async fn post(fake: &Arc<FakeBackend>, path: &str, form: &str) -> PageResponse {
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(header::ACCEPT, "text/html")
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(Body::from(form.to_owned()));
    send(fake.clone(), request.expect("a request")).await
}
