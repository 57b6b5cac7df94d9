//! `milvaion services`: private services around one command, for tests and benchmarks.

use std::{
    path::Path,
    process::{ExitCode, Stdio},
};

use milvaion_server::embedded::{self, ServiceSelection};
use tokio::process::Command;

use super::CliError;

/// Runs `command` with the three URLs in its environment and returns its exit code.
pub(super) async fn services(data: &Path, command: &[String]) -> Result<ExitCode, CliError> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(CliError::NoCommand);
    };
    embedded::erase(data).await?;
    let mut services = embedded::start(data, ServiceSelection::ALL, |line| eprintln!("  {line}")).await?;
    let spawned = Command::new(program)
        .args(arguments)
        .env("DATABASE_URL", services.database_url.as_deref().unwrap_or_default())
        .env("REDIS_URL", services.redis_url.as_deref().unwrap_or_default())
        .env("AMQP_URL", services.amqp_url.as_deref().unwrap_or_default())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let outcome = match spawned {
        Err(source) => Err(CliError::StartCommand { program: program.clone(), source }),
        Ok(mut child) => tokio::select! {
            ended = child.wait() => match ended {
                Ok(status) => Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))),
                Err(source) => Err(CliError::WaitForCommand { program: program.clone(), source }),
            },
            signal = super::stop_signal() => signal.map(|()| ExitCode::from(130)).map_err(CliError::from),
            error = services.failed() => Err(error.into()),
        },
    };
    services.stop().await;
    embedded::erase(data).await?;
    outcome
}
