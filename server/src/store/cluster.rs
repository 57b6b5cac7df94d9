//! The cluster pause, which stops every dispatcher.
//!
//! It is a row. The statements that dispatch jobs and grant slots check it themselves, so that a statement that was
//! already on its way to the database is stopped too. No server needs to be notified for the pause to take effect.

use chrono::{DateTime, Utc};
use milvaion_api::views::ClusterPause;

use super::{Result, Store, jobs::AuditStamp};

impl Store {
    /// Returns the cluster pause with its start, author and reason; `None` if the cluster is not paused.
    pub async fn cluster_pause(&self) -> Result<Option<ClusterPause>> {
        Ok(sqlx::query_as!(ClusterPause, "SELECT since, by_whom AS by, reason FROM cluster_pause")
            .fetch_optional(self.pool())
            .await?)
    }

    /// Pauses the cluster and inserts an audit row. Returns false, and changes nothing, if it was paused already.
    pub async fn pause_cluster(&self, reason: &str, edit: AuditStamp<'_>) -> Result<bool> {
        let done = sqlx::query!(
            "WITH made AS (
                INSERT INTO cluster_pause (since, by_whom, reason) VALUES ($1, $2, $3)
                ON CONFLICT DO NOTHING RETURNING reason
             )
             INSERT INTO audit_log (at, who, action, object, after, address)
             SELECT $1, $2, 'cluster.pause', 'cluster:all', jsonb_build_object('reason', reason), $4 FROM made",
            edit.at,
            edit.by,
            reason,
            edit.address.map(|address| address.to_string())
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Resumes the cluster and inserts an audit row. Returns the start of the pause; `None` if it was not paused.
    pub async fn resume_cluster(&self, edit: AuditStamp<'_>) -> Result<Option<DateTime<Utc>>> {
        Ok(sqlx::query_scalar!(
            r#"WITH gone AS (DELETE FROM cluster_pause RETURNING since, by_whom, reason),
                    noted AS (
                INSERT INTO audit_log (at, who, action, object, before, address)
                SELECT $1, $2, 'cluster.resume', 'cluster:all',
                       jsonb_build_object('since', since, 'by', by_whom, 'reason', reason), $3
                  FROM gone
             )
             SELECT since AS "since!" FROM gone"#,
            edit.at,
            edit.by,
            edit.address.map(|address| address.to_string())
        )
        .fetch_optional(self.pool())
        .await?)
    }
}
