//! What the server does by itself.
//!
//! Each file is one [service](crate::engine::Service): a decision from `domain`, and statements of `store`, `cache` and
//! `broker` that carry it out.
//!
//! The dispatcher computes the instant of its next tick itself, so it has its own loop. Its tick follows the same
//! rules.

pub mod alert_sender;
pub mod alerts;
pub mod auto_disable;
pub mod cancellations;
pub mod clock_watch;
pub mod declared_jobs;
pub mod dispatcher;
pub mod due_index;
pub mod due_times;
pub mod heartbeat_url;
pub mod late_runs;
pub mod lease;
pub mod lost_messages;
pub mod lost_runs;
pub mod maintenance;
pub mod overdue_runs;
pub mod presence;
pub mod publish_marker;
pub mod queue_expiry;
pub mod republisher;
#[cfg(feature = "faults")]
mod sabotage;
pub mod singletons;
pub mod slot_granter;
pub mod snapshot_watch;
pub mod stats_folder;
mod steps;
pub mod task_alerts;
pub mod vacuum;
