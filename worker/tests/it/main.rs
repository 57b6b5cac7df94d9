//! Tests of the worker library against real services at `AMQP_URL` and `REDIS_URL`. Each test uses its own names there.
//!
//! All topics form one test binary, because linking the same libraries once per topic would cost minutes and gigabytes.
//! nextest still runs each test in its own process. Select a topic by its module: `test(/^outbox::/)`.
//!
//! The program `milvaion-worker` is tested in `worker/builtin/tests/it`.

mod bundles;
mod delivery;
mod duplicates;
mod executor;
mod health;
mod layers;
mod options;
mod outbox;
mod readme;
mod shutdown;
mod singleton;
mod snippets;
