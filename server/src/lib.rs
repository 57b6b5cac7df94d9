//! The scheduler.
//!
//! The modules, in reading order. [`domain`] holds the rules of the product, without I/O. [`store`], [`cache`] and
//! [`broker`] give access to PostgreSQL, Redis and RabbitMQ and never call each other. [`background`] holds the
//! periodic tasks, [`ingest`] the messages from workers, [`command`] the changes that users request, and [`live`] the
//! events for browsers; [`notify`] delivers messages about alerts. [`engine`] runs what the server does by itself. [`http`] and [`ui`] serve requests and pages.
//! [`config`] reads the settings, [`embedded`] starts private services on one machine, and [`lifecycle`] wires
//! everything together and stops it again. Time, ids and tokens come only from [`clock`]. [`metrics`] counts what all of
//! them do. [`error`] and [`telemetry`] format errors and log lines. [`faults`] marks the places where a test may end the process or switch a protection off.

/// The decisions of the scheduler, a crate of its own, so that its tests compile in seconds.
pub use milvaion_domain as domain;
/// The private services of a start on one machine, a crate of its own, which knows nothing of the scheduler.
pub use milvaion_embedded as embedded;

pub mod broker;
pub mod cache;
pub mod notify;
pub mod store;

pub mod background;
pub mod command;
pub mod ingest;
pub mod live;

pub mod http;
pub mod ui;

pub mod clock;
pub mod config;
pub mod engine;
pub mod error;
pub mod faults;
pub mod lifecycle;
pub mod metrics;
pub mod telemetry;
