//! The changes that users can make.
//!
//! There is one file per noun. A command checks its input and changes PostgreSQL in one statement, which also writes
//! the audit row. Only then does it notify Redis, the broker and the browsers. Any of them may be unreachable without
//! failing the command: the background tasks find later what they missed.
//!
//! Each returns `Unavailable` or `Failed` if PostgreSQL fails; a section `# Errors` names other errors.

pub mod account;
pub mod alerts;
pub mod calendars;
pub mod cluster;
pub mod declared_jobs;
pub mod definitions;
pub mod due_times;
pub mod enqueue;
pub mod failures;
pub mod files;
pub mod jobs;
pub mod manual_run;
pub mod occurrences;
pub mod one_time_links;
pub mod sample_job;
pub mod sign_in;
pub mod singletons;
pub mod team;
pub mod tokens;
pub mod versions;

pub use milvaion_app::backend::RequestUser;
use milvaion_app::error::AppError;
use milvaion_protocol::storable::clean_text;

/// The maximum length of a reason, in characters.
const MAX_REASON_CHARS: usize = 500;

/// Returns a reason as it is stored, or `None` if it is empty.
///
/// # Errors
///
/// Returns `Fields` for `reason` if it is too long.
fn reason(text: &str) -> Result<Option<String>, AppError> {
    let text = clean_text(text.trim());
    if text.chars().count() > MAX_REASON_CHARS {
        return Err(AppError::field("reason", "at most 500 characters are allowed"));
    }
    Ok(Some(text).filter(|text| !text.is_empty()))
}
