//! Files that are damaged: how they are told, and where they go.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use super::OutboxError;
use crate::clock;

/// SQLite's numbers for a file that is damaged, and for one that is none of its files.
const CORRUPTION_CODES: [i32; 2] = [11, 26];

/// Damaged files that were put aside, by their new names. Cloning gives the same list.
#[derive(Clone, Debug, Default)]
pub(super) struct QuarantinedFiles(Arc<Mutex<Vec<PathBuf>>>);

impl QuarantinedFiles {
    /// Their names, oldest first.
    pub(super) fn names(&self) -> Vec<PathBuf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn add(&self, names: impl IntoIterator<Item = PathBuf>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(names);
    }
}

/// Whether an error says that the file is damaged.
pub(super) fn is_corruption(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code()).and_then(|code| code.parse::<i32>().ok());
    // The lowest byte is the kind of an error, those above tell more about it.
    code.is_some_and(|code| CORRUPTION_CODES.contains(&(code & 0xff)))
}

/// Puts a damaged file aside and says so; answers its new name.
pub(super) fn quarantine(path: &Path, reason: &str) -> Result<PathBuf, OutboxError> {
    let aside = put_aside(path).map_err(|source| OutboxError::Unusable { path: path.to_owned(), source })?;
    tracing::error!(
        outbox.path = %path.display(),
        outbox.aside = %aside.display(),
        error = reason,
        "the outbox is damaged; it is put aside and a new one begun: reports that only it held are not sent"
    );
    Ok(aside)
}

/// Renames a file and what SQLite keeps beside it, and answers its new name.
fn put_aside(path: &Path) -> io::Result<PathBuf> {
    let beside = |path: &Path, ending: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    let aside = beside(path, &format!(".damaged-{}", clock::now().format("%Y%m%dT%H%M%S%.3fZ")));
    std::fs::rename(path, &aside)?;
    for ending in ["-wal", "-shm"] {
        match std::fs::rename(beside(path, ending), beside(&aside, ending)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(aside)
}
