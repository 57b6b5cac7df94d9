//! The server's tests on real services; a few need none.
//!
//! All tests are one program. Every file beside this folder would be another program that contains the whole server, and
//! linking it twenty times costs a minute and three gigabytes. Nothing is lost: nextest runs each test in a process of its
//! own, and each test has its own database and prefixes (see [`milvaion_test_support`]), so tests can also share a process
//! under plain `cargo test`. Therefore a test must not change process-wide state, such as the global subscriber, the
//! environment or the working directory.
//!
//! One topic is one module: `cargo nextest run -p milvaion-server -E 'test(/^lease::/)'`.

mod access_matrix;
mod admin_cli;
mod alert_channels;
mod alerts;
mod audit;
mod auto_disable;
mod cluster_pause;
mod cron_cli;
mod declared_jobs;
mod dispatch;
mod due_index;
mod duplicates;
mod engine;
mod enqueue;
mod event_stream;
mod exhaustive;
mod failures;
mod files;
mod invariants;
mod job_queues;
mod journey;
mod late_runs;
mod lease;
mod live_logs;
mod lock_order;
mod log_capture;
mod lost_connections;
mod lost_runs;
mod manual_run;
mod metrics;
mod newer_server;
mod old_snapshots;
mod overview;
mod plans;
mod private_redis;
mod python_worker;
mod queue_limits;
mod queue_probe;
mod recorded_queries;
mod recovery;
mod refused_queues;
mod registration;
mod regressions;
mod rejected_messages;
mod remote_cli;
mod rest;
mod rest_client_wait;
mod retention;
mod schema;
mod server_process;
mod singletons;
mod slow_requests;
mod start_up;
mod stats;
mod status;
mod tables;
mod traces;
mod unreadable;
mod users;
mod versions;
