//! The public API of the SDK.
//!
//! Everything that users of the crate implement, configure, call or match on belongs here: the job, the outcome of an
//! attempt, the worker, its settings and its errors. Users read the documentation of these items, so it explains
//! everything without reference to other modules. The assembly of all parts is here as well, because [`worker`] is the
//! only module that needs every other one. Logic that users do not see belongs in the other modules of the crate.
//!
//! | File | Content |
//! |---|---|
//! | [`job`], [`job_fn`] | The trait [`Job`](crate::Job), and jobs that are functions |
//! | [`options`], [`rules`], [`timing`] | The rules and schedules that code declares beside a job |
//! | [`context`] | The context of a run, what its job enqueues, and the values that layers pass to it |
//! | [`layer`] | Code around every run |
//! | [`events`] | Observers of all runs |
//! | [`outcome`] | The ways an attempt can end, and the report of each |
//! | [`config`] | The settings of a worker, from the environment, a file or code |
//! | [`error`] | The errors that keep a worker from starting |
//! | [`logging`] | The log of a program that has set up none |
//! | [`builder`] | The settings, jobs and layers of a worker before it is built |
//! | [`worker`] | The assembly of all parts |

pub(crate) mod builder;
pub(crate) mod config;
pub(crate) mod context;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod job;
pub(crate) mod job_fn;
pub(crate) mod layer;
pub(crate) mod logging;
pub(crate) mod options;
pub(crate) mod outcome;
pub(crate) mod rules;
pub(crate) mod timing;
pub(crate) mod worker;
