//! `milvaion`: the command line of the server.

mod cli;

use std::{error::Error, iter, process::ExitCode};

use clap::Parser;
use milvaion_server::lifecycle::ServerError;

fn main() -> ExitCode {
    milvaion_server::faults::arm();
    let arguments = cli::CliArguments::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("milvaion: No threads can be created. Raise the limit on processes.\n  caused by: {error}");
            return ExitCode::FAILURE;
        }
    };
    let sends_spans = arguments.runs_server();
    let outcome = runtime.block_on(async {
        let spans = milvaion_server::telemetry::start(sends_spans).map_err(ServerError::from)?;
        let outcome = cli::run_command(arguments).await;
        spans.stop().await;
        outcome
    });
    // A look-up of a host name runs on a thread that nothing can stop.
    runtime.shutdown_background();
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("milvaion: {}", report(&error));
            ExitCode::FAILURE
        }
    }
}

/// Formats an error for the terminal: its message, and then each cause on a line of its own. Some drivers repeat the
/// text of their source; such a cause is left out.
fn report(error: &dyn Error) -> String {
    let mut text = error.to_string().replace('\n', "\n          ");
    for cause in iter::successors(error.source(), |&cause| cause.source()) {
        let cause = cause.to_string();
        if !text.ends_with(&cause) {
            text.push_str("\n  caused by: ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use milvaion_server::config::error::InvalidSettings;

    use super::*;

    #[test]
    fn a_report_names_each_cause_once() {
        let source = io::Error::other("the address is in use");
        assert_eq!(
            report(&ServerError::PortTaken { port: 8600, source }),
            "Port 8600 is in use by another program. Stop that program, set PORT to another number, or unset PORT.\n  \
             caused by: the address is in use"
        );
    }

    #[test]
    fn invalid_settings_are_reported_one_per_line() {
        let error = ServerError::from(InvalidSettings(vec!["A is wrong.".into(), "B is wrong.".into()]));
        assert_eq!(report(&error), "A is wrong.\n          B is wrong.");
    }
}
