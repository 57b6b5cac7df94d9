//! `milvaion conformance`: judges a worker on private services, or on those whose URLs are set.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use clap::Args;
use milvaion_conformance::{ConformanceArguments, ConformanceSettings, ServiceControl};

use super::{CliError, conformance_services::ConformanceServices};

/// The arguments of the command.
#[derive(Debug, Args)]
pub(super) struct ConformanceCommand {
    #[command(flatten)]
    conformance: ConformanceArguments,
    /// Use the services of AMQP_URL and REDIS_URL instead of private ones. The kit uses names of its own there.
    #[arg(long)]
    external: bool,
    /// Data folder of the private services. By default a temporary folder, which is deleted at the end.
    #[arg(long, value_name = "FOLDER", conflicts_with = "external")]
    data: Option<PathBuf>,
}

/// Runs the chosen cases and prints their verdicts. The exit code is 0 if the worker passes.
pub(super) async fn conformance(command: ConformanceCommand) -> Result<ExitCode, CliError> {
    let arguments = command.conformance;
    if arguments.list {
        print!("{}", milvaion_conformance::list(&arguments)?);
        return Ok(ExitCode::SUCCESS);
    }
    if command.external {
        let url = |name: &str| std::env::var(name).unwrap_or_default();
        return judge(&arguments, url("AMQP_URL"), url("REDIS_URL"), None).await;
    }
    let is_temporary = command.data.is_none();
    let data = command
        .data
        .unwrap_or_else(|| std::env::temp_dir().join(format!("milvaion-conformance-services-{}", std::process::id())));
    let stop = super::stop_signal()?;
    let services = Arc::new(ConformanceServices::start(&data, stop.cancelled()).await?);
    let (amqp_url, redis_url) = (services.amqp_url.clone(), services.redis_url.clone());
    let outcome = tokio::select! {
        outcome = judge(&arguments, amqp_url, redis_url, Some(services.clone())) => outcome,
        () = stop.cancelled() => Ok(ExitCode::from(130)),
    };
    services.stop().await;
    services.erase().await?;
    if is_temporary {
        // Only the logs of the services are left.
        let _ = std::fs::remove_dir_all(&data);
    }
    outcome
}

async fn judge(
    arguments: &ConformanceArguments,
    amqp_url: String,
    redis_url: String,
    services: Option<Arc<ConformanceServices>>,
) -> Result<ExitCode, CliError> {
    let settings = ConformanceSettings {
        amqp_url,
        redis_url,
        command: arguments.command.clone(),
        echo_type: arguments.echo_type.clone(),
        parallel: arguments.parallel.into(),
        control: services.map(|services| services as Arc<dyn ServiceControl>),
    };
    let is_passed = milvaion_conformance::run_and_print(&settings, arguments).await?;
    Ok(if is_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
