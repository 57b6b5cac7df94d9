//! `milvaion services`: private services around one command, for tests and benchmarks.

use std::{
    path::Path,
    process::{ExitCode, Stdio},
};

use milvaion_server::embedded::{self, ServiceSelection};
use tokio::process::Command;

/// Runs `command` with the three URLs set. Its exit code is ours.
pub(super) async fn services(data: &Path, command: &[String]) -> Result<ExitCode, String> {
    let Some((program, arguments)) = command.split_first() else {
        return Err("Say which command to run, after `--`.".into());
    };
    embedded::erase(data).await.map_err(|error| error.to_string())?;
    let mut services = embedded::start(data, ServiceSelection::ALL, |line| eprintln!("  {line}"))
        .await
        .map_err(|error| error.to_string())?;
    let spawned = Command::new(program)
        .args(arguments)
        .env("DATABASE_URL", services.database_url.as_deref().unwrap_or_default())
        .env("REDIS_URL", services.redis_url.as_deref().unwrap_or_default())
        .env("AMQP_URL", services.amqp_url.as_deref().unwrap_or_default())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let outcome = match spawned {
        Err(error) => Err(format!("{program} cannot be started: {error}. Check the command after `--`.")),
        Ok(mut child) => tokio::select! {
            ended = child.wait() => match ended {
                Ok(status) => Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))),
                Err(error) => Err(format!("{program} cannot be waited for: {error}.")),
            },
            asked = super::asked_to_stop() => asked.map(|()| ExitCode::from(130)),
            sentence = services.failed() => Err(sentence),
        },
    };
    services.stop().await;
    embedded::erase(data).await.map_err(|error| error.to_string())?;
    outcome
}
