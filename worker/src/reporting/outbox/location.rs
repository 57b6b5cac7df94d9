//! The location of the outbox file and its exclusive lock.
//!
//! A process takes the file with the lowest number that it can lock. Several instances can therefore share a folder,
//! and a restarted instance finds the file of the killed one, because the kernel releases a lock when its holder dies,
//! in any way. The lock is on a separate file, because SQLite locks its files itself, and loses its locks when any code
//! in the process closes the same file.
//!
//! The name of a file contains a hash of the [`OutboxSystem`], so that workers of a test system and of a production system
//! that share a user and a worker id do not send each other's reports.

use std::{
    fs::{DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use super::system::OutboxSystem;
use crate::api::error::{ConfigErrors, OutboxError};

/// Maximum number of outboxes of one worker id in one folder.
const MAX_OUTBOXES: u32 = 1000;

/// The location in which a worker stores what the broker has not confirmed, so that it survives the process; see
/// [`WorkerConfig::outbox`](crate::WorkerConfig::outbox).
///
/// The default is [`StateDirectory`](Self::StateDirectory), and [`Off`](Self::Off) for an SDK that was built without the
/// feature `outbox`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outbox {
    /// In the folder that the environment names: `STATE_DIRECTORY`, as systemd sets it; else `milvaion` below
    /// `XDG_STATE_HOME`; else `.local/state/milvaion` below `HOME`; else `.milvaion/outbox` below the current folder.
    #[cfg_attr(feature = "outbox", default)]
    StateDirectory,
    /// In this folder, which is created if it does not exist. Processes of one machine and one operating system can
    /// share it, because file locks and SQLite's memory map do not work across a network. One process sends what
    /// another one left.
    Folder(PathBuf),
    /// In this file, which only one process can use.
    File(PathBuf),
    /// Nowhere: reports that are unsent when the process ends are lost.
    #[cfg_attr(not(feature = "outbox"), default)]
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

    /// Adds an error if the location cannot hold an outbox.
    pub(crate) fn check(&self, errors: &mut ConfigErrors) {
        match self {
            Self::Folder(path) if path.exists() && !path.is_dir() => errors.add(format!(
                "outbox (MILVAION_OUTBOX) is {path:?}, which is not a folder: give a folder, a file that ends in .sqlite, or off."
            )),
            Self::File(path) if path.is_dir() => errors.add(format!(
                "outbox (MILVAION_OUTBOX) is {path:?}, which is a folder: give a folder whose name does not end in .sqlite, a file, or off."
            )),
            _ => {}
        }
    }
}

/// An outbox file that this process holds until the value is dropped.
pub(super) struct LockedOutbox {
    pub(super) path: PathBuf,
    /// The number of the file in its folder. `None` for a single file.
    pub(super) number: Option<u32>,
    _lock: File,
}

/// The outbox files that one process holds.
pub(super) struct LockedOutboxes {
    /// The outbox of this process.
    pub(super) own: LockedOutbox,
    /// Outboxes with higher numbers whose processes have ended.
    pub(super) orphans: Vec<LockedOutbox>,
}

/// Locks an outbox of a system. In a folder, files with numbers below `first` are left out. Returns `None` if the outbox
/// is off.
///
/// # Errors
/// Returns [`OutboxError`] if the folder cannot be created or every outbox is in use.
pub(super) fn acquire(
    outbox: &Outbox,
    worker_id: &str,
    system: &OutboxSystem,
    first: u32,
) -> Result<Option<LockedOutboxes>, OutboxError> {
    let in_folder = |folder: &Path| in_folder(folder, &format!("{worker_id}-{}", system.hash()), first).map(Some);
    match outbox {
        Outbox::Off => Ok(None),
        Outbox::StateDirectory => in_folder(&environment_folder()),
        Outbox::Folder(folder) => in_folder(folder),
        Outbox::File(path) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            create(folder)?;
            let own = lock(path, None).map_err(|error| unusable(path, error))?;
            let own = own.ok_or_else(|| OutboxError::InUse { path: path.clone() })?;
            Ok(Some(LockedOutboxes { own, orphans: Vec::new() }))
        }
    }
}

fn in_folder(folder: &Path, name: &str, first: u32) -> Result<LockedOutboxes, OutboxError> {
    create(folder)?;
    let path = |n: u32| folder.join(format!("{name}-{n}.sqlite"));
    let mut found = None;
    for n in first..MAX_OUTBOXES {
        if let Some(own) = lock(&path(n), Some(n)).map_err(|error| unusable(folder, error))? {
            found = Some((n, own));
            break;
        }
    }
    let Some((n, own)) = found else { return Err(OutboxError::FolderFull { folder: folder.to_owned() }) };
    let mut orphans = Vec::new();
    for number in (n + 1..MAX_OUTBOXES).filter(|number| path(*number).exists()) {
        // Another process may lock the orphan at the same moment, and then adopts it.
        orphans.extend(lock(&path(number), Some(number)).map_err(|error| unusable(folder, error))?);
    }
    Ok(LockedOutboxes { own, orphans })
}

/// Returns the outboxes that the worker id has in the folder for other systems and that no process holds. There is none beside
/// a single file.
pub(super) fn of_other_systems(outbox: &Outbox, worker_id: &str, system: &OutboxSystem) -> Vec<PathBuf> {
    let folder = match outbox {
        Outbox::Off | Outbox::File(_) => return Vec::new(),
        Outbox::StateDirectory => environment_folder(),
        Outbox::Folder(folder) => folder.clone(),
    };
    let (own, start) = (system.hash(), format!("{worker_id}-"));
    let is_other = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.and_then(|name| name.strip_prefix(&start)?.strip_suffix(".sqlite"));
        name.and_then(|name| name.split_once('-')).is_some_and(|(hash, number)| {
            hash != own && OutboxSystem::is_hash(hash) && number.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    // Locked for an instant only, because a worker of the other system may start at the same time.
    let mut found: Vec<_> = files.filter(|path| is_other(path) && matches!(lock(path, None), Ok(Some(_)))).collect();
    found.sort();
    found
}

/// Returns the folder that the environment of this process names.
fn environment_folder() -> PathBuf {
    default_folder(|name| std::env::var_os(name).map(PathBuf::from))
}

/// Returns the folder that the environment names.
fn default_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    let variable = |name| variable(name).filter(|path| !path.as_os_str().is_empty());
    // systemd sets several folders if the unit has several, separated by colons. The first one is used.
    let first = |path: PathBuf| path.to_string_lossy().split(':').next().map(PathBuf::from);
    variable("STATE_DIRECTORY")
        .and_then(first)
        .or_else(|| variable("XDG_STATE_HOME").map(|folder| folder.join("milvaion")))
        .or_else(|| variable("HOME").map(|folder| folder.join(".local/state/milvaion")))
        .unwrap_or_else(|| PathBuf::from(".milvaion/outbox"))
}

fn create(folder: &Path) -> Result<(), OutboxError> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    created.map_err(|error| unusable(folder, error))
}

fn unusable(path: &Path, source: io::Error) -> OutboxError {
    OutboxError::Unusable { path: path.to_owned(), source }
}

/// Locks an outbox. Returns `None` if another process holds it.
fn lock(path: &Path, number: Option<u32>) -> io::Result<Option<LockedOutbox>> {
    // The lock file is never deleted. Otherwise two processes could lock two different files of the same name.
    let file = OpenOptions::new().create(true).append(true).open(path.with_extension("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(LockedOutbox { path: path.to_owned(), number, _lock: file })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn name(outbox: &LockedOutbox) -> &str {
        outbox.path.file_name().and_then(|name| name.to_str()).expect("a name")
    }

    #[test]
    fn each_process_locks_its_own_file_and_finds_orphans() {
        let folder = tempfile();
        let system = OutboxSystem::default();
        let acquire = || acquire(&Outbox::Folder(folder.clone()), "w.1", &system, 0).expect("locked").expect("not off");
        let file = |n| format!("w.1-{}-{n}.sqlite", system.hash());
        let (first, second, third) = (acquire(), acquire(), acquire());
        assert_eq!([&first, &second, &third].map(|taken| name(&taken.own)), [file(0), file(1), file(2)]);
        for taken in [&first, &third] {
            File::create(&taken.own.path).expect("created");
        }
        drop((first, third));
        let next = acquire();
        assert_eq!(name(&next.own), file(0));
        // The second process is alive. The third one has left a file.
        assert_eq!(next.orphans.iter().map(name).collect::<Vec<_>>(), [file(2)]);
        assert_eq!(name(&acquire().own), file(3));
        drop(second);
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn file_in_use_is_refused_to_a_second_process() {
        let folder = tempfile();
        let outbox = Outbox::File(folder.join("mine.sqlite"));
        let first = acquire(&outbox, "w", &OutboxSystem::default(), 0).expect("locked");
        let refused = acquire(&outbox, "w", &OutboxSystem::default(), 0).err().expect("refused").to_string();
        assert!(refused.contains("MILVAION_OUTBOX") && refused.contains("mine.sqlite"), "{refused}");
        drop(first);
        assert!(acquire(&outbox, "w", &OutboxSystem::default(), 0).is_ok());
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn the_environment_names_the_folder() {
        let set = |pairs: &'static [(&str, &str)]| {
            default_folder(move |name| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value))
            })
        };
        assert_eq!(set(&[]), Path::new(".milvaion/outbox"));
        assert_eq!(set(&[("HOME", "/root"), ("XDG_STATE_HOME", "")]), Path::new("/root/.local/state/milvaion"));
        assert_eq!(set(&[("HOME", "/root"), ("XDG_STATE_HOME", "/s")]), Path::new("/s/milvaion"));
        assert_eq!(set(&[("HOME", "/root"), ("STATE_DIRECTORY", "/a:/b")]), Path::new("/a"));
    }

    fn tempfile() -> PathBuf {
        std::env::temp_dir().join(format!("milvaion-location-{:016x}", rand::random::<u64>()))
    }
}
