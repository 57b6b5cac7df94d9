//! File operations that all steps share. Their errors name the path.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// Reads a text file.
///
/// # Errors
/// Returns an error if the file is missing, unreadable or not UTF-8.
pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a file, creating its folder first.
///
/// # Errors
/// Returns an error if the folder or the file cannot be written.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    if let Some(folder) = path.parent() {
        create_dir(folder)?;
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Creates a folder and its parents.
///
/// # Errors
/// Returns an error if one of them cannot be created.
pub(crate) fn create_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
}

/// Creates a folder, or empties it if it exists.
///
/// # Errors
/// Returns an error if old content cannot be removed or the folder cannot be created.
pub(crate) fn fresh_dir(path: &Path) -> Result<()> {
    remove_dir(path)?;
    create_dir(path)
}

/// Removes a folder with its content. A missing folder is no error.
///
/// # Errors
/// Returns an error if the folder exists and cannot be removed.
pub(crate) fn remove_dir(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Returns the files of the repository, relative to it: those git tracks and new ones it does not ignore.
///
/// # Errors
/// Returns an error if git is missing or this is no repository.
pub(crate) fn tracked(root: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .output()
        .context("git could not be started")?;
    ensure!(output.status.success(), "git ls-files failed: is {} a git repository?", root.display());
    let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let mut found: Vec<PathBuf> =
        names.split_terminator('\0').map(PathBuf::from).filter(|path| root.join(path).is_file()).collect();
    found.sort();
    found.dedup();
    Ok(found)
}

/// Copies one file, creating its folder first.
///
/// # Errors
/// Returns an error if the source cannot be read or the target cannot be written.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        create_dir(folder)?;
    }
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Copies all files below a folder.
///
/// # Errors
/// Returns an error if one of them cannot be read or written.
pub(crate) fn copy_dir(from: &Path, to: &Path) -> Result<()> {
    for file in list(from)? {
        let below = file.strip_prefix(from).unwrap_or(&file);
        copy(&file, &to.join(below))?;
    }
    Ok(())
}

/// Returns every file below a path, sorted. Installed npm packages are left out; their lock file represents them. For a
/// path to a file, returns that file.
///
/// # Errors
/// Returns an error if a folder cannot be read or the path does not exist.
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
