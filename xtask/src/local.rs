//! Everything that `make run` starts, built with a report of the progress.
//!
//! A first build compiles several hundred crates. cargo draws its progress only on a terminal and estimates no time, so
//! this module counts cargo's messages and prints a line every ten seconds. All crates are compiled in the profile
//! `local`, in which this program was compiled too.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{
    cargo, front,
    progress::{BuildProgress, duration},
    wasm::{self, BuildProfile},
};

/// The packages of the server and the worker, as options of cargo.
const PROGRAMS: [&str; 4] = ["--package", "milvaion-server", "--package", "milvaion-builtin"];

/// The options that make cargo report each crate on its standard output, and only problems on its standard error.
const REPORT: [&str; 2] = ["--quiet", "--message-format=json-render-diagnostics"];

/// The time between two lines of progress.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Builds the browser side, the server and the worker. The numbers of the steps continue those in the Makefile.
///
/// # Errors
/// Returns an error if cargo fails or the browser side cannot be built.
pub(crate) fn build(root: &Path) -> Result<()> {
    let browser = tree(root, &wasm::CARGO_SELECTION)?;
    let programs = tree(root, &PROGRAMS)?;
    let mut progress = BuildProgress::new(&[&browser, &programs]);
    let started = Instant::now();

    let mut command = wasm::cargo_command(root, BuildProfile::Local, &REPORT);
    compile("Step 3 of 5: browser side", &mut command, &mut progress, started)?;
    front::build(root, BuildProfile::Local, &front::local_site_dir(root))?;

    let mut command = cargo(root);
    command.arg("build").args(PROGRAMS).args(["--profile", "local"]).args(REPORT);
    compile("Step 4 of 5: server and worker", &mut command, &mut progress, started)
}

/// Returns the packages that a build compiles, one per line.
fn tree(root: &Path, selection: &[&str]) -> Result<String> {
    let output = cargo(root)
        .args(["tree", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"])
        .args(selection)
        .stderr(Stdio::inherit())
        .output()
        .context("cargo tree could not be started")?;
    ensure!(output.status.success(), "cargo tree failed ({})", output.status);
    String::from_utf8(output.stdout).context("cargo tree wrote something that is not UTF-8")
}

/// Runs cargo and prints the progress until it exits.
fn compile(title: &str, command: &mut Command, progress: &mut BuildProgress, started: Instant) -> Result<()> {
    let step_started = Instant::now();
    println!("{title}: {}", progress.describe(started.elapsed()));
    let mut running = command.stdout(Stdio::piped()).spawn().context("cargo could not be started")?;
    let output = running.stdout.take().context("cargo has no standard output")?;
    let (sender, lines) = mpsc::channel();
    // A read cannot be given a time limit, so a thread reads and this one waits with a limit.
    thread::spawn(move || BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let mut next_line = step_started + LINE_INTERVAL;
    loop {
        match lines.recv_timeout(next_line.saturating_duration_since(Instant::now())) {
            Ok(line) => progress.read(&line, started.elapsed()),
            Err(RecvTimeoutError::Timeout) => {
                println!("{title}: {}", progress.describe(started.elapsed()));
                next_line = Instant::now() + LINE_INTERVAL;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = running.wait().context("cargo's exit cannot be awaited")?;
    ensure!(
        status.success(),
        "cargo failed ({status}): see its messages above; if a target is missing, run `make install`"
    );
    progress.finish_step();
    println!("{title}: done in {}", duration(step_started.elapsed()));
    Ok(())
}
