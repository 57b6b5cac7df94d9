//! An HTTP client for a user's requests: sign in, define jobs, trigger, pause and cancel runs, as a browser sends them.
//!
//! A missing response is not a refusal. The server may have carried out the request, so the outcome is recorded as
//! unknown, and the checker accepts both.

use std::time::Duration;

use anyhow::{bail, ensure};
use reqwest::{Client, Method, Response, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};

/// The time a server has to respond.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The outcome of a request.
#[derive(Debug)]
pub(crate) enum ApiReply {
    /// The server carried it out, and returned this value.
    Done(Value),
    /// The server refused it, and will not carry it out later.
    Refused(String),
    /// There was no usable response; the server may have carried it out.
    Unknown(String),
}

impl ApiReply {
    /// Returns the outcome as a word of `ops.jsonl`.
    pub(crate) fn outcome(&self) -> &'static str {
        match self {
            Self::Done(_) => "ok",
            Self::Refused(_) => "refused",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// A client that is signed in at every server.
#[derive(Clone, Debug)]
pub(crate) struct ApiClient {
    client: Client,
    /// `http://127.0.0.1:port` of each server.
    servers: Vec<String>,
    cookie: String,
}

impl ApiClient {
    /// Accepts a setup link, which creates an admin and signs in. `tokens` are those of the links that the servers
    /// printed: a link is valid until another server prints one, so only the last of them is.
    pub(crate) async fn set_up(servers: Vec<String>, tokens: &[String]) -> anyhow::Result<Self> {
        let client = Client::builder().timeout(RESPONSE_TIMEOUT).connect_timeout(Duration::from_secs(2)).build()?;
        let mut api = Self { client, servers, cookie: String::new() };
        let mut refusals = Vec::new();
        for token in tokens {
            let form = json!({
                "token": token, "page": "setup", "name": "Chaos", "email": "chaos@example.org",
                "passphrase": "a long night of falling services",
            });
            let response = api.send(0, Method::POST, "accept_link", &form).await?;
            if !response.status().is_success() {
                refusals.push(response.text().await?);
                continue;
            }
            // The session and the device, in any order.
            let cookies = response.headers().get_all(header::SET_COOKIE).iter();
            let pairs: Vec<&str> = cookies.filter_map(|cookie| cookie.to_str().ok()?.split(';').next()).collect();
            ensure!(!pairs.is_empty(), "the response sets no cookie");
            api.cookie = pairs.join("; ");
            return Ok(api);
        }
        bail!("every setup link was refused: {}", refusals.join("; "))
    }

    /// Sends a request that changes something.
    pub(crate) async fn post(&self, server: usize, endpoint: &str, form: &impl Serialize) -> ApiReply {
        let response = match self.send(server, Method::POST, endpoint, form).await {
            Ok(response) => response,
            Err(error) => return ApiReply::Unknown(format!("{error:#}")),
        };
        let status = response.status();
        match response.text().await {
            Err(error) => ApiReply::Unknown(error.to_string()),
            Ok(text) if status.is_success() => match serde_json::from_str(&text) {
                Ok(value) => ApiReply::Done(value),
                Err(_) => ApiReply::Unknown(format!("the response is not JSON: {text}")),
            },
            // A service was unavailable, perhaps only after the change was committed.
            Ok(text) if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => ApiReply::Unknown(text),
            Ok(text) => ApiReply::Refused(text),
        }
    }

    /// Sends a request that reads something.
    pub(crate) async fn get(&self, server: usize, endpoint: &str, query: &impl Serialize) -> anyhow::Result<Value> {
        let response = self.send(server, Method::GET, endpoint, query).await?;
        let status = response.status();
        let text = response.text().await?;
        ensure!(status.is_success(), "{endpoint} responds with {status}: {text}");
        Ok(serde_json::from_str(&text)?)
    }

    /// Opens a server's event stream, and continues after the event `last`.
    pub(crate) async fn listen(&self, server: usize, last: Option<&str>) -> anyhow::Result<Response> {
        let request = self.client.get(format!("{}/events", self.servers[server])).header(header::COOKIE, &self.cookie);
        let request = match last {
            Some(id) => request.header("last-event-id", id),
            None => request,
        };
        // The stream never ends, so the client's response timeout must not apply.
        let response = request.timeout(Duration::from_secs(24 * 3_600)).send().await?;
        if !response.status().is_success() {
            bail!("the event stream responds with {}", response.status());
        }
        Ok(response)
    }

    /// Returns the number of servers.
    pub(crate) fn servers(&self) -> usize {
        self.servers.len()
    }

    async fn send(
        &self,
        server: usize,
        method: Method,
        endpoint: &str,
        form: &impl Serialize,
    ) -> anyhow::Result<Response> {
        let base = &self.servers[server];
        let form = serde_qs::to_string(form)?;
        let url = format!("{base}/api/{endpoint}");
        let request = if method == Method::GET {
            self.client.get(format!("{url}?{form}"))
        } else {
            self.client.post(url).header(header::CONTENT_TYPE, "application/x-www-form-urlencoded").body(form)
        };
        Ok(request
            .header(header::ACCEPT, "application/json")
            .header(header::ORIGIN, base)
            .header("sec-fetch-site", "same-origin")
            .header(header::COOKIE, &self.cookie)
            .send()
            .await?)
    }
}
