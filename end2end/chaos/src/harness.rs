//! The services all scenarios of a run share: RabbitMQ alone takes ten seconds to boot.

use std::path::{Path, PathBuf};

use anyhow::Context;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use crate::private_service::{ChaosService, ServiceKind};

/// A PostgreSQL, a Redis and a RabbitMQ that are ours to mistreat.
#[derive(Debug)]
pub(crate) struct ServiceHarness {
    /// Where everything lies.
    pub(crate) folder: PathBuf,
    pub(crate) postgres: ChaosService,
    pub(crate) redis: ChaosService,
    pub(crate) rabbitmq: ChaosService,
}

impl ServiceHarness {
    /// Starts them with nothing in them.
    pub(crate) async fn open(folder: &Path) -> anyhow::Result<Self> {
        let below = folder.join("services");
        for kind in [ServiceKind::Postgres, ServiceKind::Redis, ServiceKind::RabbitMq] {
            ChaosService::clear(kind, &below).await?;
        }
        let (postgres, redis, rabbitmq) = tokio::try_join!(
            ChaosService::open(ServiceKind::Postgres, &below),
            ChaosService::open(ServiceKind::Redis, &below),
            ChaosService::open(ServiceKind::RabbitMq, &below),
        )?;
        Ok(Self { folder: folder.to_owned(), postgres, redis, rabbitmq })
    }

    /// One of them.
    pub(crate) fn service(&mut self, kind: ServiceKind) -> &mut ChaosService {
        match kind {
            ServiceKind::Postgres => &mut self.postgres,
            ServiceKind::Redis => &mut self.redis,
            ServiceKind::RabbitMq => &mut self.rabbitmq,
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
    pub(crate) async fn redis_command(&self, words: &[&str]) -> anyhow::Result<()> {
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
    pub(crate) async fn restart_stopped(&mut self) -> anyhow::Result<()> {
        for kind in [ServiceKind::Postgres, ServiceKind::Redis, ServiceKind::RabbitMq] {
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
