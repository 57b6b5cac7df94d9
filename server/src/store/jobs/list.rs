//! The list of jobs: a page of it, the search in it, and the recent occurrences of each job.
//!
//! These statements serve the pages that show jobs; the other statements about jobs change one.

use chrono::{DateTime, Utc};
use milvaion_api::{
    page::{self, JobFilter, ListPage},
    views::JobRow,
};
use milvaion_protocol::id::{JobId, OccurrenceId};
use serde_json::Value;
use sqlx::{Postgres, QueryBuilder};
use uuid::Uuid;

use super::{Result, Store, readable};
use crate::store::occurrences::status;

/// The number of recent occurrences of a job.
const MAX_RECENT_OCCURRENCES: usize = 10;
/// The most words of a search that are looked for.
const MAX_SEARCH_WORDS: usize = 8;

/// The numbers of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobCounts {
    /// Number of active jobs.
    pub active: i64,
    /// Number of all jobs.
    pub total: i64,
}

impl Store {
    /// Counts the jobs. With a million jobs it takes about a tenth of a second of both cores.
    pub async fn job_counts(&self) -> Result<JobCounts> {
        let counts = sqlx::query_as!(
            JobCounts,
            r#"SELECT coalesce(sum(count) FILTER (WHERE is_active), 0)::bigint AS "active!",
                      coalesce(sum(count), 0)::bigint AS "total!"
                 FROM (SELECT is_active, count(*) FROM jobs GROUP BY is_active) by_activity"#
        );
        Ok(counts.fetch_one(self.pool()).await?)
    }

    /// Returns a page of jobs by name.
    pub async fn jobs(&self, filter: &JobFilter, alive_since: DateTime<Utc>) -> Result<ListPage<JobRow>> {
        let limit = page::effective_limit(filter.limit);
        let mut query = QueryBuilder::<Postgres>::new(
            "SELECT id, key, display_name, worker_id, job_type, schedule, is_active, tags,
                    (SELECT next_fire_at FROM job_due d WHERE d.job_id = id) AS next_fire_at,
                    lower(display_name) AS sort_name FROM jobs WHERE true",
        );
        if let Some(active) = filter.active {
            query.push(" AND is_active = ").push_bind(active);
        }
        if let Some(tag) = &filter.tag {
            query.push(" AND tags @> ").push_bind(vec![tag.clone()]);
        }
        for word in filter.text.as_deref().unwrap_or_default().split_whitespace().take(MAX_SEARCH_WORDS) {
            // A word contains no space, so it cannot match across two of the texts that the column combines.
            query.push(" AND search_text LIKE ").push_bind(format!("%{}%", like(&word.to_lowercase())));
        }
        if let Some((name, id)) = filter.after.as_deref().and_then(parse_cursor) {
            query.push(" AND (lower(display_name), id) > (").push_bind(name).push(", ").push_bind(id).push(")");
        }
        query.push(" ORDER BY lower(display_name), id LIMIT ").push_bind(i64::from(limit) + 1);
        // Planned with the words each time. A plan for any words expects few matches, and with a million jobs it would read
        // and sort all of them for a frequent word.
        let mut rows: Vec<RawJobRow> = query.build_query_as().persistent(false).fetch_all(self.pool()).await?;
        let more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let next = rows.last().filter(|_| more).map(|row| format!("{}~{}", row.id, row.sort_name));
        let ids: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
        let mut recent = self.recent_statuses(&ids).await?;
        let alive = self.alive_types(alive_since).await?;
        let rows = rows
            .into_iter()
            .map(|row| JobRow {
                id: JobId(row.id),
                key: row.key,
                schedule_words: readable::schedule(row.schedule)
                    .map_or_else(|| "Unreadable: upgrade this server".into(), |schedule| schedule.describe()),
                next_fire_at: row.next_fire_at,
                is_active: row.is_active,
                tags: row.tags,
                recent: recent.remove(&row.id).unwrap_or_default(),
                worker_alive: alive.contains(&(row.worker_id.clone(), row.job_type.clone())),
                display_name: row.display_name,
                worker_id: row.worker_id,
                job_type: row.job_type,
            })
            .collect();
        Ok(ListPage { rows, next })
    }

    /// Returns the ids and statuses of the last ten occurrences of each job, newest first.
    pub async fn recent_statuses(
        &self,
        jobs: &[Uuid],
    ) -> Result<std::collections::HashMap<Uuid, Vec<(OccurrenceId, milvaion_protocol::status::OccurrenceStatus)>>> {
        let rows = sqlx::query!(
            // Each table has its own index for this order. Ordered by id, the open ones would be read until ten of the
            // job are found, past a million of other jobs.
            r#"SELECT j.id AS "job_id!", o.id AS "id!", o.status::text AS "status!"
                 FROM unnest($1::uuid[]) AS j (id)
                 CROSS JOIN LATERAL (
                    (SELECT id, status FROM runs WHERE job_id = j.id ORDER BY created_at DESC, id DESC LIMIT 10)
                    UNION ALL
                    (SELECT id, status FROM history WHERE job_id = j.id ORDER BY id DESC LIMIT 10)) o"#,
            jobs
        )
        .fetch_all(self.pool())
        .await?;
        let mut recent: std::collections::HashMap<Uuid, Vec<_>> = std::collections::HashMap::new();
        for row in rows {
            recent.entry(row.job_id).or_default().push((OccurrenceId(row.id), status(&row.status)?));
        }
        for list in recent.values_mut() {
            list.sort_by_key(|(id, _)| std::cmp::Reverse(*id));
            list.truncate(MAX_RECENT_OCCURRENCES);
        }
        Ok(recent)
    }
}

#[derive(sqlx::FromRow)]
struct RawJobRow {
    id: Uuid,
    key: Option<String>,
    display_name: String,
    worker_id: String,
    job_type: String,
    schedule: Value,
    next_fire_at: Option<DateTime<Utc>>,
    is_active: bool,
    tags: Vec<String>,
    sort_name: String,
}

/// Parses `id~name`; the name comes last because it may contain any character.
fn parse_cursor(cursor: &str) -> Option<(String, Uuid)> {
    let (id, name) = cursor.split_once('~')?;
    Some((name.to_owned(), Uuid::parse_str(id).ok()?))
}

/// Escapes the special characters of LIKE in a word.
pub(crate) fn like(word: &str) -> String {
    word.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_word_is_escaped() {
        assert_eq!(like("50%_a\\"), "50\\%\\_a\\\\");
    }

    #[test]
    fn cursor_round_trips_any_name() {
        let id = Uuid::nil();
        assert_eq!(parse_cursor(&format!("{id}~a~b c")), Some(("a~b c".into(), id)));
        assert_eq!(parse_cursor("nonsense"), None);
    }
}
