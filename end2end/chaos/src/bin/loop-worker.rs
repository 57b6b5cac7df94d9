//! The worker of the scenarios about singleton loops. It has loops and no job types, and each run reports its steps to a
//! witness.
//!
//! The start is reported before a run does anything, then one step in its middle, and the end right before it returns. A
//! run that is dropped reports nothing more, so whatever the witness receives really happened. Each report has the time at
//! which it was made: a process that is frozen while it sends one goes on with sending when it is thawed.

use std::{
    os::unix::net::UnixDatagram,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use milvaion_worker::{JobError, Tick, Worker, WorkerConfig};
use serde_json::json;

/// The time between two ticks.
const PERIOD: Duration = Duration::from_millis(100);

/// Reports one step of a run.
fn report(socket: &UnixDatagram, process: &str, what: &str, tick: &Tick) {
    let late_us = u64::try_from(tick.elapsed().as_micros()).unwrap_or(u64::MAX);
    let made = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
    let event = json!({
        "what": what, "loop": tick.name(), "epoch": tick.epoch(), "number": tick.number(), "late_us": late_us, "made": made,
        "process": process, "pid": std::process::id(),
    });
    // A run without a witness must not continue: its effects could not be judged.
    if socket.send(event.to_string().as_bytes()).is_err() {
        std::process::abort();
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let read =
        |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set; `make chaos` starts this program"));
    let (path, process) = (read("CHAOS_WITNESS")?, read("CHAOS_PROCESS")?);
    let loops: u32 = read("CHAOS_LOOPS")?.parse()?;
    let socket = UnixDatagram::unbound()?;
    socket.connect(&path)?;
    let socket = Arc::new(socket);
    let mut worker = Worker::builder().config(WorkerConfig::from_env()?);
    for number in 1..=loops {
        let (socket, process) = (socket.clone(), process.clone());
        worker = worker.singleton(format!("loop-{number:02}")).fixed_rate(PERIOD).run(move |tick| {
            let (socket, process) = (socket.clone(), process.clone());
            async move {
                report(&socket, &process, "start", &tick);
                tokio::time::sleep(Duration::from_millis(15)).await;
                report(&socket, &process, "step", &tick);
                tokio::time::sleep(Duration::from_millis(15)).await;
                report(&socket, &process, "end", &tick);
                Ok::<(), JobError>(())
            }
        });
    }
    worker.build()?.run().await?;
    Ok(())
}
