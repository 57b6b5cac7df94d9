//! `milvaion`: the server's command line.

mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    milvaion_server::faults::arm();
    let arguments = cli::CliArguments::parse();
    milvaion_server::telemetry::start();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("milvaion: the machine gives no threads: {error}. Raise the limit on processes.");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(cli::run_command(arguments)) {
        Ok(code) => code,
        Err(sentence) => {
            eprintln!("milvaion: {sentence}");
            ExitCode::FAILURE
        }
    }
}
