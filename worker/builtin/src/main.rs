//! The worker that comes with Milvaion, and its built-in jobs.
//!
//! `http-request` sends an HTTP request, `sql-query` runs a statement on a database, `send-email` sends a message, and
//! `shell-command` runs a program on this machine. `demo` is a sample run that reaches nothing. The worker's
//! configuration ([`settings`]) limits what each job can reach; the job's input does not. An input can refer to [`secrets`](context::secrets) by name instead of containing them.
//! docs/BUILT_IN_JOBS.md documents all of it for users. The other settings of a worker are in [`WorkerConfig`]. They
//! are read from the environment and from the file that `MILVAION_CONFIG` names. `RUST_LOG` filters the log on standard
//! error (default `info`). If the standard variables of OpenTelemetry name a receiver, the spans of each run are sent to it.
//!
//! ```text
//!  message ─► BuiltinAdapter: references resolved ─► job ─► log lines, result, error ─► Redactor ─► reports
//! ```

mod context;
mod redact;
mod settings;

mod demo;
mod guard;
mod http_request;
mod send_email;
mod shell_command;
mod sql_query;

use std::{fmt, process::ExitCode, sync::Arc};

use milvaion_telemetry::{LogFormat, SpanSender, TraceSettings};
use milvaion_worker::{Worker, WorkerConfig, WorkerError};
use tracing_subscriber::EnvFilter;

use crate::{
    context::{BuiltinAdapter, secrets::SecretStore},
    demo::Demo,
    guard::{EgressGuard, GUARD_WORDS},
    http_request::HttpRequest,
    redact::RedactingMakeWriter,
    send_email::SendEmail,
    settings::BuiltinSettings,
    shell_command::{
        ShellCommand,
        process_guard::{self, ProcessGuard},
    },
    sql_query::SqlQuery,
};

/// The name of the worker in traces, unless `OTEL_SERVICE_NAME` sets another.
const SERVICE_NAME: &str = "milvaion-worker";

fn main() -> ExitCode {
    // Before anything else, because the guard has neither settings nor threads.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == process_guard::GUARD_COMMAND) {
        return process_guard::run();
    }
    let ended =
        tokio::runtime::Runtime::new().map_err(BuiltinWorkerError::Runtime).and_then(|runtime| runtime.block_on(run()));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("milvaion-worker cannot run:\n{error}");
            ExitCode::FAILURE
        }
    }
}

/// The reason why the worker cannot start, or why it ended.
#[derive(Debug)]
enum BuiltinWorkerError {
    /// Settings are invalid; one sentence for each.
    Settings(Vec<String>),
    /// The SDK failed.
    Worker(WorkerError),
    /// The operating system refuses the threads of the runtime.
    Runtime(std::io::Error),
}

impl From<WorkerError> for BuiltinWorkerError {
    fn from(error: WorkerError) -> Self {
        Self::Worker(error)
    }
}

impl fmt::Display for BuiltinWorkerError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings(sentences) => formatter.write_str(&sentences.join("\n")),
            Self::Worker(error) => formatter.write_str(&report(error)),
            Self::Runtime(error) => write!(formatter, "The threads of the worker cannot be started: {error}"),
        }
    }
}

async fn run() -> Result<(), BuiltinWorkerError> {
    // The environment holds passwords. This prevents other programs of the same user from reading it, and keeps it out
    // of core dumps.
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        eprintln!("milvaion-worker: cannot hide its environment from other programs of this user: {error}");
    }
    let (settings, mut errors) = match BuiltinSettings::from_env() {
        Ok(settings) => (settings, Vec::new()),
        Err(errors) => (BuiltinSettings::default(), errors),
    };
    let config = match std::env::var_os("MILVAION_CONFIG").filter(|path| !path.is_empty()) {
        Some(path) => WorkerConfig::from_file(path),
        None => WorkerConfig::from_env(),
    };
    let config = config.map_err(|error| errors.push(report(&error))).unwrap_or_default();
    if !errors.is_empty() {
        return Err(BuiltinWorkerError::Settings(errors));
    }
    let secret_store = Arc::new(SecretStore::new(settings.secrets_dir.clone()));
    let spans = start_logging(RedactingMakeWriter(secret_store.process_redactor().clone()))?;
    for sentence in settings.summary() {
        tracing::info!("{sentence}");
    }

    let has_proxy = settings.http_proxy.is_some();
    let backends = settings.backends(&config);
    let guard = EgressGuard::new(GUARD_WORDS, settings.http_allow, settings.http_deny, backends, has_proxy);
    let mut builder = Worker::builder()
        .config(config)
        .job(BuiltinAdapter::new(Demo, secret_store.clone()))
        .job(BuiltinAdapter::new(HttpRequest::new(guard, settings.http_proxy), secret_store.clone()));
    if !settings.databases.is_empty() {
        builder = builder.job(BuiltinAdapter::new(SqlQuery { databases: settings.databases }, secret_store.clone()));
    }
    if !settings.accounts.is_empty() {
        builder = builder.job(BuiltinAdapter::new(SendEmail { accounts: settings.accounts }, secret_store.clone()));
    }
    if settings.shell {
        let job = ShellCommand { inherited_variables: settings.shell_env, guard: Some(ProcessGuard::new()) };
        builder = builder.job(BuiltinAdapter::new(job, secret_store));
    }
    let result = builder.build()?.run().await;
    spans.stop().await;
    Ok(result?)
}

/// Formats an error for the terminal, with each cause on a line of its own, as `Debug` of [`WorkerError`] does.
fn report(error: &WorkerError) -> String {
    format!("{error:?}")
}

/// Starts logging to standard error, and sending spans if a receiver is set. Secrets are redacted, also in panics; spans
/// contain none.
fn start_logging(make_writer: RedactingMakeWriter) -> Result<SpanSender, BuiltinWorkerError> {
    let traces = TraceSettings::from_env(SERVICE_NAME).map_err(BuiltinWorkerError::Settings)?;
    let logs = LogFormat {
        filter: EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info")),
        is_json: false,
        has_target: true,
        writer: make_writer,
    };
    let spans = milvaion_telemetry::install(logs, traces.as_ref())
        .map_err(|error| BuiltinWorkerError::Settings(vec![error]))?;
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(spans)
}

#[cfg(test)]
mod tests;
