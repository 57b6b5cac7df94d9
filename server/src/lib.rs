//! The scheduler.
//!
//! Rooms, in reading order. [`domain`] is what the product believes. [`store`], [`cache`] and [`broker`] are its three
//! services and never call each other. [`background`] is what the server does by itself, [`ingest`] what workers tell it,
//! [`command`] what people ask of it, [`live`] what it tells people. [`http`] and [`ui`] are its doors. [`config`] is what
//! can be set, [`embedded`] starts private services on one machine, [`lifecycle`] wires everything and takes it down
//! again. Time, ids and tokens come from [`clock`] alone; [`error`] and [`telemetry`] are how things are told in the log;
//! [`faults`] is where a test may end the process or take a protection away.

pub mod domain;

pub mod broker;
pub mod cache;
pub mod store;

pub mod background;
pub mod command;
pub mod ingest;
pub mod live;

pub mod http;
pub mod ui;

mod backoff;
pub mod clock;
pub mod config;
pub mod embedded;
pub mod error;
pub mod faults;
pub mod lifecycle;
pub mod telemetry;
