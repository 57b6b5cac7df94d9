//! What a server function may answer instead of what was asked for.

use leptos::server_fn::{
    codec::JsonEncoding,
    error::{FromServerFnError, ServerFnErrorErr},
};
use milvaion_api::requests::FieldError;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why something was not done. Every variant's text is meant for the person who asked; none holds anything a Viewer may
/// not read.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "kind", content = "detail", rename_all = "camelCase")]
pub enum AppError {
    /// Some fields are wrong; nothing was changed.
    #[error("{}", summary(.0))]
    Fields(Vec<FieldError>),
    /// Nobody is signed in.
    #[error("You are signed out. Sign in and try again.")]
    SignedOut,
    /// The role does not reach.
    #[error("{0}")]
    Denied(String),
    /// It does not exist, or no longer.
    #[error("{0}")]
    NotFound(String),
    /// It was changed meanwhile, or is in a state that does not allow it.
    #[error("{0}")]
    Conflict(String),
    /// Too many tries.
    #[error("{0}")]
    TooMany(String),
    /// A service the answer needs is away.
    #[error("{0}")]
    Unavailable(String),
    /// Something else; the details are in the server's log.
    #[error("{0}")]
    Failed(String),
}

fn summary(fields: &[FieldError]) -> String {
    match fields {
        [one] => one.message.clone(),
        several => format!("{} fields need another look.", several.len()),
    }
}

impl AppError {
    /// The HTTP status that says the same.
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

    /// One wrong field.
    pub fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Fields(vec![FieldError::new(field, message)])
    }

    /// What is wrong with `field`, if anything.
    #[must_use]
    pub fn of(&self, field: &str) -> Option<String> {
        match self {
            Self::Fields(fields) => fields.iter().find(|error| error.field == field).map(|error| error.message.clone()),
            _ => None,
        }
    }
}

impl FromServerFnError for AppError {
    type Encoder = JsonEncoding;

    fn from_server_fn_error(error: ServerFnErrorErr) -> Self {
        match error {
            ServerFnErrorErr::Request(_) => {
                Self::Unavailable("The server cannot be reached. What you typed is still here; try again.".into())
            }
            ServerFnErrorErr::Args(message) | ServerFnErrorErr::MissingArg(message) => {
                Self::Failed(format!("The request could not be read: {message}"))
            }
            other => Self::Failed(other.to_string()),
        }
    }
}
