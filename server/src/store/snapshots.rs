//! Old snapshots: transactions for which PostgreSQL keeps dead rows.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::{Result, Store};

/// A session that keeps dead rows: by the snapshot of a query, or by an uncommitted change.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct OldSnapshot {
    /// The process of PostgreSQL.
    pub pid: i32,
    /// The name that the client gave itself, such as `pg_dump`; it may be empty.
    pub application: String,
    /// The begin of its transaction, by PostgreSQL's clock.
    pub since: DateTime<Utc>,
}

impl Store {
    /// Returns the session with the oldest snapshot of this database, if its transaction is older than `min_age`.
    /// VACUUM is left out, because no dead row is kept for it. A role without `pg_read_all_stats` sees its own sessions
    /// only.
    pub async fn oldest_snapshot(&self, min_age: Duration) -> Result<Option<OldSnapshot>> {
        let row = sqlx::query!(
            r#"SELECT pid AS "pid!", coalesce(application_name, '') AS "application!", xact_start AS "since!"
                 FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid() 
                  AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
                  AND backend_type = 'client backend' AND query !~* '^\s*vacuum'
                  AND xact_start < clock_timestamp() - make_interval(secs => $1)
                ORDER BY xact_start LIMIT 1"#,
            min_age.as_secs_f64()
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(row.map(|row| OldSnapshot { pid: row.pid, application: row.application, since: row.since }))
    }
}
