//! Termination of processes that a killed server has left behind.
//!
//! The kernel signals the children of a killed server, but the next start may come before they have ended. Two
//! PostgreSQL servers on one folder would destroy the data. A start therefore waits, then sends the stop signal again,
//! and at last kills.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The time that the orphans of a killed server get to end by themselves. The kernel has already signalled them. After
/// twice this time they are killed.
const ORPHAN_EXIT_TIMEOUT: Duration = Duration::from_secs(6);

/// Waits until no process of a killed server runs in `folder`. After a timeout it sends `stop_signal`, and after a
/// second one SIGKILL. An orphan is identified by the name of its program and by its working folder, so that no other
/// process is signalled.
pub(super) async fn terminate(folder: &Path, process: &str, stop_signal: Signal) {
    let Ok(folder) = folder.canonicalize() else { return };
    let began = Instant::now();
    let mut signalled = false;
    loop {
        let alive = processes_in(&folder, process);
        let send = match began.elapsed() {
            _ if alive.is_empty() => return,
            waited if waited > ORPHAN_EXIT_TIMEOUT * 2 => Some(Signal::SIGKILL),
            waited if waited > ORPHAN_EXIT_TIMEOUT && !signalled => {
                signalled = true;
                tracing::warn!(
                    service.folder = %folder.display(),
                    "a {process} of an earlier run still uses {} and is stopped now", folder.display()
                );
                Some(stop_signal)
            }
            _ => None,
        };
        if let Some(signal) = send {
            for pid in alive {
                let _ = kill(pid, signal);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns the processes of this name whose working folder is `folder` or lies below it.
fn processes_in(folder: &Path, process: &str) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == process)
                && fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(folder))
        })
        .map(Pid::from_raw)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn an_orphan_is_found_by_name_and_folder() {
        let data = std::env::temp_dir().join(format!("milvaion-orphan-{}", std::process::id()));
        fs::create_dir_all(&data).unwrap();
        let mut sleeper = Command::new("sleep").arg("60").current_dir(&data).spawn().unwrap();
        let pid = Pid::from_raw(sleeper.id().try_into().unwrap());
        // Between fork and exec, the child still has the name of this process.
        while fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim_end() != "sleep" {
            std::thread::yield_now();
        }
        assert_eq!(processes_in(&data, "sleep"), [pid]);
        assert!(processes_in(&data, "redis-server").is_empty());
        assert!(processes_in(&data.join("sub"), "sleep").is_empty());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        fs::remove_dir_all(data).unwrap();
    }
}
