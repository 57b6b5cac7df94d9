//! The rate at which new occurrences of programs are stored: over the broker in messages of 500, and over the REST API
//! in requests of 500. Both use the crate `milvaion-client`, with four messages or requests in flight. An occurrence
//! counts when the server has answered, which it does after the commit.
//!
//! All of them are delayed until one instant, so that the server does nothing but store them meanwhile. At that instant
//! the worker runs them, and each must have completed exactly once.

use std::time::Instant;

use anyhow::ensure;
use chrono::{DateTime, Duration, Utc};
use futures::future::try_join_all;
use milvaion_api::{permissions::Role, tokens::NewToken};
use milvaion_client::{BrokerClient, Client, EnqueueTransport, IngestOutcome, NewOccurrence};
use milvaion_protocol::message::MAX_INGEST_OCCURRENCES;
use milvaion_server::{
    clock::{Clock, machine_now},
    command::tokens,
    store::Store,
};
use milvaion_test_support::jobs;

use crate::{
    harness::{BenchEnv, BenchHarness, JOB_TYPE, WORKER_ID, occurrence_id},
    job_batch,
    lateness::sleep_until,
    process_stats,
    samples::RunSample,
    stage_times,
};

/// The occurrences that are enqueued each way.
const COUNT: usize = 50_000;
/// The time from the first occurrence until all of them are due.
const DELAY: Duration = Duration::seconds(40);
/// Requests in flight, as many as the client of the broker has messages in flight.
const CONCURRENT_REQUESTS: usize = 4;

/// Measures occurrences per second, over the broker and over the REST API.
pub(crate) async fn run(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        samples.push(once(harness).await?);
    }
    Ok(samples)
}

async fn once(harness: &BenchHarness) -> anyhow::Result<RunSample> {
    let env = BenchEnv::new(harness).await?;
    let (server, port) = env.server_with_port().await?;
    let worker = env.worker().await?;
    job_batch::warm_up(&env).await?;
    let mut process_groups = vec![server.process_group.clone(), worker.process_group.clone()];
    process_groups.extend(harness.services()?.iter().cloned());
    let broker = BrokerClient::new(&harness.amqp_url, &env.prefix)?;
    let rest = Client::new(&format!("http://127.0.0.1:{port}"), &token(&env).await?)?;
    let due = machine_now() + DELAY;
    let ways: [(&'static str, &dyn EnqueueTransport, usize); 2] =
        [("ingest", &broker, 1), ("ingest-rest", &rest, CONCURRENT_REQUESTS)];
    let mut sample = Vec::new();
    for (name, transport, calls) in ways {
        // The first message does not count: it opens connections and creates the job of the type.
        hand_over(transport, occurrences(MAX_INGEST_OCCURRENCES, due)).await?;
        let parts: Vec<Vec<NewOccurrence>> = (0..calls).map(|_| occurrences(COUNT / calls, due)).collect();
        let (before, begun) = (process_stats::seconds(&process_groups), Instant::now());
        try_join_all(parts.into_iter().map(|part| hand_over(transport, part))).await?;
        let took = begun.elapsed();
        println!("    {name}: {COUNT} occurrences in {:.2} s", took.as_secs_f64());
        stage_times::print_cpu(&process_groups, &before, &process_stats::seconds(&process_groups), COUNT as i64);
        sample.push((name, COUNT as f64 / took.as_secs_f64()));
    }
    ensure!(machine_now() < due, "the occurrences were not stored within {} s", DELAY.num_seconds());
    broker.close().await;
    sleep_until(due).await;
    env.wait_until_drained().await?;
    env.verify(worker.stop_and_count_runs().await?).await?;
    let enqueued: i64 =
        sqlx::query_scalar("SELECT count(*) FROM occurrences WHERE trigger = 'enqueue'").fetch_one(&env.pool).await?;
    let sent = ways.len() * (COUNT + MAX_INGEST_OCCURRENCES);
    ensure!(enqueued == sent as i64, "{sent} occurrences were enqueued, {enqueued} exist");
    server.stop().await?;
    env.close().await?;
    Ok(sample)
}

/// Returns new occurrences with an input, due at one instant.
fn occurrences(count: usize, due: DateTime<Utc>) -> Vec<NewOccurrence> {
    let occurrence = |number: usize| NewOccurrence {
        id: occurrence_id(),
        worker_id: Some(WORKER_ID.to_owned()),
        job_type: Some(JOB_TYPE.to_owned()),
        input: Some(serde_json::json!({ "number": number })),
        not_before: Some(due),
        ..NewOccurrence::default()
    };
    (0..count).map(occurrence).collect()
}

/// Enqueues occurrences, and checks that the server has accepted each.
async fn hand_over(transport: &dyn EnqueueTransport, occurrences: Vec<NewOccurrence>) -> anyhow::Result<()> {
    let sent = occurrences.len();
    let results = transport.enqueue(occurrences).await?;
    let refused = results.iter().find(|result| result.outcome != IngestOutcome::Accepted);
    ensure!(refused.is_none(), "an occurrence was not accepted: {refused:?}");
    ensure!(results.len() == sent, "{sent} occurrences have {} results", results.len());
    Ok(())
}

/// Creates a token for the REST API. Returns its secret.
async fn token(env: &BenchEnv) -> anyhow::Result<String> {
    let new = NewToken {
        name: "bench".to_owned(),
        role: Role::Operator,
        read_only: false,
        tag: None,
        expires_in_days: None,
        never_expires: false,
        service: true,
    };
    let store = Store::from_pool(env.pool.clone());
    Ok(tokens::create(&store, &Clock::system(), &jobs::admin(), &new).await?.secret)
}
