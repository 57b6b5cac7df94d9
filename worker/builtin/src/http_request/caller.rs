//! Sends a request and follows its redirects.

use std::sync::Arc;

use reqwest::{
    Method, Response, StatusCode, Url,
    header::{ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, HeaderName, LOCATION, USER_AGENT},
};
use tracing::{Instrument, field::Empty};

use super::{auth::RequestCredential, input::PreparedRequest, response::transport_error};
use crate::{
    context::{BuiltinContext, BuiltinError},
    guard::{self, EgressGuard, HttpClientCache},
};

/// The header with the position in a trace.
const TRACEPARENT: &str = "traceparent";
/// Maximum number of redirects that are followed.
const MAX_REDIRECTS: usize = 3;
/// The headers that are also sent to another host. All others were written for the first one.
const CROSS_ORIGIN_HEADERS: [HeaderName; 4] = [ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, USER_AGENT];

/// Sends the requests that the guard allows.
#[derive(Clone)]
pub(super) struct HttpCaller {
    pub(super) guard: Arc<EgressGuard>,
    pub(super) clients: Arc<HttpClientCache>,
}

impl PreparedRequest {
    /// Returns the request as users see it: without the query, where secrets are often put.
    pub(super) fn summary(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        let port = self.url.port().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{} {}://{host}{port}{}", self.method, self.url.scheme(), self.url.path())
    }
}

impl HttpCaller {
    /// Sends `request` after checking its destination.
    ///
    /// # Errors
    /// Returns a permanent error if the destination is not allowed, and a retryable one if the transfer fails.
    pub(super) async fn send(&self, request: &PreparedRequest) -> Result<Response, BuiltinError> {
        let target = self.guard.check(&request.url).await?;
        let client = self.clients.get(&target)?;
        let mut builder = client.request(request.method.clone(), request.url.clone()).headers(request.headers.clone());
        if let Some(body) = &request.body {
            builder = builder.body(body.clone());
        }
        // The address is left out: a part of it may be a secret, and spans are not redacted.
        let span = tracing::info_span!(
            "HTTP",
            otel.name = %request.method,
            otel.kind = "client",
            otel.status_code = Empty,
            http.request.method = %request.method,
            http.response.status_code = Empty,
        );
        let send = async move {
            // The other side continues the trace, unless the author of the job has set the header.
            if !request.headers.contains_key(TRACEPARENT)
                && let Some(position) = milvaion_telemetry::current()
            {
                builder = builder.header(TRACEPARENT, position.to_string());
            }
            builder.send().await
        };
        let answer = send.instrument(span.clone()).await;
        match &answer {
            Ok(response) => span.record("http.response.status_code", response.status().as_u16()),
            Err(_) => span.record("otel.status_code", "ERROR"),
        };
        answer.map_err(|error| transport_error(&format!("{} failed", request.summary()), error))
    }

    /// Sends `request` with `credential`, and follows redirects if `follows` is true.
    ///
    /// # Errors
    /// Returns the errors of [`send`](Self::send), and a permanent error for a redirect that must not be followed.
    pub(super) async fn follow(
        &self,
        request: &PreparedRequest,
        credential: &RequestCredential,
        follows: bool,
        context: &BuiltinContext,
    ) -> Result<Response, BuiltinError> {
        let mut request = request.clone();
        let origin = request.url.origin();
        let mut first = request.clone();
        credential.add_to(&mut first);
        let mut response = self.send(&first).await?;
        if !follows {
            return Ok(response);
        }
        let mut is_own_request = true;
        for _ in 0..MAX_REDIRECTS {
            let Some(next) = redirect_target(&response, &request.url)? else { return Ok(response) };
            redirect(&mut request, response.status(), next);
            context.info(format!("status {} redirects to {}", response.status().as_u16(), request.summary()));
            let mut hop = request.clone();
            // A redirect that leads back from another host was chosen by that host, and must not act with the credential.
            is_own_request &= request.url.origin() == origin;
            if is_own_request {
                credential.add_to(&mut hop);
            } else if request.url.origin() != origin {
                if hop.body.is_some() {
                    return Err(BuiltinError::permanent(format!(
                        "the response redirects to another host, {}, which would receive the request body; request it directly if that is intended",
                        hop.summary()
                    )));
                }
                // They stay removed even if a later redirect leads back: the other host has chosen that request.
                request.headers = hop
                    .headers
                    .into_iter()
                    .filter_map(|(name, value)| Some((name?, value)))
                    .filter(|(name, _)| CROSS_ORIGIN_HEADERS.contains(name))
                    .collect();
                hop.headers = request.headers.clone();
            }
            response =
                self.send(&hop).await.map_err(|failure| failure.with_context("the redirect was not followed"))?;
        }
        match redirect_target(&response, &request.url)? {
            None => Ok(response),
            Some(_) => Err(BuiltinError::permanent(format!("the response redirects more than {MAX_REDIRECTS} times"))),
        }
    }
}

/// Returns the target of a redirect, or nothing if the response is not a redirect.
///
/// # Errors
/// Returns a permanent error if the target is not a valid URL.
pub(super) fn redirect_target(response: &Response, from: &Url) -> Result<Option<Url>, BuiltinError> {
    let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let Some(location) = response.headers().get(LOCATION).filter(|_| is_redirect) else { return Ok(None) };
    let text = location.to_str().unwrap_or_default();
    // The target is relative to the URL it came from, and is then checked like any other.
    let joined =
        from.join(text).map_err(|error| BuiltinError::permanent(format!("the redirect is invalid: {error}")))?;
    guard::parse_url(joined.as_str(), "location").map(Some)
}

/// Changes `request` into the one that follows a redirect. The method changes as in browsers: only 307 and 308 repeat a
/// POST, and 303 leads to a GET.
fn redirect(request: &mut PreparedRequest, status: StatusCode, next: Url) {
    let becomes_get = match status.as_u16() {
        303 => request.method != Method::HEAD,
        301 | 302 => request.method == Method::POST,
        _ => false,
    };
    if becomes_get {
        request.method = Method::GET;
        request.body = None;
        request.headers.remove(CONTENT_TYPE);
    }
    request.url = next;
}
