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
    auth::{ClientAuthMethod, OAuthClient, basic_auth_value},
    caller::HttpCaller,
    input::{PreparedRequest, parse_header},
    response,
};
use crate::{
    context::{BuiltinContext, BuiltinError},
    guard,
};

/// How long a token is used whose answer does not say how long it is good.
const DEFAULT_TOKEN_LIFETIME: Duration = Duration::from_secs(300);
/// How long before its end a token is not used any more.
const TOKEN_EXPIRY_MARGIN: Duration = Duration::from_secs(30);
/// The most bytes of a token's answer.
const MAX_TOKEN_RESPONSE_BYTES: usize = 64 * 1024;
/// The most ways to ask for a token that are remembered.
const MAX_TOKEN_CLIENTS: usize = 1_000;

type TokenCell = Arc<AsyncMutex<Option<CachedToken>>>;

/// The tokens at hand.
#[derive(Default)]
pub(super) struct TokenCache(Mutex<HashMap<OAuthClient, TokenCell>>);

struct CachedToken {
    text: String,
    usable_until: Instant,
}

#[derive(Deserialize)]
struct TokenResponse {
    access_token: String,
    #[serde(default)]
    expires_in: Option<f64>,
}

impl TokenCache {
    /// A token for `client` that is not `refused`.
    pub(super) async fn get(
        &self,
        client: &OAuthClient,
        refused: Option<&str>,
        caller: &HttpCaller,
        context: &BuiltinContext,
    ) -> Result<String, BuiltinError> {
        let slot = self.slot(client);
        let mut slot = slot.lock().await;
        if let Some(token) = &*slot
            && Some(token.text.as_str()) != refused
            && Instant::now() < token.usable_until
        {
            hide(&token.text, context);
            return Ok(token.text.clone());
        }
        *slot = None;
        let granted =
            ask(client, caller, context).await.map_err(|failure| failure.with_context("no token was given"))?;
        let good_for = granted
            .expires_in
            .map_or(DEFAULT_TOKEN_LIFETIME, |seconds| Duration::from_secs_f64(seconds.clamp(0.0, 86_400.0)));
        // Short-lived ones are used for half their time.
        let margin = TOKEN_EXPIRY_MARGIN.min(good_for / 2);
        *slot =
            Some(CachedToken { text: granted.access_token.clone(), usable_until: Instant::now() + good_for - margin });
        Ok(granted.access_token)
    }

    fn slot(&self, client: &OAuthClient) -> TokenCell {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= MAX_TOKEN_CLIENTS && !slots.contains_key(client) {
            slots.clear();
        }
        slots.entry(client.clone()).or_default().clone()
    }
}

fn hide(token: &str, context: &BuiltinContext) {
    context.add_secret(token, "{{oauth2 token}}");
}

async fn ask(
    client: &OAuthClient,
    caller: &HttpCaller,
    context: &BuiltinContext,
) -> Result<TokenResponse, BuiltinError> {
    let mut fields = vec![("grant_type", "client_credentials")];
    fields.extend(client.scope.as_deref().map(|scope| ("scope", scope)));
    fields.extend(client.audience.as_deref().map(|audience| ("audience", audience)));
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
    match client.send_as {
        ClientAuthMethod::Basic => {
            // RFC 6749, section 2.3.1: encoded as in a form before they are put together.
            let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
            let value = basic_auth_value(
                &encoded(&client.client_id),
                &encoded(&client.client_secret),
                "auth.clientId",
                context,
            )?;
            let (name, value) = parse_header(AUTHORIZATION.as_str(), &value, "auth")?;
            headers.insert(name, value);
        }
        ClientAuthMethod::Body => {
            fields.extend([("client_id", client.client_id.as_str()), ("client_secret", client.client_secret.as_str())]);
        }
    }
    let request = PreparedRequest {
        method: Method::POST,
        url: guard::parse_url(&client.token_url, "auth.tokenUrl")?,
        headers,
        body: Some(form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()),
    };
    let response = caller.send(&request).await?;
    let status = response.status();
    let (body, whole) = response::read_body(response, MAX_TOKEN_RESPONSE_BYTES).await?;
    if !status.is_success() {
        let text =
            format!("{} answered {}: {}", request.summary(), status.as_u16(), response::quote_body(&body, context));
        return Err(match status.as_u16() {
            408 | 425 | 429 | 500.. => BuiltinError::retry(text),
            _ => BuiltinError::permanent(text),
        });
    }
    // What cannot be read is not repeated: there is a token in it.
    let granted: TokenResponse =
        Some(&body).filter(|_| whole).and_then(|body| serde_json::from_str(body).ok()).ok_or_else(|| {
            BuiltinError::permanent(format!("{} answered without an access_token in JSON", request.summary()))
        })?;
    hide(&granted.access_token, context);
    Ok(granted)
}
