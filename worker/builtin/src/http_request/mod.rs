//! `http-request`: calls an address and looks at the answer.
//!
//! ```text
//!  input ─► request ─► credential ─► call (guard, redirects) ─► answer ─► status ─► body checks ─► result
//!                         ▲  oauth: tokens        │ 401
//!                         └───────── once ────────┘
//! ```

mod answer;
mod auth;
mod call;
mod expect;
mod input;
mod oauth;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use reqwest::{Proxy, Response, StatusCode};
use serde::Serialize;

use self::{
    auth::{Auth, Credential},
    call::Caller,
    input::{Input, Request, Statuses},
    oauth::Tokens,
};
use crate::{
    guard::{Clients, Guard},
    seal::{BuiltIn, Desk, Failure, fit},
};

/// The job type; holds the connections and the tokens that may be used again.
pub(crate) struct HttpRequest {
    caller: Caller,
    tokens: Tokens,
}

impl HttpRequest {
    pub(crate) fn new(guard: Guard, proxy: Option<Proxy>) -> Self {
        let caller = Caller { guard: Arc::new(guard), clients: Arc::new(Clients::new(proxy)) };
        Self { caller, tokens: Tokens::default() }
    }

    /// Calls, and once more with a new token when the other side refuses one that was good a moment ago.
    async fn call(&self, input: &Input, request: &Request, desk: &Desk) -> Result<Response, Failure> {
        let Some(auth) = &input.auth else {
            return self.caller.follow(request, &Credential::None, input.follow_redirects, desk).await;
        };
        if let Some(credential) = Credential::of(auth, desk)? {
            return self.caller.follow(request, &credential, input.follow_redirects, desk).await;
        }
        let Auth::OAuth2(client) = auth else { return Err(Failure::permanent("`auth` has an unknown type")) };
        let token = self.tokens.get(client, None, &self.caller, desk).await?;
        let response = self.caller.follow(request, &Credential::bearer(&token)?, input.follow_redirects, desk).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(response);
        }
        desk.info("401: the token is refused; a new one is asked for");
        let token = self.tokens.get(client, Some(&token), &self.caller, desk).await?;
        self.caller.follow(request, &Credential::bearer(&token)?, input.follow_redirects, desk).await
    }
}

/// What came back.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Output {
    status: u16,
    duration_ms: u64,
    headers: BTreeMap<String, String>,
    body: String,
    truncated: bool,
}

impl BuiltIn for HttpRequest {
    const TYPE: &'static str = "http-request";
    const DESCRIPTION: &'static str = "Calls an address over HTTP and checks the status and the body of the answer.";
    const CONCURRENCY: u16 = 20;
    // The longest that an input can ask for, and some.
    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(3600 + 60));
    type Input = Input;
    type Output = Output;

    async fn run(&self, desk: &Desk, input: Input) -> Result<Output, Failure> {
        let request = input.request()?;
        let (expected, retried) = (input.expected()?, input.retried()?);
        input.expect_body.iter().try_for_each(expect::BodyCheck::check)?;
        let shown = request.shown();
        desk.info(&shown);
        let started = Instant::now();
        let calling = async {
            let response = self.call(&input, &request, desk).await?;
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            let (body, whole) = answer::read(response, answer::MAX_BODY).await?;
            Ok((status, headers, body, whole))
        };
        let patience = Duration::from_secs(input.timeout_seconds.into());
        let timed = async {
            tokio::time::timeout(patience, calling).await.unwrap_or_else(|_| {
                let seconds = input.timeout_seconds;
                Err(Failure::retry(format!(
                    "{shown} did not answer within {seconds} s; give timeoutSeconds a larger value if it needs longer"
                )))
            })
        };
        let (status, headers, body, whole) = desk.unless_cancelled(&shown, timed).await?;
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let more = if whole { "" } else { ", and more that was not read" };
        desk.info(format!("{status} after {duration_ms} ms, {} bytes{more}", body.len()));

        judge(status, &headers, &expected, &retried, &shown, &answer::quoted(&body, desk))?;
        let body = check_body(&input, body, whole).await?;
        let headers = answer::kept_headers(&headers, desk);
        let body = desk.redactor().clean(&body).into_owned();
        Ok(fit(body, |body, cut| Output {
            status,
            duration_ms,
            headers: headers.clone(),
            body,
            truncated: cut || !whole,
        }))
    }
}

/// Whether the status is what was hoped for, worth another try, or neither.
fn judge(
    status: u16,
    headers: &reqwest::header::HeaderMap,
    expected: &Statuses,
    retried: &Statuses,
    shown: &str,
    quoted: &str,
) -> Result<(), Failure> {
    if expected.contain(status) {
        return Ok(());
    }
    let begins = if quoted.is_empty() { String::new() } else { format!(" The answer begins: {quoted}") };
    if retried.contain(status) {
        let text = format!("{shown} answered {status}.{begins}");
        return Err(match answer::pause(headers) {
            Some(pause) => Failure::retry_after(pause, text),
            None => Failure::retry(text),
        });
    }
    let remedy = if (300..400).contains(&status) {
        "set followRedirects to go where it points to, or add the status to expectedStatus"
    } else {
        "add it to expectedStatus if that is all right, to retryStatus if another attempt may do better"
    };
    Err(Failure::permanent(format!("{shown} answered {status}; {remedy}.{begins}")))
}

/// Gives the body back when it is as expected.
async fn check_body(input: &Input, body: String, whole: bool) -> Result<String, Failure> {
    if input.expect_body.is_empty() {
        return Ok(body);
    }
    let checks = input.expect_body.clone();
    // On a thread of its own: a megabyte and twenty patterns are too much for one that serves other runs.
    let checking = tokio::task::spawn_blocking(move || {
        let json = if whole {
            serde_json::from_str(&body).map_err(|error| error.to_string())
        } else {
            Err(format!("it has more than {} bytes", answer::MAX_BODY))
        };
        for check in &checks {
            if let Some(objection) = check.objection(&body, &json)? {
                return Err(Failure::retry(format!("the answer is not as `expectBody` wants it: {objection}")));
            }
        }
        Ok(body)
    });
    checking.await.map_err(|_| Failure::retry("the body could not be checked"))?
}

#[cfg(test)]
mod tests;
