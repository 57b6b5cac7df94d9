//! The operations of the API, one method each, by the objects that they act on.

mod calendars;
mod failures;
mod files;
mod installation;
pub(crate) mod jobs;
mod occurrences;
mod singletons;
mod tokens;
