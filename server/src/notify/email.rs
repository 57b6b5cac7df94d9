//! E-mails over the mail server of the settings.
//!
//! A message goes to all recipients at once, as one mail. A mail server refuses the whole mail if it refuses one
//! recipient, for example a person who has left. The others must not miss the alert for that, so the mail is then sent to
//! each recipient alone. If some of them have it, the message counts as sent, because a repetition would reach them again
//! and again; the log names those that were refused, and a test of the channel fails.

use std::{error::Error as _, time::SystemTime};

use base64::{Engine, prelude::BASE64_STANDARD};
use chrono::{DateTime, Utc};
use lettre::{
    Address, AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor,
    address::Envelope,
    message::{
        Mailbox,
        header::{Header, HeaderName, HeaderValue},
    },
    transport::smtp,
};
use percent_encoding::percent_decode_str;
use url::Url;

use super::{SEND_LIMIT, SendError};
use crate::{
    config::{alerts::AlertsConfig, secret_text::SecretText},
    domain::alert_message::AlertMessage,
};

/// The most characters of a mail server's answer in an error.
const MAX_ANSWER_CHARS: usize = 300;

/// The mail server for alerts.
pub(super) struct MailServer {
    url: SecretText,
    from: Mailbox,
}

/// The header that keeps programs from answering, as absence notes do.
#[derive(Clone)]
struct AutoSubmitted;

impl Header for AutoSubmitted {
    fn name() -> HeaderName {
        HeaderName::new_from_ascii_str("Auto-Submitted")
    }

    fn parse(_: &str) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Self)
    }

    fn display(&self) -> HeaderValue {
        HeaderValue::new(Self::name(), "auto-generated".to_owned())
    }
}

/// The reason why the mail server did not take a mail.
struct Refusal {
    text: String,
    /// True if the mail server will not take this mail for these recipients.
    is_permanent: bool,
}

impl MailServer {
    /// Returns the mail server of the settings, if there is one.
    pub(super) fn new(config: &AlertsConfig) -> Option<Self> {
        Some(Self { url: config.smtp_url.clone()?, from: config.smtp_from.clone()? })
    }

    /// Sends a message to the recipients.
    ///
    /// # Errors
    ///
    /// Returns a permanent error if the mail server refuses the mail, or of a test some of the recipients, and a retryable
    /// one if it cannot be reached, is busy, or refuses the password.
    pub(super) async fn send(
        &self,
        to: &[String],
        message: &AlertMessage,
        now: DateTime<Utc>,
    ) -> Result<(), SendError> {
        let recipients = to.iter().map(|text| address(text)).collect::<Result<Vec<_>, _>>()?;
        let mail = self.mail(&recipients, message, now)?;
        let Err(refusal) = self.deliver(recipients.clone(), &mail).await else { return Ok(()) };
        if !refusal.is_permanent || recipients.len() < 2 {
            return Err(refusal.into());
        }
        let (mut accepted, mut refused) = (0, Vec::new());
        for recipient in recipients {
            match self.deliver(vec![recipient.clone()], &mail).await {
                Ok(()) => accepted += 1,
                // Nothing was delivered yet, so the whole message can be repeated.
                Err(refusal) if !refusal.is_permanent && accepted == 0 => return Err(refusal.into()),
                Err(refusal) => refused.push(format!("{recipient}: {}", refusal.text)),
            }
        }
        match (accepted, refused.len()) {
            (_, 0) => Ok(()),
            (0, _) => Err(refusal.into()),
            (_, count) => {
                let reason = format!(
                    "{count} of {} recipients did not get the mail; correct or remove their addresses: {}",
                    to.len(),
                    refused.join("; ")
                );
                if message.is_test {
                    return Err(SendError::permanent(reason));
                }
                tracing::warn!(alert.rule = message.rule_name, error = reason, "a mail about an alert: {reason}");
                Ok(())
            }
        }
    }

    fn mail(&self, to: &[Address], message: &AlertMessage, now: DateTime<Utc>) -> Result<Vec<u8>, SendError> {
        let id = format!("<{}@{}>", message.id, self.from.email.domain());
        let mut builder = Message::builder()
            .message_id(Some(id))
            .date(SystemTime::from(now))
            .from(self.from.clone())
            .subject(message.subject())
            .header(AutoSubmitted);
        for address in to {
            builder = builder.to(Mailbox::new(None, address.clone()));
        }
        let mail = builder.header(lettre::message::header::ContentType::TEXT_PLAIN).body(message.text());
        let mail = mail.map_err(|error| SendError::permanent(format!("the mail cannot be written: {error}")))?;
        Ok(mail.formatted())
    }

    /// Delivers a mail to the recipients over a connection of its own: a kept one may be dead by the next message.
    async fn deliver(&self, to: Vec<Address>, mail: &[u8]) -> Result<(), Refusal> {
        let envelope = Envelope::new(Some(self.from.email.clone()), to)
            .map_err(|error| Refusal { text: error.to_string(), is_permanent: true })?;
        let transport = AsyncSmtpTransport::<Tokio1Executor>::from_url(self.url.expose())
            .map_err(|_| Refusal { text: "ALERT_SMTP_URL is invalid; correct it".to_owned(), is_permanent: false })?;
        let sending = transport.timeout(Some(SEND_LIMIT)).build();
        sending.send_raw(&envelope, mail).await.map(drop).map_err(|error| self.refusal(&error))
    }

    fn refusal(&self, error: &smtp::Error) -> Refusal {
        let mut cause = error.to_string();
        if let Some(source) = error.source() {
            cause = format!("{cause}: {source}");
        }
        let cause = self.without_password(&cause).replace(char::is_control, " ");
        let cause: String = cause.chars().take(MAX_ANSWER_CHARS).collect();
        match error.status().map(u16::from) {
            // The codes by which a server refuses the user name, the password or their kind.
            Some(454 | 530 | 534 | 535 | 538) => Refusal {
                text: format!(
                    "the mail server refused the sign-in: {cause}; check user and password in ALERT_SMTP_URL"
                ),
                is_permanent: false,
            },
            Some(_) => Refusal {
                text: format!("the mail server refused the mail: {cause}"),
                is_permanent: error.is_permanent(),
            },
            None => Refusal {
                text: format!(
                    "the mail server could not be used: {cause}; check ALERT_SMTP_URL and that it is reachable"
                ),
                is_permanent: false,
            },
        }
    }

    /// Removes the password from a mail server's answer, in the two forms in which it was sent.
    fn without_password(&self, text: &str) -> String {
        let Ok(url) = Url::parse(self.url.expose()) else { return String::new() };
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let (user, password) = (decoded(url.username()), url.password().map(decoded).unwrap_or_default());
        if password.is_empty() {
            return text.to_owned();
        }
        let mut text = text.to_owned();
        for form in [
            BASE64_STANDARD.encode(format!("\0{user}\0{password}")),
            BASE64_STANDARD.encode(&password),
            url.password().unwrap_or_default().to_owned(),
            password,
        ] {
            text = text.replace(&form, "[password]");
        }
        text
    }
}

impl From<Refusal> for SendError {
    fn from(refusal: Refusal) -> Self {
        Self { reason: refusal.text, is_permanent: refusal.is_permanent }
    }
}

fn address(text: &str) -> Result<Address, SendError> {
    text.trim().parse().map_err(|_| {
        SendError::permanent(format!("{text:?} is no e-mail address; correct the recipients of the channel"))
    })
}
