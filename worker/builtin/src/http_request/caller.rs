//! One request, and those it is redirected to.

use std::sync::Arc;

use reqwest::{
    Method, Response, StatusCode, Url,
    header::{ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, HeaderName, LOCATION, USER_AGENT},
};

use super::{auth::RequestCredential, input::PreparedRequest, response::transport_error};
use crate::{
    context::{BuiltinContext, BuiltinError},
    guard::{self, EgressGuard, HttpClientCache},
};

/// The most redirects followed.
const MAX_REDIRECTS: usize = 3;
/// The headers that another host may see too. All others were written for the first.
const CROSS_ORIGIN_HEADERS: [HeaderName; 4] = [ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, USER_AGENT];

/// Makes requests where the guard lets them through.
#[derive(Clone)]
pub(super) struct HttpCaller {
    pub(super) guard: Arc<EgressGuard>,
    pub(super) clients: Arc<HttpClientCache>,
}

impl PreparedRequest {
    /// The request as people see it: without the query, which is where people put secrets.
    pub(super) fn summary(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        let port = self.url.port().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{} {}://{host}{port}{}", self.method, self.url.scheme(), self.url.path())
    }
}

impl HttpCaller {
    /// Sends `request`, after its address was judged.
    pub(super) async fn send(&self, request: &PreparedRequest) -> Result<Response, BuiltinError> {
        let way = self.guard.check(&request.url).await?;
        let client = self.clients.get(&way)?;
        let mut builder = client.request(request.method.clone(), request.url.clone()).headers(request.headers.clone());
        if let Some(body) = &request.body {
            builder = builder.body(body.clone());
        }
        builder.send().await.map_err(|error| transport_error(&format!("{} failed", request.summary()), error))
    }

    /// Sends `request` with `credential`, and follows where the answers point to.
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
        for _ in 0..MAX_REDIRECTS {
            let Some(next) = redirect_target(&response, &request.url)? else { return Ok(response) };
            redirect(&mut request, response.status(), next);
            context.info(format!("{} points to {}", response.status().as_u16(), request.summary()));
            let mut hop = request.clone();
            if request.url.origin() == origin {
                credential.add_to(&mut hop);
            } else {
                if hop.body.is_some() {
                    return Err(BuiltinError::permanent(format!(
                        "the answer points to another host, {}, which would be given the body; call it directly if that is meant",
                        hop.summary()
                    )));
                }
                // For good: whoever is asked on the way back has not proved to be the first.
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
            Some(_) => {
                Err(BuiltinError::permanent(format!("the answer points elsewhere for more than {MAX_REDIRECTS} times")))
            }
        }
    }
}

/// Where a redirect leads to; none if the answer is none.
pub(super) fn redirect_target(response: &Response, from: &Url) -> Result<Option<Url>, BuiltinError> {
    let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let Some(location) = response.headers().get(LOCATION).filter(|_| is_redirect) else { return Ok(None) };
    let text = location.to_str().unwrap_or_default();
    // It is relative to where it came from, and then judged like any other address.
    let joined =
        from.join(text).map_err(|error| BuiltinError::permanent(format!("the redirect cannot be read: {error}")))?;
    guard::parse_url(joined.as_str(), "location").map(Some)
}

/// Makes `request` the one that follows it. As browsers do: whatever is seen elsewhere is fetched, and only 307 and 308
/// ask for the same again.
fn redirect(request: &mut PreparedRequest, status: StatusCode, next: Url) {
    let fetches = match status.as_u16() {
        303 => request.method != Method::HEAD,
        301 | 302 => request.method == Method::POST,
        _ => false,
    };
    if fetches {
        request.method = Method::GET;
        request.body = None;
        request.headers.remove(CONTENT_TYPE);
    }
    request.url = next;
}
