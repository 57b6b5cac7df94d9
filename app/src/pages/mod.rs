//! One file for each page of the site map.
//!
//! A page asks for its data in one blocking resource, so that its HTML is whole and its status right before anything is
//! sent, draws it with [`loading::page`](crate::components::loading::page), and keeps it current with
//! [`live`](crate::live) from then on.

pub mod calendars;
pub mod failed;
pub mod help;
pub mod invite;
pub mod job;
pub mod job_form;
pub mod jobs;
pub mod login;
pub mod occurrence;
pub mod occurrences;
pub mod overview;
pub mod team;
pub mod workers;
