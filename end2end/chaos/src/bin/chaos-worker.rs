//! The worker of the chaos suite: jobs that succeed, fail, panic, last, obey or kill, and tell a witness about it.
//!
//! What a run tells goes out before it does anything and again right before it ends, over a socket that no fault touches.
//! So the witness knows of every run that began, also when the process was killed in its next instruction.

use std::{os::unix::net::UnixDatagram, time::Duration};

use milvaion_worker::{Job, JobContext, JobError, Worker, WorkerConfig};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

/// What a job of this worker is told.
#[derive(Deserialize, JsonSchema)]
struct WorkInput {
    /// How long it works, instead of what its type says.
    #[serde(default)]
    milliseconds: Option<u64>,
}

/// Where runs are told of.
#[derive(Clone)]
struct WitnessReporter {
    socket: std::sync::Arc<UnixDatagram>,
    process: String,
    instance: String,
}

impl WitnessReporter {
    fn from_env() -> Result<Self, String> {
        let read = |name: &str| {
            std::env::var(name).map_err(|_| format!("{name} is not set: `make chaos` starts this program"))
        };
        let (path, process) = (read("CHAOS_WITNESS")?, read("CHAOS_PROCESS")?);
        let socket = UnixDatagram::unbound().map_err(|error| error.to_string())?;
        socket.connect(&path).map_err(|error| format!("nobody listens at {path}: {error}"))?;
        // The instance's name is made by the SDK later; a process is one instance, and its id tells it from the next.
        let instance = format!("{process}#{}", std::process::id());
        Ok(Self { socket: socket.into(), process, instance })
    }

    fn begins(&self, ctx: &JobContext) {
        self.tell(ctx, "start", None);
    }

    fn ends(&self, ctx: &JobContext, outcome: &str) {
        self.tell(ctx, "end", Some(outcome));
    }

    fn tell(&self, ctx: &JobContext, what: &str, outcome: Option<&str>) {
        let told = json!({
            "what": what, "outcome": outcome, "job": ctx.job_id(), "occurrence": ctx.occurrence_id(),
            "attempt": ctx.attempt(), "scheduled_for": ctx.scheduled_for().timestamp_micros(),
            "instance": self.instance, "process": self.process, "pid": std::process::id(),
        });
        // A run nobody can vouch for must not go on.
        if self.socket.send(told.to_string().as_bytes()).is_err() {
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

            async fn run(&self, $ctx: &JobContext, $input: WorkInput) -> Result<(), JobError> {
                let $reporter = &self.0;
                $reporter.begins($ctx);
                $body
            }
        }
    )*};
}

jobs! {
    Quick "quick" "Succeeds after 5 to 300 ms." |reporter, ctx, input| {
        works(input.milliseconds.unwrap_or_else(|| some_while(ctx))).await;
        reporter.ends(ctx, "completed");
        Ok(())
    }
    Flaky "flaky" "Fails in its first attempt." |reporter, ctx, input| {
        works(input.milliseconds.unwrap_or_else(|| some_while(ctx))).await;
        if ctx.attempt() > 1 {
            reporter.ends(ctx, "completed");
            return Ok(());
        }
        reporter.ends(ctx, "failed");
        Err(JobError::new("not at the first attempt"))
    }
    Failing "failing" "Fails in every attempt." |reporter, ctx, input| {
        works(input.milliseconds.unwrap_or_else(|| some_while(ctx))).await;
        reporter.ends(ctx, "failed");
        Err(JobError::new("never"))
    }
    Panics "panics" "Panics in every attempt." |reporter, ctx, input| {
        works(input.milliseconds.unwrap_or_else(|| some_while(ctx))).await;
        reporter.ends(ctx, "panicked");
        panic!("as it is meant to")
    }
    Long "long" "Succeeds after 20 s." |reporter, ctx, input| {
        let milliseconds = input.milliseconds.unwrap_or(20_000);
        for step in 1..=10_u8 {
            works(milliseconds / 10).await;
            ctx.progress(step * 10, "");
            ctx.info(format!("step {step} of 10"));
        }
        reporter.ends(ctx, "completed");
        Ok(())
    }
    Crasher "crasher" "Kills its own process." |reporter, ctx, input| {
        let _ = (reporter, ctx);
        works(input.milliseconds.unwrap_or(200)).await;
        std::process::abort()
    }
    Obedient "obedient" "Runs until it is cancelled, at most 60 s." |reporter, ctx, input| {
        let at_most = Duration::from_millis(input.milliseconds.unwrap_or(60_000));
        if tokio::time::timeout(at_most, ctx.cancelled().cancelled()).await.is_ok() {
            reporter.ends(ctx, "cancelled");
            return Err(JobError::cancelled("as asked"));
        }
        reporter.ends(ctx, "completed");
        Ok(())
    }
}

async fn works(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

/// 5 to 300 ms, the same for every attempt of an occurrence.
fn some_while(ctx: &JobContext) -> u64 {
    let bytes = ctx.occurrence_id().0.into_bytes();
    5 + u64::from(u16::from_le_bytes([bytes[14], bytes[15]])) % 296
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let reporter = WitnessReporter::from_env()?;
    Worker::builder()
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
