//! What can be asked of `sql-query`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{context::BuiltinError, secrets};

/// The most rows of a result.
const MAX_ROWS: u32 = 10_000;
/// The most parameters.
const MAX_PARAMETERS: usize = 1_000;

/// What to run, and where.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "SQL query")]
pub(crate) struct SqlQueryInput {
    /// The name under which the worker knows the database; addresses and passwords are the worker's, not the job's.
    #[schemars(title = "Connection", length(min = 1, max = 50), example = &"reporting")]
    pub(super) connection: String,
    /// One statement. Values go into the parameters: $1, $2 on PostgreSQL, ?1, ?2 on SQLite.
    #[schemars(title = "Statement", length(min = 1, max = 60_000), extend("format" = "multiline"))]
    pub(super) query: String,
    /// The values of the parameters, in their order. Dates and the like are texts; write secrets as {{secret:name}}.
    #[serde(default)]
    #[schemars(title = "Parameters", length(max = MAX_PARAMETERS), example = serde_json::json!([42, "open", null]))]
    pub(super) parameters: Vec<Value>,
    /// Whether the statement may only read.
    #[serde(default = "yes")]
    #[schemars(title = "Only read")]
    pub(super) read_only: bool,
    /// How many rows are kept, from 1 to 10000; fewer when they do not fit a result of 64 KiB.
    #[serde(default = "a_thousand")]
    #[schemars(title = "Most rows", range(min = 1, max = MAX_ROWS))]
    pub(super) max_rows: u32,
    /// After how many seconds the statement is ended, from 1 to 3600.
    #[serde(default = "a_minute")]
    #[schemars(title = "Timeout in seconds", range(min = 1, max = 3600))]
    pub(super) timeout_seconds: u32,
}

const fn yes() -> bool {
    true
}

const fn a_thousand() -> u32 {
    1_000
}

const fn a_minute() -> u32 {
    60
}

impl SqlQueryInput {
    pub(super) fn check(&self) -> Result<(), BuiltinError> {
        if self.query.trim().is_empty() {
            return Err(BuiltinError::permanent("`query` is empty; write one statement"));
        }
        if self.query.contains('\0') {
            return Err(BuiltinError::permanent("`query` holds a NUL character"));
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

/// Refuses a statement with a reference to a secret in it, before it is resolved: a value pasted into SQL can change what
/// the statement does.
pub(super) fn refuse_secrets(query: &str) -> Result<(), BuiltinError> {
    if secrets::has_reference(query) {
        return Err(BuiltinError::permanent(
            "`query` refers to a secret; bind it instead: $1 in the statement, {{secret:name}} in `parameters`",
        ));
    }
    Ok(())
}
