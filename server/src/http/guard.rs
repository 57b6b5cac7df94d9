//! Authorization of requests. No other module checks permissions.
//!
//! [`authorize`] checks three things, in this order: that a change comes from the dashboard's own pages, that a user is
//! signed in, and that the role of the user allows the action. The user is read from the database for each request, so
//! a changed role or a deactivation takes effect with the next request. There is no other way to get a [`CurrentUser`]
//! from a request.
//!
//! The origin of a change is read from headers that only the browser can set: `Sec-Fetch-Site`, or `Origin` from a
//! browser that does not send the former. All browsers of recent years send one of them, so a request with neither is
//! refused. Scripts authenticate with tokens, not with sessions.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, Method, StatusCode, Uri, header, request::Parts};
use milvaion_api::{
    events::StreamEndReason,
    permissions::{Permission, Role},
    views::CurrentUser,
};
use milvaion_app::error::AppError;
use milvaion_protocol::id::UserId;
use serde_json::json;
use tower_sessions::Session;

use super::{
    client_address::client_address,
    session::{StoredSession, stored_session, user_of},
};
use crate::{
    clock::Clock,
    config::http::HttpConfig,
    error::chain,
    store::{Store, audit::AuditEntry, sessions::SessionEnd},
};

/// Returns the signed-in user if they may do `action`. A change must also come from the dashboard's own pages. If the
/// role does not allow a change, the refusal is written to the audit log.
///
/// A GET changes nothing, so it may come from a link on another site: a page with the form of a change can be opened
/// from a chat or a mail.
///
/// # Errors
///
/// Returns `Denied` for a foreign origin or an insufficient role, `SignedOut` if no user is signed in or the session
/// has expired, and `Unavailable` or `Failed` if PostgreSQL fails.
pub async fn authorize(
    store: &Store,
    clock: &Clock,
    config: &HttpConfig,
    parts: &Parts,
    action: Permission,
) -> Result<CurrentUser, AppError> {
    if action.mutates() && !is_read(&parts.method) {
        same_origin(config, parts)?;
    }
    let me = me(store, clock, parts).await?.ok_or(AppError::SignedOut)?;
    if me.role.allows(action) {
        return Ok(me);
    }
    if action.mutates() {
        record_refusal(store, clock, &me, action, client_address(config, parts)).await;
    }
    Err(AppError::Denied(denial(me.role, action)))
}

/// Writes the refusal of an action to the audit log. The request is refused even if that fails.
pub(super) async fn record_refusal(
    store: &Store,
    clock: &Clock,
    me: &CurrentUser,
    action: Permission,
    address: Option<IpAddr>,
) {
    let entry = AuditEntry::new(clock.now(), &me.email, "refuse", format!("user:{}", me.id))
        .change(None, Some(json!({ "action": action.describe(), "role": me.role.slug() })))
        .from(address.map(|address| address.to_string()));
    // A repeated refusal must not fill the audit log.
    let repeat_key = format!("refuse:{}:{}", me.id, action.describe());
    if let Err(error) = store.audit_refusal(&entry, &repeat_key).await {
        tracing::error!(
            user.id = %me.id, error = %chain(&error),
            "the refusal of a request of user {} could not be written to the audit log", me.id
        );
    }
}

/// Returns the user of the session, if there is one and the user still exists and is active.
///
/// # Errors
///
/// Returns `Unavailable` or `Failed` if PostgreSQL fails.
pub async fn me(store: &Store, clock: &Clock, parts: &Parts) -> Result<Option<CurrentUser>, AppError> {
    let Some(signed_in) = user_of(session(parts)?, clock.now()).await? else { return Ok(None) };
    Ok(store.user(signed_in.user).await?.filter(|user| signed_in.is_valid_for(user)).map(|user| user.me()))
}

/// The user of an open event stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamUser {
    /// The session is valid; the user as of now.
    Active(CurrentUser),
    /// The session has ended for this reason.
    Ended(StreamEndReason),
    /// The session has a new id, which the browser sends when it reconnects.
    Replaced,
}

/// Checks the user of an open event stream again.
///
/// # Errors
///
/// Returns `Unavailable` or `Failed` if PostgreSQL fails.
pub async fn stream_user(store: &Store, clock: &Clock, parts: &Parts, known: UserId) -> Result<StreamUser, AppError> {
    let signed_in = match stored_session(store, session(parts)?, clock.now()).await? {
        StoredSession::Active(signed_in) => signed_in,
        StoredSession::Expired => return Ok(StreamUser::Ended(StreamEndReason::Expired)),
        StoredSession::Ended(SessionEnd::Revoked) => return Ok(StreamUser::Ended(StreamEndReason::Revoked)),
        StoredSession::Ended(SessionEnd::PassphraseChanged) => {
            return Ok(StreamUser::Ended(StreamEndReason::PassphraseChanged));
        }
        StoredSession::Ended(SessionEnd::Replaced) => return Ok(StreamUser::Replaced),
        StoredSession::Deleted => {
            // A deactivation deletes the sessions of its user.
            let is_active = store.user(known).await?.is_some_and(|user| user.is_active);
            let reason = if is_active { StreamEndReason::SignedOut } else { StreamEndReason::Deactivated };
            return Ok(StreamUser::Ended(reason));
        }
    };
    let user = store.user(signed_in.user).await?;
    if user.as_ref().is_some_and(|user| user.is_active && signed_in.is_older_than_passphrase_of(user)) {
        return Ok(StreamUser::Ended(StreamEndReason::PassphraseChanged));
    }
    let me = user.filter(|user| user.is_active).map(|user| user.me()).filter(|me| me.role.allows(Permission::Read));
    Ok(me.map_or(StreamUser::Ended(StreamEndReason::Deactivated), StreamUser::Active))
}

/// Returns the session of a request.
///
/// # Errors
///
/// Returns `Failed` if the request did not pass the session layer.
pub fn session(parts: &Parts) -> Result<&Session, AppError> {
    parts.extensions.get().ok_or_else(|| {
        let path = parts.uri.path();
        tracing::error!(http.path = path, "the request for {path} has no session: its route lacks the session layer");
        AppError::Failed("Something went wrong in the server. Its log has the details.".into())
    })
}

/// Checks that a request comes from the dashboard's own pages.
///
/// # Errors
///
/// Returns `Denied` if it comes from another origin or does not name one.
pub fn same_origin(config: &HttpConfig, parts: &Parts) -> Result<(), AppError> {
    if is_same_origin(config, &parts.uri, &parts.headers) {
        Ok(())
    } else {
        Err(AppError::Denied(CROSS_ORIGIN_REFUSAL.into()))
    }
}

/// Refuses every request that may change something and does not come from the dashboard's own pages. Signing in and out
/// count as changes. Use this middleware with [`axum::middleware::from_fn_with_state`].
pub async fn origin_layer(State(config): State<Arc<HttpConfig>>, request: Request, next: Next) -> Response {
    // The API checks the origin itself, after it has identified the caller: a token needs none.
    let is_api = request.uri().path().starts_with("/api/v1/");
    if is_api || is_read(request.method()) || is_same_origin(&config, request.uri(), request.headers()) {
        return next.run(request).await;
    }
    let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("-").escape_debug();
    tracing::warn!(
        http.path = request.uri().path(),
        http.origin = %text("origin"),
        http.sec_fetch_site = %text("sec-fetch-site"),
        "a request for {} from another site was refused; behind a proxy, set PUBLIC_URL",
        request.uri().path()
    );
    (StatusCode::FORBIDDEN, CROSS_ORIGIN_REFUSAL).into_response()
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

const CROSS_ORIGIN_REFUSAL: &str = "This request did not come from the pages of this dashboard, so nothing was changed. \
                                    Open the dashboard at its own address and try again. Behind a proxy, PUBLIC_URL \
                                    must be that address.";

fn is_same_origin(config: &HttpConfig, uri: &Uri, headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let origin = match (origins.next(), origins.next()) {
        (Some(origin), None) => Some(origin.to_str().is_ok_and(|origin| is_own_origin(config, uri, headers, origin))),
        (None, _) => None,
        (Some(_), Some(_)) => Some(false),
    };
    let mut sites = headers.get_all("sec-fetch-site").iter();
    match (sites.next().map(|site| site.as_bytes()), sites.next()) {
        (Some(b"same-origin"), None) => true,
        // The user typed or reloaded the address; another site cannot cause this. An origin that is sent must still
        // match.
        (Some(b"none"), None) => origin != Some(false),
        (None, None) => origin == Some(true),
        _ => false,
    }
}

/// Returns true if `origin` is that of `PUBLIC_URL` or the one the request was sent to. The latter does not count if
/// `PUBLIC_URL` uses TLS, because an attacker on the network path could serve a page from the plain address.
fn is_own_origin(config: &HttpConfig, uri: &Uri, headers: &HeaderMap, origin: &str) -> bool {
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

/// An origin: scheme, host and explicit port.
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

/// Formats the refusal of an action: the roles that allow it, the role of the user, and the remedy.
pub(super) fn denial(role: Role, action: Permission) -> String {
    let roles = match action.required_role() {
        Role::Viewer => "a Viewer, an Operator or an Admin",
        Role::Operator => "an Operator or Admin",
        Role::Admin => "an Admin",
    };
    let article = if role == Role::Viewer { "a" } else { "an" };
    format!("Only {roles} may {}. You are {article} {}; ask an Admin.", action.describe(), role.label())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(public_url: Option<&str>) -> HttpConfig {
        HttpConfig { public_url: public_url.map(str::to_owned), ..HttpConfig::default() }
    }

    fn passes(public_url: Option<&str>, headers: &[(&'static str, &'static str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, http::HeaderValue::from_static(value));
        }
        is_same_origin(&config(public_url), &Uri::from_static("/api/sign_out"), &map)
    }

    #[test]
    fn only_the_dashboards_own_pages_may_change_anything() {
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
    fn the_public_url_is_an_own_origin_behind_a_proxy() {
        let public = Some("https://jobs.example.org");
        let host = ("host", "10.0.0.5:8600");
        assert!(passes(public, &[host, ("origin", "https://jobs.example.org")]));
        assert!(passes(public, &[host, ("origin", "https://jobs.example.org:443")]));
        assert!(!passes(public, &[host, ("origin", "http://jobs.example.org")]));
        assert!(!passes(public, &[host, ("origin", "http://10.0.0.5:8600")]));
        assert!(passes(Some("http://jobs.lan"), &[host, ("origin", "http://10.0.0.5:8600")]));
    }

    #[test]
    fn a_refusal_names_the_required_role() {
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
