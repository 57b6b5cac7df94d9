//! Security headers of every response.
//!
//! One layer surrounds all routes, so that a missing page, an error, a file and an event stream carry the same headers
//! as a page. Only a rendered page has a nonce and may run the scripts that carry it; all other responses may run none.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use crate::config::http::HttpConfig;

/// The headers with a constant value.
const COMMON_HEADERS: [(HeaderName, &str); 6] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    ),
];

/// The value of `Strict-Transport-Security`: two years, as preload lists require. Browsers read it only over TLS.
const HSTS: &str = "max-age=63072000; includeSubDomains";

/// Adds the security headers to every response. Use this middleware with [`axum::middleware::from_fn_with_state`], as
/// the outermost layer.
pub async fn headers_layer(State(config): State<Arc<HttpConfig>>, request: Request, next: Next) -> Response {
    let is_file = request.uri().path().starts_with("/pkg/");
    let mut response = next.run(request).await;
    let status = response.status();
    protect(response.headers_mut(), status, is_file, config.is_secure());
    response
}

fn protect(headers: &mut HeaderMap, status: StatusCode, is_file: bool, is_secure: bool) {
    for (name, value) in COMMON_HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if is_secure {
        headers.insert(header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static(HSTS));
        secure_cookies(headers);
    }
    if status == StatusCode::UNAUTHORIZED {
        keep_newer_cookies(headers);
    }
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert_with(|| csp(None));
    add_charset(headers);

    let is_cacheable = status.is_success() || status == StatusCode::NOT_MODIFIED;
    if is_file && is_cacheable {
        // The address of a file contains the name of its build, so its content never changes.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
    } else if is_page(headers) {
        // The next user of the same machine must not see the page of the previous one.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    } else {
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
}

/// Drops the removal of cookies. The session layer removes the cookie of a session that has ended. The answer to a request
/// in the background may arrive after a new sign-in in another tab, and would remove the cookie of the new session. A
/// cookie of a session that has ended grants nothing.
fn keep_newer_cookies(headers: &mut HeaderMap) {
    let header::Entry::Occupied(cookies) = headers.entry(header::SET_COOKIE) else { return };
    let is_removal = |cookie: &HeaderValue| cookie.to_str().is_ok_and(|text| text.contains("Max-Age=0"));
    let (_, cookies) = cookies.remove_entry_mult();
    let kept: Vec<HeaderValue> = cookies.filter(|cookie| !is_removal(cookie)).collect();
    for cookie in kept {
        headers.append(header::SET_COOKIE, cookie);
    }
}

/// Adds `Secure` to every cookie. The session layer omits it when it removes its cookie. A browser would then keep the
/// cookie, because a name that starts with `__Host-` requires `Secure`.
fn secure_cookies(headers: &mut HeaderMap) {
    let header::Entry::Occupied(mut cookies) = headers.entry(header::SET_COOKIE) else { return };
    for cookie in cookies.iter_mut() {
        if let Ok(text) = cookie.to_str()
            && !text.split(';').any(|part| part.trim().eq_ignore_ascii_case("secure"))
            && let Ok(marked) = HeaderValue::from_str(&format!("{text}; Secure"))
        {
            *cookie = marked;
        }
    }
}

fn content_type(headers: &HeaderMap) -> &str {
    headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn is_page(headers: &HeaderMap) -> bool {
    content_type(headers).starts_with("text/html")
}

/// Adds `charset=utf-8` to the content type of text. All texts are UTF-8; without the parameter, a browser may guess
/// another encoding.
fn add_charset(headers: &mut HeaderMap) {
    let kind = content_type(headers);
    if kind.starts_with("text/")
        && !kind.contains("charset")
        && let Ok(value) = HeaderValue::from_str(&format!("{kind}; charset=utf-8"))
    {
        headers.insert(header::CONTENT_TYPE, value);
    }
}

/// Returns the content security policy of a page whose scripts carry `nonce`, or of a response without scripts. A nonce
/// that contains anything but base64 characters is ignored.
#[must_use]
pub fn csp(nonce: Option<&str>) -> HeaderValue {
    const REST: &str = "style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; object-src 'none'; \
                        base-uri 'none'; frame-ancestors 'none'; form-action 'self'";
    let is_base64 = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'/' | b'-' | b'_' | b'=');
    let scripts = match nonce {
        // The browser side of the dashboard is WebAssembly, loaded by a script that carries the nonce.
        Some(nonce) if !nonce.is_empty() && nonce.bytes().all(is_base64) => {
            format!("'nonce-{nonce}' 'strict-dynamic' 'wasm-unsafe-eval'")
        }
        _ => "'none'".to_owned(),
    };
    HeaderValue::try_from(format!("default-src 'self'; script-src {scripts}; {REST}"))
        .unwrap_or(HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protected(content_type: Option<&'static str>, status: StatusCode, is_file: bool, is_secure: bool) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(content_type) = content_type {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        protect(&mut headers, status, is_file, is_secure);
        headers
    }

    #[test]
    fn all_responses_are_protected_and_only_files_are_cached() {
        for (kind, status, is_file, cache) in [
            (Some("text/html; charset=utf-8"), StatusCode::OK, false, "no-store"),
            (Some("text/html"), StatusCode::NOT_FOUND, true, "no-store"),
            (Some("application/json"), StatusCode::INTERNAL_SERVER_ERROR, false, "no-store"),
            (Some("text/event-stream"), StatusCode::OK, false, "no-store"),
            (Some("application/wasm"), StatusCode::OK, true, "public, max-age=31536000, immutable"),
            (None, StatusCode::NOT_MODIFIED, true, "public, max-age=31536000, immutable"),
            (None, StatusCode::FOUND, false, "no-store"),
        ] {
            let headers = protected(kind, status, is_file, false);
            // Written out: with the constant alone, a wrong value would be compared with itself.
            assert_eq!(headers[header::X_FRAME_OPTIONS], "DENY");
            assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
            for (name, value) in COMMON_HEADERS {
                assert_eq!(headers[&name], value, "{kind:?}");
            }
            assert_eq!(headers[header::CACHE_CONTROL], cache, "{kind:?} {status}");
            assert_eq!(headers[header::CONTENT_SECURITY_POLICY], csp(None));
            assert!(!headers.contains_key(header::STRICT_TRANSPORT_SECURITY));
        }
        assert!(protected(None, StatusCode::OK, false, true).contains_key(header::STRICT_TRANSPORT_SECURITY));
    }

    #[test]
    fn text_declares_utf_8() {
        let kind = |kind| protected(Some(kind), StatusCode::OK, true, false)[header::CONTENT_TYPE].clone();
        assert_eq!(kind("text/css"), "text/css; charset=utf-8");
        assert_eq!(kind("text/html; charset=utf-8"), "text/html; charset=utf-8");
        assert_eq!(kind("application/wasm"), "application/wasm");
    }

    #[test]
    fn a_page_keeps_its_own_policy() {
        let mut headers = HeaderMap::from_iter([(header::CONTENT_SECURITY_POLICY, csp(Some("c2VjcmV0")))]);
        protect(&mut headers, StatusCode::OK, false, false);
        let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().expect("ASCII").to_owned();
        assert!(policy.contains("script-src 'nonce-c2VjcmV0' 'strict-dynamic' 'wasm-unsafe-eval';"), "{policy}");
    }

    #[test]
    fn refused_request_does_not_remove_the_cookie_of_a_newer_session() {
        let cookies = |status| {
            let mut headers = HeaderMap::new();
            for cookie in ["milvaion_session=; Path=/; Max-Age=0", "milvaion_device=x; Max-Age=60"] {
                headers.append(header::SET_COOKIE, HeaderValue::from_static(cookie));
            }
            protect(&mut headers, status, false, false);
            headers.get_all(header::SET_COOKIE).iter().count()
        };
        assert_eq!((cookies(StatusCode::OK), cookies(StatusCode::UNAUTHORIZED)), (2, 1));
    }

    #[test]
    fn a_nonce_cannot_end_its_directive() {
        for nonce in ["", "a'; script-src *", "a b", "ä", "a\r\nb"] {
            assert_eq!(csp(Some(nonce)), csp(None), "{nonce:?}");
        }
        assert!(csp(None).to_str().expect("ASCII").contains("script-src 'none';"));
    }
}
