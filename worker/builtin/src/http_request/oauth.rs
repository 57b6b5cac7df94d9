//! Tokens of OAuth 2.0 for client credentials.
//!
//! A token is asked for once and used by all runs that ask for it in the same way, until it is about to expire or the
//! other side refuses it. While one run asks, the others wait for its answer and do not ask as well.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use reqwest::{
    Method,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue},
};
use serde::Deserialize;
use tokio::sync::Mutex as AsyncMutex;
use url::form_urlencoded;

use super::{
    answer,
    auth::{Client, SendAs, basic},
    call::Caller,
    input::{Request, header},
};
use crate::{
    guard,
    seal::{Desk, Failure},
};

/// How long a token is used whose answer does not say how long it is good.
const UNTOLD: Duration = Duration::from_secs(300);
/// How long before its end a token is not used any more.
const MARGIN: Duration = Duration::from_secs(30);
/// The most bytes of a token's answer.
const MAX_ANSWER: usize = 64 * 1024;
/// The most ways to ask for a token that are remembered.
const MAX_CLIENTS: usize = 1_000;

type Slot = Arc<AsyncMutex<Option<Token>>>;

/// The tokens at hand.
#[derive(Default)]
pub(super) struct Tokens(Mutex<HashMap<Client, Slot>>);

struct Token {
    text: String,
    good_until: Instant,
}

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    #[serde(default)]
    expires_in: Option<f64>,
}

impl Tokens {
    /// A token for `client` that is not `refused`.
    pub(super) async fn get(
        &self,
        client: &Client,
        refused: Option<&str>,
        caller: &Caller,
        desk: &Desk,
    ) -> Result<String, Failure> {
        let slot = self.slot(client);
        let mut slot = slot.lock().await;
        if let Some(token) = &*slot
            && Some(token.text.as_str()) != refused
            && Instant::now() < token.good_until
        {
            hide(&token.text, desk);
            return Ok(token.text.clone());
        }
        *slot = None;
        let granted = ask(client, caller, desk).await.map_err(|failure| failure.within("no token was given"))?;
        let good_for =
            granted.expires_in.map_or(UNTOLD, |seconds| Duration::from_secs_f64(seconds.clamp(0.0, 86_400.0)));
        // Short-lived ones are used for half their time.
        let margin = MARGIN.min(good_for / 2);
        *slot = Some(Token { text: granted.access_token.clone(), good_until: Instant::now() + good_for - margin });
        Ok(granted.access_token)
    }

    fn slot(&self, client: &Client) -> Slot {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= MAX_CLIENTS && !slots.contains_key(client) {
            slots.clear();
        }
        slots.entry(client.clone()).or_default().clone()
    }
}

fn hide(token: &str, desk: &Desk) {
    desk.hide(token, "{{oauth2 token}}");
}

async fn ask(client: &Client, caller: &Caller, desk: &Desk) -> Result<Granted, Failure> {
    let mut fields = vec![("grant_type", "client_credentials")];
    fields.extend(client.scope.as_deref().map(|scope| ("scope", scope)));
    fields.extend(client.audience.as_deref().map(|audience| ("audience", audience)));
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
    match client.send_as {
        SendAs::Basic => {
            // RFC 6749, section 2.3.1: encoded as in a form before they are put together.
            let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
            let value = basic(&encoded(&client.client_id), &encoded(&client.client_secret), "auth.clientId", desk)?;
            let (name, value) = header(AUTHORIZATION.as_str(), &value, "auth")?;
            headers.insert(name, value);
        }
        SendAs::Body => {
            fields.extend([("client_id", client.client_id.as_str()), ("client_secret", client.client_secret.as_str())]);
        }
    }
    let request = Request {
        method: Method::POST,
        url: guard::address(&client.token_url, "auth.tokenUrl")?,
        headers,
        body: Some(form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()),
    };
    let response = caller.send(&request).await?;
    let status = response.status();
    let (body, whole) = answer::read(response, MAX_ANSWER).await?;
    if !status.is_success() {
        let text = format!("{} answered {}: {}", request.shown(), status.as_u16(), answer::quoted(&body, desk));
        return Err(match status.as_u16() {
            408 | 425 | 429 | 500.. => Failure::retry(text),
            _ => Failure::permanent(text),
        });
    }
    // What cannot be read is not repeated: there is a token in it.
    let granted: Granted = Some(&body)
        .filter(|_| whole)
        .and_then(|body| serde_json::from_str(body).ok())
        .ok_or_else(|| Failure::permanent(format!("{} answered without an access_token in JSON", request.shown())))?;
    hide(&granted.access_token, desk);
    Ok(granted)
}
