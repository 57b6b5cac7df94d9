//! `send-email`: sends one message through a configured mail server.
//!
//! The message id is made from the id of the occurrence, and is the same for every attempt. If a server accepts a
//! message and the worker does not receive the confirmation, the message is sent twice, and its recipients can
//! recognize the duplicate.

pub(crate) mod account;
mod input;
mod message;

use std::{collections::BTreeMap, time::Duration};

use lettre::{
    AsyncTransport,
    transport::smtp::{self, response::Response},
};
use milvaion_worker::JobError;
use serde::Serialize;

use self::{account::SmtpAccount, input::SendEmailInput};
use crate::{
    context::{BuiltinContext, BuiltinError, BuiltinJob},
    redact::Redactor,
    settings::alias_key,
};

/// Maximum size of the reply in the result.
const MAX_REPLY_BYTES: usize = 1_000;

/// The job type, with the mail servers by alias.
pub(crate) struct SendEmail {
    pub(crate) accounts: BTreeMap<String, SmtpAccount>,
}

/// The accepted message and the reply of the server.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SendEmailOutput {
    message_id: String,
    recipients: usize,
    bytes: usize,
    response: String,
}

impl BuiltinJob for SendEmail {
    const TYPE: &'static str = "send-email";
    const DESCRIPTION: &'static str = "Sends an e-mail through a mail server of the worker's configuration.";
    const CONCURRENCY: u16 = 5;
    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(300));
    type Input = SendEmailInput;
    type Output = SendEmailOutput;

    async fn run(&self, context: &BuiltinContext, input: SendEmailInput) -> Result<SendEmailOutput, BuiltinError> {
        let Some(account) = self.accounts.get(&alias_key(&input.account)) else {
            let known = self.accounts.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(BuiltinError::permanent(format!(
                "`account` is {:?}, which this worker's configuration does not contain; give one of {known}",
                input.account
            )));
        };
        account.register_password(context);
        let (message, message_id) = message::compose(&input, account, &context.occurrence_id())?;
        let recipients = message.envelope().to().len();
        let bytes = message.formatted().len();
        context.info(format!("sending {bytes} bytes to {recipients} recipients as {message_id}"));
        let transport = account.transport()?;
        let sending = async { transport.send(message).await.map_err(classify_smtp_error) };
        let response = context.unless_cancelled("sending the message", sending).await?;
        let response = reply_text(&response, context.redactor());
        context.info(&response);
        Ok(SendEmailOutput { message_id, recipients, bytes, response })
    }
}

/// Returns the reply of the server, redacted and then shortened.
fn reply_text(response: &Response, redactor: &Redactor) -> String {
    let text = response.message().collect::<Vec<_>>().join(" ");
    format!("{} {}", response.code(), redactor.redact_start(&text, MAX_REPLY_BYTES))
}

/// Classifies an error. A 5xx reply is permanent. A 4xx reply, a timeout, a lost connection and an untrusted
/// certificate are retryable.
fn classify_smtp_error(error: smtp::Error) -> BuiltinError {
    let (is_permanent, code) = (error.is_permanent() || error.is_client(), error.status());
    let outcome = if code.is_some() {
        "the mail server refused the message"
    } else {
        "the message could not be delivered to the mail server"
    };
    let text = format!("{outcome}: {}", JobError::from(error));
    if is_permanent { BuiltinError::permanent(text) } else { BuiltinError::retry(text) }
}

#[cfg(test)]
mod tests;
