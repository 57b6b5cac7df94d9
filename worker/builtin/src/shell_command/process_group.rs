//! A process group that ends with its run.
//!
//! Whatever ends a run ends the whole group: it gets SIGTERM, and SIGKILL after its grace period. A cancelled run has
//! less time than that. A separate task therefore terminates the group, and the worker waits for this task before it
//! exits. A process that starts a session of its own has left the group and is not reached.

use std::{process::ExitStatus, time::Duration};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{process::Child, runtime::Handle, task::JoinHandle, time};
use tokio_util::task::TaskTracker;

/// Interval at which the group is checked for remaining processes after its leader has ended.
const GROUP_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A process group led by the started program.
pub(super) struct ChildProcessGroup {
    child: Option<Child>,
    leader: Pid,
    grace: Duration,
    terminations: TaskTracker,
}

impl ChildProcessGroup {
    /// Returns the group led by `child`, or nothing if `child` has ended. Its termination is tracked by `terminations`.
    pub(super) fn new(child: Child, grace: Duration, terminations: TaskTracker) -> Option<Self> {
        let leader = Pid::from_raw(child.id()?.try_into().ok()?);
        Some(Self { child: Some(child), leader, grace, terminations })
    }

    /// Waits until the leader ends by itself.
    ///
    /// # Errors
    /// Returns an error if the operating system cannot wait for the process.
    pub(super) async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        match &mut self.child {
            Some(child) => child.wait().await,
            None => std::future::pending().await,
        }
    }

    /// Kills the processes that an ended leader has left running.
    pub(super) fn kill_leftovers(mut self) {
        self.child = None;
        signal(self.leader, Signal::SIGKILL);
    }

    /// Terminates the group. The returned task continues even if it is not awaited.
    pub(super) fn terminate(mut self) -> Option<JoinHandle<()>> {
        self.start_termination()
    }

    fn start_termination(&mut self) -> Option<JoinHandle<()>> {
        let child = self.child.take()?;
        if Handle::try_current().is_err() {
            signal(self.leader, Signal::SIGKILL);
            return None;
        }
        // Sent here and not in the task, so that it is sent even if the task does not get to start.
        signal(self.leader, Signal::SIGTERM);
        Some(self.terminations.spawn(finish(child, self.leader, self.grace)))
    }
}

impl Drop for ChildProcessGroup {
    fn drop(&mut self) {
        drop(self.start_termination());
    }
}

/// Waits for the group to end, and kills it after `grace`.
async fn finish(mut child: Child, leader: Pid, grace: Duration) {
    let gone = async {
        let _ = child.wait().await;
        while killpg(leader, None).is_ok() {
            time::sleep(GROUP_POLL_INTERVAL).await;
        }
    };
    if time::timeout(grace, gone).await.is_err() {
        signal(leader, Signal::SIGKILL);
        let _ = child.wait().await;
    }
}

fn signal(leader: Pid, signal: Signal) {
    // The group may have ended in the meantime.
    let _ = killpg(leader, signal);
}
