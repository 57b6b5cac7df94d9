//! What the command line can ask for.

mod cron;
mod run;
mod services;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

/// Milvaion: a distributed job scheduler.
#[derive(Debug, Parser)]
#[command(version, about)]
pub(crate) struct CliArguments {
    #[command(subcommand)]
    command: Option<CliCommand>,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run the server. For each of DATABASE_URL, REDIS_URL and AMQP_URL that is not set, a private service is started.
    Run {
        /// Also run this worker program, as the worker `local`.
        #[arg(long, value_name = "PROGRAM")]
        with_worker: Option<PathBuf>,
        /// Where private services keep their data; instead of MILVAION_DATA.
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
    },
    /// Start private services with empty data, run a command with DATABASE_URL, REDIS_URL and AMQP_URL set, stop them and
    /// delete the data.
    Services {
        /// Where the services keep their data.
        #[arg(long, value_name = "FOLDER")]
        data: PathBuf,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Say when a cron expression fires and what it means.
    #[command(subcommand)]
    Cron(cron::CronCommand),
}

/// Does what was asked. An error is a sentence for people.
pub(crate) async fn run_command(arguments: CliArguments) -> Result<ExitCode, String> {
    match arguments.command.unwrap_or(CliCommand::Run { with_worker: None, data: None }) {
        CliCommand::Run { with_worker, data } => run::run(with_worker, data).await,
        CliCommand::Cron(question) => cron::cron(question),
        CliCommand::Services { data, command } => services::services(&data, &command).await,
    }
}

/// Resolves at the first SIGINT or SIGTERM.
async fn asked_to_stop() -> Result<(), String> {
    use tokio::signal::unix::{SignalKind, signal};
    let trouble = |error| format!("Signals cannot be received: {error}.");
    let mut interrupt = signal(SignalKind::interrupt()).map_err(trouble)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(trouble)?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
