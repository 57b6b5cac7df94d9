//! The search for the programs of the services. Debian installs some of them outside `PATH`.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The folders that are searched besides `PATH`. A server that is started by an init system may have a short `PATH`.
const FALLBACK_PATHS: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Returns the folders of `PATH`, then the usual ones.
pub(super) fn search_path() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).filter(|folder| folder.is_absolute()).chain(FALLBACK_PATHS.map(PathBuf::from)).collect()
}

/// Returns the first executable file of this name in the folders.
pub(super) fn find(name: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    folders.iter().map(|folder| folder.join(name)).find(|program| is_executable(program))
}

/// Returns the folders `<base>/*/<tail>` that exist. Debian uses this layout for versions:
/// `/usr/lib/postgresql/15/bin`.
pub(super) fn versioned(base: &Path, tail: &str) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(base) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path().join(tail)))
        .filter(|(_, folder)| folder.is_dir())
        .collect();
    found.sort();
    found
}

fn is_executable(program: &Path) -> bool {
    fs::metadata(program).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_existing_program_is_found() {
        let folders = search_path();
        assert!(find("sh", &folders).is_some());
        assert_eq!(find("no-such-program-anywhere", &folders), None);
        assert_eq!(find("sh", &[]), None);
    }

    #[test]
    fn a_plain_file_is_not_a_program() {
        assert!(!is_executable(Path::new("/etc/passwd")));
        assert!(!is_executable(Path::new("/etc")));
    }
}
