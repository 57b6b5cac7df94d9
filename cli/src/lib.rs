//! The commands of `milvaion` that call a server over the network.
//!
//! The binary of the server includes [`RemoteCommand`] in its own subcommands and calls [`run`]. The commands use the API
//! as any other program does, with a token and its rights, so that they work from every machine and appear in the audit
//! log; `milvaion admin` is for an operator on the server's machine.
//!
//! Results go to standard output and nothing else does: questions, progress and errors go to standard error. So the
//! output can be piped, and with `-o json` it is a document for programs. The meaning of each exit code is in [`exit`].
//!
//! A command never reads the environment, the clock or the terminal itself. It gets a [`Console`], which a test makes from
//! texts.

mod arguments;
mod audit;
mod calendars;
mod cluster;
mod confirm;
mod console;
mod credentials;
mod dead_letters;
mod enqueue;
mod error;
pub mod exit;
mod failures;
mod files;
mod follow;
mod jobs;
mod login;
mod loops;
mod occurrences;
mod output;
mod secret;
mod session;
mod table;
mod times;
mod tokens;
mod users;
mod workers;

use std::process::ExitCode;

use clap::{CommandFactory, Subcommand};

pub use arguments::{GlobalOptions, ListOptions, OutputFormat, Remote, Yes};
pub use audit::AuditCommand;
pub use calendars::CalendarsCommand;
pub use cluster::ClusterCommand;
pub use console::{Console, Environment};
pub use dead_letters::DeadLettersCommand;
pub use enqueue::{EnqueueOptions, TypeReference};
pub use failures::{FailureConditions, FailuresCommand};
pub use files::{ApplyOptions, DiffOptions, ExportOptions, FileOptions, TagSelector};
pub use jobs::JobsCommand;
pub use loops::LoopsCommand;
pub use occurrences::OccurrencesCommand;
pub use tokens::TokensCommand;
pub use users::UsersCommand;
pub use workers::WorkersCommand;

use error::CliError;
use session::Session;

/// A command that calls a server over the network.
#[derive(Debug, Subcommand)]
pub enum RemoteCommand {
    /// Signs in to a server: checks an API token and stores it for later commands.
    ///
    /// The token is asked for on a terminal, and otherwise read from standard input. It is stored in
    /// $XDG_CONFIG_HOME/milvaion/credentials.toml or ~/.config/milvaion/credentials.toml, which only you can read. Create
    /// a token on the page API tokens of the dashboard.
    Login {
        /// The options.
        #[command(flatten)]
        globals: GlobalOptions,
    },
    /// Deletes the stored token. It stays valid: revoke it with `milvaion tokens revoke`.
    Logout,
    /// Prints the user of the token that the commands use.
    Whoami {
        /// The options.
        #[command(flatten)]
        globals: GlobalOptions,
    },
    /// Lists, runs, pauses, resumes and deletes jobs.
    Jobs(Remote<JobsCommand>),
    /// Prints jobs, calendars and alert rules as a YAML file, for `diff` and `apply`.
    ///
    /// Inputs are printed as they are stored. Use references to secrets in inputs, not the secrets themselves.
    Export(ExportOptions),
    /// Shows the differences between files and the server: what `apply` would change.
    ///
    /// The exit code is 0 without differences, 1 with differences, and another one if the files could not be compared. A
    /// token that may only read is enough.
    Diff(DiffOptions),
    /// Makes jobs, calendars and alert rules be as YAML files say.
    ///
    /// All documents are checked before anything is changed, and each file is applied completely or not at all. Jobs are
    /// identified by their keys, and calendars and alert rules by their names.
    Apply(ApplyOptions),
    /// Creates an occurrence of a job or of a job type, now or later, and prints its id.
    ///
    /// Unlike `jobs run`, it can be delayed and made unique, and a job type needs no job that a user has defined. An open
    /// occurrence of the job does not reject it: it waits for a slot if the job's runs must not overlap.
    Enqueue(EnqueueOptions),
    /// Lists, follows, cancels and retries occurrences.
    Occurrences(Remote<OccurrencesCommand>),
    /// Lists, retries and resolves failures.
    Failures(Remote<FailuresCommand>),
    /// Lists and resolves dead letters: messages that belong to no known occurrence.
    DeadLetters(Remote<DeadLettersCommand>),
    /// Lists the workers.
    Workers(Remote<WorkersCommand>),
    /// Lists, enables, disables and forgets singleton loops, and moves their leadership.
    Loops(Remote<LoopsCommand>),
    /// Lists, prints and deletes blackout calendars.
    Calendars(Remote<CalendarsCommand>),
    /// Prints the state of the cluster, and pauses and resumes it.
    Cluster(Remote<ClusterCommand>),
    /// Lists, creates, rotates and revokes API tokens.
    Tokens(Remote<TokensCommand>),
    /// Lists the audit log.
    Audit(Remote<AuditCommand>),
    /// Lists the users.
    Users(Remote<UsersCommand>),
    /// Prints a script with which a shell completes the commands of this program.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Runs a command on the console of this process. `P` is the parser of the whole program, for shell completions.
pub async fn run<P: CommandFactory>(command: RemoteCommand) -> ExitCode {
    let mut console = Console::of_process();
    ExitCode::from(execute::<P>(command, &mut console).await)
}

/// Runs a command on a console and returns its exit code. An error is written to the console's messages.
pub async fn execute<P: CommandFactory>(command: RemoteCommand, console: &mut Console) -> u8 {
    let outcome = match dispatch::<P>(command, console).await {
        Ok(code) => console.flush().map(|()| code),
        Err(error) => {
            // What was written before the error is still of use.
            let _ = console.flush();
            Err(error)
        }
    };
    match outcome {
        Ok(code) => code,
        Err(error) if error.is_closed_pipe() => exit::SUCCESS,
        Err(error) => {
            console.message(&format!("milvaion: {}", error::report(&error)));
            error.exit_code()
        }
    }
}

async fn dispatch<P: CommandFactory>(command: RemoteCommand, console: &mut Console) -> Result<u8, CliError> {
    match command {
        RemoteCommand::Login { globals } => login::login(&globals, console).await,
        RemoteCommand::Logout => login::logout(console),
        RemoteCommand::Whoami { globals } => login::whoami(&mut Session::open(&globals, console)?).await,
        RemoteCommand::Jobs(remote) => jobs::run(remote.command, &mut Session::open(&remote.globals, console)?).await,
        RemoteCommand::Export(options) => files::export(&options, console).await,
        RemoteCommand::Diff(options) => files::diff(&options, console).await,
        RemoteCommand::Apply(options) => files::apply(&options, console).await,
        RemoteCommand::Enqueue(options) => enqueue::enqueue(&options, console).await,
        RemoteCommand::Occurrences(remote) => {
            occurrences::run(remote.command, &mut Session::open(&remote.globals, console)?).await
        }
        RemoteCommand::Failures(remote) => {
            failures::run(remote.command, &mut Session::open(&remote.globals, console)?).await
        }
        RemoteCommand::DeadLetters(remote) => {
            dead_letters::run(remote.command, &mut Session::open(&remote.globals, console)?).await
        }
        RemoteCommand::Workers(remote) => {
            workers::run(remote.command, &mut Session::open(&remote.globals, console)?).await
        }
        RemoteCommand::Loops(remote) => loops::run(remote.command, &mut Session::open(&remote.globals, console)?).await,
        RemoteCommand::Calendars(remote) => {
            calendars::run(remote.command, &mut Session::open(&remote.globals, console)?).await
        }
        RemoteCommand::Cluster(remote) => {
            cluster::run(remote.command, &mut Session::open(&remote.globals, console)?).await
        }
        RemoteCommand::Tokens(remote) => {
            tokens::run(remote.command, &mut Session::open(&remote.globals, console)?).await
        }
        RemoteCommand::Audit(remote) => audit::run(remote.command, &mut Session::open(&remote.globals, console)?).await,
        RemoteCommand::Users(remote) => users::run(remote.command, &mut Session::open(&remote.globals, console)?).await,
        RemoteCommand::Completion { shell } => {
            let mut script = Vec::new();
            let mut parser = P::command();
            let name = parser.get_name().to_owned();
            clap_complete::generate(shell, &mut parser, name, &mut script);
            console.write(&script)?;
            Ok(exit::SUCCESS)
        }
    }
}
