//! The worker that comes with Milvaion, and its jobs for those who have not written their own yet.
//!
//! `http-request` calls an address, `sql-query` asks a database, `send-email` sends a message, `shell-command` runs a
//! program on this machine. What each may reach is the worker's configuration ([`settings`]), not the job's input; what an
//! input may refer to without showing it are [`secrets`]. docs/BUILT_IN_JOBS.md tells all of it to people. Everything else
//! a worker can be told is in [`WorkerConfig`], and may stand in the file `MILVAION_CONFIG` names; `RUST_LOG` chooses what is logged to standard error (default `info`).
//!
//! ```text
//!  message ─► Sealed: references become values ─► the job ─► Desk, result, failure ─► cleaned ─► reports, log lines
//! ```

mod redact;
mod seal;
mod secrets;
mod settings;

mod guard;
mod http_request;
mod send_email;
mod shell_command;
mod sql_query;

use std::{
    io::{IsTerminal, stderr},
    process::ExitCode,
    sync::Arc,
};

use milvaion_worker::{Worker, WorkerConfig};
use tokio_util::task::TaskTracker;
use tracing_subscriber::EnvFilter;

use crate::{
    guard::Guard, http_request::HttpRequest, redact::Veil, seal::Sealed, secrets::Vault, send_email::SendEmail,
    settings::Settings, shell_command::ShellCommand, sql_query::SqlQuery,
};

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("milvaion-worker cannot run:\n{reason}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), String> {
    // Our environment holds passwords. This keeps programs of the same user from reading it, and it out of core dumps.
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        eprintln!("milvaion-worker: other programs of this user can read its environment: {error}");
    }
    let (settings, mut mistakes) = match Settings::from_env() {
        Ok(settings) => (settings, Vec::new()),
        Err(mistakes) => (Settings::default(), mistakes),
    };
    let config = match std::env::var_os("MILVAION_CONFIG").filter(|path| !path.is_empty()) {
        Some(path) => WorkerConfig::from_file(path),
        None => WorkerConfig::from_env(),
    };
    let config = config.map_err(|error| mistakes.push(error.to_string())).unwrap_or_default();
    if !mistakes.is_empty() {
        return Err(mistakes.join("\n"));
    }
    let vault = Arc::new(Vault::new(settings.secrets_dir.clone()));
    log_through(Veil(vault.known().clone()));
    for sentence in settings.told() {
        tracing::info!("{sentence}");
    }

    let endings = TaskTracker::new();
    let has_proxy = settings.http_proxy.is_some();
    let backends = settings.backends(&config);
    let guard = Guard::new(settings.http_allow, settings.http_deny, backends, has_proxy);
    let mut builder =
        Worker::builder().config(config).job(Sealed::new(HttpRequest::new(guard, settings.http_proxy), vault.clone()));
    if !settings.databases.is_empty() {
        builder = builder.job(Sealed::new(SqlQuery { databases: settings.databases }, vault.clone()));
    }
    if !settings.accounts.is_empty() {
        builder = builder.job(Sealed::new(SendEmail { accounts: settings.accounts }, vault.clone()));
    }
    if settings.shell {
        let job = ShellCommand { inherited: settings.shell_env, endings: endings.clone() };
        builder = builder.job(Sealed::new(job, vault));
    }
    let worker = builder.build().map_err(|error| error.to_string())?;
    let ended = worker.run().await.map_err(|error| error.to_string());
    // Programs whose runs are over may still be within their grace.
    endings.close();
    if tokio::time::timeout(shell_command::LONGEST_GRACE, endings.wait()).await.is_err() {
        tracing::warn!("a program of shell-command has not ended");
    }
    ended
}

/// Logs to standard error, panics included, without secrets.
fn log_through(veil: Veil) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(stderr().is_terminal()).with_writer(veil).init();
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
}

#[cfg(test)]
mod tests;
