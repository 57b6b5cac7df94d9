//! Slow requests of users: PostgreSQL stops them after three seconds, their answer names the remedy, and the engine does
//! not wait for them.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use futures::{StreamExt, stream};
use http::{StatusCode, header};
use milvaion_api::{page::OccurrenceFilter, permissions::Role};
use milvaion_app::backend::RequestUser;
use milvaion_protocol::{id::JobId, status::OccurrenceStatus};
use milvaion_schedule::{
    rules::{ConcurrencyKeyLimit, Rules},
    schedule::Schedule,
};
use milvaion_server::{
    command::one_time_links,
    config::database::DatabaseConfig,
    engine::leadership::HeldLease,
    http::session::{self, PostgresSessionStore, SessionOrigin},
    lifecycle::Server,
    store::{PoolUse, Store, StoreError},
};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs, server_env, wait, worker_env,
};
use tokio_util::sync::CancellationToken;
use tower_sessions::Session;

use crate::users::harness::{join, setup_link};

/// The requests that are always under way.
const REQUESTS: usize = 32;
/// The longest lateness of a run beside slow requests. A connection that such a request holds is free after three seconds
/// at the earliest.
const MAX_LATENESS: TimeDelta = TimeDelta::milliseconds(2_500);

/// A Viewer's access to a server over HTTP.
#[derive(Clone)]
struct ViewerClient {
    client: reqwest::Client,
    origin: String,
    cookie: String,
}

impl ViewerClient {
    async fn new(server: &Server) -> Self {
        let (store, clock) = (&server.store, &server.clock);
        let ana = join(store, clock, &setup_link(store, clock).await, "ana").await;
        let admin = RequestUser { user: ana, address: None };
        let path = one_time_links::invite(store, clock, &admin, "vera", Role::Viewer).await.expect("invited");
        let viewer = join(store, clock, &path, "vera").await;
        let session = Session::new(None, Arc::new(PostgresSessionStore::new(store.clone(), clock.clone())), None);
        session::sign_in_session(&session, &viewer, clock.now(), SessionOrigin::default()).await.expect("stored");
        Self {
            client: reqwest::Client::new(),
            origin: format!("http://127.0.0.1:{}", server.address.port()),
            cookie: format!("milvaion_session={}", session.id().expect("a valid id")),
        }
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        let request = self.client.get(format!("{}{path}", self.origin)).header(header::COOKIE, &self.cookie);
        let response = request.header(header::ACCEPT, "application/json").send().await.expect("a response");
        (response.status(), response.text().await.expect("a text"))
    }
}

/// Inserts a job that is due every second. The jobs share one slot, so of the occurrences of one second, one waits until
/// the other has ended.
async fn insert_limited_job(server: &Server) -> JobId {
    let key_limit = Some(ConcurrencyKeyLimit { key: "one at a time".into(), limit: 1 });
    let job = milvaion_api::requests::JobInput {
        rules: Rules { key_limit, ..Rules::default() },
        ..jobs::echo_job(Schedule::every(1))
    };
    jobs::insert_job(&server.store, &server.clock, &job, Some(server.clock.now())).await
}

/// Returns the epoch of the server's lease.
fn epoch(server: &Server) -> Option<i64> {
    server.leadership.borrow().held_lease().map(HeldLease::epoch)
}

/// Returns the lateness of the completed occurrences of a job that were due since `since`.
async fn lateness(store: &Store, job: JobId, since: DateTime<Utc>) -> Vec<TimeDelta> {
    let filter = OccurrenceFilter {
        job_id: Some(job),
        status: Some(OccurrenceStatus::Completed),
        limit: 200,
        ..OccurrenceFilter::default()
    };
    let rows = store.occurrences(&filter).await.expect("the list can be read").rows;
    let late = |row: &milvaion_api::views::OccurrenceRow| row.started_at.map(|start| start - row.scheduled_for);
    rows.iter().filter(|row| row.scheduled_for >= since).filter_map(late).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_search_for_failures_names_the_remedy() {
    search_a_locked_table(false).await;
}

/// Searches for failures until PostgreSQL stops the searches. With `on_page`, also checks the page of failures, which
/// takes another three seconds.
async fn search_a_locked_table(on_page: bool) {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let viewer = ViewerClient::new(&server).await;
    let mut lock = TestConnection::open(&config.database.url).await;
    lock.execute("BEGIN").await;
    lock.execute("LOCK TABLE failed_occurrences IN ACCESS EXCLUSIVE MODE").await;
    // PostgreSQL stops each of them after three seconds, and two fit into the pool of requests at once.
    let (failures, groups) = tokio::join!(
        viewer.get("/api/failures?filter[text]=timeout"),
        viewer.get("/api/failure_groups?filter[text]=timeout")
    );
    for (status, text) in [failures, groups] {
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{text}");
        assert!(text.contains("within 3 s") && text.contains("narrow the search"), "{text}");
    }
    if on_page {
        let (status, page) = viewer.get("/failed?q=timeout").await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
        assert!(page.contains("narrow the search"), "{page}");
    }
    lock.execute("ROLLBACK").await;
    let (status, _) = viewer.get("/api/failures?filter[text]=timeout").await;
    assert_eq!(status, StatusCode::OK);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_pool_is_told_from_an_outage() {
    let url = database::create().await;
    let store = database::open(&url).await;
    let web = DatabaseConfig { url: url.clone(), max_connections: 1 };
    let web = store.with_connections_for(PoolUse::Web, &web).await.expect("connected");
    let mut lock = TestConnection::open(&url).await;
    lock.execute("BEGIN").await;
    lock.execute("LOCK TABLE users IN ACCESS EXCLUSIVE MODE").await;
    let begun = tokio::time::Instant::now();
    let (one, two) = tokio::join!(web.count_users(), web.count_users());
    assert!(begun.elapsed() < Duration::from_secs(6));
    let mut errors = [one.expect_err("the table is locked"), two.expect_err("the table is locked")];
    errors.sort_by_key(StoreError::is_too_slow);
    assert!(matches!(errors[0], StoreError::Exhausted), "{errors:?}");
    assert!(errors[1].is_too_slow(), "{errors:?}");
    lock.execute("ROLLBACK").await;
    assert_eq!(web.count_users().await.expect("the connection is free again"), 0);
}

mod exhaustive {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn page_of_a_stopped_search_names_the_remedy() {
        search_a_locked_table(true).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn slow_requests_do_not_delay_dispatching() {
        let mut config = server_env::config().await;
        config.database.max_connections = 16;
        let server = server_env::start(&config).await;
        let worker = worker_env::start(&config);
        let viewer = ViewerClient::new(&server).await;
        // The test reads over connections of its own.
        let store = database::open(&config.database.url).await;
        let limited = [insert_limited_job(&server).await, insert_limited_job(&server).await];
        wait::until("both jobs have run", async || {
            let epoch = DateTime::UNIX_EPOCH;
            !lateness(&store, limited[0], epoch).await.is_empty()
                && !lateness(&store, limited[1], epoch).await.is_empty()
        })
        .await;
        let lease = epoch(&server);
        assert!(lease.is_some(), "it leads");

        // Only a page reads this table: each request for it waits until PostgreSQL stops it.
        let mut lock = TestConnection::open(&config.database.url).await;
        lock.execute("BEGIN").await;
        lock.execute("LOCK TABLE dead_letters IN ACCESS EXCLUSIVE MODE").await;
        let stop = CancellationToken::new();
        let requests = tokio::spawn({
            let (viewer, stop) = (viewer.clone(), stop.clone());
            async move {
                let repeat = stream::repeat(()).take_until(stop.cancelled_owned());
                repeat.map(|()| viewer.get("/api/dead_letters")).buffer_unordered(REQUESTS).collect::<Vec<_>>().await
            }
        });
        let mut counter = TestConnection::open(&config.database.url).await;
        wait::until("the requests wait", async || {
            let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'dead_letters'::regclass";
            counter.count(waiting).await >= 5
        })
        .await;
        let since = server.clock.now();
        for job in limited {
            wait::until("the job runs on", async || lateness(&store, job, since).await.len() >= 5).await;
        }
        let (ready, _) = viewer.get("/health/ready").await;
        stop.cancel();
        let answers = requests.await.expect("the requests end");
        lock.execute("ROLLBACK").await;

        assert_eq!(ready, StatusCode::OK, "a load balancer must not take the server away");
        assert_eq!(epoch(&server), lease, "the lease stayed");
        for job in limited {
            let worst = lateness(&store, job, since).await.into_iter().max();
            assert!(worst < Some(MAX_LATENESS), "an occurrence started {worst:?} late");
        }
        let of = |status: StatusCode| answers.iter().filter(move |(of, _)| *of == status);
        assert!(of(StatusCode::UNPROCESSABLE_ENTITY).count() > 0 && of(StatusCode::SERVICE_UNAVAILABLE).count() > 0);
        assert!(
            of(StatusCode::UNPROCESSABLE_ENTITY).all(|(_, text)| text.contains("narrow the search")),
            "{answers:?}"
        );
        assert!(
            of(StatusCode::SERVICE_UNAVAILABLE).all(|(_, text)| text.contains("try again in a moment")),
            "{answers:?}"
        );
        let expected = [StatusCode::UNPROCESSABLE_ENTITY, StatusCode::SERVICE_UNAVAILABLE];
        assert!(answers.iter().all(|(status, _)| expected.contains(status)), "{answers:?}");
        worker.stop().await;
        server.stop().await;
    }
}
