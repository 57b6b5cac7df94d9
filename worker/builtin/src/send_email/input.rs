//! What can be asked of `send-email`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most recipients, over to, cc and bcc.
pub(super) const MAX_RECIPIENTS: usize = 100;
/// The most attachments.
pub(super) const MAX_ATTACHMENTS: usize = 10;

/// What to send, and to whom.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "E-mail")]
pub(crate) struct SendEmailInput {
    /// The name under which the worker knows the mail server; addresses and passwords are the worker's, not the job's.
    #[schemars(title = "Account", length(min = 1, max = 50), example = &"news")]
    pub(super) account: String,
    /// Who gets it: addresses such as ann@example.org or Ann <ann@example.org>; 100 at the most with those below.
    #[schemars(title = "To", length(max = MAX_RECIPIENTS))]
    pub(super) to: Vec<String>,
    /// Who gets a copy, seen by all.
    #[serde(default)]
    #[schemars(title = "Cc", length(max = MAX_RECIPIENTS))]
    pub(super) cc: Vec<String>,
    /// Who gets a copy, seen by nobody else.
    #[serde(default)]
    #[schemars(title = "Bcc", length(max = MAX_RECIPIENTS))]
    pub(super) bcc: Vec<String>,
    /// Who sends it. None given: whom the account names.
    #[serde(default)]
    #[schemars(title = "From", length(max = 320))]
    pub(super) from: Option<String>,
    /// Who gets the answers. None given: who sends it.
    #[serde(default)]
    #[schemars(title = "Reply to", length(max = 320))]
    pub(super) reply_to: Option<String>,
    /// What it is about, in one line.
    #[schemars(title = "Subject", length(min = 1, max = 500))]
    pub(super) subject: String,
    /// The message as plain text. With both this and HTML, the reader's program chooses.
    #[serde(default)]
    #[schemars(title = "Text", extend("format" = "multiline"))]
    pub(super) text: Option<String>,
    /// The message as HTML.
    #[serde(default)]
    #[schemars(title = "HTML", extend("format" = "multiline"))]
    pub(super) html: Option<String>,
    /// Files sent along.
    #[serde(default)]
    #[schemars(
        title = "Attachments",
        length(max = MAX_ATTACHMENTS),
        example = serde_json::json!([{"name": "report.csv", "contentType": "text/csv", "content": "YSxiCjEsMgo="}])
    )]
    pub(super) attachments: Vec<EmailAttachment>,
}

/// A file sent along.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct EmailAttachment {
    /// The name of the file.
    #[schemars(length(min = 1, max = 200))]
    pub(super) name: String,
    /// What it is, such as text/csv.
    #[serde(default = "bytes")]
    pub(super) content_type: String,
    /// The file in base64.
    pub(super) content: String,
}

fn bytes() -> String {
    "application/octet-stream".to_owned()
}
