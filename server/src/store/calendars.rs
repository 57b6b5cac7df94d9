//! Calendars: named sets of blackouts.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use milvaion_protocol::id::{CalendarId, JobId};
use milvaion_schedule::calendar::Calendar;
use serde_json::Value;
use uuid::Uuid;

use super::{Result, Store, StoreError, jobs::AuditStamp};

/// A calendar as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredCalendar {
    /// Its id.
    pub id: CalendarId,
    /// What it says.
    pub calendar: Calendar,
    /// Counts edits.
    pub version: i32,
    /// How many jobs keep to it.
    pub jobs: i64,
    /// When it was changed last.
    pub modified_at: DateTime<Utc>,
    /// By whom.
    pub modified_by: String,
}

fn read(definition: Value) -> Result<Calendar> {
    serde_json::from_value(definition).map_err(|error| StoreError::Corrupt {
        table: "calendars",
        column: "definition",
        detail: error.to_string(),
    })
}

impl Store {
    /// Every calendar by name, at most a thousand.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn calendars(&self) -> Result<Vec<StoredCalendar>> {
        let rows = sqlx::query!(
            r#"SELECT c.*, (SELECT count(*) FROM jobs j WHERE cardinality(j.calendars) > 0 AND j.calendars @> ARRAY[c.id]) AS "jobs!"
                 FROM calendars c ORDER BY lower(name) LIMIT 1000"#
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|row| {
                Ok(StoredCalendar {
                    id: CalendarId(row.id),
                    calendar: read(row.definition)?,
                    version: row.version,
                    jobs: row.jobs,
                    modified_at: row.modified_at,
                    modified_by: row.modified_by,
                })
            })
            .collect()
    }

    /// One calendar; none when there is none by that id.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn calendar(&self, id: CalendarId) -> Result<Option<StoredCalendar>> {
        let row = sqlx::query!(
            r#"SELECT c.*, (SELECT count(*) FROM jobs j WHERE cardinality(j.calendars) > 0 AND j.calendars @> ARRAY[c.id]) AS "jobs!"
                 FROM calendars c WHERE id = $1"#,
            id.0
        )
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            Ok(StoredCalendar {
                id: CalendarId(row.id),
                calendar: read(row.definition)?,
                version: row.version,
                jobs: row.jobs,
                modified_at: row.modified_at,
                modified_by: row.modified_by,
            })
        })
        .transpose()
    }

    /// Jobs that keep to a calendar, paused ones too: their ids and names, by name, at most `limit`.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn calendar_job_names(&self, id: CalendarId, limit: i64) -> Result<Vec<(JobId, String)>> {
        let rows = sqlx::query!(
            "SELECT id, display_name FROM jobs
              WHERE cardinality(calendars) > 0 AND calendars @> ARRAY[$1::uuid]
              ORDER BY lower(display_name), id LIMIT $2",
            id.0,
            limit
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (JobId(row.id), row.display_name)).collect())
    }

    /// Some calendars. One that cannot be read by this version blacks out nothing.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn calendars_by_id(&self, ids: &HashSet<CalendarId>) -> Result<HashMap<CalendarId, Calendar>> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let rows = sqlx::query!("SELECT id, definition FROM calendars WHERE id = ANY($1)", &ids)
            .fetch_all(self.pool())
            .await?;
        Ok(rows
            .into_iter()
            .filter_map(|row| {
                serde_json::from_value(row.definition).ok().map(|calendar| (CalendarId(row.id), calendar))
            })
            .collect())
    }

    /// Makes a calendar, or replaces it if it is still at `version`. None when somebody else was faster or it is gone.
    ///
    /// # Errors
    ///
    /// When the database does not answer, or another calendar has the name.
    pub async fn save_calendar(
        &self,
        id: CalendarId,
        version: Option<i32>,
        calendar: &Calendar,
        edit: AuditStamp<'_>,
    ) -> Result<Option<i32>> {
        Ok(sqlx::query_scalar!(
            r#"WITH before AS (SELECT definition FROM calendars WHERE id = $1),
             saved AS (
                INSERT INTO calendars AS c (id, name, definition, modified_at, modified_by)
                SELECT $1, $2, $3, $4, $5 WHERE $6::int IS NULL OR EXISTS (SELECT 1 FROM before)
                ON CONFLICT (id) DO UPDATE
                   SET name = excluded.name, definition = excluded.definition, modified_at = excluded.modified_at,
                       modified_by = excluded.modified_by, version = c.version + 1
                 WHERE c.version = $6
                RETURNING c.version
             ),
             noted AS (
                INSERT INTO audit_log (at, who, action, object, before, after)
                SELECT $4, $5, CASE WHEN $6::int IS NULL THEN 'calendar.create' ELSE 'calendar.update' END,
                       'calendar:' || $1::text, (SELECT definition FROM before), $3 FROM saved
             )
             SELECT version AS "version!" FROM saved"#,
            id.0,
            calendar.name,
            serde_json::to_value(calendar).unwrap_or_default(),
            edit.at,
            edit.by,
            version
        )
        .fetch_optional(self.pool())
        .await?)
    }

    /// Deletes a calendar that no job keeps to. False when a job does, or it is gone.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn delete_calendar(&self, id: CalendarId, edit: AuditStamp<'_>) -> Result<bool> {
        let done = sqlx::query!(
            "WITH gone AS (
                DELETE FROM calendars
                 WHERE id = $1
                   AND NOT EXISTS (SELECT 1 FROM jobs WHERE cardinality(calendars) > 0 AND calendars @> ARRAY[$1])
                RETURNING definition
             )
             INSERT INTO audit_log (at, who, action, object, before)
             SELECT $2, $3, 'calendar.delete', 'calendar:' || $1::text, definition FROM gone",
            id.0,
            edit.at,
            edit.by
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Active jobs that keep to a calendar, after `after`, at most `limit`.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn jobs_with_calendar(&self, id: CalendarId, after: JobId, limit: i64) -> Result<Vec<JobId>> {
        Ok(sqlx::query_scalar!(
            "SELECT id FROM jobs
              WHERE cardinality(calendars) > 0 AND calendars @> ARRAY[$1::uuid] AND is_active AND id > $2
              ORDER BY id LIMIT $3",
            id.0,
            after.0,
            limit
        )
        .fetch_all(self.pool())
        .await?
        .into_iter()
        .map(JobId)
        .collect())
    }

    /// Moves a job's due instant if neither it nor the job has changed since they were read.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn move_due(
        &self,
        id: JobId,
        version: i32,
        was: Option<DateTime<Utc>>,
        next: Option<DateTime<Utc>>,
    ) -> Result<bool> {
        let done = sqlx::query!(
            "UPDATE jobs SET next_fire_at = $4
              WHERE id = $1 AND version = $2 AND is_active AND next_fire_at IS NOT DISTINCT FROM $3",
            id.0,
            version,
            was,
            next
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1)
    }
}
