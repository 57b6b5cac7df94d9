//! Detects damaged files and renames them.
//!
//! The list of renamed files is there without the feature `outbox` too, always empty, so that heartbeats need no second
//! path.

#[cfg(feature = "outbox")]
use std::{io, path::Path};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

#[cfg(feature = "outbox")]
use crate::{api::error::OutboxError, clock};

/// SQLite's error codes for a damaged file (`SQLITE_CORRUPT`) and for a file of another format (`SQLITE_NOTADB`).
#[cfg(feature = "outbox")]
const CORRUPTION_CODES: [i32; 2] = [11, 26];

/// The new names of damaged files. Clones share the same list.
#[derive(Clone, Debug, Default)]
pub(super) struct CorruptFiles(Arc<Mutex<Vec<PathBuf>>>);

impl CorruptFiles {
    /// Returns the names, oldest first.
    pub(super) fn names(&self) -> Vec<PathBuf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds names.
    #[cfg(feature = "outbox")]
    pub(super) fn add(&self, names: impl IntoIterator<Item = PathBuf>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(names);
    }
}

/// Returns true if the error means that the file is damaged.
#[cfg(feature = "outbox")]
pub(super) fn is_corruption(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code()).and_then(|code| code.parse::<i32>().ok());
    // The lowest byte is the primary code. The higher bytes hold the extended code.
    code.is_some_and(|code| CORRUPTION_CODES.contains(&(code & 0xff)))
}

/// Renames a damaged file and logs it. Returns the new name.
///
/// # Errors
/// Returns [`OutboxError::Unusable`] if the file cannot be renamed.
#[cfg(feature = "outbox")]
pub(super) fn set_aside(path: &Path, reason: &str) -> Result<PathBuf, OutboxError> {
    let renamed = rename_all(path).map_err(|source| OutboxError::Unusable { path: path.to_owned(), source })?;
    tracing::error!(
        outbox.path = %path.display(),
        outbox.aside = %renamed.display(),
        error = reason,
        "the outbox {} is damaged: renamed it to {} and created a new one; reports that only the old file contained are not sent",
        path.display(),
        renamed.display()
    );
    Ok(renamed)
}

/// Renames a file and its WAL and shared memory files. Returns the new name.
#[cfg(feature = "outbox")]
fn rename_all(path: &Path) -> io::Result<PathBuf> {
    let with_suffix = |path: &Path, suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let renamed = with_suffix(path, &format!(".damaged-{}", clock::now().format("%Y%m%dT%H%M%S%.3fZ")));
    std::fs::rename(path, &renamed)?;
    for suffix in ["-wal", "-shm"] {
        match std::fs::rename(with_suffix(path, suffix), with_suffix(&renamed, suffix)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(renamed)
}
