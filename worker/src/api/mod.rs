//! What users of the SDK write against: a job, its outcome, the worker and its configuration.
//!
//! | File | Content |
//! |---|---|
//! | [`job`] | The trait [`Job`](crate::Job) and the context of a run |
//! | [`outcome`] | The ways an attempt can end, and the report of each |
//! | [`config`] | The settings of a worker, from the environment, a file or code |
//! | [`error`] | The errors that keep a worker from starting |
//! | [`worker`] | The builder and the assembly of all parts |

pub(crate) mod config;
pub(crate) mod error;
pub(crate) mod job;
pub mod outcome;
pub(crate) mod worker;
