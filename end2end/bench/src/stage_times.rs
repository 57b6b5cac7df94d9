//! The breakdown of time: the duration of each stage of the occurrences, and the processor time that each process
//! spends on a thousand of them.

use chrono::{DateTime, Utc};
use sqlx::PgPool;

use crate::process_stats::ProcessGroup;

/// The stages of an occurrence, each with the difference that measures it. `last_heartbeat` is the time at which the
/// server stored the last report. `published_at` is the time at which the server recorded the broker's confirm; a fast
/// worker may report before it.
const OCCURRENCE_STAGES: [(&str, &str); 6] = [
    ("due to created", "created_at - scheduled_for"),
    ("created to confirmed", "published_at - created_at"),
    ("created to started", "started_at - created_at"),
    ("started to ended", "ended_at - started_at"),
    ("ended to stored", "last_heartbeat - ended_at"),
    ("due to stored", "last_heartbeat - scheduled_for"),
];

/// A period of a measurement, without its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasurementWindow {
    pub(crate) from: DateTime<Utc>,
    pub(crate) upto: DateTime<Utc>,
}

impl MeasurementWindow {
    /// Returns the number of occurrences that were stored as Completed in the period.
    pub(crate) async fn completed(self, pool: &PgPool) -> anyhow::Result<i64> {
        let statement = "SELECT count(*) FROM occurrences WHERE status = 'completed' AND last_heartbeat >= $1 AND last_heartbeat < $2";
        Ok(sqlx::query_scalar(statement).bind(self.from).bind(self.upto).fetch_one(pool).await?)
    }

    /// Prints the median and the 99th percentile of each stage, for one priority or for all.
    pub(crate) async fn print_stages(self, pool: &PgPool, priority: Option<i16>) -> anyhow::Result<()> {
        for (name, difference) in OCCURRENCE_STAGES {
            let statement = format!(
                "SELECT coalesce(percentile_disc(ARRAY[0.5, 0.99]) WITHIN GROUP \
                        (ORDER BY extract(epoch FROM {difference})::float8 * 1000), '{{0, 0}}') \
                   FROM occurrences \
                  WHERE status = 'completed' AND last_heartbeat >= $1 AND last_heartbeat < $2 AND priority = coalesce($3, priority)"
            );
            let found: Vec<f64> = sqlx::query_scalar(sqlx::AssertSqlSafe(statement))
                .bind(self.from)
                .bind(self.upto)
                .bind(priority)
                .fetch_one(pool)
                .await?;
            if let [p50, p99] = found[..] {
                println!("    {name:<22} p50 {p50:>8.1} ms   p99 {p99:>8.1} ms");
            }
        }
        Ok(())
    }
}

/// Prints the processor seconds that each process spent on 1,000 occurrences. Returns their sum, and then those of each
/// process.
pub(crate) fn print_cpu(process_groups: &[ProcessGroup], before: &[f64], after: &[f64], occurrences: i64) -> Vec<f64> {
    let costs = costs(before, after, occurrences);
    let parts = process_groups.iter().zip(&costs[1..]).map(|(group, cost)| format!("{} {cost:.3}", group.name));
    let parts: Vec<String> = parts.collect();
    println!("    processor seconds for 1,000 occurrences: {}; together {:.3}", parts.join(", "), costs[0]);
    costs
}

/// Returns the sum of the processor seconds for 1,000 occurrences, and then those of each process.
fn costs(before: &[f64], after: &[f64], occurrences: i64) -> Vec<f64> {
    let thousands = (occurrences as f64 / 1e3).max(0.001);
    let each: Vec<f64> = before.iter().zip(after).map(|(before, after)| (after - before) / thousands).collect();
    std::iter::once(each.iter().sum::<f64>()).chain(each.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_for_a_thousand_occurrences() {
        assert_eq!(costs(&[1.0, 2.0], &[3.0, 2.5], 4_000), [0.625, 0.5, 0.125]);
    }
}
