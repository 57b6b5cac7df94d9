//! A console that a test reads.

use std::{
    io::{self, Cursor, Write},
    path::Path,
    sync::{Arc, Mutex},
};

use clap::Parser;
use futures::{FutureExt, future};
use milvaion_cli::{Console, Environment, RemoteCommand, execute};

use crate::samples::now;

/// The program of the tests, which includes the commands as the server's binary does.
#[derive(Debug, Parser)]
#[command(name = "milvaion", about = "The program.")]
pub(crate) struct Program {
    #[command(subcommand)]
    pub(crate) command: ProgramCommand,
}

/// The subcommands of the program.
#[derive(Debug, clap::Subcommand)]
#[expect(clippy::large_enum_variant, reason = "one value exists for a moment")]
pub(crate) enum ProgramCommand {
    /// Runs the server.
    Run,
    #[command(flatten)]
    Remote(RemoteCommand),
}

/// A stream that a test reads.
#[derive(Clone, Default)]
pub(crate) struct Captured(Arc<Mutex<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Captured {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no panic").clone()).expect("UTF-8")
    }
}

/// The result of a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The exit code.
    pub(crate) code: u8,
    /// Standard output.
    pub(crate) output: String,
    /// Standard error.
    pub(crate) messages: String,
}

/// A user with a shell.
pub(crate) struct Shell {
    /// The console of the next command.
    pub(crate) console: Console,
    output: Captured,
    messages: Captured,
}

impl Shell {
    /// Returns a shell without a terminal and without credentials.
    pub(crate) fn new() -> Self {
        let (output, messages) = (Captured::default(), Captured::default());
        let environment = Environment {
            url: None,
            token: None,
            config_folder: None,
            no_color: false,
            now,
            to_local: |at| at.naive_utc(),
        };
        let console = Console {
            output: Box::new(output.clone()),
            messages: Box::new(messages.clone()),
            input: Box::new(io::empty()),
            is_interactive: false,
            is_output_terminal: false,
            environment,
            interrupt: future::pending().boxed().shared(),
        };
        Self { console, output, messages }
    }

    /// Returns a shell whose environment names a server and a token.
    pub(crate) fn signed_in(url: &str) -> Self {
        let mut shell = Self::new();
        shell.console.environment.url = Some(url.to_owned());
        shell.console.environment.token = Some("milvaion_secret".into());
        shell
    }

    /// Sets the folder of the user's settings.
    pub(crate) fn with_config(mut self, folder: &Path) -> Self {
        self.console.environment.config_folder = Some(folder.to_owned());
        self
    }

    /// Sets standard input.
    pub(crate) fn with_input(mut self, text: &str) -> Self {
        self.console.input = Box::new(Cursor::new(text.as_bytes().to_vec()));
        self
    }

    /// Answers questions at a terminal.
    pub(crate) fn with_answer(self, text: &str) -> Self {
        let mut shell = self.with_input(text);
        shell.console.is_interactive = true;
        shell
    }

    /// Runs a command.
    pub(crate) async fn run(mut self, arguments: &[&str]) -> Outcome {
        let program = Program::try_parse_from(std::iter::once(&"milvaion").chain(arguments));
        let ProgramCommand::Remote(command) = program.unwrap_or_else(|error| panic!("{error}")).command else {
            panic!("{arguments:?} runs the server");
        };
        let code = execute::<Program>(command, &mut self.console).await;
        Outcome { code, output: self.output.text(), messages: self.messages.text() }
    }
}
