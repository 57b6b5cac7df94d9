//! Processor time and memory of processes, read from Linux's `/proc`.

use std::{collections::HashMap, fs, path::Path};

use anyhow::Context;

/// Linux reports processor time in hundredths of a second on every machine.
const TICKS_PER_SECOND: f64 = 100.0;

/// A process and its descendants.
#[derive(Clone, Debug)]
pub(crate) struct ProcessGroup {
    pub(crate) name: &'static str,
    pub(crate) pid: i32,
}

/// A process in `/proc`: its parent and the processor time it has used.
struct ProcessTicks {
    parent: i32,
    ticks: u64,
}

/// Returns the processor seconds that each process group has used so far, with its children and its ended children.
pub(crate) fn seconds(process_groups: &[ProcessGroup]) -> Vec<f64> {
    let processes = processes();
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for (pid, process) in &processes {
        children.entry(process.parent).or_default().push(*pid);
    }
    process_groups
        .iter()
        .map(|process_group| {
            let (mut ticks, mut open) = (0, vec![process_group.pid]);
            while let Some(pid) = open.pop() {
                ticks += processes.get(&pid).map_or(0, |process| process.ticks);
                open.extend(children.get(&pid).into_iter().flatten());
            }
            ticks as f64 / TICKS_PER_SECOND
        })
        .collect()
}

/// Returns all processes of the machine by their ids.
fn processes() -> HashMap<i32, ProcessTicks> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            // A process may end between the listing and this read.
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // The name is in parentheses and may contain any character, parentheses too.
            let (_, rest) = stat.rsplit_once(") ")?;
            let fields: Vec<&str> = rest.split(' ').collect();
            let parent = fields.get(1)?.parse().ok()?;
            // utime, stime, and the same two of the children that the process has waited for.
            let ticks = fields.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum();
            Some((pid, ProcessTicks { parent, ticks }))
        })
        .collect()
}

/// Returns the resident memory of a process, in MB of 10⁶ bytes.
pub(crate) fn resident(pid: i32) -> anyhow::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("the process has ended")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let line = line.with_context(|| format!("/proc/{pid}/status has no line VmRSS"))?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024.0 / 1e6)
}

/// Returns the process on this machine that listens on the port of a URL. For a server of several processes, it is the
/// parent of the others.
pub(crate) fn listener(url: &str) -> anyhow::Result<i32> {
    let port = port(url).context("the URL of the service has no port")?;
    let inodes = listening(port);
    let mut found: Vec<i32> = fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| holds(*pid, &inodes))
        .collect();
    // The parent: its children have inherited the socket.
    found.sort_unstable();
    let all = processes();
    found
        .iter()
        .copied()
        .find(|pid| all.get(pid).is_none_or(|process| !found.contains(&process.parent)))
        .with_context(|| format!("no process listens on port {port} here: run this on the machine of the services"))
}

fn port(url: &str) -> Option<u16> {
    let rest = url.split_once("://")?.1;
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    host.split(['/', '?']).next()?.rsplit_once(':')?.1.parse().ok()
}

/// Returns the listening sockets of a port, as `/proc/<pid>/fd` names them.
fn listening(port: u16) -> Vec<String> {
    let end = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .flat_map(|text| {
            text.lines()
                .filter_map(|line| {
                    let fields: Vec<&str> = line.split_whitespace().collect();
                    // 0A: listening.
                    (fields.get(1)?.ends_with(&end) && *fields.get(3)? == "0A")
                        .then(|| fields.get(9).map(|inode| format!("socket:[{inode}]")))?
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Returns true if a process has one of these sockets open.
fn holds(pid: i32, sockets: &[String]) -> bool {
    let open = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|target| target.to_str().is_some_and(|target| sockets.iter().any(|socket| socket == target)))
}
