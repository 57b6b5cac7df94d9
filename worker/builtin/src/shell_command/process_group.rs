//! A process group that ends with its run.
//!
//! Whatever ends a run ends the whole group. The run of a cancelled or timed-out program waits until the group is gone: it
//! gets SIGTERM, and SIGKILL after its grace period. A run that is dropped before, because its worker stops, kills the group
//! at once. A run is therefore never reported as ended while its program continues, and the next attempt cannot overlap
//! it. A process that starts a session of its own has left the group and is not reached.

use std::{process::ExitStatus, time::Duration};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{process::Child, time};

use super::process_guard::GuardedGroup;

/// Interval at which the group is checked for remaining processes after its leader has ended.
const GROUP_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum wait for the leader after SIGKILL. The kernel delays the end of a process that waits for a broken disk.
const KILL_WAIT: Duration = Duration::from_secs(1);

/// A process group led by the started program.
pub(super) struct ChildProcessGroup {
    /// `None` once the group has ended.
    child: Option<Child>,
    leader: Pid,
    grace: Duration,
    /// Kills the group if the worker is killed. Dropped after the group has ended.
    _guarded: Option<GuardedGroup>,
}

impl ChildProcessGroup {
    /// Returns the group led by `child`, whose id is `leader`.
    pub(super) const fn new(child: Child, leader: Pid, grace: Duration, guarded: Option<GuardedGroup>) -> Self {
        Self { child: Some(child), leader, grace, _guarded: guarded }
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

    /// Terminates the group, and returns when it has ended.
    pub(super) async fn terminate(&mut self) {
        let Some(child) = &mut self.child else { return };
        signal(self.leader, Signal::SIGTERM);
        let gone = async {
            let _ = child.wait().await;
            while killpg(self.leader, None).is_ok() {
                time::sleep(GROUP_POLL_INTERVAL).await;
            }
        };
        if time::timeout(self.grace, gone).await.is_err() {
            signal(self.leader, Signal::SIGKILL);
            let _ = time::timeout(KILL_WAIT, child.wait()).await;
        }
        self.child = None;
    }
}

impl Drop for ChildProcessGroup {
    fn drop(&mut self) {
        if self.child.is_some() {
            signal(self.leader, Signal::SIGKILL);
        }
    }
}

fn signal(leader: Pid, signal: Signal) {
    // The group may have ended in the meantime.
    let _ = killpg(leader, signal);
}
