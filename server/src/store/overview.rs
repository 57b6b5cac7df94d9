//! The figures of the overview page.
//!
//! What ended in a window is summed from the roll-up table, in which each occurrence counts once for its final status.
//! What is open now is counted in the table of open occurrences, up to a limit. No statement counts ended occurrences or
//! jobs, so the time does not grow with either. Counts older than a day are kept per quarter of an hour, so the window of a
//! week begins up to fifteen minutes late.

use std::collections::BTreeMap;

use chrono::{DateTime, Duration, Utc};
use milvaion_api::{
    page::{OccurrenceFilter, TimeWindow},
    views::{BarCount, DEMO_JOB_TYPE, MAX_COUNTED_OPEN, OccurrenceRow, UpcomingJob},
};
use milvaion_protocol::{id::JobId, status::OccurrenceStatus};

use super::{Result, Store, occurrences::status};

/// The number of recent failures on the page.
const MAX_RECENT_FAILURES: u32 = 5;

/// The figures that PostgreSQL supplies for the overview.
#[derive(Clone, Debug)]
pub struct OverviewSnapshot {
    /// Number of occurrences that have each open status now, at most [`MAX_COUNTED_OPEN`] + 1.
    pub open: Vec<(OccurrenceStatus, i64)>,
    /// Number of occurrences that ended in the window, by status.
    pub ended: Vec<(OccurrenceStatus, i64)>,
    /// The same by bar, oldest first, without empty bars.
    pub bars: Vec<BarCount>,
    /// Number of live instances.
    pub workers_alive: i64,
    /// Number of instances with a heartbeat in the last day.
    pub workers_known: i64,
    /// The next ten due jobs.
    pub next_due: Vec<UpcomingJob>,
    /// True if a live instance offers the job type [`DEMO_JOB_TYPE`].
    pub offers_demo: bool,
    /// The newest five occurrences that failed or timed out in the last seven days.
    pub failures: Vec<OccurrenceRow>,
}

impl Store {
    /// Returns the figures at `now`, with what ended in `window`.
    pub async fn overview_snapshot(
        &self,
        now: DateTime<Utc>,
        window: TimeWindow,
        alive_since: DateTime<Utc>,
    ) -> Result<OverviewSnapshot> {
        let counts = sqlx::query!(
            r#"SELECT date_bin(make_interval(mins => $2), minute, '2000-01-01 00:00:00+00'::timestamptz) AS "start!",
                      status::text AS "status!", sum(count)::bigint AS "count!"
                 FROM (SELECT minute, status, count FROM stats_folded
                       UNION ALL SELECT minute, status, count FROM stats_deltas) counted
                WHERE minute >= $1 AND status IN ('completed', 'failed', 'cancelled', 'timed-out', 'skipped')
                GROUP BY 1, status ORDER BY 1, status"#,
            window.start(now),
            i32::try_from(window.bar_minutes()).unwrap_or(i32::MAX)
        )
        .fetch_all(self.pool())
        .await?;
        let mut bars: Vec<BarCount> = Vec::new();
        let mut sum: BTreeMap<OccurrenceStatus, i64> = BTreeMap::new();
        for row in counts {
            let status = status(&row.status)?;
            *sum.entry(status).or_default() += row.count;
            match bars.last_mut().filter(|last| last.start == row.start) {
                Some(last) => last.counts.push((status, row.count)),
                None => bars.push(BarCount { start: row.start, counts: vec![(status, row.count)] }),
            }
        }
        let open = sqlx::query!(
            r#"SELECT (SELECT count(*) FROM (SELECT FROM runs WHERE status = 'queued' LIMIT $1) q) AS "queued!",
                      (SELECT count(*) FROM (SELECT FROM runs WHERE status = 'running' LIMIT $1) r) AS "running!",
                      (SELECT count(*) FROM (SELECT FROM runs WHERE status = 'unknown' LIMIT $1) u) AS "unknown!""#,
            MAX_COUNTED_OPEN + 1
        )
        .fetch_one(self.pool())
        .await?;
        let totals = sqlx::query!(
            r#"SELECT (SELECT count(*) FROM worker_instances WHERE stopped_at IS NULL AND last_heartbeat_at >= $1) AS "alive!",
                      (SELECT count(*) FROM worker_instances WHERE last_heartbeat_at >= $2) AS "known!",
                      EXISTS (SELECT 1 FROM worker_instances i JOIN instance_job_types t ON t.instance_id = i.id
                               WHERE t.job_type = $3 AND i.stopped_at IS NULL AND i.last_heartbeat_at >= $1) AS "offers_demo!""#,
            alive_since,
            now - Duration::days(1),
            DEMO_JOB_TYPE
        )
        .fetch_one(self.pool())
        .await?;
        let next_due = sqlx::query!(
            r#"SELECT j.id, j.display_name, d.next_fire_at AS "at!"
                 FROM (SELECT d.* FROM (VALUES (5::smallint), (4), (3), (2), (1)) AS p (priority)
                        CROSS JOIN LATERAL (
                              SELECT job_id, next_fire_at FROM job_due
                               WHERE priority = p.priority AND next_fire_at IS NOT NULL
                               ORDER BY next_fire_at LIMIT 10) d) d
                 JOIN jobs j ON j.id = d.job_id
                ORDER BY d.next_fire_at LIMIT 10"#
        )
        .fetch_all(self.pool())
        .await?
        .into_iter()
        .map(|row| UpcomingJob { job_id: JobId(row.id), job_name: row.display_name, at: row.at })
        .collect();
        let mut failures = Vec::new();
        for status in [OccurrenceStatus::Failed, OccurrenceStatus::TimedOut] {
            let filter = OccurrenceFilter {
                status: Some(status),
                ended_since: Some(TimeWindow::Week.start(now)),
                limit: MAX_RECENT_FAILURES,
                ..OccurrenceFilter::default()
            };
            failures.extend(self.occurrences(&filter).await?.rows);
        }
        failures.sort_by_key(|row| std::cmp::Reverse(row.id));
        failures.truncate(MAX_RECENT_FAILURES as usize);
        Ok(OverviewSnapshot {
            open: vec![
                (OccurrenceStatus::Queued, open.queued),
                (OccurrenceStatus::Running, open.running),
                (OccurrenceStatus::Unknown, open.unknown),
            ],
            ended: sum.into_iter().collect(),
            bars,
            workers_alive: totals.alive,
            workers_known: totals.known,
            next_due,
            offers_demo: totals.offers_demo,
            failures,
        })
    }
}
