//! What a test gets in one line, on the real services named by `DATABASE_URL`, `REDIS_URL` and `AMQP_URL`.
//!
//! Every test has a database, a Redis prefix and a broker prefix of its own, so that all may run at once and a failed one
//! leaves nothing that another could trip over.

pub mod stack;

use chrono::{DateTime, Utc};
use milvaion_api::requests::JobInput;
use milvaion_protocol::id::JobId;
use milvaion_schedule::{rules::Rules, schedule::Schedule};
use milvaion_server::{
    clock::Clock,
    config::database::DatabaseConfig,
    store::{Store, jobs::AuditStamp},
};
use sqlx::{Connection, Executor, PgConnection};

/// The URL of a service.
///
/// # Panics
///
/// When it is not set: a test without its service must fail, not pass.
#[must_use]
pub fn url(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run the tests through `make test`"))
}

/// A name nobody else uses.
#[must_use]
pub fn unique(prefix: &str) -> String {
    format!("{prefix}_{:016x}", rand::random::<u64>())
}

/// A fresh database's URL.
pub async fn database_url() -> String {
    let admin = url("DATABASE_URL");
    let name = unique("test");
    let mut connection = PgConnection::connect(&admin).await.expect("PostgreSQL answers");
    connection.execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.expect("a database can be made");
    let (base, _) = admin.rsplit_once('/').expect("the URL names a database");
    format!("{base}/{name}")
}

/// A store on a fresh database, migrated, with partitions. The guard keeps nothing alive; services are thrown away as a
/// whole when the tests are over.
pub async fn database() -> (Store, ()) {
    let store = open(&database_url().await).await;
    (store, ())
}

/// A store on a database that exists.
pub async fn open(url: &str) -> Store {
    let config = DatabaseConfig { url: url.to_owned(), max_connections: 8 };
    let store = Store::connect(&config).await.expect("the database can be used");
    store.ensure_partitions(milvaion_server::clock::machine_now()).await.expect("partitions can be made");
    store
}

/// A job of worker `w` that says hello.
#[must_use]
pub fn job(schedule: Schedule) -> JobInput {
    JobInput {
        display_name: "Hello".into(),
        description: String::new(),
        tags: Vec::new(),
        worker_id: "w".into(),
        job_type: "echo".into(),
        job_data: serde_json::json!({"say": "hello"}),
        schedule,
        is_active: true,
        priority: 3,
        timeout_seconds: None,
        rules: Rules::default(),
    }
}

/// Stores a job that is due at `due`.
pub async fn insert(store: &Store, clock: &Clock, schedule: Schedule, due: Option<DateTime<Utc>>) -> JobId {
    let id = clock.job_id();
    store
        .insert_job(id, &job(schedule), due, AuditStamp { by: "test", at: clock.now() })
        .await
        .expect("the job is stored");
    id
}
