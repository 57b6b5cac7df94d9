//! The requests of users, and the errors of invalid ones.
//!
//! A browser form consists of strings. [`JobForm`] has exactly those strings, so that a rejected form keeps what the
//! user entered, with and without JavaScript. [`JobForm::check`] converts it to a [`JobInput`] or to one message per
//! invalid field.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use milvaion_schedule::{rules::Rules, schedule::Schedule};

mod definition;
mod job_form;
mod user;

pub use definition::json_field;
pub use job_form::{JobForm, parse_input_json};
pub use milvaion_protocol::exact_json::parse_exact as parse_exact_json;
pub use milvaion_schedule::field_error::FieldError;
pub use user::{check_email, check_name, check_passphrase};

/// The definition of a job. Each edit stores it as a version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct JobInput {
    /// The name, 1 to 200 characters.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 200)))]
    pub display_name: String,
    /// The description, at most 2,000 characters.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 2_000)))]
    pub description: String,
    /// The tags, at most 20, each 1 to 50 characters.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 20), inner(length(min = 1, max = 50))))]
    pub tags: Vec<String>,
    /// The worker to which the job is addressed.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[A-Za-z0-9._-]{1,100}$")))]
    pub worker_id: String,
    /// The job type to run.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[A-Za-z0-9._-]{1,100}$")))]
    pub job_type: String,
    /// The input.
    #[serde(default)]
    pub job_data: Value,
    /// The schedule.
    pub schedule: Schedule,
    /// True if the schedule is active; false while the job is paused.
    #[serde(default = "yes")]
    pub is_active: bool,
    /// The priority, from 1 (idle) to 5 (critical).
    #[serde(default = "middle")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 5)))]
    pub priority: u8,
    /// The timeout, 1 second to 24 hours. None means the worker's default.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 86_400)))]
    pub timeout_seconds: Option<u32>,
    /// The rules, each with a usable default.
    #[serde(default)]
    pub rules: Rules,
}

impl JobInput {
    /// Builds a definition with a schedule and rules only, for computing due times.
    #[must_use]
    pub fn schedule_only(schedule: Schedule, rules: Rules) -> Self {
        Self {
            display_name: String::new(),
            description: String::new(),
            tags: Vec::new(),
            worker_id: String::new(),
            job_type: String::new(),
            job_data: Value::Null,
            schedule,
            is_active: true,
            priority: 3,
            timeout_seconds: None,
            rules,
        }
    }
}

const fn yes() -> bool {
    true
}

const fn middle() -> u8 {
    3
}

/// Returns true if the text is a valid worker id or job type: 1 to 100 letters, digits, `-`, `_`, `.`.
#[must_use]
pub fn is_valid_name(text: &str) -> bool {
    milvaion_protocol::topology::is_valid_name(text, 100)
}
