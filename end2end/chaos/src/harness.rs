//! The services that all scenarios of a run share: booting RabbitMQ alone takes ten seconds.

use std::path::{Path, PathBuf};

use milvaion_test_support::{
    database::{self, TestDatabase},
    private_service::{PrivateService, ServiceKind},
};

/// The nominal time in seconds that the services take to start.
pub(crate) const START_SECONDS: f64 = 12.0;

/// A private PostgreSQL, Redis and RabbitMQ.
#[derive(Debug)]
pub(crate) struct ServiceHarness {
    /// The folder of the services and of the evidence.
    pub(crate) folder: PathBuf,
    pub(crate) postgres: PrivateService,
    pub(crate) redis: PrivateService,
    pub(crate) rabbitmq: PrivateService,
    /// The migrated database that each scenario gets a copy of.
    template: TestDatabase,
}

impl ServiceHarness {
    /// Starts the services with no data.
    pub(crate) async fn open(folder: &Path) -> anyhow::Result<Self> {
        let below = folder.join("services");
        for kind in ServiceKind::ALL {
            PrivateService::clear(kind, &below).await?;
        }
        // RabbitMQ takes the longest, so the migrations cost no time.
        let migrated_postgres = async {
            let postgres = PrivateService::open(ServiceKind::Postgres, &below).await?;
            let template = TestDatabase::create(postgres.url(), "chaos_template").await?;
            database::open(&template.url).await.close().await;
            anyhow::Ok((postgres, template))
        };
        let ((postgres, template), redis, rabbitmq) = tokio::try_join!(
            migrated_postgres,
            PrivateService::open(ServiceKind::Redis, &below),
            PrivateService::open(ServiceKind::RabbitMq, &below),
        )?;
        Ok(Self { folder: folder.to_owned(), postgres, redis, rabbitmq, template })
    }

    /// Returns one of the services.
    pub(crate) fn service(&mut self, kind: ServiceKind) -> &mut PrivateService {
        match kind {
            ServiceKind::Postgres => &mut self.postgres,
            ServiceKind::Redis => &mut self.redis,
            ServiceKind::RabbitMq => &mut self.rabbitmq,
        }
    }

    /// Creates a database that is migrated and in which nothing is stored. Its URL does not lead through a proxy.
    pub(crate) async fn database(&self, name: &str) -> anyhow::Result<TestDatabase> {
        self.template.copy(name).await
    }

    /// Executes a Redis command.
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

    /// Starts the services that an aborted scenario left stopped.
    pub(crate) async fn restart_stopped(&mut self) -> anyhow::Result<()> {
        for kind in ServiceKind::ALL {
            let service = self.service(kind);
            if !service.is_running() {
                service.start().await?;
            }
        }
        Ok(())
    }

    /// Stops the services and deletes their data.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        for service in [self.postgres, self.redis, self.rabbitmq] {
            service.close().await?;
        }
        Ok(())
    }
}
