//! The error type of every server function.

use leptos::server_fn::error::{FromServerFnError, ServerFnErrorErr};
use milvaion_api::requests::FieldError;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::api::codec::JsonTextEncoding;

/// The text of [`AppError::SignedOut`]. Where it is shown, a link to the sign-in page follows.
pub const SIGNED_OUT_TEXT: &str = "You are signed out. Sign in and try again.";

/// The reason for which a request failed.
///
/// Every variant's text is shown to the user who made the request. None contains anything that a Viewer may not read.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "kind", content = "detail", rename_all = "camelCase")]
pub enum AppError {
    /// Some fields are invalid; nothing was changed.
    #[error("{}", summary(.0))]
    Fields(Vec<FieldError>),
    /// The request has no valid session.
    #[error("{}", SIGNED_OUT_TEXT)]
    SignedOut,
    /// The user's role does not permit the action.
    #[error("{0}")]
    Denied(String),
    /// The object does not exist, or no longer exists.
    #[error("{0}")]
    NotFound(String),
    /// The object was changed meanwhile, or its state does not permit the action.
    #[error("{0}")]
    Conflict(String),
    /// The rate limit is exceeded.
    #[error("{0}")]
    TooMany(String),
    /// A service that the request needs is unavailable.
    #[error("{0}")]
    Unavailable(String),
    /// Any other error; the details are in the server's log.
    #[error("{0}")]
    Failed(String),
}

fn summary(fields: &[FieldError]) -> String {
    match fields {
        [one] => one.message.clone(),
        several => format!("{} fields need attention.", several.len()),
    }
}

impl AppError {
    /// Returns the HTTP status for this error.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::Fields(_) => 422,
            Self::SignedOut => 401,
            Self::Denied(_) => 403,
            Self::NotFound(_) => 404,
            Self::Conflict(_) => 409,
            Self::TooMany(_) => 429,
            Self::Unavailable(_) => 503,
            Self::Failed(_) => 500,
        }
    }

    /// Builds an error for one invalid field.
    pub fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Fields(vec![FieldError::new(field, message)])
    }

    /// Returns the message for `field`, if it is invalid.
    #[must_use]
    pub fn field_message(&self, field: &str) -> Option<String> {
        match self {
            Self::Fields(fields) => fields.iter().find(|error| error.field == field).map(|error| error.message.clone()),
            _ => None,
        }
    }
}

impl FromServerFnError for AppError {
    type Encoder = JsonTextEncoding;

    fn from_server_fn_error(error: ServerFnErrorErr) -> Self {
        match error {
            ServerFnErrorErr::Request(_) => {
                Self::Unavailable("The server cannot be reached. Check the connection and try again.".into())
            }
            ServerFnErrorErr::Args(message) | ServerFnErrorErr::MissingArg(message) => {
                Self::Failed(format!("The request could not be read: {message}"))
            }
            // The codec's errors are sentences.
            ServerFnErrorErr::Deserialization(message) => Self::Failed(message),
            other => Self::Failed(other.to_string()),
        }
    }
}
