//! When a job is due.

pub mod calendar;
pub mod cron;
pub mod due;
pub mod field_error;
pub mod rules;
pub mod schedule;
mod zone;
