//! The worker of the chaos suite. Its jobs succeed, fail, panic, run long, obey a cancellation or abort the process,
//! and report their start and end to a witness.
//!
//! The start is reported before a run does anything, and the end right before it returns, over a socket that no fault
//! affects. The witness therefore knows every run that started, even if the process is killed at its next instruction.

use std::{os::unix::net::UnixDatagram, time::Duration};

use milvaion_worker::{Cron, Job, JobContext, JobError, JobOptions, Worker, WorkerConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The input of this worker's jobs.
#[derive(Deserialize, JsonSchema, Serialize)]
struct WorkInput {
    /// Duration of a run in milliseconds, instead of the one of the job type.
    #[serde(default)]
    milliseconds: Option<u64>,
}

/// A client of the witness's socket.
#[derive(Clone)]
struct WitnessReporter {
    socket: std::sync::Arc<UnixDatagram>,
    process: String,
    instance: String,
}

impl WitnessReporter {
    fn from_env() -> Result<Self, String> {
        let read = |name: &str| {
            std::env::var(name).map_err(|_| format!("{name} is not set; `make chaos` starts this program"))
        };
        let (path, process) = (read("CHAOS_WITNESS")?, read("CHAOS_PROCESS")?);
        let socket = UnixDatagram::unbound().map_err(|error| error.to_string())?;
        socket.connect(&path).map_err(|error| format!("the witness at {path} cannot be reached: {error}"))?;
        // The SDK creates the instance's name later. A process is one instance, identified by its process id.
        let instance = format!("{process}#{}", std::process::id());
        Ok(Self { socket: socket.into(), process, instance })
    }

    fn report_start(&self, ctx: &JobContext) {
        self.send(ctx, "start", None);
    }

    fn report_end(&self, ctx: &JobContext, outcome: &str) {
        self.send(ctx, "end", Some(outcome));
    }

    fn send(&self, ctx: &JobContext, what: &str, outcome: Option<&str>) {
        let event = json!({
            "what": what, "outcome": outcome, "job": ctx.job_id(), "occurrence": ctx.occurrence_id(),
            "attempt": ctx.attempt(), "scheduled_for": ctx.scheduled_for().timestamp_micros(),
            "instance": self.instance, "process": self.process, "pid": std::process::id(),
        });
        // A run without a witness must not continue: its effects could not be judged.
        if self.socket.send(event.to_string().as_bytes()).is_err() {
            std::process::abort();
        }
    }
}

macro_rules! jobs {
    ($($name:ident $kind:literal $words:literal |$reporter:ident, $ctx:ident, $input:ident| $body:block)*) => {$(
        struct $name(WitnessReporter);

        impl Job for $name {
            const TYPE: &'static str = $kind;
            const DESCRIPTION: &'static str = $words;
            const CONCURRENCY: u16 = 500;
            type Input = WorkInput;
            type Output = ();

            fn options(&self, options: JobOptions<WorkInput>) -> JobOptions<WorkInput> {
                if Self::TYPE == "quick" { declare_release(options) } else { options }
            }

            async fn run(&self, $ctx: &JobContext, $input: WorkInput) -> Result<(), JobError> {
                let $reporter = &self.0;
                $reporter.report_start($ctx);
                $body
            }
        }
    )*};
}

jobs! {
    Quick "quick" "Succeeds after 5 to 300 ms." |reporter, ctx, input| {
        sleep_ms(input.milliseconds.unwrap_or_else(|| default_duration_ms(ctx))).await;
        reporter.report_end(ctx, "completed");
        Ok(())
    }
    Flaky "flaky" "Fails in its first attempt." |reporter, ctx, input| {
        sleep_ms(input.milliseconds.unwrap_or_else(|| default_duration_ms(ctx))).await;
        if ctx.attempt() > 1 {
            reporter.report_end(ctx, "completed");
            return Ok(());
        }
        reporter.report_end(ctx, "failed");
        Err(JobError::new("the first attempt always fails"))
    }
    Failing "failing" "Fails in every attempt." |reporter, ctx, input| {
        sleep_ms(input.milliseconds.unwrap_or_else(|| default_duration_ms(ctx))).await;
        reporter.report_end(ctx, "failed");
        Err(JobError::new("every attempt fails"))
    }
    Panics "panics" "Panics in every attempt." |reporter, ctx, input| {
        sleep_ms(input.milliseconds.unwrap_or_else(|| default_duration_ms(ctx))).await;
        reporter.report_end(ctx, "panicked");
        panic!("every attempt panics")
    }
    Long "long" "Succeeds after 20 s." |reporter, ctx, input| {
        let milliseconds = input.milliseconds.unwrap_or(20_000);
        for step in 1..=10_u8 {
            sleep_ms(milliseconds / 10).await;
            ctx.progress(step * 10, "");
            ctx.info(format!("step {step} of 10"));
        }
        reporter.report_end(ctx, "completed");
        Ok(())
    }
    Crasher "crasher" "Aborts its own process." |reporter, ctx, input| {
        let _ = (reporter, ctx);
        sleep_ms(input.milliseconds.unwrap_or(200)).await;
        std::process::abort()
    }
    Obedient "obedient" "Runs until it is cancelled, at most 60 s." |reporter, ctx, input| {
        let at_most = Duration::from_millis(input.milliseconds.unwrap_or(60_000));
        if tokio::time::timeout(at_most, ctx.cancelled().cancelled()).await.is_ok() {
            reporter.report_end(ctx, "cancelled");
            return Err(JobError::cancelled("the run was cancelled"));
        }
        reporter.report_end(ctx, "completed");
        Ok(())
    }
}

/// Returns the release that the file named by `CHAOS_RELEASE` contains, or none if there is no such file.
fn release() -> Option<u16> {
    let path = std::env::var_os("CHAOS_RELEASE")?;
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Declares the schedules of the release, if this worker has one. None of them is due while a scenario runs.
fn declare_release(options: JobOptions<WorkInput>) -> JobOptions<WorkInput> {
    let Some(release) = release() else { return options };
    let options = options.retries(release).tag(format!("release-{release}"));
    let names = (0..10).map(|number| format!("steady-{number}")).chain([format!("release-{release}")]);
    names.fold(options, |options, name| {
        options.schedule(name, Cron::new("0 0 1 1 *"), WorkInput { milliseconds: Some(release.into()) })
    })
}

async fn sleep_ms(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

/// Returns a duration of 5 to 300 ms, which is the same for every attempt of an occurrence.
fn default_duration_ms(ctx: &JobContext) -> u64 {
    let bytes = ctx.occurrence_id().0.into_bytes();
    5 + u64::from(u16::from_le_bytes([bytes[14], bytes[15]])) % 296
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let reporter = WitnessReporter::from_env()?;
    Worker::builder()
        .version(format!("1.{}", release().unwrap_or_default()))
        .config(WorkerConfig::from_env()?)
        .job(Quick(reporter.clone()))
        .job(Flaky(reporter.clone()))
        .job(Failing(reporter.clone()))
        .job(Panics(reporter.clone()))
        .job(Long(reporter.clone()))
        .job(Crasher(reporter.clone()))
        .job(Obedient(reporter))
        .build()?
        .run()
        .await?;
    Ok(())
}
