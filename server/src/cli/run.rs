//! `milvaion run`.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use milvaion_server::{
    clock::Clock,
    command::invite,
    config::ServerConfig,
    embedded::{self, EmbeddedServices, ServiceSelection, worker::LocalWorker},
    error::chain,
    lifecycle::Server,
};

/// Runs until asked to stop, or until a private service crashes.
pub(super) async fn run(with_worker: Option<PathBuf>, data: Option<PathBuf>) -> Result<ExitCode, String> {
    let mut config = ServerConfig::from_env().map_err(|mistakes| mistakes.join("\n          "))?;
    if let Some(data) = data {
        config.data_dir = data;
    }
    let stop = super::asked_to_stop();
    tokio::pin!(stop);
    let mut services = tokio::select! {
        started = start_services(&config) => started?,
        asked = &mut stop => return asked.map(|()| ExitCode::SUCCESS),
    };
    fill_in(&mut config, &services);
    let outcome = serve(&config, &mut services, with_worker.as_deref(), stop).await;
    services.stop().await;
    outcome
}

async fn start_services(config: &ServerConfig) -> Result<EmbeddedServices, String> {
    let wanted = ServiceSelection {
        postgres: config.database_url.is_none(),
        redis: config.redis_url.is_none(),
        rabbitmq: config.amqp_url.is_none(),
    };
    embedded::start(&config.data_dir, wanted, |line| eprintln!("  {line}")).await.map_err(|error| error.to_string())
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
    stop: impl Future<Output = Result<(), String>>,
) -> Result<ExitCode, String> {
    let clock = Clock::system();
    let server = Server::start(config, clock.clone()).await?;
    let worker = match with_worker {
        None => None,
        Some(program) => {
            let log = config.data_dir.join("logs").join("worker.log");
            let outbox = config.data_dir.join("outbox");
            match LocalWorker::start(program, &config.broker.url, &config.cache.url, &outbox, &log).await {
                Ok(worker) => Some(worker),
                Err(error) => {
                    server.stop().await;
                    return Err(error.to_string());
                }
            }
        }
    };
    greet(config, services, &server).await;
    let outcome = tokio::select! {
        asked = stop => asked.map(|()| ExitCode::SUCCESS),
        sentence = services.failed() => Err(sentence),
    };
    eprintln!("\n  Stopping…");
    // The worker first: what it reports last must find somebody who listens.
    if let Some(worker) = worker {
        worker.stop().await;
    }
    server.stop().await;
    outcome
}

/// Says where everything is.
async fn greet(config: &ServerConfig, services: &EmbeddedServices, server: &Server) {
    let base = config.http.public_url.clone().unwrap_or_else(|| {
        let host =
            if server.address.ip().is_unspecified() { "127.0.0.1".to_owned() } else { server.address.ip().to_string() };
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        format!("http://{host}:{}", server.address.port())
    });
    eprintln!("\n  Milvaion is at   {base}");
    match invite::setup_link(&server.store, &server.clock).await {
        Ok(Some(path)) => {
            eprintln!("  Set it up at     {base}{path}");
            eprintln!(
                "                   (good once, for 15 minutes; a restart prints a new one while there is nobody)"
            );
        }
        Ok(None) => {}
        Err(error) => tracing::error!(error = %chain(&error), "no setup link could be made"),
    }
    if let Some(folder) = &services.folder {
        let logs = config.data_dir.join("logs");
        eprintln!("  Data lies in     {}", absolute(folder));
        eprintln!("  Logs lie in      {}", absolute(&logs));
    }
    eprintln!("  Ctrl-C stops everything.\n");
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}
