//! Tests of the program `milvaion-worker` against real services at `AMQP_URL`, `REDIS_URL` and, for the job type
//! `sql-query`, `DATABASE_URL`. Each test uses its own names there.

mod builtin;
mod disk_full;
mod outbox;
mod shutdown;
mod traces;
mod worker_process;
