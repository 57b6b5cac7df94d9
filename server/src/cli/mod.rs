//! The subcommands of `milvaion`. Those that use a running server over its API are in the crate of the client.

mod admin;
mod cron;
mod error;
mod run;
mod services;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use milvaion_client::cli::RemoteCommand;
use milvaion_server::lifecycle::ServerError;
use tokio_util::sync::CancellationToken;

pub(crate) use error::CliError;

/// Milvaion runs jobs when they are due. Without a command, this program runs the server. The commands from `login` on use
/// a running server, with an API token.
#[derive(Debug, Parser)]
#[command(version, about)]
pub(crate) struct CliArguments {
    #[command(subcommand)]
    command: Option<CliCommand>,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run the server. A private service is started for each of DATABASE_URL, REDIS_URL and AMQP_URL that is not set.
    Run {
        /// Also run this worker program, with the worker id `local`.
        #[arg(long, value_name = "PROGRAM")]
        with_worker: Option<PathBuf>,
        /// Data folder of the private services. Overrides MILVAION_DATA.
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
    },
    /// Start private services with empty data, run a command with DATABASE_URL, REDIS_URL and AMQP_URL set, stop the
    /// services and delete their data.
    Services {
        /// Data folder of the services.
        #[arg(long, value_name = "FOLDER")]
        data: PathBuf,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// List the users, or create a link for a new passphrase.
    #[command(subcommand)]
    Admin(admin::AdminCommand),
    /// Print the next due times or the meaning of a cron expression.
    #[command(subcommand)]
    Cron(cron::CronCommand),
    #[command(flatten)]
    Remote(RemoteCommand),
}

/// Runs the given subcommand, or `run` if none is given.
///
/// # Errors
///
/// Returns [`CliError`] if the server, a private service or the given command fails.
pub(crate) async fn run_command(arguments: CliArguments) -> Result<ExitCode, CliError> {
    match arguments.command.unwrap_or(CliCommand::Run { with_worker: None, data: None }) {
        CliCommand::Run { with_worker, data } => Ok(run::run(with_worker, data).await?),
        CliCommand::Admin(command) => admin::admin(command).await,
        CliCommand::Cron(command) => cron::cron(command),
        CliCommand::Remote(command) => Ok(milvaion_client::cli::run::<CliArguments>(command).await),
        CliCommand::Services { data, command } => services::services(&data, &command).await,
    }
}

/// Returns a token that the first SIGINT or SIGTERM from now on cancels.
fn stop_signal() -> Result<CancellationToken, ServerError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServerError::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(ServerError::Signals)?;
    let stop = CancellationToken::new();
    let received = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        received.cancel();
    });
    Ok(stop)
}
