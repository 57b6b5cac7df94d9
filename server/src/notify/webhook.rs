//! Webhooks: a POST of a JSON document, signed by the convention of Standard Webhooks.
//!
//! The signature covers the id of the delivery, the time and the body, so a receiver can refuse forged requests, and old
//! ones that are sent again. The convention has libraries for most languages; docs/monitoring/alerts.md shows the check
//! without one.

use base64::{Engine, prelude::BASE64_STANDARD};
use chrono::{DateTime, Utc};
use hmac::{Hmac, Mac};
use milvaion_api::alerts::ALERT_SECRET_VARIABLE;
use reqwest::header::{HeaderMap, HeaderValue};
use sha2::Sha256;
use uuid::Uuid;

use super::{
    SendError,
    http_sender::{HttpSender, receiver_url},
};
use crate::{config::secret_text::SecretText, domain::alert_message::AlertMessage};

/// The start of a secret whose rest is the key in base64.
const BASE64_SECRET_START: &str = "whsec_";
/// The shortest key. A shorter one can be found by trying.
const MIN_KEY_BYTES: usize = 16;

/// Returns the key that a secret stands for: its decoded rest after `whsec_`, or else its bytes.
///
/// # Errors
///
/// Returns a retryable error that names the secret if it cannot be decoded or is too short: an operator can replace it.
pub(super) fn signing_key(name: &str, secret: &SecretText) -> Result<Vec<u8>, SendError> {
    let key = match secret.expose().strip_prefix(BASE64_SECRET_START) {
        None => secret.expose().as_bytes().to_vec(),
        Some(encoded) => BASE64_STANDARD.decode(encoded).map_err(|_| {
            SendError::retry(format!(
                "the secret {name} starts with {BASE64_SECRET_START} and its rest is not base64; correct {ALERT_SECRET_VARIABLE}{name} or its file"
            ))
        })?,
    };
    if key.len() < MIN_KEY_BYTES {
        return Err(SendError::retry(format!(
            "the key in the secret {name} has fewer than {MIN_KEY_BYTES} bytes; use 24 to 64 random bytes"
        )));
    }
    Ok(key)
}

/// Sends a message, signed if there is a key.
pub(super) async fn send(
    http: &HttpSender,
    url: &str,
    key: Option<&[u8]>,
    message: &AlertMessage,
    now: DateTime<Utc>,
) -> Result<(), SendError> {
    let url = receiver_url(url, "url")?;
    let body = message.document().to_string();
    let timestamp = now.timestamp();
    let mut headers = HeaderMap::new();
    headers.insert("webhook-id", header(&message.id.to_string())?);
    headers.insert("webhook-timestamp", HeaderValue::from(timestamp));
    if let Some(key) = key {
        headers.insert("webhook-signature", header(&signature(key, message.id, timestamp, &body)?)?);
    }
    let remedy = "check the address of the channel, and that the receiver accepts the signature";
    http.post(&url, headers, body).await?.map_err(|refusal| refusal.into_error("the webhook", remedy))
}

/// Returns the value of the header `webhook-signature`.
fn signature(key: &[u8], id: Uuid, timestamp: i64, body: &str) -> Result<String, SendError> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).map_err(|error| SendError::retry(error.to_string()))?;
    mac.update(format!("{id}.{timestamp}.{body}").as_bytes());
    Ok(format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes())))
}

fn header(text: &str) -> Result<HeaderValue, SendError> {
    HeaderValue::from_str(text).map_err(|error| SendError::retry(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_equals_that_of_another_program() {
        // printf '%s' '{id}.1614265330.{"test": 2432232314}' | openssl dgst -sha256 -hmac 'plenty-of-secret-bytes' -binary | base64
        let id = "0193d7a1-0000-7000-8000-000000000001".parse().expect("an id");
        let signed = signature(b"plenty-of-secret-bytes", id, 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signed.as_deref(), Ok("v1,iHP3YwH4VFvJ9g2ho3T+4oKF4ZRzh+HS5awTLALNAfk="));
    }

    #[test]
    fn key_is_decoded_from_the_form_of_standard_webhooks() {
        let key = |secret: &str| signing_key("HOOK", &SecretText::new(secret));
        assert_eq!(key("plain text of 24 bytes..").as_deref(), Ok(&b"plain text of 24 bytes.."[..]));
        let decoded = key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a key");
        assert_eq!((decoded.len(), decoded[0]), (24, 0x31));
        for (secret, remedy) in
            [("whsec_?", "is not base64"), ("whsec_AAAA", "24 to 64 random bytes"), ("c4n4ry", "16")]
        {
            let error = key(secret).expect_err(secret);
            assert!(!error.is_permanent && error.reason.contains(remedy), "{error}");
            assert!(error.reason.contains("HOOK") && !error.reason.contains("c4n4ry"), "{error}");
        }
    }
}
