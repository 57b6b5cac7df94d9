//! Connections that a network loses silently: no answer comes, and no error.

use std::time::Duration;

use futures::StreamExt;
use milvaion_api::page::OccurrenceFilter;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    cache::Cache,
    clock::{Clock, machine_now},
    config::{cache::CacheConfig, database::DatabaseConfig},
    error::chain,
    store::{PoolUse, Store, StoreError, create::NewRun, jobs::AuditStamp},
};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs,
    lossy_network::LossyNetwork,
    server_env, wait, worker_env,
};
use tokio::time::Instant;

use crate::private_redis::PrivateRedis;

/// The connections of the pool.
const CONNECTIONS: u32 = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn occurrences_whose_answer_was_lost_are_sent_at_once() {
    let (network, url) = LossyNetwork::connect(&database::create().await).await;
    let store = Store::connect(&DatabaseConfig { url, max_connections: 1 }).await.expect("connected");
    let clock = Clock::manual(machine_now());
    let now = clock.now();
    store.ensure_partitions(now).await.expect("partitions");
    let mut planned = Vec::new();
    for _ in 0..4 {
        let job_id = jobs::insert(&store, &clock, Schedule::every(60), Some(now)).await;
        planned.push(NewRun {
            job_id,
            version: 1,
            due: Some(now),
            next_fire_at: Some(now + chrono::Duration::seconds(60)),
            id: clock.occurrence_id(),
            ..NewRun::default()
        });
    }
    // The statement is prepared by another batch, so that its next answer says that it has committed.
    let first = store.create_scheduled_runs(&planned[..1], None, now).await.expect("the statement succeeds");
    assert_eq!(first.iter().map(|run| run.queued.may_be_sent).collect::<Vec<_>>(), [false]);

    network.lose_next_answer();
    let created = store.create_scheduled_runs(&planned[1..], None, now).await.expect("the look-up succeeds");
    assert!(network.has_lost_answer(), "an answer was lost");
    assert!(created.iter().all(|run| run.queued.may_be_sent), "a worker must learn that there may be another message");
    let mut created: Vec<_> = created.iter().map(|run| (run.row.id, run.row.status)).collect();
    created.sort_unstable_by_key(|(id, _)| *id);
    let mut expected: Vec<_> = planned[1..].iter().map(|run| (run.id, OccurrenceStatus::Queued)).collect();
    expected.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(created, expected);

    network.lose_next_answer();
    let nothing = [NewRun { id: clock.occurrence_id(), ..planned[1].clone() }];
    let error = store.create_scheduled_runs(&nothing, None, now).await.expect_err("nothing was created");
    assert!(error.is_unanswered(), "{error:?}");
}

#[tokio::test]
async fn lost_connections_of_urgent_services_are_replaced_within_seconds() {
    let (network, url) = LossyNetwork::connect(&database::create().await).await;
    let config = DatabaseConfig { url, max_connections: 4 };
    let shared = Store::connect(&config).await.expect("connected");
    let open = async |pool_use: PoolUse| {
        let store = shared.with_connections_for(pool_use, &config).await.expect("connected");
        assert!(!store.is_cluster_paused().await.expect("an answer"));
        store
    };
    let (own, reports) = (open(PoolUse::Own).await, open(PoolUse::Reports).await);
    network.lose_open_connections();
    let check = async |pool_use: PoolUse, store: &Store| {
        let since = Instant::now();
        // The connection is lost while a statement waits for its answer, or while it is given back.
        let answer = store.is_cluster_paused().await;
        assert!(answer.as_ref().map_or_else(StoreError::is_unanswered, |is_paused| !is_paused), "{answer:?}");
        assert!(!store.is_cluster_paused().await.expect("an answer"));
        assert!(since.elapsed() < Duration::from_secs(10), "{pool_use:?}: {:?}", since.elapsed());
    };
    tokio::join!(check(PoolUse::Own, &own), check(PoolUse::Reports, &reports));
}

/// Loses all connections at the end of each round but the last, while statements wait for their answers.
async fn abandon_statements(rounds: usize) {
    let (network, url) = LossyNetwork::connect(&database::create().await).await;
    let store = Store::connect(&DatabaseConfig { url, max_connections: CONNECTIONS }).await.expect("connected");

    for round in 1..=rounds {
        // One more caller than connections: the last waits for a place that an abandoned statement has freed.
        let callers = (0..=CONNECTIONS).map(|_| store.is_cluster_paused());
        let answers = tokio::time::timeout(Duration::from_secs(30), futures::future::join_all(callers)).await;
        let answers = answers.unwrap_or_else(|_| panic!("round {round}: no place was freed"));
        for answer in answers {
            assert!(!answer.expect("an answer"), "round {round}");
        }
        if round == rounds {
            break;
        }
        network.lose_open_connections();
        let abandoned = (0..CONNECTIONS).map(async |number| {
            let in_transaction = number % 2 == 0;
            let statement = async {
                if in_transaction {
                    store.lock_sample_job().await.map(drop)
                } else {
                    store.is_cluster_paused().await.map(drop)
                }
            };
            tokio::time::timeout(Duration::from_millis(20), statement).await
        });
        let abandoned = futures::future::join_all(abandoned).await;
        assert!(abandoned.iter().any(Result::is_err), "round {round}: the network has lost a statement");
    }
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_statements_keep_no_place_in_the_pool() {
    abandon_statements(2).await;
}

#[tokio::test]
async fn a_refused_connection_is_reported_with_its_cause() {
    let port = milvaion_test_support::net::free_port().expect("a free port");
    let config = DatabaseConfig { url: format!("postgres://milvaion@127.0.0.1:{port}/none"), max_connections: 4 };
    let since = Instant::now();
    let error = chain(&Store::connect(&config).await.expect_err("nothing listens there"));
    assert!(error.contains("refused"), "{error}");
    assert!(since.elapsed() < Duration::from_secs(5), "after {:?}", since.elapsed());
}

#[tokio::test]
async fn read_only_postgresql_is_an_outage() {
    let url = database::create().await;
    let store = database::open(&url).await;
    let mut admin = TestConnection::open(&url).await;
    // What a session answers whose server has become a standby.
    admin
        .execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'cannot change a read-only database' USING ERRCODE = '25006'; END $$",
        )
        .await;
    admin.execute("CREATE TRIGGER refuse BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION refuse()").await;
    let (clock, edit) = (Clock::system(), AuditStamp { by: "test", at: machine_now(), address: None });
    let insert = async || store.insert_job(clock.job_id(), &jobs::echo_job(Schedule::Manual), None, edit).await;
    let error = insert().await.expect_err("refused");
    assert!(error.is_outage(), "the same succeeds later: {error:?}");
    admin.execute("DROP TRIGGER refuse ON jobs").await;
    insert().await.expect("inserted over another connection");

    admin
        .execute(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database());
             END $$",
        )
        .await;
    let config = DatabaseConfig { url, max_connections: 4 };
    let error = chain(&Store::connect(&config).await.expect_err("refused"));
    assert!(error.contains("read-only"), "{error}");
}

#[tokio::test]
async fn redis_that_accepts_no_changes_fails_the_check() {
    let redis = PrivateRedis::start().await;
    let cache = redis.cache();
    cache.check().await.expect("an answer");
    redis.replicate("127.0.0.1", 1).await;
    let error = cache.check().await.expect_err("it is a replica");
    assert_eq!(error.code(), Some("READONLY"));
}

#[tokio::test]
async fn lost_connection_to_redis_is_replaced_after_one_request() {
    let config = server_env::config().await.cache;
    let (network, url) = LossyNetwork::connect(&config.url).await;
    let cache = Cache::new(&CacheConfig { url, ..config }).expect("a valid URL");
    cache.check().await.expect("an answer");
    network.lose_open_connections();
    cache.check().await.expect_err("the connection is lost");
    cache.check().await.expect("an answer over another connection");
    // The lease has a shorter limit of its own, which must not keep the connection from being replaced.
    network.lose_open_connections();
    let renew = async || cache.acquire_or_renew_lease("test", "me", Duration::from_secs(10)).await;
    renew().await.expect_err("the connection is lost");
    renew().await.expect("an answer over another connection");
}

#[tokio::test]
async fn lost_subscription_ends() {
    let config = server_env::config().await.cache;
    let (network, url) = LossyNetwork::connect(&config.url).await;
    let cache = Cache::new(&CacheConfig { url, ..config }).expect("a valid URL");
    let mut changes = cache.listen().await.expect("subscribed");
    let mut releases = cache.lease_releases("test").await.expect("subscribed");
    cache.announce_schedule_change().await.expect("published");
    assert_eq!(changes.next().await.map(|(is_event, _)| is_event), Some(false));
    network.lose_open_connections();
    let ends = async { tokio::join!(changes.next(), releases.next()) };
    let ends = tokio::time::timeout(Duration::from_secs(30), ends).await;
    assert_eq!(ends.expect("the loss is detected"), (None, None));
}

mod exhaustive {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn dispatching_continues_after_all_connections_were_lost() {
        let config = server_env::config().await;
        let mut behind = config.clone();
        let (database, redis, rabbitmq);
        (database, behind.database.url) = LossyNetwork::connect(&config.database.url).await;
        (redis, behind.cache.url) = LossyNetwork::connect(&config.cache.url).await;
        (rabbitmq, behind.broker.url) = LossyNetwork::connect(&config.broker.url).await;
        let worker = worker_env::start(&config);
        let server = server_env::start(&behind).await;
        let mut leadership = server.leadership.clone();
        leadership.wait_for(|state| state.may_work()).await.expect("it leads");
        let form = milvaion_api::requests::JobForm {
            kind: "every".into(),
            every: "1".into(),
            every_unit: "seconds".into(),
            ..jobs::form("Hello")
        };
        server.jobs.save(&jobs::admin(), &form).await.expect("saved");
        let started = async |more_than: usize| {
            wait::until("a start", async || worker.started().len() > more_than).await;
        };
        for network in [&redis, &rabbitmq, &database] {
            started(0).await;
            let before = worker.started().len();
            network.lose_open_connections();
            let since = Instant::now();
            // Those that were sent before may still start.
            started(before + 3).await;
            assert!(since.elapsed() < Duration::from_secs(30), "after {:?}", since.elapsed());
        }
        // Reports arrive again too. The test reads over a connection of its own: those of the pages may still be lost, and
        // then a page says that the database is busy.
        let store = Store::connect(&config.database).await.expect("connected");
        let completed = OccurrenceFilter { status: Some(OccurrenceStatus::Completed), limit: 4, ..Default::default() };
        let count = async || store.occurrences(&completed).await.expect("the list can be read").rows.len();
        wait::until("the last report", async || count().await > 3).await;
        worker.stop().await;
        server.stop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn statements_abandoned_four_times_keep_no_place_in_the_pool() {
        abandon_statements(5).await;
    }
}
