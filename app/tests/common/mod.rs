//! Helpers for page tests: the dashboard as the server serves it, over a fake backend.
//!
//! Nothing is mocked between the request and the page: routes, redirects, statuses and server functions are the real
//! ones. Only [`FakeBackend`] replaces the server's backend, and it checks permissions by the same table.

pub(crate) mod fake;
pub(crate) mod samples;

use std::sync::{Arc, OnceLock};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderMap, HeaderName, Method, Request, StatusCode, header},
    middleware::{self, Next},
    routing::any,
};
use leptos::{config::LeptosOptions, prelude::provide_context};
use leptos_axum::{AxumRouteListing, LeptosRoutes, generate_route_list, handle_server_fns_with_context};
use milvaion_app::{
    backend::Backend,
    owner_isolation::isolate_owner,
    routes::App,
    shell::{attach_boot, shell},
};
use tower::ServiceExt;

pub(crate) use fake::FakeBackend;

/// A response with its complete body.
#[derive(Debug)]
pub(crate) struct PageResponse {
    /// The HTTP status.
    pub(crate) status: StatusCode,
    /// The `Location` header.
    pub(crate) location: Option<String>,
    /// The `Retry-After` header.
    pub(crate) retry_after: Option<String>,
    /// The `Set-Cookie` headers.
    pub(crate) cookies: Vec<String>,
    /// The body as text.
    pub(crate) body: String,
}

impl PageResponse {
    /// Panics unless the page contains all of `words`.
    #[track_caller]
    pub(crate) fn assert_contains(&self, words: &[&str]) -> &Self {
        for word in words {
            assert!(self.body.contains(word), "the page does not contain {word:?}:\n{}", self.body);
        }
        self
    }

    /// Panics if the page contains one of `words`.
    #[track_caller]
    pub(crate) fn assert_lacks(&self, words: &[&str]) -> &Self {
        for word in words {
            assert!(!self.body.contains(word), "the page contains {word:?}:\n{}", self.body);
        }
        self
    }
}

/// The site map, generated once: no page may be drawn during its generation, because resources do not load then.
static ROUTES: OnceLock<Vec<AxumRouteListing>> = OnceLock::new();

/// Sends `request` to a dashboard over `fake` and returns the response.
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
        move || shell(options.clone(), &milvaion_app::shell::SiteAssets::default())
    };
    let router: Router = Router::new()
        .route("/api/{*call}", any(calls))
        .leptos_routes_with_context(&options, routes, provide, pages)
        .with_state(options)
        .layer(middleware::from_fn(move |request: Request<Body>, next: Next| {
            let fake = fake.clone();
            async move {
                let (mut parts, body) = request.into_parts();
                attach_boot(&*fake, &mut parts).await;
                next.run(Request::from_parts(parts, body)).await
            }
        }));
    // The server isolates the reactive owner of each request in the same way.
    isolate_owner(answer(router, request)).await
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned)
}

async fn answer(router: Router, request: Request<Body>) -> PageResponse {
    let response = router.oneshot(request).await.expect("a router is infallible");
    let status = response.status();
    let (location, retry_after) =
        (text(response.headers(), header::LOCATION), text(response.headers(), header::RETRY_AFTER));
    let cookies = response.headers().get_all(header::SET_COOKIE).iter();
    let cookies = cookies.filter_map(|value| value.to_str().ok()).map(ToOwned::to_owned).collect();
    let bytes = to_bytes(response.into_body(), 4 << 20).await.expect("a body of at most 4 MiB");
    let body = String::from_utf8(bytes.to_vec()).expect("a UTF-8 body");
    PageResponse { status, location, retry_after, cookies, body }
}

/// Requests a page as a browser does.
pub(crate) async fn get(fake: &Arc<FakeBackend>, path: &str) -> PageResponse {
    let request = Request::builder().uri(path).header(header::ACCEPT, "text/html").body(Body::empty());
    send(fake.clone(), request.expect("a valid request")).await
}

/// Requests a page as a browser with these cookies does.
pub(crate) async fn get_with_cookies(fake: &Arc<FakeBackend>, path: &str, cookies: &str) -> PageResponse {
    let request = Request::builder().uri(path).header(header::ACCEPT, "text/html").header(header::COOKIE, cookies);
    send(fake.clone(), request.body(Body::empty()).expect("a valid request")).await
}

/// Posts a form as a browser without scripts does, without the address of its page.
pub(crate) async fn post(fake: &Arc<FakeBackend>, path: &str, form: &str) -> PageResponse {
    post_with(fake, path, form, &[(header::ACCEPT, "text/html")]).await
}

/// Posts a form of the page at `page` as a browser without scripts does.
pub(crate) async fn post_from(fake: &Arc<FakeBackend>, page: &str, path: &str, form: &str) -> PageResponse {
    let referer = format!("https://milvaion.example{page}");
    post_with(fake, path, form, &[(header::ACCEPT, "text/html,*/*;q=0.8"), (header::REFERER, referer.as_str())]).await
}

/// Posts a form as the script of a page does.
pub(crate) async fn post_as_script(fake: &Arc<FakeBackend>, path: &str, form: &str) -> PageResponse {
    post_with(fake, path, form, &[(header::ACCEPT, "application/json")]).await
}

async fn post_with(fake: &Arc<FakeBackend>, path: &str, form: &str, headers: &[(HeaderName, &str)]) -> PageResponse {
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
    for (name, value) in headers {
        request = request.header(name, *value);
    }
    send(fake.clone(), request.body(Body::from(form.to_owned())).expect("a valid request")).await
}
