//! What people send, and what is said about it when it is wrong.
//!
//! A browser form is strings. [`JobForm`] is exactly those strings, so that what somebody typed survives a refusal, with
//! and without JavaScript; [`JobForm::check`] turns it into a [`JobInput`] or into one sentence for each wrong field.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use milvaion_schedule::{rules::Rules, schedule::Schedule};

mod job_form;
mod user;

pub use job_form::{JobForm, parse_input_json};
pub use milvaion_schedule::field_error::FieldError;
pub use user::{check_email, check_name, check_passphrase};

/// A job's definition: what an edit keeps as a version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobInput {
    /// 1 to 200 characters.
    pub display_name: String,
    /// At most 2,000 characters.
    #[serde(default)]
    pub description: String,
    /// At most 20, each 1 to 50 characters.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The worker it is addressed to.
    pub worker_id: String,
    /// What it runs.
    pub job_type: String,
    /// The input.
    #[serde(default)]
    pub job_data: Value,
    /// When.
    pub schedule: Schedule,
    /// False: defined, but not fired by its schedule.
    #[serde(default = "yes")]
    pub is_active: bool,
    /// 1 (idle) to 5 (critical).
    #[serde(default = "middle")]
    pub priority: u8,
    /// 1 second to 24 hours; none means the worker's default.
    #[serde(default)]
    pub timeout_seconds: Option<u32>,
    /// Everything else it wants; each has a default that does.
    #[serde(default)]
    pub rules: Rules,
}

impl JobInput {
    /// As much of a job as says when it is due.
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

/// Whether a worker or job type may be called so: 1 to 100 letters, digits, `-`, `_`, `.`.
#[must_use]
pub fn is_valid_name(text: &str) -> bool {
    (1..=100).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}
