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
