//! The input of `send-email`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of recipients in `to`, `cc` and `bcc` together.
pub(super) const MAX_RECIPIENTS: usize = 100;
/// Maximum number of attachments.
pub(super) const MAX_ATTACHMENTS: usize = 10;

/// A message to send.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "E-mail")]
pub(crate) struct SendEmailInput {
    /// Alias of the mail server, whose address and password are in the worker's configuration.
    #[schemars(title = "Account", length(min = 1, max = 50), example = &"news")]
    pub(super) account: String,
    /// Recipients, such as ann@example.org or Ann <ann@example.org>, up to 100 together with Cc and Bcc.
    #[schemars(title = "To", length(max = MAX_RECIPIENTS))]
    pub(super) to: Vec<String>,
    /// Recipients of a copy, visible to all recipients; none by default.
    #[serde(default)]
    #[schemars(title = "Cc", length(max = MAX_RECIPIENTS))]
    pub(super) cc: Vec<String>,
    /// Recipients of a copy, hidden from all others; none by default.
    #[serde(default)]
    #[schemars(title = "Bcc", length(max = MAX_RECIPIENTS))]
    pub(super) bcc: Vec<String>,
    /// Sender of the message; by default the sender that the worker's configuration sets for the account.
    #[serde(default)]
    #[schemars(title = "From", length(max = 320))]
    pub(super) from: Option<String>,
    /// Address for replies; the sender by default.
    #[serde(default)]
    #[schemars(title = "Reply-To", length(max = 320))]
    pub(super) reply_to: Option<String>,
    /// Subject in one line, from 1 to 500 characters.
    #[schemars(title = "Subject", length(min = 1, max = 500))]
    pub(super) subject: String,
    /// Message as plain text, up to 1 MiB together with the HTML; if both are given, the recipient's program chooses.
    #[serde(default)]
    #[schemars(title = "Text", extend("format" = "multiline"))]
    pub(super) text: Option<String>,
    /// Message as HTML; either a text or HTML is required.
    #[serde(default)]
    #[schemars(title = "HTML", extend("format" = "multiline"))]
    pub(super) html: Option<String>,
    /// Attached files, up to 10 and 1 MiB together, with their content in base64; none by default.
    #[serde(default)]
    #[schemars(
        title = "Attachments",
        length(max = MAX_ATTACHMENTS),
        example = serde_json::json!([{"name": "report.csv", "contentType": "text/csv", "content": "YSxiCjEsMgo="}])
    )]
    pub(super) attachments: Vec<EmailAttachment>,
}

/// An attached file.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct EmailAttachment {
    /// File name, from 1 to 200 bytes.
    #[schemars(length(min = 1, max = 200))]
    pub(super) name: String,
    /// Content type, such as text/csv; application/octet-stream by default.
    #[serde(default = "default_content_type")]
    pub(super) content_type: String,
    /// Content of the file in base64.
    pub(super) content: String,
}

fn default_content_type() -> String {
    "application/octet-stream".to_owned()
}
