//! The subcommands of `milvaion`. Those that use a running server over its API are in the crate `milvaion-cli`.

mod admin;
mod conformance;
mod conformance_services;
mod cron;
mod error;
mod run;
mod services;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use milvaion_cli::RemoteCommand;
use milvaion_server::lifecycle::ServerError;
use tokio_util::sync::CancellationToken;

pub(crate) use error::CliError;

/// Milvaion runs jobs when they are due. Without a command, this program runs the server. The commands from `login` on use
/// a running server, with an API token.
#[derive(Debug, Parser)]
#[command(name = "milvaion", version)]
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
    /// Judge whether a worker follows the protocol: play deliveries and faults against it, on private services.
    Conformance(conformance::ConformanceCommand),
    /// List the users, or create a link for a new passphrase.
    #[command(subcommand)]
    Admin(admin::AdminCommand),
    /// Print the next due times or the meaning of a cron expression.
    #[command(subcommand)]
    Cron(cron::CronCommand),
    #[command(flatten)]
    Remote(RemoteCommand),
}

impl CliArguments {
    /// Returns true if the command runs the server.
    pub(crate) const fn runs_server(&self) -> bool {
        matches!(self.command, None | Some(CliCommand::Run { .. }))
    }
}

/// Runs the given subcommand, or `run` if none is given.
///
/// # Errors
///
/// Returns [`CliError`] if the server, a private service or the given command fails.
pub(crate) async fn run_command(arguments: CliArguments) -> Result<ExitCode, CliError> {
    match arguments.command.unwrap_or(CliCommand::Run { with_worker: None, data: None }) {
        CliCommand::Run { with_worker, data } => Ok(run::run(with_worker, data).await?),
        CliCommand::Conformance(command) => conformance::conformance(command).await,
        CliCommand::Admin(command) => admin::admin(command).await,
        CliCommand::Cron(command) => cron::cron(command),
        CliCommand::Remote(command) => Ok(milvaion_cli::run::<CliArguments>(command).await),
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

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use clap::{Command, CommandFactory};

    use super::*;

    /// The variable that makes the test write the page.
    const WRITE: &str = "WRITE_CLI_DOCS";
    /// The start of the page.
    const HEAD: &str = "# Command line\n\n\
        This page lists the commands of `milvaion` with their options.\n\
        It is generated from the program; `milvaion COMMAND --help` prints the same.\n\
        The commands from `login` on use a running server over its [API](api/README.md), with an API token.\n\
        The token comes from `milvaion login` or from `MILVAION_TOKEN`, and the address from `--url` or `MILVAION_URL`.\n\n\
        ## Exit codes\n\n\
        | Code | Meaning |\n|---|---|\n\
        | 0 | Success; for `occurrences wait`, `enqueue --wait`, `jobs run --wait` and `--follow`: the occurrence completed |\n\
        | 1 | The command failed; its message names the cause; for `diff`: there are differences |\n\
        | 2 | The arguments are invalid, or a change needs `--yes`; for `diff`: the files were not compared |\n\
        | 3 | Not signed in, or the role or the token does not allow it |\n\
        | 4 | There is no such object |\n\
        | 5 | The state or the version of the object does not allow it |\n\
        | 6 | The server cannot be reached |\n\
        | 10 | The occurrence failed |\n\
        | 11 | The occurrence exceeded its timeout |\n\
        | 12 | The occurrence was cancelled |\n\
        | 13 | The occurrence was skipped |\n\
        | 14 | The wait ended before the occurrence did |\n\
        | 130 | Ctrl-C ended the command |\n";

    fn describe(command: &mut Command, path: &str, page: &mut String) {
        let help = command.render_long_help().to_string();
        let lines: Vec<_> = help.lines().map(str::trim_end).collect();
        let _ = write!(page, "\n## {path}\n\n```text\n{}\n```\n", lines.join("\n").trim_end());
        let names: Vec<_> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
        for name in names.iter().filter(|name| *name != "help") {
            if let Some(command) = command.find_subcommand_mut(name) {
                describe(command, &format!("{path} {name}"), page);
            }
        }
    }

    #[test]
    fn page_of_the_commands_is_up_to_date() {
        let mut command = CliArguments::command();
        command.build();
        let mut page = HEAD.to_owned();
        describe(&mut command, "milvaion", &mut page);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli.md");
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(path, &page).expect("written");
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(stored == page, "docs/cli.md is out of date: run this test with {WRITE}=1");
    }
}
