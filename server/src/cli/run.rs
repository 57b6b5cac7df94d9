//! `milvaion run`: the server, with private services for the URLs that are not set.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use milvaion_server::{
    clock::Clock,
    command::one_time_links,
    config::ServerConfig,
    embedded::{self, EmbeddedError, EmbeddedServices, ServiceSelection, worker::LocalWorker},
    error::chain,
    lifecycle::{Server, ServerError},
};
use tokio_util::sync::CancellationToken;

/// Runs the server until the process receives SIGINT or SIGTERM, which may happen at any instant of the start too, or until
/// a private service ends.
pub(super) async fn run(with_worker: Option<PathBuf>, data: Option<PathBuf>) -> Result<ExitCode, ServerError> {
    let stop = super::stop_signal()?;
    let mut config = ServerConfig::from_env()?;
    if let Some(data) = data {
        config.data_dir = data;
    }
    let mut services = match start_services(&config, &stop).await {
        Err(EmbeddedError::Stopped) => return Ok(stopped_early()),
        started => started?,
    };
    fill_in(&mut config, &services);
    let outcome = serve(&config, &mut services, with_worker.as_deref(), &stop).await;
    services.stop().await;
    outcome
}

/// Says that the server has not started, and returns the exit code of a stop on request.
fn stopped_early() -> ExitCode {
    eprintln!("\n  Stopped during start-up.");
    ExitCode::SUCCESS
}

async fn start_services(config: &ServerConfig, stop: &CancellationToken) -> Result<EmbeddedServices, EmbeddedError> {
    let wanted = ServiceSelection {
        postgres: config.database_url.is_none(),
        redis: config.redis_url.is_none(),
        rabbitmq: config.amqp_url.is_none(),
    };
    let progress = |line: &str| eprintln!("  {line}");
    let stopping = async {
        stop.cancelled().await;
        progress("Stopping…");
    };
    embedded::start_until(&config.data_dir, wanted, progress, stopping).await
}

fn fill_in(config: &mut ServerConfig, services: &EmbeddedServices) {
    let or = |given: &Option<String>, own: &Option<String>| given.clone().or_else(|| own.clone()).unwrap_or_default();
    config.database.url = or(&config.database_url, &services.database_url);
    config.cache.url = or(&config.redis_url, &services.redis_url);
    config.broker.url = or(&config.amqp_url, &services.amqp_url);
}

async fn serve(
    config: &ServerConfig,
    services: &mut EmbeddedServices,
    with_worker: Option<&Path>,
    stop: &CancellationToken,
) -> Result<ExitCode, ServerError> {
    // A start waits for PostgreSQL and RabbitMQ before it starts anything, so it can be dropped.
    let server = tokio::select! {
        started = Server::start(config, Clock::system()) => started?,
        () = stop.cancelled() => return Ok(stopped_early()),
    };
    let worker = match with_worker {
        None => None,
        Some(program) => {
            let log = config.data_dir.join("logs").join("worker.log");
            let outbox = config.data_dir.join("outbox");
            match LocalWorker::start(program, &config.broker.url, &config.cache.url, &outbox, &log).await {
                Ok(worker) => Some(worker),
                Err(error) => {
                    server.stop().await;
                    return Err(error.into());
                }
            }
        }
    };
    stop.run_until_cancelled(greet(config, services, &server)).await;
    let outcome = tokio::select! {
        () = stop.cancelled() => Ok(ExitCode::SUCCESS),
        error = services.failed() => Err(error.into()),
    };
    eprintln!("\n  Stopping…");
    // The worker stops first, because its last reports need a running server.
    if let Some(worker) = worker {
        worker.stop().await;
    }
    server.stop().await;
    outcome
}

/// Prints the address of the dashboard, the setup link if there is no user yet, and the folders of data and logs.
async fn greet(config: &ServerConfig, services: &EmbeddedServices, server: &Server) {
    let base = config.http.public_url.clone().unwrap_or_else(|| {
        let host =
            if server.address.ip().is_unspecified() { "127.0.0.1".to_owned() } else { server.address.ip().to_string() };
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        format!("http://{host}:{}", server.address.port())
    });
    eprintln!("\n  Milvaion is at   {base}");
    match one_time_links::setup_link(&server.store, &server.clock).await {
        Ok(Some(path)) => {
            eprintln!("  Set it up at     {base}{path}");
            eprintln!(
                "                   (valid once, for 15 minutes; until there is a user, each start prints a new link)"
            );
        }
        Ok(None) => {}
        Err(error) => {
            tracing::error!(error = %chain(&error), "no setup link could be created; restart the server to get one");
        }
    }
    if let Some(folder) = &services.folder {
        let logs = config.data_dir.join("logs");
        eprintln!("  Data folder      {}", absolute(folder));
        eprintln!("  Log folder       {}", absolute(&logs));
    }
    eprintln!("  Ctrl-C stops everything.\n");
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}
