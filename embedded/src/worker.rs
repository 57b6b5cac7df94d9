//! The local worker of a start on one machine. It is the program that a separate machine would run, and it is restarted
//! whenever it ends.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use milvaion_api::alerts::ALERT_SECRET_VARIABLE;
use milvaion_protocol::backoff::Backoff;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::EmbeddedError;
use super::child::{ChildProcess, LaunchSpec};
use milvaion_telemetry::chain;

/// The variable with the time, in seconds, for which the runs of a stopping worker may continue.
const GRACE_VARIABLE: &str = "MILVAION_SHUTDOWN_GRACE_SECONDS";
/// The grace of a worker without the variable, in seconds.
const DEFAULT_GRACE_SECONDS: u64 = 20;
/// The time that a worker gets after its grace to report what it interrupts, also if the broker does not answer. It is killed
/// after that.
const STOP_MARGIN: Duration = Duration::from_secs(15);

/// The backoff before a restart. It has no jitter, because only one worker is restarted.
const RESTART_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// The settings of the server that hold secrets and that no worker needs.
const SECRET_SETTINGS: [&str; 3] = ["ALERT_SECRETS_DIR", "ALERT_SMTP_URL", "HEARTBEAT_URL"];

/// A worker process that is restarted whenever it ends. Call [`LocalWorker::stop`] before the services stop.
#[derive(Debug)]
pub struct LocalWorker {
    stop: CancellationToken,
    watch: JoinHandle<()>,
}

impl LocalWorker {
    /// Starts `program` (the `milvaion-worker` binary) with the two URLs as `AMQP_URL` and `REDIS_URL` and the worker
    /// id `local`. Its output goes to `log`. Reports that are unsent when it is killed stay in the folder `outbox` for
    /// the next process. The worker inherits our environment, including `MILVAION_SHELL` and `MILVAION_OUTBOX`, except
    /// `DATABASE_URL` and the secrets of alerts: a worker has no access to the scheduler's PostgreSQL and sends no alerts.
    ///
    /// # Errors
    /// Returns [`EmbeddedError`] if the first start fails, for example because the program does not exist.
    pub async fn start(
        program: &Path,
        amqp_url: &str,
        redis_url: &str,
        outbox: &Path,
        log: &Path,
    ) -> Result<Self, EmbeddedError> {
        if !program.is_file() {
            return Err(EmbeddedError::Spawn {
                service: "The local worker".into(),
                program: program.to_owned(),
                source: std::io::ErrorKind::NotFound.into(),
            });
        }
        let outbox = std::env::var_os("MILVAION_OUTBOX").unwrap_or_else(|| outbox.into());
        let launch = LaunchSpec::new(program)
            .env("AMQP_URL", amqp_url)
            .env("REDIS_URL", redis_url)
            .env("MILVAION_WORKER_ID", "local")
            .env("MILVAION_OUTBOX", outbox)
            .without_env("DATABASE_URL");
        let of_alerts = std::env::vars_os()
            .filter_map(|(name, _)| name.into_string().ok())
            .filter(|name| name.starts_with(ALERT_SECRET_VARIABLE) || SECRET_SETTINGS.contains(&name.as_str()));
        let launch = of_alerts.fold(launch, |launch, name| launch.without_env(&name));
        let first = spawn(&launch, log).await?;
        let stop = CancellationToken::new();
        let watch = tokio::spawn(keep_alive(first, launch, log.to_owned(), stop.clone()));
        Ok(Self { stop, watch })
    }

    /// Sends SIGTERM to the worker, waits for its shutdown grace and 15 s more, then kills it.
    pub async fn stop(self) {
        self.stop.cancel();
        // If the task has panicked, the panic is already logged and the dropped child has got its stop signal.
        let _ = self.watch.await;
    }
}

async fn keep_alive(mut worker: ChildProcess, launch: LaunchSpec, log: PathBuf, stop: CancellationToken) {
    let mut backoff = RESTART_BACKOFF;
    loop {
        let began = Instant::now();
        let exit = tokio::select! {
            exit = worker.wait() => exit,
            () = stop.cancelled() => {
                worker.stop(stop_timeout(std::env::var(GRACE_VARIABLE).ok().as_deref())).await;
                return;
            }
        };
        backoff.reset_after(began.elapsed());
        let mut pause = backoff.next_delay(1.0);
        tracing::warn!(
            child.name = worker.name(), child.exit = %exit, child.log = %log.display(), pause_ms = pause.as_millis(),
            "the local worker ended ({exit}) and is restarted in {} s; its log is {}", pause.as_secs(), log.display()
        );
        worker = loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return,
            }
            match spawn(&launch, &log).await {
                Ok(again) => break again,
                Err(error) => {
                    pause = backoff.next_delay(1.0);
                    tracing::warn!(
                        error = %chain(&error), pause_ms = pause.as_millis(),
                        "the local worker could not be restarted and is tried again in {} s", pause.as_secs()
                    );
                }
            }
        };
    }
}

/// Returns the time after which a stopping worker is killed. `grace` is the value of its variable; a worker with an invalid one
/// does not start.
fn stop_timeout(grace: Option<&str>) -> Duration {
    let seconds = grace.and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_GRACE_SECONDS);
    Duration::from_secs(seconds).saturating_add(STOP_MARGIN)
}

async fn spawn(launch: &LaunchSpec, log: &Path) -> Result<ChildProcess, EmbeddedError> {
    ChildProcess::spawn("The local worker", launch.clone(), log).await
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_worker_may_stop_for_longer_than_its_grace() {
        let seconds = [None, Some("0"), Some("600"), Some("soon")].map(|grace| stop_timeout(grace).as_secs());
        assert_eq!(seconds, [35, 15, 615, 35]);
    }

    #[tokio::test]
    async fn an_ended_worker_is_restarted_without_a_database() {
        let folder = std::env::temp_dir().join(format!("milvaion-worker-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (program, log) = (folder.join("worker"), folder.join("worker.log"));
        let script = "#!/bin/sh\necho \"run $AMQP_URL $REDIS_URL $MILVAION_WORKER_ID $MILVAION_OUTBOX ${DATABASE_URL-none}\"\n\
                      [ -e again ] && exec sleep 60\ntouch again\nexit 1\n";
        fs::write(&program, script.replace("again", folder.join("again").to_str().unwrap())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();

        let worker = LocalWorker::start(&program, "amqp://a", "redis://r", Path::new("/o"), &log).await.unwrap();
        let output = || fs::read_to_string(&log).unwrap_or_default();
        while output().lines().count() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        worker.stop().await;
        assert_eq!(output(), "run amqp://a redis://r local /o none\n".repeat(2));
        fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn a_missing_program_fails_the_start() {
        let log = std::env::temp_dir().join("milvaion-no-worker.log");
        let refused =
            LocalWorker::start(Path::new("/no/such/worker"), "a", "r", Path::new("/o"), &log).await.unwrap_err();
        assert!(refused.to_string().contains("/no/such/worker"), "{refused}");
        assert!(!log.exists());
    }
}
