//! How late does a run start? A hundred jobs, each due every second, spread evenly over the second, for a minute: a
//! hundred starts a second. Prints due → start as the worker's clock saw it, and due → stored as Completed.
//!
//! Needs DATABASE_URL, REDIS_URL and AMQP_URL; `make lateness` provides them. The server and the worker share this
//! process, so the figures include the worker's own work but no network between machines.

#[path = "../tests/common/mod.rs"]
mod common;

use chrono::Duration;
use common::stack;
use protocol::schedule::Schedule;

const JOBS: i64 = 100;
const SECONDS: i64 = 60;

#[tokio::main]
async fn main() {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let worker = stack::worker(&config);
    // The first occurrence declares queues and warms connections; it is not counted.
    let id = server.jobs.save(&stack::admin(), &stack::form("Warm-up")).await.expect("saved");
    let warm = server.jobs.trigger(&stack::admin(), id, Default::default()).await.expect("triggered");
    stack::ended(&server, warm).await;

    let begin = server.clock.now() + Duration::seconds(2);
    let mut due = Vec::new();
    for n in 0..JOBS {
        let at = begin + Duration::milliseconds(n * 1_000 / JOBS);
        let id = common::insert(&server.store, &server.clock, Schedule::every(1), Some(at)).await;
        due.push((id, Some(at)));
    }
    server.cache.note_due(&due).await.expect("Redis answers");
    server.cache.wake().await.expect("Redis answers");
    tokio::time::sleep(std::time::Duration::from_secs((SECONDS + 2).unsigned_abs())).await;
    for (id, _) in &due {
        server.jobs.set_active(&stack::admin(), *id, false, "").await.expect("paused");
    }
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;

    let rows = stack::all(&server, None).await;
    let mut starts: Vec<f64> = Vec::new();
    let mut ends: Vec<f64> = Vec::new();
    let millis = |span: Duration| span.num_microseconds().unwrap_or(0) as f64 / 1_000.0;
    for row in rows.iter().filter(|row| row.job_id != id) {
        if let (Some(started), Some(ended)) = (row.started_at, row.ended_at) {
            starts.push(millis(started - row.scheduled_for));
            ends.push(millis(ended - row.scheduled_for));
        }
    }
    println!("occurrences      {} of {} ended", starts.len(), rows.len() - 1);
    print("due → start", &mut starts);
    print("due → end", &mut ends);
    worker.stop().await;
    server.stop().await;
}

fn print(name: &str, values: &mut [f64]) {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share) as usize];
    println!(
        "{name:<16} p50 {:.2} ms   p90 {:.2} ms   p99 {:.2} ms   max {:.2} ms",
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0)
    );
}
