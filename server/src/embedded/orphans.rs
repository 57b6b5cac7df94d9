//! What a killed server's services may have left alive.
//!
//! The kernel asks a killed server's children to stop, but a next start may come before they are gone. Two
//! PostgreSQLs on one folder would be a disaster, so a start waits, asks again, and in the end kills.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long leftovers of a killed server may take to end by themselves; the kernel has already asked them to.
const ORPHAN_EXIT_TIMEOUT: Duration = Duration::from_secs(6);

/// Sees off what a killed server's service left alive in `folder`: waits, asks, and in the end kills. A leftover
/// is known by its program's name and its working folder, so nobody else's process can be meant.
pub(super) async fn terminate(folder: &Path, process: &str, stop_signal: Signal) {
    let Ok(folder) = folder.canonicalize() else { return };
    let began = Instant::now();
    let mut asked = false;
    loop {
        let alive = living_in(&folder, process);
        let send = match began.elapsed() {
            _ if alive.is_empty() => return,
            waited if waited > ORPHAN_EXIT_TIMEOUT * 2 => Some(Signal::SIGKILL),
            waited if waited > ORPHAN_EXIT_TIMEOUT && !asked => {
                asked = true;
                tracing::warn!(service.folder = %folder.display(), "Asking the {process} an earlier run left to stop");
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

/// Processes of this name whose working folder lies at or below `folder`.
fn living_in(folder: &Path, process: &str) -> Vec<Pid> {
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
    fn only_processes_of_that_name_in_that_folder_are_leftovers() {
        let data = std::env::temp_dir().join(format!("milvaion-leftover-{}", std::process::id()));
        fs::create_dir_all(&data).unwrap();
        let mut sleeper = Command::new("sleep").arg("60").current_dir(&data).spawn().unwrap();
        let pid = Pid::from_raw(sleeper.id().try_into().unwrap());
        // The child may still be between fork and exec, when it bears our name.
        while fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim_end() != "sleep" {
            std::thread::yield_now();
        }
        assert_eq!(living_in(&data, "sleep"), [pid]);
        assert!(living_in(&data, "redis-server").is_empty());
        assert!(living_in(&data.join("sub"), "sleep").is_empty());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        fs::remove_dir_all(data).unwrap();
    }
}
