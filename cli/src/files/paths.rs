//! The files that a command reads: files, folders with the files in them, and standard input.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use milvaion_api::rest::files::{MAX_FILES, MAX_FILES_BYTES, STANDARD_INPUT};

use super::document::ParsedFile;
use crate::{CliError, Console};

/// The maximum number of folders inside each other.
const MAX_FOLDERS: usize = 32;
/// The maximum length of the name of a file, in characters.
const MAX_NAME_CHARS: usize = 200;

/// Reads and parses files, in the order of the arguments and, within a folder, of their names.
pub(super) fn read_files(paths: &[PathBuf], console: &mut Console) -> Result<Vec<ParsedFile>, CliError> {
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() {
            let before = found.len();
            list(path, 0, &mut found)?;
            if found.len() == before {
                let path = path.display();
                return Err(CliError::Usage(format!(
                    "{path} has no file *.yaml or *.yml. Give another folder, or a file."
                )));
            }
        } else {
            found.push(path.clone());
        }
    }
    if found.len() > MAX_FILES {
        return Err(CliError::Usage(format!(
            "There are {} files, at most {MAX_FILES} are applied at once. Give fewer files, such as one folder.",
            found.len()
        )));
    }
    let mut left = MAX_FILES_BYTES;
    let mut files = Vec::with_capacity(found.len());
    let mut errors = Vec::new();
    for path in found {
        let (name, text) = read(&path, left, console)?;
        left -= text.len();
        match ParsedFile::parse(&name, &text) {
            Ok(file) => files.push(file),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(files) } else { Err(CliError::Documents(errors.join("\n"))) }
}

/// Adds the YAML files in a folder. Hidden files, and links to folders, are left out.
fn list(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), CliError> {
    let failed = |source: io::Error| CliError::Input { name: folder.display().to_string(), source };
    if depth > MAX_FOLDERS {
        return Err(CliError::Usage(format!("{} is more than {MAX_FOLDERS} folders deep.", folder.display())));
    }
    let mut entries = fs::read_dir(folder).map_err(failed)?.collect::<io::Result<Vec<_>>>().map_err(failed)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
        let is_yaml = is_yaml(&path);
        if is_hidden {
            continue;
        }
        if entry.file_type().map_err(failed)?.is_dir() {
            list(&path, depth + 1, found)?;
        } else if is_yaml && path.is_file() {
            found.push(path);
        }
    }
    Ok(())
}

/// Returns true for a file `*.yaml` or `*.yml`, in letters of either case.
fn is_yaml(path: &Path) -> bool {
    let is_named = |extension: &OsStr| ["yaml", "yml"].iter().any(|name| extension.eq_ignore_ascii_case(name));
    path.extension().is_some_and(is_named)
}

/// Reads a file of at most `limit` bytes. Returns its name and its text.
fn read(path: &Path, limit: usize, console: &mut Console) -> Result<(String, String), CliError> {
    let is_input = path.as_os_str() == "-";
    let name = if is_input { STANDARD_INPUT.to_owned() } else { name_of(path) };
    let failed = |source| CliError::Input { name: name.clone(), source };
    let mut text = String::new();
    let most = limit as u64 + 1;
    if is_input {
        (&mut console.input).take(most).read_to_string(&mut text).map_err(failed)?;
    } else {
        File::open(path).and_then(|file| file.take(most).read_to_string(&mut text)).map_err(failed)?;
    }
    if text.len() > limit {
        return Err(CliError::Usage(format!(
            "The files have more than {} MiB, which is the limit. Give fewer files, such as one folder.",
            MAX_FILES_BYTES / 1024 / 1024
        )));
    }
    Ok((name, text))
}

/// Returns the name by which the server knows a file: the end of its path.
fn name_of(path: &Path) -> String {
    let text = path.strip_prefix("./").unwrap_or(path).to_string_lossy();
    match text.chars().count().checked_sub(MAX_NAME_CHARS) {
        None | Some(0) => text.into_owned(),
        Some(more) => format!("…{}", text.chars().skip(more + 1).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_of_an_extension_does_not_matter() {
        assert!(["a.yaml", "B.YAML", "c.Yml", "d/e.yml"].iter().all(|path| is_yaml(Path::new(path))));
        assert!(!["yaml", "a.yaml.bak", "a.json", ".yaml"].iter().any(|path| is_yaml(Path::new(path))));
    }
}
