//! Small file work that every step shares, with errors that name the path.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// Reads a text file.
///
/// # Errors
/// If it is missing, unreadable or not UTF-8.
pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a file, creating its folder first.
///
/// # Errors
/// If the folder or the file cannot be written.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    if let Some(folder) = path.parent() {
        create_dir(folder)?;
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Creates a folder and those above it.
///
/// # Errors
/// If one of them cannot be created.
pub(crate) fn create_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
}

/// Makes sure that a folder exists and is empty.
///
/// # Errors
/// If old content cannot be removed or the folder cannot be created.
pub(crate) fn fresh_dir(path: &Path) -> Result<()> {
    remove_dir(path)?;
    create_dir(path)
}

/// Removes a folder with all it holds; a folder that is not there is no error.
///
/// # Errors
/// If it is there and cannot be removed.
pub(crate) fn remove_dir(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Copies one file, creating its folder first.
///
/// # Errors
/// If the source cannot be read or the target cannot be written.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        create_dir(folder)?;
    }
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Copies everything below a folder.
///
/// # Errors
/// If anything in it cannot be read or written.
pub(crate) fn copy_dir(from: &Path, to: &Path) -> Result<()> {
    for file in list(from)? {
        let below = file.strip_prefix(from).unwrap_or(&file);
        copy(&file, &to.join(below))?;
    }
    Ok(())
}

/// Every file below a path, sorted. Installed npm packages are left out: their lock file stands for them. A path that
/// is itself a file yields that file.
///
/// # Errors
/// If a folder cannot be read, or the path does not exist.
pub(crate) fn list(path: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut waiting = vec![path.to_path_buf()];
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).with_context(|| format!("cannot list {}", path.display()))?;
            for entry in entries {
                let entry = entry.with_context(|| format!("cannot list {}", path.display()))?;
                if entry.file_name() != "node_modules" {
                    waiting.push(entry.path());
                }
            }
        } else {
            fs::metadata(&path).with_context(|| format!("cannot find {}", path.display()))?;
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
