//! OAuth 2.0 tokens for client credentials.
//!
//! A token is requested once and used by all runs with the same client, until it is about to expire or a server refuses
//! it. While one run requests a token, the others wait for it and send no request of their own.

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
    auth::basic_auth_value,
    caller::HttpCaller,
    input::{ClientAuthMethod, OAuthClient, PreparedRequest, parse_header},
    response,
};
use crate::{
    context::{BuiltinContext, BuiltinError},
    guard,
};

/// Lifetime of a token whose response does not contain one.
const DEFAULT_TOKEN_LIFETIME: Duration = Duration::from_secs(300);
/// Time before its expiry from which on a token is no longer used.
const TOKEN_EXPIRY_MARGIN: Duration = Duration::from_secs(30);
/// Maximum size of a token response.
const MAX_TOKEN_RESPONSE_BYTES: usize = 64 * 1024;
/// Maximum number of clients whose tokens are cached. Beyond it the cache is emptied.
const MAX_TOKEN_CLIENTS: usize = 1_000;

type TokenCell = Arc<AsyncMutex<Option<CachedToken>>>;

/// The cached tokens by client.
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
    /// Returns a token for `client` other than `refused`.
    ///
    /// # Errors
    /// Returns a retryable or permanent error if the token server refuses the request or cannot be reached.
    pub(super) async fn get(
        &self,
        client: &OAuthClient,
        refused: Option<&str>,
        caller: &HttpCaller,
        context: &BuiltinContext,
    ) -> Result<String, BuiltinError> {
        let cell = self.cell(client);
        let mut cached = cell.lock().await;
        if let Some(token) = &*cached
            && Some(token.text.as_str()) != refused
            && Instant::now() < token.usable_until
        {
            register_token(&token.text, context);
            return Ok(token.text.clone());
        }
        *cached = None;
        let response = request_token(client, caller, context)
            .await
            .map_err(|failure| failure.with_context("the token request failed"))?;
        let lifetime = response
            .expires_in
            .map_or(DEFAULT_TOKEN_LIFETIME, |seconds| Duration::from_secs_f64(seconds.clamp(0.0, 86_400.0)));
        // A token with a short lifetime is used for half of it.
        let margin = TOKEN_EXPIRY_MARGIN.min(lifetime / 2);
        *cached =
            Some(CachedToken { text: response.access_token.clone(), usable_until: Instant::now() + lifetime - margin });
        Ok(response.access_token)
    }

    fn cell(&self, client: &OAuthClient) -> TokenCell {
        let mut cells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cells.len() >= MAX_TOKEN_CLIENTS && !cells.contains_key(client) {
            cells.clear();
        }
        cells.entry(client.clone()).or_default().clone()
    }
}

fn register_token(token: &str, context: &BuiltinContext) {
    context.add_secret(token, "{{oauth2 token}}");
}

async fn request_token(
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
            // RFC 6749, section 2.3.1: both are form-encoded before they are joined.
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
        let text = format!(
            "{} returned status {}: {}",
            request.summary(),
            status.as_u16(),
            response::quote_body(&body, context)
        );
        return Err(match status.as_u16() {
            408 | 425 | 429 | 500.. => BuiltinError::retry(text),
            _ => BuiltinError::permanent(text),
        });
    }
    // An unreadable body is not repeated, because it may contain a token.
    let granted: TokenResponse =
        Some(&body).filter(|_| whole).and_then(|body| serde_json::from_str(body).ok()).ok_or_else(|| {
            BuiltinError::permanent(format!("{} returned no JSON with an access_token", request.summary()))
        })?;
    register_token(&granted.access_token, context);
    Ok(granted)
}
