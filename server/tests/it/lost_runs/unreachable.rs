//! Workers that are alive and send nothing over the broker, by their heartbeats and claims in a real Redis.

use milvaion_api::views::InstanceState;
use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus, topology::RedisKeys};
use redis::AsyncCommands;

use super::harness::LostRunHarness;

/// The keys that a worker and the server write.
struct RedisWorker {
    connection: redis::aio::MultiplexedConnection,
    keys: RedisKeys,
    beats: u64,
}

impl RedisWorker {
    async fn new(harness: &LostRunHarness) -> Self {
        let client = redis::Client::open(harness.config.cache.url.as_str()).expect("a valid URL");
        let connection = client.get_multiplexed_async_connection().await.expect("Redis responds");
        Self { connection, keys: RedisKeys::new(harness.config.cache.key_prefix.clone()), beats: 0 }
    }

    /// Writes the next heartbeat of an instance.
    async fn beat(&mut self, instance: &str) {
        self.beats += 1;
        let _: () = self.connection.set(self.keys.heartbeat(instance), self.beats).await.expect("written");
    }

    async fn claim(&mut self, id: OccurrenceId, value: &str) {
        let _: () = self.connection.set(self.keys.running(id), value).await.expect("written");
    }

    async fn release(&mut self, id: OccurrenceId) {
        let _: () = self.connection.del(self.keys.running(id)).await.expect("deleted");
    }

    /// Returns the first attempt that is not revoked.
    async fn revoked(&mut self, id: OccurrenceId) -> Option<i32> {
        self.connection.get(self.keys.revocation(id)).await.expect("read")
    }

    /// Loses everything of this test, as a Redis that was emptied.
    async fn lose_everything(&mut self, harness: &LostRunHarness) {
        let pattern = format!("{}*", harness.config.cache.key_prefix);
        let keys: Vec<String> = self.connection.keys(pattern).await.expect("read");
        let _: () = self.connection.del(keys).await.expect("deleted");
    }
}

/// Advances by `seconds`, with a heartbeat in Redis every four seconds. Returns the number of requeued and of revoked runs.
async fn advance_alive(harness: &mut LostRunHarness, redis: &mut RedisWorker, seconds: u64) -> (usize, usize) {
    let mut sum = (0, 0);
    for _ in 0..seconds / 4 {
        redis.beat("w-1").await;
        let report = harness.advance(4, true).await;
        sum = (sum.0 + report.requeued, report.revoked);
    }
    sum
}

#[tokio::test]
async fn unreachable_worker_keeps_its_run_until_it_is_revoked() {
    let mut harness = LostRunHarness::new().await;
    let mut redis = RedisWorker::new(&harness).await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    redis.claim(id, "w-1:1").await;
    // The unreachable timeout of the harness is a minute.
    assert_eq!(advance_alive(&mut harness, &mut redis, 56).await, (0, 0));
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Running, 1));
    let now = harness.clock.now();
    let view = harness.store.occurrence(id, 1, now - chrono::Duration::seconds(15)).await.expect("the query succeeds");
    let view = view.expect("it exists");
    assert_eq!((view.instance_alive, view.instance_unreachable), (false, true));
    assert_eq!(harness.instance().await.state, InstanceState::Unreachable);

    assert_eq!(advance_alive(&mut harness, &mut redis, 8).await, (0, 1));
    assert_eq!(redis.revoked(id).await, Some(2));
    // The worker needs time to end the run: nothing starts beside it.
    assert_eq!(advance_alive(&mut harness, &mut redis, 40).await, (0, 1));
    redis.release(id).await;
    assert_eq!(advance_alive(&mut harness, &mut redis, 4).await, (1, 0));
    let view = harness.view(id).await;
    assert_eq!((view.row.status, view.row.attempt), (OccurrenceStatus::Queued, 2));
    let note = view.changes.last().and_then(|step| step.note.clone()).unwrap_or_default();
    assert!(note.contains("could not be reached over RabbitMQ") && note.contains("has given the run back"), "{note}");
}

#[tokio::test]
async fn unreachable_worker_that_dies_loses_its_run() {
    let mut harness = LostRunHarness::new().await;
    let mut redis = RedisWorker::new(&harness).await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    redis.claim(id, "w-1:1").await;
    assert_eq!(advance_alive(&mut harness, &mut redis, 40).await, (0, 0));
    // Its key stays, as in a Redis whose clock was set back.
    assert_eq!(harness.advance(12, true).await.requeued, 0);
    assert_eq!(harness.advance(6, true).await.requeued, 1);
}

#[tokio::test]
async fn emptied_redis_proves_no_death() {
    let mut harness = LostRunHarness::new().await;
    let mut redis = RedisWorker::new(&harness).await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    redis.claim(id, "w-1:1").await;
    assert_eq!(advance_alive(&mut harness, &mut redis, 20).await, (0, 0));
    redis.lose_everything(&harness).await;
    // The worker writes its heartbeat and its claim again within five seconds.
    assert_eq!(harness.advance(4, true).await.requeued, 0);
    redis.claim(id, "w-1:1").await;
    assert_eq!(advance_alive(&mut harness, &mut redis, 32).await, (0, 0));
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Running, 1));
}

#[tokio::test]
async fn revoked_run_that_ended_by_itself_waits_for_its_report() {
    let mut harness = LostRunHarness::new().await;
    let mut redis = RedisWorker::new(&harness).await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    redis.claim(id, "w-1:1").await;
    assert_eq!(advance_alive(&mut harness, &mut redis, 68).await, (0, 1));
    redis.claim(id, "done:1").await;
    assert_eq!(advance_alive(&mut harness, &mut redis, 40).await, (0, 0));
    assert_eq!(harness.report(id, 1, "w-1", OccurrenceStatus::Completed).await, 1);
}

#[tokio::test]
async fn unreachable_run_that_must_not_repeat_becomes_unknown() {
    let mut harness = LostRunHarness::new().await;
    let mut redis = RedisWorker::new(&harness).await;
    harness.advance(30, true).await;
    let id = harness.running("fail", "w-1").await;
    redis.claim(id, "w-1:1").await;
    assert_eq!(advance_alive(&mut harness, &mut redis, 68).await, (0, 0));
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Unknown, 1));
    assert_eq!(redis.revoked(id).await, None);
}

#[tokio::test]
async fn job_sets_its_own_unreachable_timeout() {
    let mut harness = LostRunHarness::new().await;
    let mut redis = RedisWorker::new(&harness).await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    let job = harness.view(id).await.row.job_id;
    harness.execute(&format!("UPDATE jobs SET unreachable_timeout_seconds = 120 WHERE id = '{job}'")).await;
    redis.claim(id, "w-1:1").await;
    assert_eq!(advance_alive(&mut harness, &mut redis, 112).await, (0, 0));
    assert_eq!(advance_alive(&mut harness, &mut redis, 12).await, (0, 1));
}

#[tokio::test]
async fn dead_worker_is_found_while_no_message_arrives() {
    let mut harness = LostRunHarness::new().await;
    let mut redis = RedisWorker::new(&harness).await;
    harness.advance(30, true).await;
    let (one, two) = (harness.running("requeue", "w-1").await, harness.running("requeue", "w-1").await);
    redis.claim(one, "w-1:1").await;
    // The report of its end waits unread.
    redis.claim(two, "done:1").await;
    redis.beat("w-1").await;
    assert_eq!(harness.advance(60, false).await.requeued, 0);
    assert_eq!(harness.advance(16, false).await.requeued, 1);
    assert_eq!(harness.status(one).await, (OccurrenceStatus::Queued, 2));
    assert_eq!(harness.status(two).await, (OccurrenceStatus::Running, 1));
}

#[tokio::test]
async fn live_worker_keeps_its_run_while_no_message_arrives() {
    let mut harness = LostRunHarness::new().await;
    let mut redis = RedisWorker::new(&harness).await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    redis.claim(id, "w-1:1").await;
    for _ in 0..150 {
        redis.beat("w-1").await;
        assert_eq!(harness.advance(4, false).await.requeued, 0);
    }
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Running, 1));
}

/// Finds a lost run beside `count` runs of an unreachable worker.
async fn find_lost_run_beside_unreachable_ones(count: u32) {
    let mut harness = LostRunHarness::new().await;
    let mut redis = RedisWorker::new(&harness).await;
    harness.advance(30, true).await;
    let kept = harness.running("requeue", "w-1").await;
    // The copies are reported by no heartbeat, so they have been silent for longer than the other run.
    harness
        .execute(&format!(
            "INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger, status,
                               priority, instance_id, started_at, last_heartbeat)
             SELECT gen_random_uuid(), created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger,
                    status, priority, instance_id, started_at, last_heartbeat
               FROM runs CROSS JOIN generate_series(1, {count}) WHERE id = '{kept}'"
        ))
        .await;
    harness.execute("UPDATE worker_instances SET running_ids = (SELECT array_agg(id) FROM runs)").await;
    let lost = harness.running("requeue", "w-2").await;
    assert_eq!(advance_alive(&mut harness, &mut redis, 20).await.0, 1);
    assert_eq!(harness.status(lost).await, (OccurrenceStatus::Queued, 2));
    assert_eq!(harness.status(kept).await, (OccurrenceStatus::Running, 1));
}

#[tokio::test]
async fn runs_of_an_unreachable_worker_do_not_hide_others() {
    find_lost_run_beside_unreachable_ones(600).await;
}

mod exhaustive {
    use super::*;

    #[tokio::test]
    async fn thousands_of_unreachable_runs_do_not_hide_others() {
        find_lost_run_beside_unreachable_ones(6_000).await;
    }
}
