//! The services all scenarios of a run share: RabbitMQ alone takes ten seconds to boot.

use std::path::{Path, PathBuf};

use anyhow::Context;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use crate::service::{Kind, Service};

/// A PostgreSQL, a Redis and a RabbitMQ that are ours to mistreat.
#[derive(Debug)]
pub(crate) struct House {
    /// Where everything lies.
    pub(crate) folder: PathBuf,
    pub(crate) postgres: Service,
    pub(crate) redis: Service,
    pub(crate) rabbitmq: Service,
}

impl House {
    /// Starts them with nothing in them.
    pub(crate) async fn open(folder: &Path) -> anyhow::Result<Self> {
        let below = folder.join("services");
        for kind in [Kind::Postgres, Kind::Redis, Kind::RabbitMq] {
            Service::clear(kind, &below).await?;
        }
        let (postgres, redis, rabbitmq) = tokio::try_join!(
            Service::open(Kind::Postgres, &below),
            Service::open(Kind::Redis, &below),
            Service::open(Kind::RabbitMq, &below),
        )?;
        Ok(Self { folder: folder.to_owned(), postgres, redis, rabbitmq })
    }

    /// One of them.
    pub(crate) fn service(&mut self, kind: Kind) -> &mut Service {
        match kind {
            Kind::Postgres => &mut self.postgres,
            Kind::Redis => &mut self.redis,
            Kind::RabbitMq => &mut self.rabbitmq,
        }
    }

    /// Makes an empty database. Returns its URL, not through any proxy.
    pub(crate) async fn database(&self, name: &str) -> anyhow::Result<String> {
        self.administer(format!("CREATE DATABASE {name}")).await?;
        let (base, _) = self.postgres.url().rsplit_once('/').context("the URL names no database")?;
        Ok(format!("{base}/{name}"))
    }

    /// Deletes a database, whoever uses it.
    pub(crate) async fn drop_database(&self, name: &str) -> anyhow::Result<()> {
        self.administer(format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await
    }

    /// Says something to Redis.
    pub(crate) async fn redis(&self, words: &[&str]) -> anyhow::Result<()> {
        let client = redis::Client::open(self.redis.url())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(word);
        }
        let _: redis::Value = command.query_async(&mut connection).await?;
        Ok(())
    }

    /// Starts again whatever a scenario that broke off left dead.
    pub(crate) async fn make_whole(&mut self) -> anyhow::Result<()> {
        for kind in [Kind::Postgres, Kind::Redis, Kind::RabbitMq] {
            let service = self.service(kind);
            if !service.is_running() {
                service.start().await?;
            }
        }
        Ok(())
    }

    /// Stops them and deletes what they left.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        for service in [self.postgres, self.redis, self.rabbitmq] {
            service.close().await?;
        }
        Ok(())
    }

    async fn administer(&self, statement: String) -> anyhow::Result<()> {
        let mut connection = PgConnection::connect(self.postgres.url()).await?;
        connection.execute(AssertSqlSafe(statement)).await?;
        connection.close().await?;
        Ok(())
    }
}
