//! One module for each page of the site map.
//!
//! A page requests its data in one blocking resource, so that the HTML is complete and the status is known before
//! anything is sent. It draws the data with [`loading::render_page`](crate::components::loading::render_page) and keeps
//! it current with [`live`](crate::live) from then on.

pub mod account;
pub mod alerts;
pub mod audit;
pub mod calendars;
pub mod failures;
pub mod help;
pub mod job;
pub mod job_form;
pub mod jobs;
pub mod login;
pub mod menu;
pub mod occurrence;
pub mod occurrences;
pub mod one_time_link;
pub mod overview;
pub mod person;
pub mod singletons;
pub mod team;
pub mod tokens;
pub mod workers;
