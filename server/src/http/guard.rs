//! The one place that says who may do what.
//!
//! [`authorize`] answers three questions, in this order: does the request come from our own pages, whose is it, and does
//! their role reach. The person is read from the table for each request, so a changed role or a deactivation holds from
//! the next request on. There is no other way to a [`CurrentUser`] from a request.
//!
//! That a change comes from our own pages is seen from headers which only the browser can set: `Sec-Fetch-Site`, or, from
//! a browser that does not send it, `Origin`. A request with neither is no browser's of these years and is refused;
//! scripts have tokens, not sessions.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::{
    extract::{ConnectInfo, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, Method, StatusCode, Uri, header, request::Parts};
use milvaion_api::{
    permissions::{Permission, Role},
    views::CurrentUser,
};
use milvaion_app::error::AppError;
use serde_json::json;
use tower_sessions::Session;

use super::session::user_of;
use crate::{
    clock::Clock,
    config::http::HttpConfig,
    error::chain,
    store::{Store, audit::AuditEntry},
};

/// Who asks, if they may do `action` and, for a change, ask from our own pages. A refusal by role is written to the
/// audit log when a change was asked for.
///
/// # Errors
///
/// `Denied` for a foreign origin or a role that does not reach, `SignedOut` when the session is nobody's or no longer
/// good, `Unavailable` or `Failed` when that cannot be found out.
pub async fn authorize(
    store: &Store,
    clock: &Clock,
    config: &HttpConfig,
    parts: &Parts,
    action: Permission,
) -> Result<CurrentUser, AppError> {
    if action.mutates() {
        same_origin(config, parts)?;
    }
    let me = me(store, clock, parts).await?.ok_or(AppError::SignedOut)?;
    if me.role.allows(action) {
        return Ok(me);
    }
    if action.mutates() {
        let entry = AuditEntry::new(clock.now(), &me.email, "refuse", format!("user:{}", me.id))
            .change(None, Some(json!({ "action": action.describe(), "role": me.role.slug() })))
            .from(address(parts).map(|address| address.to_string()));
        // The refusal stands whether or not it can be written down.
        if let Err(error) = store.audit(&entry).await {
            tracing::error!(error = %chain(&error), "a refusal could not be written to the audit log");
        }
    }
    Err(AppError::Denied(denial(me.role, action)))
}

/// Who is signed in, if anybody: the session's person, if they are still there and active.
///
/// # Errors
///
/// `Unavailable` or `Failed` when that cannot be found out.
pub async fn me(store: &Store, clock: &Clock, parts: &Parts) -> Result<Option<CurrentUser>, AppError> {
    let Some(id) = user_of(session(parts)?, clock.now()).await? else { return Ok(None) };
    Ok(store.user(id).await?.filter(|user| user.is_active).map(|user| user.me()))
}

/// The request's session.
///
/// # Errors
///
/// `Failed` when the request did not come through the session layer.
pub fn session(parts: &Parts) -> Result<&Session, AppError> {
    parts.extensions.get().ok_or_else(|| {
        tracing::error!(http.path = parts.uri.path(), "a request reached the guard without a session layer");
        AppError::Failed("Something went wrong in the server. Its log has the details.".into())
    })
}

/// Where the request came from, as the connection tells it. Headers are not asked: anybody can write them.
#[must_use]
pub fn address(parts: &Parts) -> Option<IpAddr> {
    parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| address.ip())
}

/// Whether the request comes from our own pages.
///
/// # Errors
///
/// `Denied` when it does not, or does not say.
pub fn same_origin(config: &HttpConfig, parts: &Parts) -> Result<(), AppError> {
    if is_same_origin(config, &parts.uri, &parts.headers) {
        Ok(())
    } else {
        Err(AppError::Denied(CROSS_ORIGIN_REFUSAL.into()))
    }
}

/// Middleware: refuses every request that may change something and does not come from our own pages, whatever it is
/// for — also signing in and out. Use with [`axum::middleware::from_fn_with_state`].
pub async fn origin_layer(State(config): State<Arc<HttpConfig>>, request: Request, next: Next) -> Response {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if is_read || is_same_origin(&config, request.uri(), request.headers()) {
        return next.run(request).await;
    }
    let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("-").escape_debug();
    tracing::warn!(
        http.path = request.uri().path(),
        http.origin = %text("origin"),
        http.sec_fetch_site = %text("sec-fetch-site"),
        "a request from another site was refused"
    );
    (StatusCode::FORBIDDEN, CROSS_ORIGIN_REFUSAL).into_response()
}

const CROSS_ORIGIN_REFUSAL: &str = "This request did not come from this dashboard's own pages, so nothing was changed. Open the \
                       dashboard at its own address and try again; behind a proxy, PUBLIC_URL must be that address.";

fn is_same_origin(config: &HttpConfig, uri: &Uri, headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let origin = match (origins.next(), origins.next()) {
        (Some(origin), None) => Some(origin.to_str().is_ok_and(|origin| is_ours(config, uri, headers, origin))),
        (None, _) => None,
        (Some(_), Some(_)) => Some(false),
    };
    let mut sites = headers.get_all("sec-fetch-site").iter();
    match (sites.next().map(|site| site.as_bytes()), sites.next()) {
        (Some(b"same-origin"), None) => true,
        // Somebody typed or reloaded it. Nobody else can cause that, but an origin that is told must be ours.
        (Some(b"none"), None) => origin != Some(false),
        (None, None) => origin == Some(true),
        _ => false,
    }
}

/// Whether `origin` is one of our own: that of `PUBLIC_URL`, and the one the request was sent to, unless browsers come
/// over TLS: then whoever can answer for the plain address on the way must not speak for us.
fn is_ours(config: &HttpConfig, uri: &Uri, headers: &HeaderMap, origin: &str) -> bool {
    let Some(origin) = RequestOrigin::parse(origin) else { return false };
    if config.public_url.as_deref().and_then(RequestOrigin::parse).is_some_and(|public| public == origin) {
        return true;
    }
    if config.is_secure() {
        return false;
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).or(uri.authority().map(|a| a.as_str()));
    host.and_then(|host| RequestOrigin::parse(&format!("{}://{host}", origin.scheme))).is_some_and(|own| own == origin)
}

/// Scheme, host and port, with the port made explicit.
#[derive(Debug, PartialEq, Eq)]
struct RequestOrigin {
    scheme: &'static str,
    host: String,
    port: u16,
}

impl RequestOrigin {
    fn parse(text: &str) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        let (scheme, port) = match uri.scheme_str()? {
            "http" => ("http", 80),
            "https" => ("https", 443),
            _ => return None,
        };
        let authority = uri.authority()?;
        if authority.as_str().contains('@') {
            return None;
        }
        Some(Self { scheme, host: authority.host().to_ascii_lowercase(), port: authority.port_u16().unwrap_or(port) })
    }
}

/// Why a role does not reach, and whom to ask.
fn denial(role: Role, action: Permission) -> String {
    let who = match action.required_role() {
        Role::Viewer => "a Viewer, an Operator or an Admin",
        Role::Operator => "an Operator or Admin",
        Role::Admin => "an Admin",
    };
    let article = if role == Role::Viewer { "a" } else { "an" };
    format!("Only {who} may {}. You are {article} {}; ask an Admin.", action.describe(), role.label())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn config(public_url: Option<&str>) -> HttpConfig {
        HttpConfig {
            host: [127, 0, 0, 1].into(),
            port: None,
            public_url: public_url.map(str::to_owned),
            site_root: PathBuf::new(),
        }
    }

    fn passes(public_url: Option<&str>, headers: &[(&'static str, &'static str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, http::HeaderValue::from_static(value));
        }
        is_same_origin(&config(public_url), &Uri::from_static("/api/sign_out"), &map)
    }

    #[test]
    fn only_our_own_pages_may_change_anything() {
        let host = ("host", "localhost:8600");
        for own in [
            &[host, ("sec-fetch-site", "same-origin")][..],
            &[host, ("sec-fetch-site", "none")],
            &[host, ("sec-fetch-site", "none"), ("origin", "http://localhost:8600")],
            &[host, ("origin", "http://localhost:8600")],
            &[host, ("origin", "http://LOCALHOST:8600")],
            &[host, ("origin", "https://localhost:8600")],
        ] {
            assert!(passes(None, own), "{own:?}");
        }
        for foreign in [
            &[host][..],
            &[host, ("sec-fetch-site", "cross-site")],
            &[host, ("sec-fetch-site", "same-site")],
            &[host, ("sec-fetch-site", "same-site"), ("origin", "http://localhost:8600")],
            &[host, ("sec-fetch-site", "none"), ("origin", "http://evil.example")],
            &[host, ("sec-fetch-site", "none"), ("origin", "null")],
            &[host, ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")],
            &[host, ("origin", "null")],
            &[host, ("origin", "http://localhost:8601")],
            &[host, ("origin", "http://localhost")],
            &[host, ("origin", "http://evil.example")],
            &[host, ("origin", "http://localhost:8600.evil.example")],
            &[host, ("origin", "http://localhost:8600@evil.example")],
            &[host, ("origin", "http://localhost:8600"), ("origin", "http://evil.example")],
            &[("origin", "http://localhost:8600")],
        ] {
            assert!(!passes(None, foreign), "{foreign:?}");
        }
    }

    #[test]
    fn behind_a_proxy_the_public_address_is_ours() {
        let public = Some("https://jobs.example.org");
        let host = ("host", "10.0.0.5:8600");
        assert!(passes(public, &[host, ("origin", "https://jobs.example.org")]));
        assert!(passes(public, &[host, ("origin", "https://jobs.example.org:443")]));
        assert!(!passes(public, &[host, ("origin", "http://jobs.example.org")]));
        assert!(!passes(public, &[host, ("origin", "http://10.0.0.5:8600")]));
        assert!(passes(Some("http://jobs.lan"), &[host, ("origin", "http://10.0.0.5:8600")]));
    }

    #[test]
    fn a_refusal_names_the_role_it_takes() {
        assert_eq!(
            denial(Role::Viewer, Permission::RunJob),
            "Only an Operator or Admin may run jobs. You are a Viewer; ask an Admin."
        );
        assert_eq!(
            denial(Role::Operator, Permission::DeleteJob),
            "Only an Admin may delete jobs. You are an Operator; ask an Admin."
        );
    }
}
