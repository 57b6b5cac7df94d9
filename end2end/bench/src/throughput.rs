//! How many occurrences a second, from due to stored as Completed, for a minute, with one server and one worker.
//!
//! Offering more than can be done would measure a backlog that grows, and offering a guess would measure the guess. So a
//! governor looks twice a second how much is under way and how late the dispatcher is, and makes a few more jobs due each
//! second while both are small, or pauses some while one is not. What is completed in a second is then what was due in
//! one, a second or two before, and there is no backlog that somebody would have to work off later.

use std::{ops::Range, time::Duration};

use chrono::{DateTime, Utc};
use milvaion_protocol::id::JobId;
use milvaion_server::clock::machine_now;
use uuid::Uuid;

use crate::{
    budget, cpu,
    crop::{self, Crop, EACH_SECOND},
    figures::Sample,
    lab::{Lab, Site},
};

/// The most jobs that may be due each second.
const MOST: i64 = 60_000;
/// How many are due each second at first.
const FIRST: i64 = 400;
/// How long the governor may look for the rate.
const RAMP: Duration = Duration::from_secs(60);
/// How long it goes on looking after it first found too much.
const SETTLE: Duration = Duration::from_secs(15);
/// How long a cut may take to show before the next one.
const PATIENT: Duration = Duration::from_millis(1_500);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(500);

/// Measures it.
pub(crate) async fn run(lab: &Lab, runs: usize) -> anyhow::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        samples.push(vec![("throughput", once(lab).await?)]);
    }
    Ok(samples)
}

async fn once(lab: &Lab) -> anyhow::Result<f64> {
    let site = Site::new(lab).await?;
    Crop { count: MOST, schedule: EACH_SECOND, ..Crop::default() }.sow(&site.pool).await?;
    sqlx::query("CREATE TABLE bench_jobs AS SELECT row_number() OVER (ORDER BY id) - 1 AS n, id FROM jobs")
        .execute(&site.pool)
        .await?;
    sqlx::query("CREATE UNIQUE INDEX ON bench_jobs (n)").execute(&site.pool).await?;
    sqlx::query("VACUUM ANALYZE jobs, bench_jobs").execute(&site.pool).await?;
    let server = site.server().await?;
    let worker = site.worker().await?;
    crop::warm_up(&site).await?;
    let mut parties = vec![server.party.clone(), worker.party.clone()];
    parties.extend(lab.services()?.iter().cloned());

    let mut governor = Governor { site: &site, due: 0, saturated: None, cut: None };
    let begun = tokio::time::Instant::now();
    governor.set(FIRST).await?;
    while begun.elapsed() < RAMP && governor.saturated.is_none_or(|at| at.elapsed() < SETTLE) {
        governor.look().await?;
    }
    let (from, before) = (machine_now(), cpu::seconds(&parties));
    let begun = tokio::time::Instant::now();
    while begun.elapsed() < lab.settings.seconds {
        governor.look().await?;
    }
    let (upto, after) = (machine_now(), cpu::seconds(&parties));
    let offered = governor.due;

    crop::pause(&site).await?;
    site.drained().await?;
    let all = site.verify(worker.runs().await?).await?;
    let window = budget::Window { from, upto };
    let completed = window.completed(&site.pool).await?;
    let rate = completed as f64 / ((upto - from).num_milliseconds() as f64 / 1e3);
    println!("    {rate:.0}/s of {offered}/s offered at the end; {all} in all, each once, none lost");
    window.print_stages(&site.pool, None).await?;
    budget::print_cpu(&parties, &before, &after, completed);
    server.stop().await?;
    site.close().await?;
    Ok(rate)
}

/// Decides how many jobs are due each second.
struct Governor<'a> {
    site: &'a Site,
    due: i64,
    /// Since when it is known that more would be too much.
    saturated: Option<tokio::time::Instant>,
    cut: Option<tokio::time::Instant>,
}

impl Governor<'_> {
    /// Waits, looks, and corrects.
    async fn look(&mut self) -> anyhow::Result<()> {
        tokio::time::sleep(LOOK).await;
        let statement = "SELECT coalesce(sum(count) FILTER (WHERE status = 0), 0)::bigint \
                              - coalesce(sum(count) FILTER (WHERE status IN (2, 3, 4, 5, 7)), 0)::bigint, \
                                (SELECT min(next_fire_at) FROM jobs WHERE priority = 3 AND next_fire_at IS NOT NULL) \
                           FROM stats_minute";
        let (open, earliest): (i64, Option<DateTime<Utc>>) =
            sqlx::query_as(statement).fetch_one(&self.site.pool).await?;
        let backlog = open as f64 / self.due.max(1) as f64;
        let late = earliest.map_or(0.0, |at| (machine_now() - at).num_milliseconds() as f64 / 1e3).max(0.0);
        let wanted = if backlog > 2.0 || late > 0.9 {
            if self.cut.is_some_and(|at| at.elapsed() < PATIENT) {
                return Ok(());
            }
            let now = tokio::time::Instant::now();
            self.saturated.get_or_insert(now);
            self.cut = Some(now);
            self.due * 9 / 10
        } else if backlog < 1.0 && late < 0.5 {
            match self.saturated {
                None => self.due * 115 / 100,
                Some(_) => self.due * 103 / 100,
            }
        } else {
            return Ok(());
        };
        self.set(wanted.clamp(FIRST / 4, MOST)).await
    }

    /// Makes exactly so many jobs due each second, at instants that are spread over it.
    async fn set(&mut self, wanted: i64) -> anyhow::Result<()> {
        let changed = if wanted > self.due {
            self.change(self.due..wanted, "is_active = true, \
                next_fire_at = date_trunc('second', now()) + interval '1 second' + b.n * 7919 % 1000 * interval '1 millisecond'")
                .await?
        } else {
            self.change(wanted..self.due, "is_active = false, next_fire_at = NULL").await?
        };
        self.due = wanted;
        self.site.tell(&changed).await
    }

    async fn change(&self, which: Range<i64>, how: &str) -> anyhow::Result<Vec<(JobId, Option<DateTime<Utc>>)>> {
        let statement = format!(
            "UPDATE jobs j SET {how} FROM bench_jobs b WHERE b.id = j.id AND b.n >= $1 AND b.n < $2 \
             RETURNING j.id, j.next_fire_at"
        );
        let rows: Vec<(Uuid, Option<DateTime<Utc>>)> = sqlx::query_as(sqlx::AssertSqlSafe(statement))
            .bind(which.start)
            .bind(which.end)
            .fetch_all(&self.site.pool)
            .await?;
        Ok(rows.into_iter().map(|(id, at)| (JobId(id), at)).collect())
    }
}
