//! Requests, views, events and permissions.

pub mod calendar_form;
pub mod duplicates;
pub mod events;
pub mod failures;
pub mod page;
pub mod permissions;
pub mod requests;
pub mod rules_form;
pub mod schema_form;
pub mod versions;
pub mod views;
