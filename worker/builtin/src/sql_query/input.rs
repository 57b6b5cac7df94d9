//! The input of `sql-query` and its checks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::context::{BuiltinError, secrets};

/// Maximum number of rows in a result.
const MAX_ROWS: u32 = 10_000;
/// Maximum number of parameters.
const MAX_PARAMETERS: usize = 1_000;

/// A statement, and the database to run it on.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "SQL query")]
pub(crate) struct SqlQueryInput {
    /// Alias of the database, whose address and password are in the worker's configuration.
    #[schemars(title = "Connection", length(min = 1, max = 50), example = &"reporting")]
    pub(super) connection: String,
    /// One SQL statement, up to 60,000 characters, with $1, $2 for parameters on PostgreSQL and ?1, ?2 on SQLite.
    #[schemars(title = "Statement", length(min = 1, max = 60_000), extend("format" = "multiline"))]
    pub(super) query: String,
    /// Values of the parameters in order, up to 1,000, with dates and times as text and secrets as {{secret:name}};
    /// none by default.
    #[serde(default)]
    #[schemars(title = "Parameters", length(max = MAX_PARAMETERS), example = serde_json::json!([42, "open", null]))]
    pub(super) parameters: Vec<Value>,
    /// Refuses statements that write; on by default.
    #[serde(default = "default_read_only")]
    #[schemars(title = "Read only")]
    pub(super) read_only: bool,
    /// Maximum number of rows in the result, from 1 to 10000 and within 60 KiB; 1000 by default.
    #[serde(default = "default_max_rows")]
    #[schemars(title = "Maximum rows", range(min = 1, max = MAX_ROWS))]
    pub(super) max_rows: u32,
    /// Time in seconds after which the statement is cancelled, from 1 to 3600; 60 by default.
    #[serde(default = "default_timeout_seconds")]
    #[schemars(title = "Statement timeout (seconds)", range(min = 1, max = 3600))]
    pub(super) timeout_seconds: u32,
}

const fn default_read_only() -> bool {
    true
}

const fn default_max_rows() -> u32 {
    1_000
}

const fn default_timeout_seconds() -> u32 {
    60
}

impl SqlQueryInput {
    /// Checks the bounds of the fields.
    ///
    /// # Errors
    /// Returns a permanent error that names the invalid field.
    pub(super) fn check(&self) -> Result<(), BuiltinError> {
        if self.query.trim().is_empty() {
            return Err(BuiltinError::permanent("`query` is empty; write one statement"));
        }
        if self.query.contains('\0') {
            return Err(BuiltinError::permanent("`query` contains a NUL character; remove it"));
        }
        if self.parameters.len() > MAX_PARAMETERS {
            return Err(BuiltinError::permanent(format!("`parameters` has more than {MAX_PARAMETERS} entries")));
        }
        if !(1..=MAX_ROWS).contains(&self.max_rows) {
            return Err(BuiltinError::permanent(format!("`maxRows` is {}; give 1 to {MAX_ROWS}", self.max_rows)));
        }
        if !(1..=3600).contains(&self.timeout_seconds) {
            return Err(BuiltinError::permanent(format!(
                "`timeoutSeconds` is {}; give 1 to 3600",
                self.timeout_seconds
            )));
        }
        Ok(())
    }
}

/// Refuses a statement that contains a reference to a secret, before it is resolved: a value inserted into SQL can
/// change what the statement does.
///
/// # Errors
/// Returns a permanent error that suggests a parameter.
pub(super) fn refuse_secrets(query: &str) -> Result<(), BuiltinError> {
    if secrets::has_reference(query) {
        return Err(BuiltinError::permanent(
            "`query` refers to a secret; bind it instead: $1 in the statement, {{secret:name}} in `parameters`",
        ));
    }
    Ok(())
}
