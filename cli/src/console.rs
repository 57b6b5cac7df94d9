//! The surroundings of a command: its streams, its environment, the clock and Ctrl-C.

use std::{
    env,
    io::{self, BufRead, BufReader, BufWriter, IsTerminal, Write},
    path::PathBuf,
};

use chrono::{DateTime, Local, NaiveDateTime, Utc};
use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};

use super::{CliError, table::printable_lines};

/// The surroundings of a command.
pub struct Console {
    /// Standard output: results.
    pub output: Box<dyn Write + Send>,
    /// Standard error: questions, progress and errors.
    pub messages: Box<dyn Write + Send>,
    /// Standard input.
    pub input: Box<dyn BufRead + Send>,
    /// True if standard input is a terminal, at which a user can answer questions.
    pub is_interactive: bool,
    /// True if standard output is a terminal, which shows colors.
    pub is_output_terminal: bool,
    /// The environment.
    pub environment: Environment,
    /// Completes when a user presses Ctrl-C.
    pub interrupt: Shared<BoxFuture<'static, ()>>,
}

/// The environment of a command.
#[derive(Clone)]
pub struct Environment {
    /// `MILVAION_URL`, the address of the server.
    pub url: Option<String>,
    /// `MILVAION_TOKEN`, the API token.
    pub token: Option<String>,
    /// The folder of the user's settings: `XDG_CONFIG_HOME` or `~/.config`.
    pub config_folder: Option<PathBuf>,
    /// True if `NO_COLOR` is set, or the terminal shows no colors.
    pub no_color: bool,
    /// Returns the time.
    pub now: fn() -> DateTime<Utc>,
    /// Converts a time to local time.
    pub to_local: fn(DateTime<Utc>) -> NaiveDateTime,
}

impl Environment {
    /// Reads the environment of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let text = |name: &str| env::var(name).ok().filter(|value| !value.trim().is_empty());
        // A relative path is ignored, as the XDG specification requires.
        let folder = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        Self {
            url: text("MILVAION_URL"),
            token: text("MILVAION_TOKEN"),
            config_folder: folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config"))),
            no_color: text("NO_COLOR").is_some() || text("TERM").is_some_and(|terminal| terminal == "dumb"),
            now: machine_now,
            to_local: |at| at.with_timezone(&Local).naive_local(),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "ages are shown by the clock of the user's machine, and only read here")]
fn machine_now() -> DateTime<Utc> {
    Utc::now()
}

impl Console {
    /// Returns the console of this process.
    #[must_use]
    pub fn of_process() -> Self {
        Self {
            output: Box::new(BufWriter::new(io::stdout())),
            messages: Box::new(io::stderr()),
            input: Box::new(BufReader::new(io::stdin())),
            is_interactive: io::stdin().is_terminal(),
            is_output_terminal: io::stdout().is_terminal(),
            environment: Environment::of_process(),
            // The handler of SIGINT is installed when a command first waits for it. Until then, Ctrl-C ends the process.
            interrupt: tokio::signal::ctrl_c().map(drop).boxed().shared(),
        }
    }

    /// Writes a part of the result.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.output.write_all(bytes).map_err(CliError::Output)
    }

    /// Passes on what was written.
    pub(super) fn flush(&mut self) -> Result<(), CliError> {
        self.output.flush().map_err(CliError::Output)
    }

    /// Writes lines for the user, without the characters that a terminal would obey: the text of a server may contain the
    /// name of a job. A terminal that is gone takes no message, and needs none.
    pub(super) fn message(&mut self, text: &str) {
        let _ = writeln!(self.messages, "{}", printable_lines(text));
    }

    /// Asks a question and returns the answer without its line break. Nothing may be typed.
    pub(super) fn ask(&mut self, question: &str) -> Result<String, CliError> {
        let _ = write!(self.messages, "{question} ");
        let _ = self.messages.flush();
        self.read_line()
    }

    /// Reads a line of standard input, without its line break.
    pub(super) fn read_line(&mut self) -> Result<String, CliError> {
        let mut line = String::new();
        self.input.read_line(&mut line).map_err(|source| CliError::Input { name: "Standard input".into(), source })?;
        Ok(line.trim().to_owned())
    }
}
