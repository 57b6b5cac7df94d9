//! Every way a person can change the world.
//!
//! One file for each noun. A command checks what was asked, changes PostgreSQL in one statement (the audit row with it),
//! and only then tells Redis, the broker and the browsers, any of which may be away without the command failing: what
//! they missed is found again by the background.

pub mod calendars;
pub mod cluster;
pub mod failures;
pub mod invite;
pub mod jobs;
pub mod manual_run;
pub mod occurrences;
pub mod sign_in;
pub mod versions;
