//! Calendars: named sets of blackouts.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use milvaion_protocol::id::{CalendarId, JobId};
use milvaion_schedule::calendar::Calendar;
use sqlx::PgExecutor;
use uuid::Uuid;

use super::{Result, Store, jobs::AuditStamp, readable};

/// A stored calendar.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredCalendar {
    /// Identifier.
    pub id: CalendarId,
    /// Name.
    pub name: String,
    /// Definition; none if this version cannot read it.
    pub calendar: Option<Calendar>,
    /// Number of edits, from 1.
    pub version: i32,
    /// Number of jobs that use it.
    pub jobs: i64,
    /// Number of jobs to which the last edit is not applied yet; none if it is applied to all.
    pub pending_jobs: Option<i64>,
    /// Time of the last edit.
    pub modified_at: DateTime<Utc>,
    /// Author of the last edit.
    pub modified_by: String,
}

/// A stored calendar, found by its name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedCalendar {
    /// Identifier.
    pub id: CalendarId,
    /// Name.
    pub name: String,
    /// Number of edits, from 1.
    pub version: i32,
    /// Definition; none if this version cannot read it.
    pub calendar: Option<Calendar>,
}

/// An edit of a calendar whose jobs are being moved to their new due times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalendarChange {
    /// The calendar.
    pub id: CalendarId,
    /// Its version.
    pub version: i32,
    /// The last job, in the order of ids, that has its new due time.
    pub applied_to: JobId,
}

/// The calendars of some jobs.
#[derive(Clone, Debug, Default)]
pub struct CalendarSet {
    /// The calendars that this version can read.
    pub readable: HashMap<CalendarId, Calendar>,
    /// The names of the others.
    pub unreadable: HashMap<CalendarId, String>,
}

impl CalendarSet {
    /// Describes one of the calendars `ids` that this version cannot read.
    #[must_use]
    pub fn unreadable_among(&self, ids: &[CalendarId]) -> Option<String> {
        ids.iter().find_map(|id| self.unreadable.get(id)).map(|name| format!("the calendar “{name}”"))
    }
}

/// Converts a row to a [`StoredCalendar`]. It is a macro because every checked statement has its own row type.
macro_rules! stored_calendar {
    ($row:expr) => {
        StoredCalendar {
            id: CalendarId($row.id),
            name: $row.name,
            calendar: readable::calendar($row.definition),
            version: $row.version,
            jobs: $row.jobs,
            pending_jobs: $row.pending_jobs,
            modified_at: $row.modified_at,
            modified_by: $row.modified_by,
        }
    };
}

impl Store {
    /// Returns all calendars by name, at most 1,000.
    pub async fn calendars(&self) -> Result<Vec<StoredCalendar>> {
        let rows = sqlx::query!(
            r#"SELECT c.*, (SELECT count(*) FROM jobs j WHERE cardinality(j.calendars) > 0 AND j.calendars @> ARRAY[c.id]) AS "jobs!",
                      CASE WHEN c.applied_version <> c.version THEN (
                          SELECT count(*) FROM jobs j
                           WHERE cardinality(j.calendars) > 0 AND j.calendars @> ARRAY[c.id] AND j.is_active
                             AND (c.applied_to IS NULL OR j.id > c.applied_to)) END AS pending_jobs
                 FROM calendars c ORDER BY lower(name) LIMIT 1000"#
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| stored_calendar!(row)).collect())
    }

    /// Returns a calendar, or `None` if there is none with this id.
    pub async fn calendar(&self, id: CalendarId) -> Result<Option<StoredCalendar>> {
        let row = sqlx::query!(
            r#"SELECT c.*, (SELECT count(*) FROM jobs j WHERE cardinality(j.calendars) > 0 AND j.calendars @> ARRAY[c.id]) AS "jobs!",
                      CASE WHEN c.applied_version <> c.version THEN (
                          SELECT count(*) FROM jobs j
                           WHERE cardinality(j.calendars) > 0 AND j.calendars @> ARRAY[c.id] AND j.is_active
                             AND (c.applied_to IS NULL OR j.id > c.applied_to)) END AS pending_jobs
                 FROM calendars c WHERE id = $1"#,
            id.0
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(row.map(|row| stored_calendar!(row)))
    }

    /// Returns the ids and names of the jobs that use a calendar, paused jobs included, by name, at most `limit`.
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

    /// Returns some calendars by id; those that do not exist are left out.
    pub async fn calendars_by_id(&self, ids: &HashSet<CalendarId>) -> Result<CalendarSet> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let rows = sqlx::query!("SELECT id, name, definition FROM calendars WHERE id = ANY($1)", &ids)
            .fetch_all(self.pool())
            .await?;
        let mut set = CalendarSet::default();
        for row in rows {
            let id = CalendarId(row.id);
            match readable::calendar(row.definition) {
                Some(calendar) => drop(set.readable.insert(id, calendar)),
                None => drop(set.unreadable.insert(id, row.name)),
            }
        }
        Ok(set)
    }

    /// Inserts a calendar, or replaces it if it is still at `version`. Returns `None` if it was changed or deleted
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails, or if another calendar has the name.
    pub async fn save_calendar(
        &self,
        id: CalendarId,
        version: Option<i32>,
        calendar: &Calendar,
        edit: AuditStamp<'_>,
    ) -> Result<Option<i32>> {
        save_calendar(self.pool(), id, version, calendar, edit).await
    }

    /// Returns the calendars with these names. Those that do not exist are left out.
    pub async fn calendars_of_names(&self, names: &[String]) -> Result<Vec<NamedCalendar>> {
        let rows = sqlx::query!("SELECT id, name, version, definition FROM calendars WHERE name = ANY($1)", names)
            .fetch_all(self.pool())
            .await?;
        let named = rows.into_iter().map(|row| NamedCalendar {
            id: CalendarId(row.id),
            name: row.name,
            version: row.version,
            calendar: readable::calendar(row.definition),
        });
        Ok(named.collect())
    }

    /// Deletes a calendar that no job uses. Returns false if a job uses it or it does not exist.
    pub async fn delete_calendar(&self, id: CalendarId, edit: AuditStamp<'_>) -> Result<bool> {
        let done = sqlx::query!(
            "WITH gone AS (
                DELETE FROM calendars
                 WHERE id = $1
                   AND NOT EXISTS (SELECT 1 FROM jobs WHERE cardinality(calendars) > 0 AND calendars @> ARRAY[$1])
                RETURNING definition
             )
             INSERT INTO audit_log (at, who, action, object, before, address)
             SELECT $2, $3, 'calendar.delete', 'calendar:' || $1::text, definition, $4 FROM gone",
            id.0,
            edit.at,
            edit.by,
            edit.address.map(|address| address.to_string())
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Returns a calendar whose last edit is not applied to all its jobs yet, or `None`. An edit that this version cannot
    /// read is left to a newer server.
    pub async fn edited_calendar(&self) -> Result<Option<CalendarChange>> {
        let rows = sqlx::query!(
            "SELECT id, version, applied_to, definition FROM calendars WHERE applied_version <> version ORDER BY id"
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().find_map(|row| {
            readable::calendar(row.definition).map(|_| CalendarChange {
                id: CalendarId(row.id),
                version: row.version,
                applied_to: row.applied_to.map_or_else(JobId::default, JobId),
            })
        }))
    }

    /// Records how far an edit was applied: up to the job `upto`, or to all jobs if it is `None`. A later edit starts
    /// from the beginning.
    pub async fn note_applied(&self, change: CalendarChange, upto: Option<JobId>) -> Result<()> {
        sqlx::query!(
            "UPDATE calendars
                SET applied_to = $3, applied_version = CASE WHEN $3::uuid IS NULL THEN version ELSE applied_version END
              WHERE id = $1 AND version = $2",
            change.id.0,
            change.version,
            upto.map(|id| id.0)
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }
}

/// Inserts or replaces a calendar; see [`Store::save_calendar`].
pub(super) async fn save_calendar(
    executor: impl PgExecutor<'_>,
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
                   modified_by = excluded.modified_by, version = c.version + 1, applied_to = NULL
             WHERE c.version = $6
            RETURNING c.version
         ),
         noted AS (
            INSERT INTO audit_log (at, who, action, object, before, after, address)
            SELECT $4, $5, CASE WHEN $6::int IS NULL THEN 'calendar.create' ELSE 'calendar.update' END,
                   'calendar:' || $1::text, (SELECT definition FROM before), $3, $7 FROM saved
         )
         SELECT version AS "version!" FROM saved"#,
        id.0,
        calendar.name,
        serde_json::to_value(calendar).unwrap_or_default(),
        edit.at,
        edit.by,
        version,
        edit.address.map(|address| address.to_string())
    )
    .fetch_optional(executor)
    .await?)
}
