//! The error type of every server function.

use milvaion_api::requests::FieldError;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The text of [`AppError::SignedOut`]. Where it is shown, a link to the sign-in page follows.
pub const SIGNED_OUT_TEXT: &str = "You are signed out. Sign in and try again.";

/// The reason for which a request failed.
///
/// Every variant's text is shown to the user who made the request. None contains anything that a Viewer may not read.
// Externally tagged, because serde reads any other form into a buffer first, for which every page would load a decoder.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
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

    /// Returns all errors. An error that belongs to no field has an empty field name.
    #[must_use]
    pub fn problems(&self) -> Vec<FieldError> {
        match self {
            Self::Fields(errors) => errors.clone(),
            other => vec![FieldError::new("", other.to_string())],
        }
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
