//! Where the file lies, and whose it is.
//!
//! A process takes the lowest number whose lock it gets, so several instances share a folder, and one that is started
//! again finds the file of the one that was killed: the kernel lets go of a lock when its holder dies, however it dies.
//! The lock is on a file of its own, because SQLite locks its files by itself, and drops its locks when anybody in the
//! process closes the same file.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

use super::OutboxError;
use crate::api::error::ConfigErrors;

/// The most outboxes of one worker id in one folder.
const MAX_OUTBOXES: u32 = 1000;

/// Where a worker keeps what the broker has not confirmed, so that it outlives the process; see
/// [`WorkerConfig::outbox`](crate::WorkerConfig::outbox).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Outbox {
    /// In the folder the environment names: `STATE_DIRECTORY`, as systemd sets it; else `milvaion` below
    /// `XDG_STATE_HOME`; else `.local/state/milvaion` below `HOME`; else `.milvaion/outbox` below the current folder.
    #[default]
    StateDirectory,
    /// In this folder, made if it is not there. Processes may share it, if they are on one machine, because file locks and
    /// SQLite's memory map do not reach across a network, and work for one system: what one left, another sends.
    Folder(PathBuf),
    /// In this file, which no other process may have.
    File(PathBuf),
    /// Nowhere: what a process has not told when it ends is lost.
    Off,
}

impl Outbox {
    /// Reads `MILVAION_OUTBOX`: `off`, a path that ends in `.sqlite`, or a folder.
    pub(crate) fn read(text: &str) -> Self {
        let path = PathBuf::from(text);
        match text {
            "off" => Self::Off,
            _ if path.extension().is_some_and(|ending| ending == "sqlite") => Self::File(path),
            _ => Self::Folder(path),
        }
    }

    /// Notes what cannot become an outbox.
    pub(crate) fn check(&self, errors: &mut ConfigErrors) {
        match self {
            Self::Folder(path) if path.exists() && !path.is_dir() => errors.add(format!(
                "MILVAION_OUTBOX is {path:?}, which is no folder: give a folder, a file that ends in .sqlite, or off."
            )),
            Self::File(path) if path.is_dir() => errors.add(format!(
                "MILVAION_OUTBOX is {path:?}, which is a folder: give a folder whose name does not end in .sqlite, a file, or off."
            )),
            _ => {}
        }
    }
}

/// A file that is ours as long as this lives.
pub(super) struct LockedOutbox {
    pub(super) path: PathBuf,
    _lock: Flock<File>,
}

/// What one process holds.
pub(super) struct LockedOutboxes {
    /// Its own outbox.
    pub(super) own: LockedOutbox,
    /// Those of processes that have gone and left a higher number behind.
    pub(super) orphans: Vec<LockedOutbox>,
}

/// Takes a place; none if there is to be no outbox.
pub(super) fn acquire(outbox: &Outbox, worker_id: &str) -> Result<Option<LockedOutboxes>, OutboxError> {
    match outbox {
        Outbox::Off => Ok(None),
        Outbox::StateDirectory => {
            in_folder(&usual(|name| std::env::var_os(name).map(PathBuf::from)), worker_id).map(Some)
        }
        Outbox::Folder(folder) => in_folder(folder, worker_id).map(Some),
        Outbox::File(path) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            make(folder)?;
            let own = lock(path).map_err(|error| unusable(path, error))?;
            let own = own.ok_or_else(|| OutboxError::InUse { path: path.clone() })?;
            Ok(Some(LockedOutboxes { own, orphans: Vec::new() }))
        }
    }
}

fn in_folder(folder: &Path, worker_id: &str) -> Result<LockedOutboxes, OutboxError> {
    make(folder)?;
    let path = |n: u32| folder.join(format!("{worker_id}-{n}.sqlite"));
    let mut found = None;
    for n in 0..MAX_OUTBOXES {
        if let Some(own) = lock(&path(n)).map_err(|error| unusable(folder, error))? {
            found = Some((n, own));
            break;
        }
    }
    let Some((n, own)) = found else { return Err(OutboxError::FolderFull { folder: folder.to_owned() }) };
    let mut orphans = Vec::new();
    for other in (n + 1..MAX_OUTBOXES).map(path).filter(|path| path.exists()) {
        // Somebody else may look at the same moment; then the orphan is theirs.
        orphans.extend(lock(&other).map_err(|error| unusable(folder, error))?);
    }
    Ok(LockedOutboxes { own, orphans })
}

/// The folder, when nobody has named one.
fn usual(variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    let variable = |name| variable(name).filter(|path| !path.as_os_str().is_empty());
    // systemd gives several folders if a unit asks for several, the first one first.
    let first = |path: PathBuf| path.to_string_lossy().split(':').next().map(PathBuf::from);
    variable("STATE_DIRECTORY")
        .and_then(first)
        .or_else(|| variable("XDG_STATE_HOME").map(|folder| folder.join("milvaion")))
        .or_else(|| variable("HOME").map(|folder| folder.join(".local/state/milvaion")))
        .unwrap_or_else(|| PathBuf::from(".milvaion/outbox"))
}

fn make(folder: &Path) -> Result<(), OutboxError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| unusable(folder, error))
}

fn unusable(path: &Path, source: io::Error) -> OutboxError {
    OutboxError::Unusable { path: path.to_owned(), source }
}

/// Locks the place of an outbox; none if somebody else has it.
fn lock(path: &Path) -> io::Result<Option<LockedOutbox>> {
    // The lock file stays when the lock goes: whoever deleted it would let two processes lock two files of one name.
    let file = OpenOptions::new().create(true).append(true).open(path.with_extension("lock"))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(LockedOutbox { path: path.to_owned(), _lock: lock })),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, error)) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn name(place: &LockedOutbox) -> &str {
        place.path.file_name().and_then(|name| name.to_str()).expect("a name")
    }

    #[test]
    fn each_process_has_its_own_and_the_next_one_finds_what_was_left() {
        let folder = tempfile();
        let acquire = || acquire(&Outbox::Folder(folder.clone()), "w.1").expect("taken").expect("wanted");
        let (first, second, third) = (acquire(), acquire(), acquire());
        assert_eq!(
            [&first, &second, &third].map(|taken| name(&taken.own)),
            ["w.1-0.sqlite", "w.1-1.sqlite", "w.1-2.sqlite"]
        );
        for taken in [&first, &third] {
            File::create(&taken.own.path).expect("made");
        }
        drop((first, third));
        let next = acquire();
        assert_eq!(name(&next.own), "w.1-0.sqlite");
        // The second lives, and the third has left something.
        assert_eq!(next.orphans.iter().map(name).collect::<Vec<_>>(), ["w.1-2.sqlite"]);
        assert_eq!(name(&acquire().own), "w.1-3.sqlite");
        drop(second);
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn a_file_of_its_own_is_refused_to_a_second_process() {
        let folder = tempfile();
        let outbox = Outbox::File(folder.join("mine.sqlite"));
        let first = acquire(&outbox, "w").expect("taken");
        let refused = acquire(&outbox, "w").err().expect("refused").to_string();
        assert!(refused.contains("MILVAION_OUTBOX") && refused.contains("mine.sqlite"), "{refused}");
        drop(first);
        assert!(acquire(&outbox, "w").is_ok());
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn the_environment_names_the_folder() {
        let set = |pairs: &'static [(&str, &str)]| {
            usual(move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value)))
        };
        assert_eq!(set(&[]), Path::new(".milvaion/outbox"));
        assert_eq!(set(&[("HOME", "/root"), ("XDG_STATE_HOME", "")]), Path::new("/root/.local/state/milvaion"));
        assert_eq!(set(&[("HOME", "/root"), ("XDG_STATE_HOME", "/s")]), Path::new("/s/milvaion"));
        assert_eq!(set(&[("HOME", "/root"), ("STATE_DIRECTORY", "/a:/b")]), Path::new("/a"));
    }

    fn tempfile() -> PathBuf {
        std::env::temp_dir().join(format!("milvaion-place-{:016x}", rand::random::<u64>()))
    }
}
