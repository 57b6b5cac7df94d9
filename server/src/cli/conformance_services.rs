//! The private services of `milvaion conformance`, each with a folder of its own, so that the kit can restart one of them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use milvaion_conformance::{KitService, RestartFuture, ServiceControl};
use milvaion_server::embedded::{self, EmbeddedError, EmbeddedServices, ServiceSelection};
use tokio::{runtime::Handle, sync::Mutex};

const NONE: ServiceSelection = ServiceSelection { postgres: false, redis: false, rabbitmq: false };

/// A private RabbitMQ and a private Redis.
#[derive(Debug)]
pub(super) struct ConformanceServices {
    /// The URL of RabbitMQ.
    pub(super) amqp_url: String,
    /// The URL of Redis.
    pub(super) redis_url: String,
    rabbitmq: Arc<PrivateService>,
    redis: Arc<PrivateService>,
}

/// One service. It does not run while it is restarted.
#[derive(Debug)]
struct PrivateService {
    folder: PathBuf,
    selection: ServiceSelection,
    running: Mutex<Option<EmbeddedServices>>,
}

impl ConformanceServices {
    /// Starts both services with no data below a folder.
    ///
    /// # Errors
    /// Returns [`EmbeddedError`] if one of them does not start, or if `stop` resolves before.
    pub(super) async fn start(data: &Path, stop: impl Future<Output = ()>) -> Result<Self, EmbeddedError> {
        let rabbitmq = PrivateService::new(data.join("rabbitmq"), ServiceSelection { rabbitmq: true, ..NONE });
        let redis = PrivateService::new(data.join("redis"), ServiceSelection { redis: true, ..NONE });
        let services = Self { amqp_url: String::new(), redis_url: String::new(), rabbitmq, redis };
        embedded::erase(&services.rabbitmq.folder).await?;
        embedded::erase(&services.redis.folder).await?;
        // One after the other: between fork and exec, a child process holds the lock of the other folder.
        let starting = async {
            let redis_url = services.redis.start().await?;
            let amqp_url = services.rabbitmq.start().await?;
            Ok((amqp_url, redis_url))
        };
        let urls = tokio::select! {
            urls = starting => urls,
            () = stop => Err(EmbeddedError::Stopped),
        };
        match urls {
            Ok((amqp_url, redis_url)) => Ok(Self { amqp_url, redis_url, ..services }),
            Err(error) => {
                services.stop().await;
                Err(error)
            }
        }
    }

    /// Stops both services.
    pub(super) async fn stop(&self) {
        tokio::join!(self.rabbitmq.stop(), self.redis.stop());
    }

    /// Deletes the data of both services, which must be stopped. Keeps their logs.
    ///
    /// # Errors
    /// Returns [`EmbeddedError`] if a folder cannot be deleted.
    pub(super) async fn erase(&self) -> Result<(), EmbeddedError> {
        embedded::erase(&self.rabbitmq.folder).await?;
        embedded::erase(&self.redis.folder).await
    }
}

impl ServiceControl for ConformanceServices {
    fn restart(&self, service: KitService, away: Duration) -> RestartFuture<'_> {
        let (service, url) = match service {
            KitService::RabbitMq => (self.rabbitmq.clone(), &self.amqp_url),
            KitService::Redis => (self.redis.clone(), &self.redis_url),
        };
        Box::pin(async move {
            let runtime = Handle::current();
            // The future of a start cannot move between threads, so it gets one of its own.
            let restarting = tokio::task::spawn_blocking(move || {
                runtime.block_on(async {
                    service.stop().await;
                    tokio::time::sleep(away).await;
                    service.start().await.map_err(|error| error.to_string())
                })
            });
            let again = restarting.await.map_err(|error| error.to_string())??;
            if again == *url {
                Ok(())
            } else {
                Err("Another program has taken its port. Run the kit again.".to_owned())
            }
        })
    }
}

impl PrivateService {
    fn new(folder: PathBuf, selection: ServiceSelection) -> Arc<Self> {
        Arc::new(Self { folder, selection, running: Mutex::new(None) })
    }

    /// Starts it with the data that is there, and returns its URL.
    async fn start(&self) -> Result<String, EmbeddedError> {
        let services = embedded::start(&self.folder, self.selection, |line| eprintln!("  {line}")).await?;
        let url = services.amqp_url.clone().or_else(|| services.redis_url.clone()).unwrap_or_default();
        *self.running.lock().await = Some(services);
        Ok(url)
    }

    async fn stop(&self) {
        if let Some(services) = self.running.lock().await.take() {
            services.stop().await;
        }
    }
}
