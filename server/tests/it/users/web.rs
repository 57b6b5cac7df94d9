//! HTTP as a browser sees it: cookies, headers, refusals.

use std::sync::Arc;

use axum::{
    Extension, Router,
    body::Body,
    extract::Request,
    middleware::from_fn_with_state,
    routing::{get, post},
};
use chrono::TimeDelta;
use http::{Method, StatusCode, header};
use milvaion_api::views::CurrentUser;
use milvaion_server::{
    clock::Clock,
    config::http::HttpConfig,
    http::{
        guard::{self, origin_layer},
        headers::headers_layer,
        session::{self, SessionOrigin},
    },
    store::retention::ExpiringTable,
};
use tower::ServiceExt;
use tower_sessions::Session;

use super::harness::UserHarness;

/// Returns the server's layers around routes that show the user, sign in and sign out.
fn web(harness: &UserHarness, config: HttpConfig) -> Router {
    let layer = session::layer(harness.store.clone(), harness.clock.clone(), &config);
    let config = Arc::new(config);
    let (store, clock) = (harness.store.clone(), harness.clock.clone());
    Router::new()
        .route(
            "/who",
            get(async move |request: Request| {
                let (parts, _) = request.into_parts();
                let me = guard::me(&store, &clock, &parts).await.expect("the session can be read");
                me.map_or_else(|| "anonymous".to_owned(), |me| me.name)
            }),
        )
        .route(
            "/in",
            post(
                async |session: Session, Extension(me): Extension<CurrentUser>, Extension(clock): Extension<Clock>| {
                    session::sign_in_session(&session, &me, clock.now(), SessionOrigin::default())
                        .await
                        .expect("it is stored");
                },
            ),
        )
        .route("/out", post(async |session: Session| session::sign_out_session(&session).await.expect("ended")))
        .layer(layer)
        .layer(from_fn_with_state(Arc::clone(&config), origin_layer))
        .layer(from_fn_with_state(config, headers_layer))
        .layer(Extension(harness.clock.clone()))
}

fn request(method: Method, path: &str, cookie: Option<&str>) -> Request {
    let mut request = Request::builder().method(method).uri(path).header("sec-fetch-site", "same-origin");
    if let Some(cookie) = cookie {
        request = request.header(header::COOKIE, cookie);
    }
    request.body(Body::empty()).expect("valid")
}

async fn text(response: axum::response::Response) -> String {
    let bytes = axum::body::to_bytes(response.into_body(), 10_000).await.expect("it can be read");
    String::from_utf8(bytes.to_vec()).expect("valid UTF-8")
}

#[tokio::test]
async fn session_cookie_has_its_security_attributes() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    for (public_url, start, secure) in
        [(None, "milvaion_session=", false), (Some("https://jobs.example.org"), "__Host-milvaion_session=", true)]
    {
        let config = HttpConfig { public_url: public_url.map(str::to_owned), ..harness.config.clone() };
        let web = web(&harness, config).layer(Extension(ana.clone()));
        let response = web.clone().oneshot(request(Method::POST, "/in", None)).await.expect("a response");
        assert_eq!(response.headers().contains_key(header::STRICT_TRANSPORT_SECURITY), secure);
        let cookie = response.headers()[header::SET_COOKIE].to_str().expect("ASCII").to_owned();
        assert!(cookie.starts_with(start), "{cookie}");
        for part in ["HttpOnly", "SameSite=Lax", "Path=/", "Max-Age=604800"] {
            assert!(cookie.split("; ").any(|own| own == part), "{part} in {cookie}");
        }
        assert_eq!(cookie.contains("; Secure"), secure, "{cookie}");
        assert!(!cookie.contains("Domain"), "{cookie}");

        let cookie = cookie.split(';').next().expect("a name and a value");
        let who = async || {
            text(web.clone().oneshot(request(Method::GET, "/who", Some(cookie))).await.expect("a response")).await
        };
        assert_eq!(who().await, "ana");
        let response = web.clone().oneshot(request(Method::POST, "/out", Some(cookie))).await.expect("a response");
        let removal = response.headers()[header::SET_COOKIE].to_str().expect("ASCII").to_owned();
        assert!(removal.starts_with(start) && removal.contains("Max-Age=0"), "{removal}");
        assert_eq!(removal.contains("; Secure"), secure, "{removal}");
        assert_eq!(who().await, "anonymous");
    }
}

#[tokio::test]
async fn anonymous_reads_create_no_session() {
    let harness = UserHarness::new().await;
    let web = web(&harness, harness.config.clone());
    let long = format!("milvaion_session={}", "A".repeat(6_000));
    let many = (0..200).map(|n| format!("c{n}=1")).collect::<Vec<_>>().join("; ");
    for cookie in [
        None,
        Some("milvaion_session=AAAAAAAAAAAAAAAAAAAAAA"),
        Some("milvaion_session=\"; DROP TABLE"),
        Some("milvaion_session=; milvaion_session=%00; milvaion_session"),
        Some(&long),
        Some(&many),
    ] {
        let response = web.clone().oneshot(request(Method::GET, "/who", cookie)).await.expect("a response");
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(text(response).await, "anonymous");
    }
    let far = harness.clock.now() + TimeDelta::days(365);
    assert_eq!(harness.store.delete_expired(ExpiringTable::Sessions, far).await.expect("deleted"), 0);
}

#[tokio::test]
async fn every_response_has_the_security_headers() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let web = web(&harness, harness.config.clone()).layer(Extension(ana));
    let mut forged = request(Method::POST, "/in", None);
    forged.headers_mut().insert("sec-fetch-site", http::HeaderValue::from_static("cross-site"));
    for (request, status) in [
        (request(Method::GET, "/who", None), StatusCode::OK),
        (request(Method::GET, "/nowhere", None), StatusCode::NOT_FOUND),
        (request(Method::DELETE, "/who", None), StatusCode::METHOD_NOT_ALLOWED),
        (forged, StatusCode::FORBIDDEN),
    ] {
        let response = web.clone().oneshot(request).await.expect("a response");
        assert_eq!(response.status(), status);
        assert!(!response.headers().contains_key(header::SET_COOKIE), "{status}");
        for name in ["content-security-policy", "x-content-type-options", "referrer-policy", "x-frame-options"] {
            assert!(response.headers().contains_key(name), "{status}: {name}");
        }
        assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
    }
}
