//! `send-email`: one message through a mail server the worker knows.
//!
//! The message's id is made of the occurrence's, the same for every attempt: a server that has taken it and a worker that
//! has not heard so send it twice, and whoever receives it can tell.

mod account;
mod input;
mod message;

use std::{collections::BTreeMap, time::Duration};

use lettre::{
    AsyncTransport,
    transport::smtp::{self, response::Response},
};
use milvaion_worker::JobError;
use serde::Serialize;

pub(crate) use self::account::Account;
use self::input::Input;
use crate::{
    seal::{BuiltIn, Desk, Failure},
    settings::alias_key,
};

/// The job type, and the mail servers it knows by alias.
pub(crate) struct SendEmail {
    pub(crate) accounts: BTreeMap<String, Account>,
}

/// What the server said.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Output {
    message_id: String,
    recipients: usize,
    bytes: usize,
    response: String,
}

impl BuiltIn for SendEmail {
    const TYPE: &'static str = "send-email";
    const DESCRIPTION: &'static str = "Sends a message through a mail server the worker knows.";
    const CONCURRENCY: u16 = 5;
    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(300));
    type Input = Input;
    type Output = Output;

    async fn run(&self, desk: &Desk, input: Input) -> Result<Output, Failure> {
        let Some(account) = self.accounts.get(&alias_key(&input.account)) else {
            let known = self.accounts.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(Failure::permanent(format!(
                "`account` is {:?}, which this worker does not know; give one of {known}",
                input.account
            )));
        };
        account.hide_from(desk);
        let (message, message_id) = message::compose(&input, account, &desk.occurrence())?;
        let recipients = message.envelope().to().len();
        let bytes = message.formatted().len();
        desk.info(format!("sending {bytes} bytes to {recipients} recipients as {message_id}"));
        let transport = account.transport()?;
        let sending = async { transport.send(message).await.map_err(failure) };
        let response = desk.unless_cancelled("the message", sending).await?;
        let response = desk.redactor().clean(&told(&response)).into_owned();
        desk.info(&response);
        Ok(Output { message_id, recipients, bytes, response })
    }
}

fn told(response: &Response) -> String {
    let text = response.message().collect::<Vec<_>>().join(" ");
    format!("{} {}", response.code(), &text[..text.floor_char_boundary(1_000)])
}

/// A server that says 5xx means it; everything else may pass: 4xx, silence, a broken line, a certificate.
fn failure(error: smtp::Error) -> Failure {
    let (is_permanent, code) = (error.is_permanent() || error.is_client(), error.status());
    let said =
        if code.is_some() { "the mail server refused the message" } else { "the message could not be handed over" };
    let text = format!("{said}: {}", JobError::from(error));
    if is_permanent { Failure::permanent(text) } else { Failure::retry(text) }
}

#[cfg(test)]
mod tests;
