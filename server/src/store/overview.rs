//! The figures of the overview page. Status counts come from the roll-up table; no statement counts the occurrences.

use std::collections::BTreeMap;

use chrono::{DateTime, Duration, Utc};
use milvaion_api::{
    page::OccurrenceFilter,
    views::{MinuteCount, OccurrenceRow, UpcomingJob},
};
use milvaion_protocol::{id::JobId, status::OccurrenceStatus};

use super::{Result, Store, occurrences::status};

/// The figures that PostgreSQL supplies for the overview.
#[derive(Clone, Debug)]
pub struct OverviewSnapshot {
    /// Status counts by minute for the last hour, oldest first.
    pub minutes: Vec<MinuteCount>,
    /// Sums of the counts over the last hour.
    pub last_hour: Vec<(OccurrenceStatus, i64)>,
    /// Number of live instances.
    pub workers_alive: i64,
    /// Number of instances with a heartbeat in the last day.
    pub workers_known: i64,
    /// Number of active jobs.
    pub jobs_active: i64,
    /// Number of all jobs.
    pub jobs_total: i64,
    /// The next ten due jobs.
    pub next_due: Vec<UpcomingJob>,
    /// The newest five failed occurrences of the last seven days.
    pub failures: Vec<OccurrenceRow>,
}

impl Store {
    /// Returns the figures at `now`.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn overview_snapshot(&self, now: DateTime<Utc>, alive_since: DateTime<Utc>) -> Result<OverviewSnapshot> {
        let counts = sqlx::query!(
            r#"SELECT minute, status, sum(count)::bigint AS "count!" FROM stats_minute
                WHERE minute > $1 GROUP BY minute, status ORDER BY minute, status"#,
            now - Duration::hours(1)
        )
        .fetch_all(self.pool())
        .await?;
        let mut minutes: Vec<MinuteCount> = Vec::new();
        let mut sum: BTreeMap<OccurrenceStatus, i64> = BTreeMap::new();
        for row in counts {
            let status = status(row.status)?;
            *sum.entry(status).or_default() += row.count;
            match minutes.last_mut().filter(|last| last.minute == row.minute) {
                Some(last) => last.counts.push((status, row.count)),
                None => minutes.push(MinuteCount { minute: row.minute, counts: vec![(status, row.count)] }),
            }
        }
        let totals = sqlx::query!(
            r#"SELECT (SELECT count(*) FROM worker_instances WHERE stopped_at IS NULL AND last_heartbeat_at >= $1) AS "alive!",
                      (SELECT count(*) FROM worker_instances WHERE last_heartbeat_at >= $2) AS "known!",
                      (SELECT count(*) FROM jobs WHERE is_active) AS "active!",
                      (SELECT count(*) FROM jobs) AS "total!""#,
            alive_since,
            now - Duration::days(1)
        )
        .fetch_one(self.pool())
        .await?;
        let next_due = sqlx::query!(
            r#"SELECT id, display_name, next_fire_at AS "at!" FROM jobs WHERE next_fire_at IS NOT NULL
                ORDER BY next_fire_at LIMIT 10"#
        )
        .fetch_all(self.pool())
        .await?
        .into_iter()
        .map(|row| UpcomingJob { job_id: JobId(row.id), job_name: row.display_name, at: row.at })
        .collect();
        let failures = self
            .occurrences(&OccurrenceFilter {
                status: Some(OccurrenceStatus::Failed),
                since: Some(now - Duration::days(7)),
                limit: 5,
                ..OccurrenceFilter::default()
            })
            .await?
            .rows;
        Ok(OverviewSnapshot {
            minutes,
            last_hour: sum.into_iter().collect(),
            workers_alive: totals.alive,
            workers_known: totals.known,
            jobs_active: totals.active,
            jobs_total: totals.total,
            next_due,
            failures,
        })
    }
}
