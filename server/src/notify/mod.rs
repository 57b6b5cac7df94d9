//! The delivery of one message over one channel of alerts.
//!
//! ```text
//!                    ┌─ email    ─► the mail server of ALERT_SMTP_URL
//!  message, target ──┼─ webhook  ─► address guard ─► POST, signed
//!                    └─ slack    ─► address guard ─► POST to the address in a secret
//! ```
//!
//! A send is one attempt with a time limit. It keeps nothing: the caller stores the message, repeats it after an error
//! that is not permanent, and gives up in the end. The id of the message is the same in every attempt, so a receiver that
//! has accepted a message whose answer was lost can recognize the second one.
//!
//! Admins choose the address of a webhook, and the server, which runs inside a network, sends the request. The address is
//! therefore checked by the same guard as in the built-in job `http-request`; PostgreSQL, Redis and RabbitMQ can never be
//! reached. Mail servers are the operator's choice and are not checked.
//!
//! An error says what failed and what to do, and is stored and shown on pages. It names secrets and never has their
//! values in it.

mod email;
mod http_sender;
pub mod secrets;
mod slack;
mod webhook;

use std::{fmt, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use milvaion_api::alerts::AlertTarget;

use self::{email::MailServer, http_sender::HttpSender, secrets::AlertSecrets};
use crate::{config::ServerConfig, domain::alert_message::AlertMessage};

/// The longest time for one attempt, with the look-up of the name and the connection.
pub const SEND_LIMIT: Duration = Duration::from_secs(10);

/// The reason why a message was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct SendError {
    /// The cause and the remedy, without secrets.
    pub reason: String,
    /// True if a repeated attempt would fail in the same way, unless a user changes the channel.
    pub is_permanent: bool,
}

impl SendError {
    fn permanent(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_permanent: true }
    }

    fn retry(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_permanent: false }
    }
}

/// Delivers messages. Clones share the connections.
#[derive(Clone)]
pub struct Notifier(Arc<NotifierParts>);

/// The parts that the kinds of channels need.
struct NotifierParts {
    secrets: AlertSecrets,
    http: HttpSender,
    mail: Option<MailServer>,
    dashboard_url: Option<String>,
}

impl Notifier {
    /// Creates the notifier of a server. The URLs of the services in the configuration must be filled in: they must not be
    /// reachable by a webhook.
    #[must_use]
    pub fn new(config: &ServerConfig) -> Self {
        Self(Arc::new(NotifierParts {
            secrets: AlertSecrets::new(config.alerts.secrets_dir.clone()),
            http: HttpSender::new(config),
            mail: MailServer::new(&config.alerts),
            dashboard_url: config.http.public_url.clone(),
        }))
    }

    /// Sends a message to a target, in one attempt of at most [`SEND_LIMIT`]. `now` is the time that the message claims.
    ///
    /// # Errors
    ///
    /// Returns [`SendError`] if the receiver did not accept the message, or did not answer in time. It may then have
    /// accepted it.
    pub async fn send(
        &self,
        target: &AlertTarget,
        message: &AlertMessage,
        now: DateTime<Utc>,
    ) -> Result<(), SendError> {
        let NotifierParts { secrets, http, mail, .. } = &*self.0;
        let sending = async {
            match target {
                AlertTarget::Email { to } => match mail {
                    Some(server) => server.send(to, message, now).await,
                    // An operator may set it while the message waits for its next attempt.
                    None => Err(SendError::retry(
                        "the server has no mail server for alerts; set ALERT_SMTP_URL and ALERT_SMTP_FROM and restart it",
                    )),
                },
                AlertTarget::Webhook { url, signing_secret } => {
                    let key = match signing_secret {
                        Some(name) => Some(webhook::signing_key(name, &secrets.read(name).await?)?),
                        None => None,
                    };
                    webhook::send(http, url, key.as_deref(), message, now).await
                }
                AlertTarget::Slack { url_secret } => {
                    slack::send(http, url_secret, &secrets.read(url_secret).await?, message).await
                }
            }
        };
        tokio::time::timeout(SEND_LIMIT, sending).await.unwrap_or_else(|_| {
            let seconds = SEND_LIMIT.as_secs();
            Err(SendError::retry(format!("the receiver did not answer within {seconds} s; check that it is reachable")))
        })
    }

    /// Returns true if the server has a secret of this name now. Its value may still be unusable.
    #[must_use]
    pub fn has_secret(&self, name: &str) -> bool {
        self.0.secrets.has(name)
    }

    /// Returns true if the server has a mail server for alerts.
    #[must_use]
    pub fn has_mail_server(&self) -> bool {
        self.0.mail.is_some()
    }

    /// Returns the address of the dashboard for the links of messages: `PUBLIC_URL`.
    #[must_use]
    pub fn dashboard_url(&self) -> Option<&str> {
        self.0.dashboard_url.as_deref()
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Notifier").finish_non_exhaustive()
    }
}
