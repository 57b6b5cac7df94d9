//! `http-request`: calls an address and looks at the answer.
//!
//! ```text
//!  input ─► request ─► credential ─► call (guard, redirects) ─► answer ─► status ─► body checks ─► result
//!                         ▲  oauth: tokens        │ 401
//!                         └───────── once ────────┘
//! ```

mod auth;
mod body_check;
mod caller;
mod input;
mod oauth;
mod response;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use reqwest::{Proxy, Response, StatusCode};
use serde::Serialize;

use self::{
    auth::{HttpAuth, RequestCredential},
    caller::HttpCaller,
    input::{HttpRequestInput, PreparedRequest, StatusCodeRanges},
    oauth::TokenCache,
};
use crate::{
    context::{BuiltinContext, BuiltinError, BuiltinJob, truncate_to_fit},
    guard::{EgressGuard, HttpClientCache},
};

/// The job type; holds the connections and the tokens that may be used again.
pub(crate) struct HttpRequest {
    caller: HttpCaller,
    tokens: TokenCache,
}

impl HttpRequest {
    pub(crate) fn new(guard: EgressGuard, proxy: Option<Proxy>) -> Self {
        let caller = HttpCaller { guard: Arc::new(guard), clients: Arc::new(HttpClientCache::new(proxy)) };
        Self { caller, tokens: TokenCache::default() }
    }

    /// Calls, and once more with a new token when the other side refuses one that was good a moment ago.
    async fn call(
        &self,
        input: &HttpRequestInput,
        request: &PreparedRequest,
        context: &BuiltinContext,
    ) -> Result<Response, BuiltinError> {
        let Some(auth) = &input.auth else {
            return self.caller.follow(request, &RequestCredential::None, input.follow_redirects, context).await;
        };
        if let Some(credential) = RequestCredential::from_auth(auth, context)? {
            return self.caller.follow(request, &credential, input.follow_redirects, context).await;
        }
        let HttpAuth::OAuth2(client) = auth else { return Err(BuiltinError::permanent("`auth` has an unknown type")) };
        let token = self.tokens.get(client, None, &self.caller, context).await?;
        let response =
            self.caller.follow(request, &RequestCredential::bearer(&token)?, input.follow_redirects, context).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(response);
        }
        context.info("401: the token is refused; a new one is asked for");
        let token = self.tokens.get(client, Some(&token), &self.caller, context).await?;
        self.caller.follow(request, &RequestCredential::bearer(&token)?, input.follow_redirects, context).await
    }
}

/// What came back.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HttpRequestOutput {
    status: u16,
    duration_ms: u64,
    headers: BTreeMap<String, String>,
    body: String,
    truncated: bool,
}

impl BuiltinJob for HttpRequest {
    const TYPE: &'static str = "http-request";
    const DESCRIPTION: &'static str = "Calls an address over HTTP and checks the status and the body of the answer.";
    const CONCURRENCY: u16 = 20;
    // The longest that an input can ask for, and some.
    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(3600 + 60));
    type Input = HttpRequestInput;
    type Output = HttpRequestOutput;

    async fn run(&self, context: &BuiltinContext, input: HttpRequestInput) -> Result<HttpRequestOutput, BuiltinError> {
        let request = input.request()?;
        let (expected, retried) = (input.expected_statuses()?, input.retry_statuses()?);
        input.expect_body.iter().try_for_each(body_check::BodyCheck::validate)?;
        let shown = request.summary();
        context.info(&shown);
        let started = Instant::now();
        let calling = async {
            let response = self.call(&input, &request, context).await?;
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            let (body, whole) = response::read_body(response, response::MAX_RESPONSE_BODY_BYTES).await?;
            Ok((status, headers, body, whole))
        };
        let patience = Duration::from_secs(input.timeout_seconds.into());
        let timed = async {
            tokio::time::timeout(patience, calling).await.unwrap_or_else(|_| {
                let seconds = input.timeout_seconds;
                Err(BuiltinError::retry(format!(
                    "{shown} did not answer within {seconds} s; give timeoutSeconds a larger value if it needs longer"
                )))
            })
        };
        let (status, headers, body, whole) = context.unless_cancelled(&shown, timed).await?;
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let more = if whole { "" } else { ", and more that was not read" };
        context.info(format!("{status} after {duration_ms} ms, {} bytes{more}", body.len()));

        check_status(status, &headers, &expected, &retried, &shown, &response::quote_body(&body, context))?;
        let body = check_body(&input, body, whole).await?;
        let headers = response::readable_headers(&headers, context);
        let body = context.redactor().redact(&body).into_owned();
        Ok(truncate_to_fit(body, |body, cut| HttpRequestOutput {
            status,
            duration_ms,
            headers: headers.clone(),
            body,
            truncated: cut || !whole,
        }))
    }
}

/// Whether the status is what was hoped for, worth another try, or neither.
fn check_status(
    status: u16,
    headers: &reqwest::header::HeaderMap,
    expected: &StatusCodeRanges,
    retried: &StatusCodeRanges,
    shown: &str,
    quoted: &str,
) -> Result<(), BuiltinError> {
    if expected.contains(status) {
        return Ok(());
    }
    let begins = if quoted.is_empty() { String::new() } else { format!(" The answer begins: {quoted}") };
    if retried.contains(status) {
        let text = format!("{shown} answered {status}.{begins}");
        return Err(match response::retry_after(headers) {
            Some(pause) => BuiltinError::retry_after(pause, text),
            None => BuiltinError::retry(text),
        });
    }
    let remedy = if (300..400).contains(&status) {
        "set followRedirects to go where it points to, or add the status to expectedStatus"
    } else {
        "add it to expectedStatus if that is all right, to retryStatus if another attempt may do better"
    };
    Err(BuiltinError::permanent(format!("{shown} answered {status}; {remedy}.{begins}")))
}

/// Gives the body back when it is as expected.
async fn check_body(input: &HttpRequestInput, body: String, whole: bool) -> Result<String, BuiltinError> {
    if input.expect_body.is_empty() {
        return Ok(body);
    }
    let checks = input.expect_body.clone();
    // On a thread of its own: a megabyte and twenty patterns are too much for one that serves other runs.
    let checking = tokio::task::spawn_blocking(move || {
        let json = if whole {
            serde_json::from_str(&body).map_err(|error| error.to_string())
        } else {
            Err(format!("it has more than {} bytes", response::MAX_RESPONSE_BODY_BYTES))
        };
        for check in &checks {
            if let Some(objection) = check.mismatch(&body, &json)? {
                return Err(BuiltinError::retry(format!("the answer is not as `expectBody` wants it: {objection}")));
            }
        }
        Ok(body)
    });
    checking.await.map_err(|_| BuiltinError::retry("the body could not be checked"))?
}

#[cfg(test)]
mod tests;
