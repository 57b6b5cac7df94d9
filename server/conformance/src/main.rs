//! `milvaion-conformance`: the kit on services that run already, whose URLs are in AMQP_URL and REDIS_URL.
//!
//! `milvaion conformance` is the same with private services. This program compiles without the server, which suits the tests
//! of this crate and the development of a worker in this repository.

use std::process::ExitCode;

use clap::Parser;
use milvaion_conformance::{ConformanceArguments, ConformanceError, ConformanceSettings};

/// Judges whether a worker follows the protocol, on the services of AMQP_URL and REDIS_URL.
#[derive(Debug, Parser)]
#[command(name = "milvaion-conformance", version)]
struct ProgramArguments {
    #[command(flatten)]
    conformance: ConformanceArguments,
}

fn main() -> ExitCode {
    let arguments = ProgramArguments::parse().conformance;
    let outcome = tokio::runtime::Runtime::new().map_err(ConformanceError::from).and_then(|runtime| {
        let outcome = runtime.block_on(judge(&arguments));
        runtime.shutdown_background();
        outcome
    });
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("milvaion-conformance: {error}");
            if let Some(cause) = std::error::Error::source(&error) {
                eprintln!("  caused by: {cause}");
            }
            ExitCode::FAILURE
        }
    }
}

async fn judge(arguments: &ConformanceArguments) -> Result<bool, ConformanceError> {
    let url = |variable: &'static str| {
        std::env::var(variable).ok().filter(|url| !url.is_empty()).ok_or(ConformanceError::InvalidUrl { variable })
    };
    if arguments.list {
        print!("{}", milvaion_conformance::list(arguments)?);
        return Ok(true);
    }
    let settings = ConformanceSettings {
        amqp_url: url("AMQP_URL")?,
        redis_url: url("REDIS_URL")?,
        command: arguments.command.clone(),
        echo_type: arguments.echo_type.clone(),
        parallel: arguments.parallel.into(),
        control: None,
    };
    milvaion_conformance::run_and_print(&settings, arguments).await
}
