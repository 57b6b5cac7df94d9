//! The worker's library on real services, which `AMQP_URL` and `REDIS_URL` name. Each test uses names of its own on them.
//!
//! All topics are one program: linking the same libraries once per topic would cost minutes and gigabytes. nextest still
//! runs each test in a process of its own. Select a topic by its module: `test(/^outbox::/)`.
//!
//! The program `milvaion-worker` is tested in `worker/builtin/tests/it`.

mod delivery;
mod duplicates;
mod executor;
mod health;
mod outbox;
mod readme;
mod shutdown;
