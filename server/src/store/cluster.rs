//! The switch that stops every dispatcher.
//!
//! It is a row. The statements that fire and release ask for it themselves, in the statement, so that nothing that was
//! already on its way to the database slips past; nobody has to have heard of the switch for it to work.

use chrono::{DateTime, Utc};
use milvaion_api::views::ClusterPause;

use super::{Result, Store, jobs::AuditStamp};

impl Store {
    /// Whether everything is paused, since when, by whom and why.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn cluster_pause(&self) -> Result<Option<ClusterPause>> {
        Ok(sqlx::query_as!(ClusterPause, "SELECT since, by_whom AS by, reason FROM cluster_pause")
            .fetch_optional(self.pool())
            .await?)
    }

    /// Pauses everything, and notes who did. False when it was paused already; then it stays as it was.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn pause_cluster(&self, reason: &str, edit: AuditStamp<'_>) -> Result<bool> {
        let done = sqlx::query!(
            "WITH made AS (
                INSERT INTO cluster_pause (since, by_whom, reason) VALUES ($1, $2, $3)
                ON CONFLICT DO NOTHING RETURNING reason
             )
             INSERT INTO audit_log (at, who, action, object, after)
             SELECT $1, $2, 'cluster.pause', 'cluster:all', jsonb_build_object('reason', reason) FROM made",
            edit.at,
            edit.by,
            reason
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Resumes everything, and notes who did. Returns since when it had been paused; none when it was not.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn resume_cluster(&self, edit: AuditStamp<'_>) -> Result<Option<DateTime<Utc>>> {
        Ok(sqlx::query_scalar!(
            r#"WITH gone AS (DELETE FROM cluster_pause RETURNING since, by_whom, reason),
                    noted AS (
                INSERT INTO audit_log (at, who, action, object, before)
                SELECT $1, $2, 'cluster.resume', 'cluster:all',
                       jsonb_build_object('since', since, 'by', by_whom, 'reason', reason)
                  FROM gone
             )
             SELECT since AS "since!" FROM gone"#,
            edit.at,
            edit.by
        )
        .fetch_optional(self.pool())
        .await?)
    }
}
