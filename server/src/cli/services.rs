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
    let stop = super::stop_signal()?;
    embedded::erase(data).await?;
    let progress = |line: &str| eprintln!("  {line}");
    let mut services = embedded::start_until(data, ServiceSelection::ALL, progress, stop.cancelled()).await?;
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
            () = stop.cancelled() => Ok(ExitCode::from(130)),
            error = services.failed() => Err(error.into()),
        },
    };
    services.stop().await;
    embedded::erase(data).await?;
    outcome
}
