//! A process group that does not outlive its run.
//!
//! Whatever ends a run ends the whole group: it is asked (SIGTERM), and after its grace killed. That takes longer than a
//! run has that is cancelled, so it is done by a task which the program waits for at its own end. A process that makes a
//! session of its own has left the group and is not reached.

use std::{process::ExitStatus, time::Duration};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{process::Child, runtime::Handle, task::JoinHandle, time};
use tokio_util::task::TaskTracker;

/// How often it is looked whether anything of the group still runs, once its leader has ended.
const GROUP_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A group, led by the program that was started.
pub(super) struct ChildProcessGroup {
    child: Option<Child>,
    leader: Pid,
    grace: Duration,
    terminations: TaskTracker,
}

impl ChildProcessGroup {
    /// The group of `child`, which leads it. Its ending, if it needs one, is done under `terminations`.
    pub(super) fn new(child: Child, grace: Duration, terminations: TaskTracker) -> Option<Self> {
        let leader = Pid::from_raw(child.id()?.try_into().ok()?);
        Some(Self { child: Some(child), leader, grace, terminations })
    }

    /// Waits until the leader ends by itself.
    pub(super) async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        match &mut self.child {
            Some(child) => child.wait().await,
            None => std::future::pending().await,
        }
    }

    /// The leader has ended, and what it left behind is killed.
    pub(super) fn kill_leftovers(mut self) {
        self.child = None;
        signal(self.leader, Signal::SIGKILL);
    }

    /// Ends everything. The task goes on when it is not waited for.
    pub(super) fn terminate(mut self) -> Option<JoinHandle<()>> {
        self.start_termination()
    }

    fn start_termination(&mut self) -> Option<JoinHandle<()>> {
        let child = self.child.take()?;
        if Handle::try_current().is_err() {
            signal(self.leader, Signal::SIGKILL);
            return None;
        }
        // Asked here and not in the task, so that it is asked even if the task has no time to begin.
        signal(self.leader, Signal::SIGTERM);
        Some(self.terminations.spawn(finish(child, self.leader, self.grace)))
    }
}

impl Drop for ChildProcessGroup {
    fn drop(&mut self) {
        drop(self.start_termination());
    }
}

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
    // It may just have ended by itself.
    let _ = killpg(leader, signal);
}
