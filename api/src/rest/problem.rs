//! The document of every error: RFC 9457, `application/problem+json`.

use serde::{Deserialize, Serialize};

use crate::requests::FieldError;

/// The reason for which a request failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Problem {
    /// The kind of the problem, as a reference to its description in the API documentation.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The cause and the remedy.
    pub detail: String,
    /// The invalid fields, if the request has any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ProblemField>,
}

/// An invalid field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProblemField {
    /// The path of the field: names joined by dots, as in `rules.maxRetries`. Parameters have their name.
    pub field: String,
    /// The cause and the remedy.
    pub message: String,
}

impl From<FieldError> for ProblemField {
    fn from(error: FieldError) -> Self {
        let field = crate::requests::json_field(&error.field);
        // An error of the JSON editor names the place within the input at the start of its message.
        match error.message.split_once(": ") {
            Some((pointer, message)) if field == "jobData" && pointer.starts_with('/') => {
                Self { field: format!("{field}{}", pointer.replace('/', ".")), message: message.to_owned() }
            }
            _ => Self { field, message: error.message },
        }
    }
}
