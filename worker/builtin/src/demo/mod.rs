//! `demo`: a sample run that reaches no other system.
//!
//! A new installation has nothing to run yet, and every other job type needs a URL, a database or a program. This one
//! needs nothing: it waits, reports its progress, logs at every level and returns a result, so that a user sees what
//! the pages show before the first real job exists. It is offered always, because it can do no harm.

mod input;

use std::time::{Duration, Instant};

use milvaion_worker::LogLevel;
use serde::Serialize;
use tokio::time::sleep;

use self::input::DemoInput;
use crate::context::{BuiltinContext, BuiltinError, BuiltinJob};

/// The job type.
pub(crate) struct Demo;

/// The outcome of a sample run.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DemoOutput {
    message: String,
    steps: u32,
    duration_ms: u64,
}

impl BuiltinJob for Demo {
    const TYPE: &'static str = "demo";
    const DESCRIPTION: &'static str =
        "Waits in steps, with progress, log lines and a result, to try out Milvaion without any other system.";
    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(3600 + 60));
    type Input = DemoInput;
    type Output = DemoOutput;

    async fn run(&self, context: &BuiltinContext, input: DemoInput) -> Result<DemoOutput, BuiltinError> {
        input.check()?;
        let started = Instant::now();
        let pause = Duration::from_secs(input.duration_seconds.into()) / input.steps;
        // The step that fails is drawn before the first one, so that the rate is that of the run and not of each step.
        let failing = (rand::random::<f64>() < input.failure_rate).then_some(input.steps.div_ceil(2));
        context.info(format!("{} with {} steps in {} s", input.message, input.steps, input.duration_seconds));
        for step in 1..=input.steps {
            context.log(LogLevel::Debug, format!("step {step} waits {} ms", pause.as_millis()));
            context
                .unless_cancelled("the sample run", async {
                    sleep(pause).await;
                    Ok(())
                })
                .await?;
            if failing == Some(step) {
                context.log(LogLevel::Error, format!("step {step} of {} failed", input.steps));
                return Err(BuiltinError::retry(format!(
                    "step {step} of {} failed on purpose, because `failureRate` is {}",
                    input.steps, input.failure_rate
                )));
            }
            if step == input.steps.div_ceil(2) {
                context.warn("this sample warning needs no action");
            }
            context.progress(step * 100 / input.steps, format!("step {step} of {}", input.steps));
            context.info(format!("step {step} of {} is done", input.steps));
        }
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(DemoOutput { message: input.message, steps: input.steps, duration_ms })
    }
}

#[cfg(test)]
mod tests;
