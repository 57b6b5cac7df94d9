//! The worker that comes with Milvaion, and its jobs for those who have not written their own yet.
//!
//! `http-request` calls an address, `sql-query` asks a database, `send-email` sends a message, `shell-command` runs a
//! program on this machine. What each may reach is the worker's configuration ([`settings`]), not the job's input; what an
//! input may refer to without showing it are [`secrets`]. docs/BUILT_IN_JOBS.md tells all of it to people. Everything else
//! a worker can be told is in [`WorkerConfig`], and may stand in the file `MILVAION_CONFIG` names; `RUST_LOG` chooses what is logged to standard error (default `info`).
//!
//! ```text
//!  message ─► BuiltinAdapter: references become values ─► the job ─► BuiltinContext, result, failure ─► cleaned ─► reports, log lines
//! ```

mod context;
mod redact;
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
    context::BuiltinAdapter, guard::EgressGuard, http_request::HttpRequest, redact::RedactingMakeWriter,
    secrets::SecretStore, send_email::SendEmail, settings::BuiltinSettings, shell_command::ShellCommand,
    sql_query::SqlQuery,
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
    let (settings, mut mistakes) = match BuiltinSettings::from_env() {
        Ok(settings) => (settings, Vec::new()),
        Err(mistakes) => (BuiltinSettings::default(), mistakes),
    };
    let config = match std::env::var_os("MILVAION_CONFIG").filter(|path| !path.is_empty()) {
        Some(path) => WorkerConfig::from_file(path),
        None => WorkerConfig::from_env(),
    };
    let config = config.map_err(|error| mistakes.push(error.to_string())).unwrap_or_default();
    if !mistakes.is_empty() {
        return Err(mistakes.join("\n"));
    }
    let secret_store = Arc::new(SecretStore::new(settings.secrets_dir.clone()));
    log_through(RedactingMakeWriter(secret_store.process_redactor().clone()));
    for sentence in settings.summary() {
        tracing::info!("{sentence}");
    }

    let terminations = TaskTracker::new();
    let has_proxy = settings.http_proxy.is_some();
    let backends = settings.backends(&config);
    let guard = EgressGuard::new(settings.http_allow, settings.http_deny, backends, has_proxy);
    let mut builder = Worker::builder()
        .config(config)
        .job(BuiltinAdapter::new(HttpRequest::new(guard, settings.http_proxy), secret_store.clone()));
    if !settings.databases.is_empty() {
        builder = builder.job(BuiltinAdapter::new(SqlQuery { databases: settings.databases }, secret_store.clone()));
    }
    if !settings.accounts.is_empty() {
        builder = builder.job(BuiltinAdapter::new(SendEmail { accounts: settings.accounts }, secret_store.clone()));
    }
    if settings.shell {
        let job = ShellCommand { inherited_variables: settings.shell_env, terminations: terminations.clone() };
        builder = builder.job(BuiltinAdapter::new(job, secret_store));
    }
    let worker = builder.build().map_err(|error| error.to_string())?;
    let ended = worker.run().await.map_err(|error| error.to_string());
    // Programs whose runs are over may still be within their grace.
    terminations.close();
    if tokio::time::timeout(shell_command::MAX_TERMINATION_GRACE, terminations.wait()).await.is_err() {
        tracing::warn!("a program of shell-command has not ended");
    }
    ended
}

/// Logs to standard error, panics included, without secrets.
fn log_through(make_writer: RedactingMakeWriter) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(stderr().is_terminal()).with_writer(make_writer).init();
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
}

#[cfg(test)]
mod tests;
