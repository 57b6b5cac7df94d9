//! `http-request`: sends an HTTP request and checks the response.
//!
//! ```text
//!  input ─► request ─► credential ─► call (guard, redirects) ─► response ─► status ─► body checks ─► result
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
    auth::RequestCredential,
    caller::HttpCaller,
    input::{HttpAuth, HttpRequestInput, PreparedRequest, StatusCodeRanges},
    oauth::TokenCache,
};
use crate::{
    context::{BuiltinContext, BuiltinError, BuiltinJob, truncate_to_fit},
    guard::{EgressGuard, HttpClientCache, USER_AGENT},
};

/// The job type, with the connections and the tokens that can be reused.
pub(crate) struct HttpRequest {
    caller: HttpCaller,
    tokens: TokenCache,
}

impl HttpRequest {
    pub(crate) fn new(guard: EgressGuard, proxy: Option<Proxy>) -> Self {
        let caller = HttpCaller { guard: Arc::new(guard), clients: Arc::new(HttpClientCache::new(proxy, USER_AGENT)) };
        Self { caller, tokens: TokenCache::default() }
    }

    /// Sends the request. It is sent once more, with a new token, if the server refuses a cached one.
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
        context.info("the server refused the token with status 401; requesting a new one");
        let token = self.tokens.get(client, Some(&token), &self.caller, context).await?;
        self.caller.follow(request, &RequestCredential::bearer(&token)?, input.follow_redirects, context).await
    }
}

/// The response.
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
    const DESCRIPTION: &'static str = "Sends an HTTP request and checks the status and the body of the response.";
    const CONCURRENCY: u16 = 20;
    // The longest timeout of an input, and a minute more.
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
        let limit = Duration::from_secs(input.timeout_seconds.into());
        let timed = async {
            tokio::time::timeout(limit, calling).await.unwrap_or_else(|_| {
                let seconds = input.timeout_seconds;
                Err(BuiltinError::timed_out(format!(
                    "{shown} did not respond within {seconds} s; increase timeoutSeconds if it needs longer"
                )))
            })
        };
        let (status, headers, body, whole) = context.unless_cancelled(&shown, timed).await?;
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let more = if whole { "" } else { ", and more that was not read" };
        context.info(format!("status {status} after {duration_ms} ms, {} bytes{more}", body.len()));

        check_status(status, &headers, &expected, &retried, &shown, &response::quote_body(&body, context))?;
        let body = check_body(&input, body, whole, context).await?;
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

/// Checks the status of the response.
///
/// # Errors
/// Returns a retryable error for the statuses in `retried`, and a permanent one for all others that are not expected.
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
    let quote = if quoted.is_empty() { String::new() } else { format!(" The response begins: {quoted}") };
    if retried.contains(status) {
        let text = format!("{shown} returned status {status}.{quote}");
        return Err(match response::retry_after(headers) {
            Some(pause) => BuiltinError::retry_after(pause, text),
            None => BuiltinError::retry(text),
        });
    }
    let remedy = if (300..400).contains(&status) {
        "set followRedirects to follow the redirect, or add the status to expectedStatus"
    } else {
        "add it to expectedStatus if it is a success, or to retryStatus if another attempt may succeed"
    };
    Err(BuiltinError::permanent(format!("{shown} returned status {status}; {remedy}.{quote}")))
}

/// Returns the body if it meets all conditions.
///
/// # Errors
/// Returns a retryable error if it does not.
async fn check_body(
    input: &HttpRequestInput,
    body: String,
    whole: bool,
    context: &BuiltinContext,
) -> Result<String, BuiltinError> {
    if input.expect_body.is_empty() {
        return Ok(body);
    }
    let (checks, redactor) = (input.expect_body.clone(), context.redactor().clone());
    // On a blocking thread: twenty patterns on a megabyte take too long for a thread that serves other runs.
    let checking = tokio::task::spawn_blocking(move || {
        let json = if whole {
            serde_json::from_str(&body).map_err(|error| error.to_string())
        } else {
            Err(format!("it has more than {} bytes", response::MAX_RESPONSE_BODY_BYTES))
        };
        for check in &checks {
            if let Some(mismatch) = check.mismatch(&body, &json, &redactor)? {
                return Err(BuiltinError::retry(format!("the response does not meet `expectBody`: {mismatch}")));
            }
        }
        Ok(body)
    });
    checking.await.map_err(|_| BuiltinError::retry("the check of the response body has failed"))?
}

#[cfg(test)]
mod tests;
