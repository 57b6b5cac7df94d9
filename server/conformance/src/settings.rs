//! The settings of a run of the kit, and the connections that its cases share.

use std::{
    fmt,
    future::Future,
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use lapin::{Connection, ConnectionProperties};
use redis::aio::MultiplexedConnection;
use url::Url;

use crate::{
    failure::{CaseFailure, ConformanceError},
    reading::MessageReader,
};

/// A service of the kit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KitService {
    /// RabbitMQ.
    RabbitMq,
    /// Redis.
    Redis,
}

/// The future of a restart; its error is a sentence.
pub type RestartFuture<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// The control over services that belong to the kit alone.
pub trait ServiceControl: fmt::Debug + Send + Sync {
    /// Stops a service in an orderly way, waits for some time, and starts it with its data and at its address. Returns when
    /// it responds.
    fn restart(&self, service: KitService, away: Duration) -> RestartFuture<'_>;
}

/// The services, the command of the worker, and the choices of the user.
#[derive(Clone, Debug)]
pub struct ConformanceSettings {
    /// The URL of RabbitMQ, `amqp://`.
    pub amqp_url: String,
    /// The URL of Redis, `redis://`.
    pub redis_url: String,
    /// The command that starts the worker, and its arguments.
    pub command: Vec<String>,
    /// The name of the job type that returns its input.
    pub echo_type: String,
    /// The number of cases that run side by side, 1 to 64.
    pub parallel: usize,
    /// The control over the services; none if they belong to others, which skips the cases that restart them.
    pub control: Option<Arc<dyn ServiceControl>>,
}

/// The settings as the cases use them.
pub(crate) struct KitSettings {
    pub(crate) command: Vec<String>,
    pub(crate) echo_type: String,
    pub(crate) redis: MultiplexedConnection,
    pub(crate) reader: Arc<MessageReader>,
    pub(crate) amqp_address: SocketAddr,
    pub(crate) redis_address: SocketAddr,
    pub(crate) folder: PathBuf,
    pub(crate) control: Option<Arc<dyn ServiceControl>>,
    amqp_url: Url,
    redis_url: Url,
}

impl KitSettings {
    pub(crate) async fn open(settings: &ConformanceSettings, folder: PathBuf) -> Result<Self, ConformanceError> {
        let (amqp_url, amqp_address) = plain_url("AMQP_URL", &settings.amqp_url, "amqp", 5672)?;
        let (redis_url, redis_address) = plain_url("REDIS_URL", &settings.redis_url, "redis", 6379)?;
        // Each case opens its own. This one shows that the broker answers, before any case fails without it.
        let connection = Connection::connect(&settings.amqp_url, ConnectionProperties::default()).await?;
        connection.close(200, "answered".into()).await?;
        let redis = redis::Client::open(settings.redis_url.as_str())?.get_multiplexed_async_connection().await?;
        Ok(Self {
            command: settings.command.clone(),
            echo_type: settings.echo_type.clone(),
            redis,
            reader: Arc::new(MessageReader::new().map_err(ConformanceError::Defect)?),
            amqp_address,
            redis_address,
            folder,
            control: settings.control.clone(),
            amqp_url,
            redis_url,
        })
    }

    /// Returns the URL of RabbitMQ, without a proxy.
    pub(crate) fn amqp_url(&self) -> &str {
        self.amqp_url.as_str()
    }

    /// Opens a new connection to Redis.
    pub(crate) async fn connect_redis(&self) -> Result<MultiplexedConnection, CaseFailure> {
        Ok(redis::Client::open(self.redis_url.as_str())?.get_multiplexed_async_connection().await?)
    }

    /// Returns the URL of RabbitMQ behind a port of the loopback address.
    pub(crate) fn amqp_url_at(&self, port: u16) -> String {
        at_port(&self.amqp_url, port)
    }

    /// Returns the URL of Redis behind a port of the loopback address.
    pub(crate) fn redis_url_at(&self, port: u16) -> String {
        at_port(&self.redis_url, port)
    }
}

/// Reads a URL without TLS, and the address of its service.
fn plain_url(
    variable: &'static str,
    text: &str,
    scheme: &str,
    default_port: u16,
) -> Result<(Url, SocketAddr), ConformanceError> {
    let invalid = || ConformanceError::InvalidUrl { variable };
    let url = Url::parse(text).ok().filter(|url| url.scheme() == scheme).ok_or_else(invalid)?;
    let host = url.host_str().ok_or_else(invalid)?;
    let address = (host, url.port().unwrap_or(default_port)).to_socket_addrs().ok().and_then(|mut all| all.next());
    Ok((url, address.ok_or_else(invalid)?))
}

fn at_port(url: &Url, port: u16) -> String {
    let mut url = url.clone();
    // Both succeed for a URL with a host, which was checked.
    let _ = (url.set_host(Some("127.0.0.1")), url.set_port(Some(port)));
    url.into()
}
