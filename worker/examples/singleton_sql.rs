//! A singleton loop whose epoch guards a table: `cargo run -p milvaion-worker --example singleton_sql`.
//!
//! All processes that run this example on one machine share the file `milvaion-prices.sqlite` in the folder for temporary
//! files. The statement is the same for PostgreSQL, apart from the form of its parameters.
use std::time::Duration;

use milvaion_worker::{JobError, Tick, Worker, WorkerConfig};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

/// Stores a price unless a later leader has stored one.
async fn store(pool: &SqlitePool, tick: &Tick, price: f64) -> Result<(), JobError> {
    let epoch = i64::try_from(tick.epoch())?;
    let stored = sqlx::query("UPDATE prices SET price = ?1, epoch = ?2 WHERE symbol = 'ACME' AND epoch <= ?2")
        .bind(price)
        .bind(epoch)
        .execute(pool)
        .await?;
    if stored.rows_affected() == 0 {
        return Err(JobError::new(format!("the price was not stored, because its epoch is higher than {epoch}")));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().init();
    let file = std::env::temp_dir().join("milvaion-prices.sqlite");
    let pool = SqlitePool::connect_with(SqliteConnectOptions::new().filename(file).create_if_missing(true)).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS prices (symbol TEXT PRIMARY KEY, price REAL, epoch INTEGER NOT NULL)")
        .execute(&pool)
        .await?;
    sqlx::query("INSERT INTO prices VALUES ('ACME', 0, 0) ON CONFLICT DO NOTHING").execute(&pool).await?;

    let worker = Worker::builder().config(WorkerConfig::from_env()?);
    let worker = worker.singleton("stored-price").every(Duration::from_secs(1)).run(move |tick| {
        let pool = pool.clone();
        async move {
            let price = 100.0 + (tick.number() % 10) as f64;
            store(&pool, &tick, price).await?;
            println!("stored the price {price} with epoch {}", tick.epoch());
            Ok(())
        }
    });
    worker.build()?.run().await?;
    Ok(())
}
