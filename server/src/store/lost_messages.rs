//! Messages that the broker confirmed and then lost.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use milvaion_protocol::id::OccurrenceId;

use super::{Result, Store, leases::FencingToken};
use crate::domain::lost_message::{PriorityBacklog, QueueBacklog, QueueCount};

impl Store {
    /// Returns the backlogs of the queues with occurrences whose message was confirmed before `now.old_before`, and those of all
    /// queues of critical runs, without what workers may have prefetched. They also contain what is left of the occurrences that
    /// were counted `earlier`.
    pub async fn queue_backlogs(&self, now: QueueCount, earlier: Option<QueueCount>) -> Result<Vec<QueueBacklog>> {
        let rows = sqlx::query!(
            r#"SELECT worker_id, job_type, in_critical_queue, priority,
                      count(*) FILTER (WHERE published_at < $1) AS "old!",
                      count(*) FILTER (WHERE published_at >= $1 AND published_at < $2) AS "young!",
                      count(*) FILTER (WHERE published_at < $3) AS "old_left!",
                      count(*) FILTER (WHERE published_at >= $3 AND published_at < $4) AS "young_left!"
                 FROM runs
                WHERE status = 'queued' AND published_at IS NOT NULL AND publish_after IS NULL
                GROUP BY worker_id, job_type, in_critical_queue, priority
               HAVING in_critical_queue OR count(*) FILTER (WHERE published_at < $1) > 0
                ORDER BY worker_id, job_type, in_critical_queue, priority"#,
            now.old_before,
            now.at,
            earlier.map(|earlier| earlier.old_before),
            earlier.map(|earlier| earlier.at)
        )
        .fetch_all(self.pool())
        .await?;
        let mut backlogs: Vec<QueueBacklog> = Vec::new();
        for row in rows {
            let level = PriorityBacklog {
                priority: row.priority,
                old: row.old,
                young: row.young,
                old_left: row.old_left,
                young_left: row.young_left,
            };
            let key = (row.worker_id.as_str(), row.job_type.as_str(), row.in_critical_queue);
            match backlogs.last_mut() {
                Some(last) if last.key() == key => last.levels.push(level),
                _ => backlogs.push(QueueBacklog {
                    worker_id: row.worker_id,
                    job_type: row.job_type,
                    is_critical: row.in_critical_queue,
                    is_consumed: true,
                    prefetched: 0,
                    bundle_size: 1,
                    levels: vec![level],
                }),
            }
        }
        Ok(backlogs)
    }

    /// Returns, for each worker's job type with a live instance, the number of messages that its busy instances may have
    /// prefetched. An instance prefetches as many messages as it may run at once, and as many critical ones as it reserves
    /// slots; while it is busy, they wait in the instance and not at the broker.
    ///
    /// The two tables are read apart and joined here: joined by PostgreSQL with a plan from a time when they were small,
    /// five hundred job types on a hundred instances took longer than any time limit.
    pub async fn prefetched(
        &self,
        alive_since: DateTime<Utc>,
    ) -> Result<HashMap<(String, String), PrefetchedMessages>> {
        let rows = sqlx::query!(
            r#"SELECT instance_id AS "instance_id!", job_type, count(*) AS "count!",
                      count(*) FILTER (WHERE priority = 5) AS "critical!"
                 FROM runs
                WHERE status = 'running' AND instance_id IS NOT NULL GROUP BY instance_id, job_type"#
        )
        .fetch_all(self.pool())
        .await?;
        let (mut running, mut critical) = (HashMap::new(), HashMap::<String, i64>::new());
        for row in rows {
            *critical.entry(row.instance_id.clone()).or_default() += row.critical;
            running.insert((row.instance_id, row.job_type), row.count);
        }
        let served = sqlx::query!(
            r#"SELECT i.id AS instance_id, i.worker_id, i.running >= i.capacity AS "is_full!", t.job_type, t.concurrency,
                      i.critical_slots, i.stopping
                 FROM worker_instances i
                 JOIN instance_job_types o ON o.instance_id = i.id
                 JOIN worker_job_types t ON t.worker_id = i.worker_id AND t.job_type = o.job_type
                WHERE i.stopped_at IS NULL AND i.last_heartbeat_at >= $1"#,
            alive_since
        )
        .fetch_all(self.pool())
        .await?;
        let mut prefetched = HashMap::<(String, String), PrefetchedMessages>::new();
        for row in served {
            let (concurrency, slots) = (i64::from(row.concurrency), i64::from(row.critical_slots));
            let has_no_slot = critical.get(&row.instance_id).copied().unwrap_or_default() >= slots;
            let key = (row.instance_id, row.job_type);
            let is_busy = row.is_full || running.get(&key).copied().unwrap_or_default() >= concurrency;
            let held = prefetched.entry((row.worker_id, key.1)).or_default();
            held.has_critical_slots |= slots > 0 && !row.stopping;
            if is_busy {
                held.messages += concurrency;
            }
            if has_no_slot {
                held.critical += slots;
            }
        }
        Ok(prefetched)
    }

    /// Marks up to `limit` queued occurrences of a queue as unsent, so that their messages are republished: those
    /// confirmed before `before`, oldest first, after the occurrence `after`; of all priorities or of one. Returns them in
    /// this order.
    pub async fn clear_published(
        &self,
        lost: &LostMessages<'_>,
        after: OccurrenceId,
        limit: i64,
        fence: Option<FencingToken>,
    ) -> Result<Vec<OccurrenceId>> {
        let mut cleared: Vec<OccurrenceId> = sqlx::query_scalar!(
            "WITH fence AS (SELECT 1 FROM leases WHERE role = $5 AND epoch = $6 FOR SHARE),
                  oldest AS (
                      SELECT id FROM runs
                       WHERE id > $7 AND status = 'queued' AND published_at < $3 AND publish_after IS NULL
                         AND worker_id = $1 AND job_type = $2 AND in_critical_queue = $9
                         AND ($8::smallint IS NULL OR priority = $8)
                         AND ($6::bigint IS NULL OR EXISTS (SELECT 1 FROM fence))
                       ORDER BY id LIMIT $4
                         FOR UPDATE SKIP LOCKED
                  )
             UPDATE runs SET published_at = NULL, publish_after = published_at
              WHERE id = ANY (ARRAY (SELECT id FROM oldest))
             RETURNING id",
            lost.queue.worker_id,
            lost.queue.job_type,
            lost.before,
            limit,
            fence.map(|fence| fence.role),
            fence.map(|fence| fence.epoch),
            after.0,
            lost.priority,
            lost.queue.is_critical
        )
        .fetch_all(self.pool())
        .await?
        .into_iter()
        .map(OccurrenceId)
        .collect();
        cleared.sort_unstable();
        Ok(cleared)
    }
}

/// The messages that live instances may have prefetched of a job type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefetchedMessages {
    /// Those of the queue of the job type.
    pub messages: i64,
    /// Those of the queue of its critical runs.
    pub critical: i64,
    /// True if an instance reserves slots for critical runs, and does not stop.
    pub has_critical_slots: bool,
}

/// Messages of a queue that are lost.
#[derive(Clone, Copy, Debug)]
pub struct LostMessages<'a> {
    /// The queue.
    pub queue: &'a QueueBacklog,
    /// Their priority, if only messages of one are lost.
    pub priority: Option<i16>,
    /// The time before which they were confirmed.
    pub before: DateTime<Utc>,
    /// Their number.
    pub count: i64,
}
