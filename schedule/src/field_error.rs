//! The error of one field of a form or request.

use serde::{Deserialize, Serialize};

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldError {
    /// The field's name in the form.
    pub field: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl FieldError {
    /// One.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}
