//! The validation error of one field of a form or request.

use serde::{Deserialize, Serialize};

/// A validation error of one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldError {
    /// The name of the field in the form.
    pub field: String,
    /// The problem and its remedy, starting in lower case. Pages capitalize it.
    pub message: String,
}

impl FieldError {
    /// Builds an error for `field`.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}
