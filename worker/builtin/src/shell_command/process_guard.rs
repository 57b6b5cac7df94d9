//! A process that ends the programs of a worker that was killed.
//!
//! A worker that receives SIGKILL cannot terminate its programs. Its successor reports their runs as lost at once, and the
//! next attempt would run beside the orphaned program. The parent death signal of Linux reaches only a direct child, and not
//! what a script has started. A worker with `shell-command` therefore starts itself once more as a guard. The guard
//! receives the process groups of the running programs on its standard input, `+` and the id when a group begins and `-`
//! and the id when it has ended. The input ends with the worker, in whatever way the worker ends. The guard then kills the
//! groups that are left.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, Write},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, ExitCode, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The argument that makes this program the guard.
pub(crate) const GUARD_COMMAND: &str = "guard-process-groups";
/// This program, also after its file was replaced by another version.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// The guard of a worker, started with the first program and again if it has ended.
#[derive(Debug)]
pub(crate) struct ProcessGuard {
    program: PathBuf,
    state: Mutex<GuardState>,
}

#[derive(Debug, Default)]
struct GuardState {
    guard: Option<Child>,
    groups: BTreeSet<i32>,
}

impl ProcessGuard {
    /// Returns the guard of this worker, which is not started yet.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { program: OWN_PROGRAM.into(), state: Mutex::default() })
    }

    /// Starts the guard if it does not run. Called before a program is started: the start of the guard takes longer than
    /// that of a program, and a worker that is killed between the two would leave the program.
    ///
    /// # Errors
    /// Returns an error if the guard cannot be started.
    pub(super) fn ensure_running(&self) -> io::Result<()> {
        let mut state = self.lock();
        let is_running = state.guard.as_mut().is_some_and(|guard| matches!(guard.try_wait(), Ok(None)));
        if is_running { Ok(()) } else { state.start(&self.program) }
    }

    /// Guards a process group until the returned value is dropped.
    ///
    /// # Errors
    /// Returns an error if the guard cannot be started.
    pub(super) fn guard(self: &Arc<Self>, group: Pid) -> io::Result<GuardedGroup> {
        let mut state = self.lock();
        state.groups.insert(group.as_raw());
        let guarded = GuardedGroup { guard: self.clone(), group: group.as_raw() };
        if state.send(&format!("+{group}\n")).is_err() {
            // Not started yet, or it was killed.
            let started = state.start(&self.program);
            // The value's drop takes the lock.
            drop(state);
            started?;
        }
        Ok(guarded)
    }

    fn lock(&self) -> MutexGuard<'_, GuardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GuardState {
    fn send(&mut self, text: &str) -> io::Result<()> {
        match self.guard.as_mut().and_then(|guard| guard.stdin.as_mut()) {
            Some(input) => input.write_all(text.as_bytes()),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Starts a guard with all groups.
    fn start(&mut self, program: &PathBuf) -> io::Result<()> {
        if let Some(mut ended) = self.guard.take() {
            let _ = ended.kill();
            let _ = ended.wait();
        }
        let guard = Command::new(program)
            .arg(GUARD_COMMAND)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // A group of its own, so that a signal to the worker's group does not reach it.
            .process_group(0)
            .spawn()?;
        self.guard = Some(guard);
        let groups: String = self.groups.iter().map(|group| format!("+{group}\n")).collect();
        self.send(&groups)
    }
}

/// A process group that the guard kills if the worker is killed. Dropped when the group has ended.
#[derive(Debug)]
pub(super) struct GuardedGroup {
    guard: Arc<ProcessGuard>,
    group: i32,
}

impl Drop for GuardedGroup {
    fn drop(&mut self) {
        let mut state = self.guard.lock();
        state.groups.remove(&self.group);
        // A guard that has ended is started again with the next group.
        let _ = state.send(&format!("-{}\n", self.group));
    }
}

/// Runs the guard: kills the groups that are left when the input ends.
pub(crate) fn run() -> ExitCode {
    // A signal that is sent to all processes of this name stops the worker first, which needs its guard until its end.
    for number in [SIGTERM, SIGINT, SIGHUP] {
        let _ = signal_hook::flag::register(number, Arc::new(AtomicBool::new(false)));
    }
    let groups = remaining_groups(io::stdin().lock());
    if !groups.is_empty() {
        eprintln!("milvaion-worker has ended: killing the {} programs of shell-command that it left", groups.len());
    }
    for group in groups {
        // It may have ended in the meantime.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    ExitCode::SUCCESS
}

/// Reads which groups begin and end. Returns those that are left at the end of the input.
fn remaining_groups(input: impl BufRead) -> BTreeSet<i32> {
    let mut groups = BTreeSet::new();
    for line in input.lines().map_while(Result::ok) {
        // Zero and one would mean this group and all processes.
        let group = line.get(1..).and_then(|id| id.parse::<i32>().ok()).filter(|group| *group > 1);
        match (line.as_bytes().first(), group) {
            (Some(b'+'), Some(group)) => drop(groups.insert(group)),
            (Some(b'-'), Some(group)) => drop(groups.remove(&group)),
            _ => {}
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_have_not_ended_are_left() {
        let input = "+12\n+13\n-12\n+1\n+0\n+-5\nnonsense\n\n+14\n-99\n+1";
        assert_eq!(remaining_groups(input.as_bytes()), BTreeSet::from([13, 14]));
    }
}
