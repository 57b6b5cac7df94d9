//! Webhooks that are compatible with Slack.
//!
//! The address is the secret: it is all that a message to the workspace needs. It is therefore in no error.

use milvaion_api::alerts::ALERT_SECRET_VARIABLE;
use reqwest::header::HeaderMap;

use super::{
    SendError,
    http_sender::{HttpSender, receiver_url},
};
use crate::{config::secret_text::SecretText, domain::alert_message::AlertMessage};

/// The longest error word of an answer that is repeated.
const MAX_ERROR_WORD_CHARS: usize = 50;

/// Sends a message to the address in the secret `name`.
pub(super) async fn send(
    http: &HttpSender,
    name: &str,
    secret: &SecretText,
    message: &AlertMessage,
) -> Result<(), SendError> {
    let url = receiver_url(secret.expose(), name).map_err(|error| {
        let reason = format!("{}; correct {ALERT_SECRET_VARIABLE}{name} or its file", error.reason);
        // An operator can correct it while the message waits.
        SendError::retry(reason)
    })?;
    let body = message.slack_document().to_string();
    let Err(refusal) = http.post(&url, HeaderMap::new(), body).await? else { return Ok(()) };
    let what = match error_word(&refusal.body, secret.expose()) {
        Some(word) => format!("the webhook of the secret {name} ({word})"),
        None => format!("the webhook of the secret {name}"),
    };
    Err(refusal.into_error(&what, "create a new webhook and replace the secret, if this one was removed"))
}

/// Returns the word by which Slack names an error, as in `no_service`. Any other answer is left out, because it could
/// repeat the secret.
fn error_word<'a>(body: &'a str, secret: &str) -> Option<&'a str> {
    let is_word = (1..=MAX_ERROR_WORD_CHARS).contains(&body.len())
        && body.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    (is_word && !secret.contains(body)).then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_error_word_is_repeated() {
        let secret = "https://hooks.example.org/services/T0/B0/secretpart";
        assert_eq!(error_word("channel_is_archived", secret), Some("channel_is_archived"));
        for body in ["", "secretpart", "<html>", "no service", "/services/T0/B0/secretpart", &"a".repeat(51)] {
            assert_eq!(error_word(body, secret), None, "{body}");
        }
    }
}
