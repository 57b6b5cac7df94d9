//! The deletion of rows after their retention. The tables with the most rows drop whole [partitions](super::partitions)
//! instead.
//!
//! Each statement deletes a bounded number of rows. One without a bound takes longer the more rows have expired; once it
//! exceeds the time limit of a statement, it fails each time and the table only grows.

use chrono::{DateTime, Utc};

use super::{Result, Store};

/// The most rows that one statement deletes. If it deletes as many, more may have expired.
pub const DELETE_BATCH_SIZE: i64 = 1_000;

/// Defines the tables, each with the column that dates its rows, and with a further condition if not every old row has
/// expired. A macro, so that the build checks every statement.
macro_rules! expiring_tables {
    ($($(#[$doc:meta])* $variant:ident: $table:tt, $date:tt $(, $condition:tt)?;)*) => {
        /// A table whose rows are deleted one by one when they expire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ExpiringTable {
            $($(#[$doc])* $variant,)*
        }

        impl ExpiringTable {
            /// Returns the name of the table.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $table,)*
                }
            }
        }

        impl Store {
            /// Deletes at most [`DELETE_BATCH_SIZE`] rows that are dated `until` or before, oldest first. Rows that another
            /// statement has locked are left to the next call. Returns their number.
            ///
            /// # Errors
            ///
            /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then none was deleted.
            pub async fn delete_expired(&self, table: ExpiringTable, until: DateTime<Utc>) -> Result<u64> {
                let done = match table {
                    $(ExpiringTable::$variant => {
                        sqlx::query!(
                            "DELETE FROM " + $table + " WHERE ctid = ANY (ARRAY (SELECT ctid FROM " + $table + " WHERE "
                                + $date + " <= $1" $(+ $condition)? + " ORDER BY " + $date + " LIMIT $2 FOR UPDATE SKIP LOCKED))",
                            until,
                            DELETE_BATCH_SIZE
                        )
                        .execute(self.pool())
                        .await?
                    })*
                };
                Ok(done.rows_affected())
            }
        }
    };
}

expiring_tables! {
    /// Sessions, ended ones included, by their expiry.
    Sessions: "sessions", "expires_at";
    /// One-time links, by their expiry; the audit log keeps their history.
    OneTimeLinks: "one_time_links", "expires_at";
    /// Counts of failed sign-ins, by the last attempt.
    SignInThrottle: "sign_in_throttle", "last_at";
    /// Known devices, by the last sign-in.
    KnownDevices: "known_devices", "last_used_at";
    /// Worker instances with their job types, by the last heartbeat. The job types of their workers stay.
    WorkerInstances: "worker_instances", "last_heartbeat_at";
    /// Job types that no instance offers and no job names, by their last announcement.
    WorkerJobTypes: "worker_job_types", "announced_at",
        " AND NOT EXISTS (SELECT 1 FROM jobs j
                          WHERE j.worker_id = worker_job_types.worker_id AND j.job_type = worker_job_types.job_type)
         AND NOT EXISTS (SELECT 1 FROM worker_instances i JOIN instance_job_types o ON o.instance_id = i.id
                          WHERE i.worker_id = worker_job_types.worker_id AND o.job_type = worker_job_types.job_type)";
    /// Workers without instances, job types and jobs, by their last registration or heartbeat.
    Workers: "workers", "last_seen_at",
        " AND NOT EXISTS (SELECT 1 FROM worker_instances i WHERE i.worker_id = workers.id)
         AND NOT EXISTS (SELECT 1 FROM worker_job_types t WHERE t.worker_id = workers.id)
         AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.worker_id = workers.id)";
    /// Counts of redelivered messages, by the last delivery.
    Redeliveries: "redeliveries", "last_at";
    /// Idempotency keys of manual runs, by the request.
    TriggerKeys: "trigger_keys", "created_at";
    /// Idempotency keys of API requests with the stored answers, by the request.
    ApiRequests: "api_requests", "created_at";
    /// Failures, resolved ones included, by the time of the failure.
    FailedOccurrences: "failed_occurrences", "failed_at";
    /// Dead letters, resolved ones included, by their arrival.
    DeadLetters: "dead_letters", "received_at";
    /// Late starts, by the report of the start.
    LateStarts: "late_starts", "at";
    /// Notes about unreadable reports, by their arrival.
    RunNotes: "run_notes", "at";
    /// Resolved alerts with their messages, by the time of the resolution. One that fires has none.
    AlertStates: "alert_states", "resolved_at";
    /// Checkpoints of occurrences that are no longer open, by the time at which they were stored.
    RunCheckpoints: "run_checkpoints", "stored_at",
        " AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.id = run_checkpoints.run_id)";
    /// Folded counts of statuses, by their minute.
    StatsFolded: "stats_folded", "minute";
}
