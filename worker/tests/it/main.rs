//! A worker before real services: `AMQP_URL`, `REDIS_URL` and, for the built-in jobs, `DATABASE_URL`. Each test uses
//! names of its own on them.
//!
//! One program, because linking the same libraries for every topic costs minutes and gigabytes. The runner gives each test
//! a process of its own all the same, and a topic is picked by its name: `test(/^outbox::/)`.

mod common;

mod delivery;
mod duplicates;
mod executor;
mod health;
mod outbox;
mod readme;
mod shutdown;
