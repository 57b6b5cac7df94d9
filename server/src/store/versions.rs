//! Versions of job definitions. They are kept after the job is deleted.

use milvaion_api::{
    page::{self, ListPage},
    versions::{VersionRow, VersionView},
};
use milvaion_protocol::id::{CalendarId, JobId};
use serde_json::Value;
use uuid::Uuid;

use super::{Result, Store};

impl Store {
    /// Returns a page of a job's versions before `before`, newest first.
    pub async fn versions(&self, id: JobId, before: Option<i32>, limit: u32) -> Result<ListPage<VersionRow>> {
        let limit = page::effective_limit(limit);
        let mut rows = sqlx::query_as!(
            VersionRow,
            "SELECT version, changed_at, changed_by FROM job_versions
              WHERE job_id = $1 AND ($2::int IS NULL OR version < $2) ORDER BY version DESC LIMIT $3",
            id.0,
            before,
            i64::from(limit) + 1
        )
        .fetch_all(self.pool())
        .await?;
        let more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let next = rows.last().filter(|_| more).map(|row| row.version.to_string());
        Ok(ListPage { rows, next })
    }

    /// Returns one version of a job's definition, also if the job is deleted; `None` if it does not exist.
    pub async fn version(&self, id: JobId, version: i32) -> Result<Option<VersionView>> {
        let row = sqlx::query!(
            "SELECT version, changed_at, changed_by, definition FROM job_versions WHERE job_id = $1 AND version = $2",
            id.0,
            version
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(row.map(|row| VersionView {
            row: VersionRow { version: row.version, changed_at: row.changed_at, changed_by: row.changed_by },
            definition: row.definition,
        }))
    }

    /// Returns the definitions of the versions from `from` to `to`, both included, oldest first.
    pub async fn definitions(&self, id: JobId, from: i32, to: i32) -> Result<Vec<(i32, Value)>> {
        let rows = sqlx::query!(
            "SELECT version, definition FROM job_versions
              WHERE job_id = $1 AND version BETWEEN $2 AND $3 ORDER BY version",
            id.0,
            from,
            to
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (row.version, row.definition)).collect())
    }

    /// Returns those of the given calendars that do not exist, in the same order.
    pub async fn missing_calendars(&self, ids: &[CalendarId]) -> Result<Vec<CalendarId>> {
        let wanted: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let existing: Vec<Uuid> =
            sqlx::query_scalar!("SELECT id FROM calendars WHERE id = ANY($1)", &wanted).fetch_all(self.pool()).await?;
        Ok(ids.iter().copied().filter(|id| !existing.contains(&id.0)).collect())
    }
}
