//! What people do: signing in, defining jobs, running, pausing and cancelling them, by the requests a browser sends.
//!
//! An answer that does not come is not an answer that says no. Whatever was asked for may have happened then, and the
//! checker is told so.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use reqwest::{Client, Method, Response, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};

/// How long an answer may take.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// What came back.
#[derive(Debug)]
pub(crate) enum ApiReply {
    /// It was done.
    Done(Value),
    /// It was not done, and will not be.
    Refused(String),
    /// Nobody said; it may have been done.
    Unknown(String),
}

impl ApiReply {
    /// As operations are noted.
    pub(crate) fn outcome(&self) -> &'static str {
        match self {
            Self::Done(_) => "ok",
            Self::Refused(_) => "refused",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// Somebody who is signed in at every server.
#[derive(Clone, Debug)]
pub(crate) struct ApiClient {
    client: Client,
    /// `http://127.0.0.1:port` of each server.
    servers: Vec<String>,
    cookie: String,
}

impl ApiClient {
    /// Uses up the setup link that the first server printed.
    pub(crate) async fn set_up(servers: Vec<String>, token: &str) -> anyhow::Result<Self> {
        let client = Client::builder().timeout(RESPONSE_TIMEOUT).connect_timeout(Duration::from_secs(2)).build()?;
        let mut api = Self { client, servers, cookie: String::new() };
        let form = json!({
            "token": token, "page": "setup", "name": "Chaos", "email": "chaos@example.org",
            "passphrase": "a long night of falling services",
        });
        let response = api.send(0, Method::POST, "accept_invite", &form).await?;
        ensure!(response.status().is_success(), "nobody can be signed in: {}", response.text().await?);
        let cookie = response.headers().get(header::SET_COOKIE).context("signing in gave no cookie")?.to_str()?;
        api.cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        Ok(api)
    }

    /// Asks a server to do something.
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
                Err(_) => ApiReply::Unknown(format!("an answer that cannot be read: {text}")),
            },
            // A service was away, perhaps only when it was to say that all is done.
            Ok(text) if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => ApiReply::Unknown(text),
            Ok(text) => ApiReply::Refused(text),
        }
    }

    /// Reads something from a server.
    pub(crate) async fn get(&self, server: usize, endpoint: &str, query: &impl Serialize) -> anyhow::Result<Value> {
        let response = self.send(server, Method::GET, endpoint, query).await?;
        let status = response.status();
        let text = response.text().await?;
        ensure!(status.is_success(), "{endpoint} answers {status}: {text}");
        Ok(serde_json::from_str(&text)?)
    }

    /// Listens to a server's stream of events.
    pub(crate) async fn listen(&self, server: usize, last: Option<&str>) -> anyhow::Result<Response> {
        let request = self.client.get(format!("{}/events", self.servers[server])).header(header::COOKIE, &self.cookie);
        let request = match last {
            Some(id) => request.header("last-event-id", id),
            None => request,
        };
        // It goes on for ever by nature.
        let response = request.timeout(Duration::from_secs(24 * 3_600)).send().await?;
        if !response.status().is_success() {
            bail!("the stream answers {}", response.status());
        }
        Ok(response)
    }

    /// How many servers there are to ask.
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
