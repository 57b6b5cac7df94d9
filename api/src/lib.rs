//! Requests, views, events and permissions.

pub mod access;
pub mod calendar_form;
pub mod duplicates;
pub mod event;
pub mod failure;
pub mod input;
pub mod page;
pub mod request;
pub mod rules_form;
pub mod versions;
pub mod view;
