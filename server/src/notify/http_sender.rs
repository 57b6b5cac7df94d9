//! Requests to addresses that the guard has approved.

use milvaion_address_guard::{EgressGuard, GuardError, GuardWords, HttpClientCache, ProtectedBackend, parse_url};
use reqwest::{Response, StatusCode, header::HeaderMap};
use url::Url;

use super::SendError;
use crate::{config::ServerConfig, error::chain};

/// The words of the guard's messages.
const GUARD_WORDS: GuardWords =
    GuardWords { owner: "the server", sender: "alert", allow: "ALERT_HTTP_ALLOW", deny: "ALERT_HTTP_DENY" };
/// The `User-Agent` of the requests.
pub(crate) const USER_AGENT: &str = concat!("milvaion/", env!("CARGO_PKG_VERSION"));
/// The most bytes of an answer that are read.
const MAX_ANSWER_BYTES: usize = 256;

/// Sends the requests that the guard allows.
pub(super) struct HttpSender {
    guard: EgressGuard,
    clients: HttpClientCache,
}

/// An answer that did not accept the request.
pub(super) struct Refusal {
    status: StatusCode,
    /// The start of the body.
    pub(super) body: String,
}

impl Refusal {
    /// Returns the error for the receiver `what`. `remedy` is for an answer that means that the request is wrong.
    pub(super) fn into_error(self, what: &str, remedy: &str) -> SendError {
        let answer = format!("{what} answered {}", self.status);
        if self.status.is_redirection() {
            return SendError::permanent(format!("{answer}; redirects are not followed, enter the final address"));
        }
        // These three mean: later.
        let is_later = matches!(self.status.as_u16(), 408 | 425 | 429);
        if self.status.is_client_error() && !is_later {
            return SendError::permanent(format!("{answer}; {remedy}"));
        }
        SendError::retry(format!("{answer}; check the receiver if this lasts"))
    }
}

impl From<GuardError> for SendError {
    fn from(error: GuardError) -> Self {
        Self { reason: error.to_string(), is_permanent: error.is_permanent() }
    }
}

impl HttpSender {
    /// Creates the sender of a server, whose own services no request can reach.
    pub(super) fn new(config: &ServerConfig) -> Self {
        let amqp_port = if config.broker.url.starts_with("amqps") { 5671 } else { 5672 };
        let backends = [
            ProtectedBackend::from_url(&config.database.url, 5432),
            postgres_in_parameters(&config.database.url),
            ProtectedBackend::from_url(&config.cache.url, 6379),
            ProtectedBackend::from_url(&config.broker.url, amqp_port),
        ];
        let (allow, deny) = (config.alerts.http_allow.clone(), config.alerts.http_deny.clone());
        let guard = EgressGuard::new(GUARD_WORDS, allow, deny, backends.into_iter().flatten().collect(), false);
        Self { guard, clients: HttpClientCache::new(None, USER_AGENT) }
    }

    /// Posts a JSON document after checking the destination. Redirects are not followed: they could lead to an address
    /// that the user did not enter.
    ///
    /// # Errors
    ///
    /// Returns [`SendError`] if the destination is not allowed or the transfer fails.
    pub(super) async fn post(
        &self,
        url: &Url,
        headers: HeaderMap,
        body: String,
    ) -> Result<Result<(), Refusal>, SendError> {
        let target = self.guard.check(url).await?;
        let client = self.clients.get(&target)?;
        let request = client.post(url.clone()).header("content-type", "application/json").headers(headers).body(body);
        // The address may be a secret.
        let failed = |error: reqwest::Error| {
            let cause = chain(&error.without_url());
            SendError::retry(format!("the request failed: {cause}; check that the receiver is reachable"))
        };
        let answer = request.send().await.map_err(failed)?;
        if answer.status().is_success() {
            return Ok(Ok(()));
        }
        Ok(Err(Refusal { status: answer.status(), body: start_of(answer).await }))
    }
}

/// Returns the start of an answer's body. What cannot be read is left out: the status has the meaning.
async fn start_of(mut answer: Response) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < MAX_ANSWER_BYTES {
        match answer.chunk().await {
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk[..chunk.len().min(MAX_ANSWER_BYTES - bytes.len())]),
            Ok(None) | Err(_) => break,
        }
    }
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// Returns the host of PostgreSQL if the address names it in its parameters, as in `postgres:///name?host=10.0.0.7`.
fn postgres_in_parameters(url: &str) -> Option<ProtectedBackend> {
    let url = Url::parse(url).ok()?;
    let parameter = |names: &[&str]| url.query_pairs().find(|(name, _)| names.contains(&&**name));
    let (_, host) = parameter(&["host", "hostaddr"])?;
    let port = parameter(&["port"]).and_then(|(_, port)| port.parse().ok()).or(url.port()).unwrap_or(5432);
    Some(ProtectedBackend { host: milvaion_address_guard::normalize_host(&host), port })
}

/// Parses the address of a receiver. `what` names it in an error, which does not repeat it.
///
/// # Errors
///
/// Returns a permanent error if it is no address of a web server.
pub(super) fn receiver_url(text: &str, what: &str) -> Result<Url, SendError> {
    Ok(parse_url(text, what, "leave it out, and let the receiver check the signature")?)
}
