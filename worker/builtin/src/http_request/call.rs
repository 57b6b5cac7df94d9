//! One request, and those it is redirected to.

use std::sync::Arc;

use reqwest::{
    Method, Response, StatusCode, Url,
    header::{ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, HeaderName, LOCATION, USER_AGENT},
};

use super::{answer::broken, auth::Credential, input::Request};
use crate::{
    guard::{self, Clients, Guard},
    seal::{Desk, Failure},
};

/// The most redirects followed.
const MAX_REDIRECTS: usize = 3;
/// The headers that another host may see too. All others were written for the first.
const HARMLESS: [HeaderName; 4] = [ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, USER_AGENT];

/// Makes requests where the guard lets them through.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) guard: Arc<Guard>,
    pub(super) clients: Arc<Clients>,
}

impl Request {
    /// The request as people see it: without the query, which is where people put secrets.
    pub(super) fn shown(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        let port = self.url.port().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{} {}://{host}{port}{}", self.method, self.url.scheme(), self.url.path())
    }
}

impl Caller {
    /// Sends `request`, after its address was judged.
    pub(super) async fn send(&self, request: &Request) -> Result<Response, Failure> {
        let way = self.guard.check(&request.url).await?;
        let client = self.clients.get(&way)?;
        let mut builder = client.request(request.method.clone(), request.url.clone()).headers(request.headers.clone());
        if let Some(body) = &request.body {
            builder = builder.body(body.clone());
        }
        builder.send().await.map_err(|error| broken(&format!("{} failed", request.shown()), error))
    }

    /// Sends `request` with `credential`, and follows where the answers point to.
    pub(super) async fn follow(
        &self,
        request: &Request,
        credential: &Credential,
        follows: bool,
        desk: &Desk,
    ) -> Result<Response, Failure> {
        let mut request = request.clone();
        let origin = request.url.origin();
        let mut first = request.clone();
        credential.add_to(&mut first);
        let mut response = self.send(&first).await?;
        if !follows {
            return Ok(response);
        }
        for _ in 0..MAX_REDIRECTS {
            let Some(next) = target(&response, &request.url)? else { return Ok(response) };
            redirect(&mut request, response.status(), next);
            desk.info(format!("{} points to {}", response.status().as_u16(), request.shown()));
            let mut hop = request.clone();
            if request.url.origin() == origin {
                credential.add_to(&mut hop);
            } else {
                if hop.body.is_some() {
                    return Err(Failure::permanent(format!(
                        "the answer points to another host, {}, which would be given the body; call it directly if that is meant",
                        hop.shown()
                    )));
                }
                // For good: whoever is asked on the way back has not proved to be the first.
                request.headers = hop
                    .headers
                    .into_iter()
                    .filter_map(|(name, value)| Some((name?, value)))
                    .filter(|(name, _)| HARMLESS.contains(name))
                    .collect();
                hop.headers = request.headers.clone();
            }
            response = self.send(&hop).await.map_err(|failure| failure.within("the redirect was not followed"))?;
        }
        match target(&response, &request.url)? {
            None => Ok(response),
            Some(_) => {
                Err(Failure::permanent(format!("the answer points elsewhere for more than {MAX_REDIRECTS} times")))
            }
        }
    }
}

/// Where a redirect leads to; none if the answer is none.
pub(super) fn target(response: &Response, from: &Url) -> Result<Option<Url>, Failure> {
    let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let Some(location) = response.headers().get(LOCATION).filter(|_| is_redirect) else { return Ok(None) };
    let text = location.to_str().unwrap_or_default();
    // It is relative to where it came from, and then judged like any other address.
    let joined =
        from.join(text).map_err(|error| Failure::permanent(format!("the redirect cannot be read: {error}")))?;
    guard::address(joined.as_str(), "location").map(Some)
}

/// Makes `request` the one that follows it. As browsers do: whatever is seen elsewhere is fetched, and only 307 and 308
/// ask for the same again.
fn redirect(request: &mut Request, status: StatusCode, next: Url) {
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
