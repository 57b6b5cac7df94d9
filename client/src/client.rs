//! The client: sends a request, repeats it if that is safe and useful, and reads the answer.
//!
//! Redirects are not followed: the token belongs to one server, and a redirect to another address means that the
//! configured one is wrong. Each try of a request takes at most 30 s including its answer. A stream has no such limit, but the
//! server sends a ping every 15 s, so one that is silent for 45 s is dead.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use milvaion_api::rest::Problem;
use milvaion_protocol::trace::Traceparent;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use url::Url;

use crate::{ClientError, address, retry::Outcome};

/// The maximum time for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of characters of an unexpected answer in an error.
const EXCERPT_CHARS: usize = 200;
/// The media type of a problem.
const PROBLEM_JSON: &str = "application/problem+json";

/// The limits of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientOptions {
    /// The maximum time for one try of a request with its answer; 30 s by default.
    pub request_timeout: Duration,
    /// The maximum silence of a stream; 45 s by default.
    pub stream_idle_timeout: Duration,
    /// The maximum number of repetitions of a request; 3 by default.
    pub max_retries: u32,
    /// The wait before the first repetition if the server names none, doubled with each; 200 ms by default.
    pub retry_delay: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            request_timeout: Duration::from_secs(30),
            stream_idle_timeout: Duration::from_secs(45),
            max_retries: 3,
            retry_delay: Duration::from_millis(200),
        }
    }
}

/// A client of the REST API of one server. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    authorization: HeaderValue,
    traceparent: Option<HeaderValue>,
    options: ClientOptions,
}

/// A request before it is sent, so that it can be sent again.
#[derive(Debug)]
struct Call {
    method: Method,
    url: Url,
    body: Option<Vec<u8>>,
    if_match: Option<i32>,
    idempotency_key: Option<String>,
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The status, which is a success.
    pub(crate) status: StatusCode,
    url: Url,
    body: Vec<u8>,
}

impl Answer {
    /// Reads the document.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        serde_json::from_slice(&self.body)
            .map_err(|source| ClientError::UnreadableAnswer { address: self.url.to_string(), source })
    }
}

impl Client {
    /// Builds a client for the server at `MILVAION_URL` with the token in `MILVAION_TOKEN`, the environment variables of the
    /// commands of `milvaion`. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::MissingVariable`] if one of them is not set, and the errors of [`new`](Self::new).
    pub fn from_env() -> Result<Self, ClientError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ClientError> {
        let read = |name| lookup(name).filter(|value| !value.is_empty()).ok_or(ClientError::MissingVariable { name });
        Self::new(&read("MILVAION_URL")?, &read("MILVAION_TOKEN")?)
    }

    /// Builds a client for the server at an address, such as `https://jobs.example.com`. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// Returns an error if the address or the token cannot be valid.
    pub fn new(base_url: &str, token: &str) -> Result<Self, ClientError> {
        Self::with_options(base_url, token, ClientOptions::default())
    }

    /// Builds a client with other limits.
    ///
    /// # Errors
    ///
    /// Returns an error if the address or the token cannot be valid.
    pub fn with_options(base_url: &str, token: &str, options: ClientOptions) -> Result<Self, ClientError> {
        let base = address::parse_address(base_url)?;
        let authorization = address::authorization(token)?;
        let http = reqwest::Client::builder()
            .user_agent(concat!("milvaion-client/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT.min(options.request_timeout))
            .build()
            .map_err(ClientError::Setup)?;
        Ok(Self { http, base, authorization, traceparent: None, options })
    }

    /// Returns a client whose requests continue a trace. An occurrence that one of them creates belongs to it.
    #[must_use]
    pub fn in_trace(&self, traceparent: &Traceparent) -> Self {
        Self { traceparent: HeaderValue::from_str(&traceparent.to_string()).ok(), ..self.clone() }
    }

    /// Returns the address of the server.
    #[must_use]
    pub const fn base_url(&self) -> &Url {
        &self.base
    }

    /// Returns the limits.
    pub(crate) const fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// Reads a document.
    pub(crate) async fn get<Q: Serialize, T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &Q,
    ) -> Result<T, ClientError> {
        self.send(&self.call(Method::GET, path, Some(query))?).await?.json()
    }

    /// Sends a document with a new idempotency key.
    pub(crate) async fn post<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &B,
    ) -> Result<T, ClientError> {
        let mut call = self.call(Method::POST, path, None::<&()>)?;
        call.body = Some(to_json(body)?);
        call.idempotency_key = Some(new_idempotency_key());
        self.send(&call).await?.json()
    }

    /// Sends a POST without a body, with a new idempotency key.
    pub(crate) async fn post_empty<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, ClientError> {
        let mut call = self.call(Method::POST, path, None::<&()>)?;
        call.idempotency_key = Some(new_idempotency_key());
        self.send(&call).await?.json()
    }

    /// Replaces an object, of which `expected` is the version if it is given.
    pub(crate) async fn put<B: Serialize>(
        &self,
        path: &[&str],
        body: &B,
        expected: Option<i32>,
    ) -> Result<Answer, ClientError> {
        let mut call = self.call(Method::PUT, path, None::<&()>)?;
        call.body = Some(to_json(body)?);
        call.if_match = expected;
        self.send(&call).await
    }

    /// Deletes an object, of which `expected` is the version if it is given.
    pub(crate) async fn delete(&self, path: &[&str], expected: Option<i32>) -> Result<(), ClientError> {
        let mut call = self.call(Method::DELETE, path, None::<&()>)?;
        call.if_match = expected;
        self.send(&call).await.map(drop)
    }

    /// Opens a stream of events. The request is sent once: a follower decides about the next try. If it failed for a
    /// reason that may pass, the error comes with the wait before the next try.
    pub(crate) async fn open_stream<Q: Serialize>(
        &self,
        path: &[&str],
        query: &Q,
        failures: u32,
    ) -> Result<reqwest::Response, (ClientError, Option<Duration>)> {
        let call = self.call(Method::GET, path, Some(query)).map_err(|error| (error, None))?;
        let wait = |outcome: Outcome| outcome.delay(failures, self.options.retry_delay);
        let request = self.build(&call).header(header::ACCEPT, "text/event-stream").send();
        let response = match tokio::time::timeout(self.options.request_timeout, request).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err((self.transport(error), wait(Outcome::Disconnected))),
            Err(_) => return Err((self.timeout(self.options.request_timeout), wait(Outcome::Disconnected))),
        };
        let (status, headers) = (response.status(), response.headers().clone());
        if status.is_success() && media_type(&headers) == "text/event-stream" {
            return Ok(response);
        }
        let wait = if status.is_success() { None } else { wait(Outcome::of(status, &headers)) };
        let body = tokio::time::timeout(self.options.request_timeout, response.bytes()).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        Err((failure(&call.url, status, &headers, &body), wait))
    }

    fn call<Q: Serialize>(&self, method: Method, path: &[&str], query: Option<&Q>) -> Result<Call, ClientError> {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["api", "v1"]).extend(path);
        }
        if let Some(query) = query {
            // A query is an object of simple values, and a field without a value is left out.
            let fields = serde_json::to_value(query).map_err(ClientError::UnwritableRequest)?;
            let fields = fields.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
            let pairs: Vec<_> = fields.map(|(name, value)| (name.clone(), plain(value))).collect();
            if !pairs.is_empty() {
                url.query_pairs_mut().extend_pairs(pairs);
            }
        }
        Ok(Call { method, url, body: None, if_match: None, idempotency_key: None })
    }

    fn build(&self, call: &Call) -> reqwest::RequestBuilder {
        let mut request = self
            .http
            .request(call.method.clone(), call.url.clone())
            .header(header::AUTHORIZATION, self.authorization.clone());
        if let Some(body) = &call.body {
            request = request.header(header::CONTENT_TYPE, "application/json").body(body.clone());
        }
        if let Some(version) = call.if_match {
            request = request.header(header::IF_MATCH, format!("\"{version}\""));
        }
        if let Some(key) = &call.idempotency_key {
            request = request.header("idempotency-key", key);
        }
        if let Some(traceparent) = &self.traceparent {
            request = request.header("traceparent", traceparent.clone());
        }
        request
    }

    /// Sends a request until it has a final outcome or has been repeated often enough.
    async fn send(&self, call: &Call) -> Result<Answer, ClientError> {
        let is_repeatable = call.method == Method::GET || call.idempotency_key.is_some();
        let mut failures = 0;
        loop {
            let (error, outcome) = match self.attempt(call).await {
                Ok((status, _, body)) if status.is_success() => {
                    return Ok(Answer { status, url: call.url.clone(), body });
                }
                Ok((status, headers, body)) => {
                    (failure(&call.url, status, &headers, &body), Some(Outcome::of(status, &headers)))
                }
                Err(error) if error.is_timeout() && !error.is_connect() => {
                    (self.timeout(self.options.request_timeout), Some(Outcome::Disconnected))
                }
                Err(error) => {
                    let outcome = (!error.is_builder()).then_some(Outcome::Disconnected);
                    (self.transport(error), outcome)
                }
            };
            failures += 1;
            let delay = outcome.and_then(|outcome| outcome.delay(failures, self.options.retry_delay));
            match delay {
                Some(delay) if is_repeatable && failures <= self.options.max_retries => {
                    tokio::time::sleep(delay).await;
                }
                _ => return Err(error),
            }
        }
    }

    async fn attempt(&self, call: &Call) -> Result<(StatusCode, HeaderMap, Vec<u8>), reqwest::Error> {
        let request = self.build(call).header(header::ACCEPT, "application/json");
        let response = request.timeout(self.options.request_timeout).send().await?;
        let (status, headers) = (response.status(), response.headers().clone());
        Ok((status, headers, response.bytes().await?.to_vec()))
    }

    /// Builds the error of a connection, whose text must not repeat the address.
    pub(crate) fn transport(&self, error: reqwest::Error) -> ClientError {
        ClientError::Transport { address: self.base.to_string(), source: error.without_url() }
    }

    /// Builds the error of a limit.
    pub(crate) fn timeout(&self, limit: Duration) -> ClientError {
        ClientError::Timeout { address: self.base.to_string(), seconds: limit.as_secs() }
    }
}

fn to_json<B: Serialize>(body: &B) -> Result<Vec<u8>, ClientError> {
    serde_json::to_vec(body).map_err(ClientError::UnwritableRequest)
}

/// Returns the query text of a simple value: a string without its quotation marks.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// Returns a random key, with which the server recognises the same request.
fn new_idempotency_key() -> String {
    uuid::Builder::from_random_bytes(rand::random()).into_uuid().to_string()
}

fn media_type(headers: &HeaderMap) -> &str {
    let text = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim()
}

/// Returns the error of an answer that is not a success.
fn failure(url: &Url, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> ClientError {
    if media_type(headers) == PROBLEM_JSON
        && let Ok(problem) = serde_json::from_slice::<Problem>(body)
    {
        // A proxy may change the status of an answer and not its document.
        return ClientError::Problem(Box::new(Problem { status: status.as_u16(), ..problem }));
    }
    let location = headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
    let text = location.map_or_else(|| String::from_utf8_lossy(body).into_owned(), ToOwned::to_owned);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let excerpt = words.chars().filter(|letter| !letter.is_control()).take(EXCERPT_CHARS).collect();
    ClientError::NotTheApi { address: url.to_string(), status, excerpt }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_of_the_environment_names_the_missing_variable() {
        let of = |url: &'static str, token: &'static str| {
            Client::from_lookup(|name| Some(if name == "MILVAION_URL" { url } else { token }.to_owned()))
        };
        assert_eq!(of("http://127.0.0.1:8600", "mil_x").expect("a client").base_url().port(), Some(8600));
        let missing = |url, token| match of(url, token) {
            Err(ClientError::MissingVariable { name }) => name,
            other => panic!("{other:?}"),
        };
        assert_eq!(missing("", "mil_x"), "MILVAION_URL");
        assert_eq!(missing("http://127.0.0.1:8600", ""), "MILVAION_TOKEN");
    }
}
