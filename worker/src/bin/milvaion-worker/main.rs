//! The worker that comes with Milvaion: two job types for those who have not written their own yet.
//!
//! `http-request` calls an address. `shell-command` runs a program on this machine, which is a different matter of trust,
//! and is therefore offered only when `MILVAION_SHELL=1` says so. Everything else a worker can be told is in
//! [`WorkerConfig`]; `RUST_LOG` chooses what is logged to standard error (default `info`).

mod http_request;
mod shell_command;

use std::{
    io::{IsTerminal, stderr},
    process::ExitCode,
};

use milvaion_worker::{Worker, WorkerConfig};
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(stderr().is_terminal()).with_writer(stderr).init();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("milvaion-worker cannot run:\n{reason}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), String> {
    let mut mistakes = Vec::new();
    let shell = match std::env::var("MILVAION_SHELL").as_deref() {
        Ok("1") => true,
        Ok("0" | "") | Err(_) => false,
        Ok(other) => {
            mistakes.push(format!("MILVAION_SHELL is {other:?}: give 1 to offer shell-command, 0 or nothing not to."));
            false
        }
    };
    let config = WorkerConfig::from_env().map_err(|error| mistakes.push(error.to_string())).unwrap_or_default();
    if !mistakes.is_empty() {
        return Err(mistakes.join("\n"));
    }
    let http_request =
        http_request::HttpRequest::new().map_err(|error| format!("no HTTP client can be made: {error}"))?;
    let mut builder = Worker::builder().config(config).job(http_request);
    if shell {
        builder = builder.job(shell_command::ShellCommand);
    }
    let worker = builder.build().map_err(|error| error.to_string())?;
    worker.run().await.map_err(|error| error.to_string())
}
