//! The program `milvaion-worker` on real services, which `AMQP_URL`, `REDIS_URL` and, for the job type `sql-query`,
//! `DATABASE_URL` name. Each test uses names of its own on them.

mod builtin;
mod disk_full;
mod outbox;
mod shutdown;
mod worker_process;
