//! The check that a build is up to date.
//!
//! A stamp lists all inputs with their lengths and modification times, and the profile. Stamps are compared as a whole,
//! not by "newer than": a removed file, or one that a checkout gave an older time, is a change too.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use anyhow::{Context, Result};

use crate::files;

/// The inputs of the browser side, relative to the workspace. `Cargo.toml` and `.cargo` set the profile and the
/// environment of the build.
const BUILD_INPUTS: [&str; 10] =
    ["app", "api", "protocol", "schedule", "style", "public", "xtask", "Cargo.lock", "Cargo.toml", ".cargo"];

/// The name of the stamp in the folder of the build.
const STAMP_FILE_NAME: &str = ".stamp";

/// Describes the current inputs.
///
/// # Errors
/// Returns an error if one of them cannot be read.
pub(crate) fn for_inputs(root: &Path, profile: &str) -> Result<String> {
    let mut inputs = Vec::new();
    for input in BUILD_INPUTS {
        inputs.extend(files::list(&root.join(input))?);
    }
    let mut stamp = format!("profile {profile}\n");
    for input in inputs {
        let _infallible = writeln!(stamp, "{}", for_file(&input)?);
    }
    Ok(stamp)
}

/// Describes one file: path, length, and modification time in nanoseconds.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub(crate) fn for_file(path: &Path) -> Result<String> {
    let metadata = fs::metadata(path).with_context(|| format!("cannot find {}", path.display()))?;
    let changed = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Ok(format!("{} {} {}", path.display(), metadata.len(), changed.map_or(0, |age| age.as_nanos())))
}

/// Returns true if the build in `folder` has exactly this stamp.
pub(crate) fn matches(folder: &Path, stamp: &str) -> bool {
    fs::read_to_string(at(folder)).is_ok_and(|found| found == stamp)
}

/// Writes the stamp of a finished build.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub(crate) fn write(folder: &Path, stamp: &str) -> Result<()> {
    files::write(&at(folder), stamp)
}

fn at(folder: &Path) -> PathBuf {
    folder.join(STAMP_FILE_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_or_removed_input_changes_the_stamp() {
        let root = std::env::temp_dir().join(format!("milvaion-stamp-{}", std::process::id()));
        files::fresh_dir(&root).unwrap();
        for input in BUILD_INPUTS {
            files::write(&root.join(input).join("file"), "1").unwrap();
        }
        let first = for_inputs(&root, "dev").unwrap();
        assert_eq!(first, for_inputs(&root, "dev").unwrap());
        assert_ne!(first, for_inputs(&root, "release").unwrap());

        files::write(&root.join("app/file"), "22").unwrap();
        let second = for_inputs(&root, "dev").unwrap();
        assert_ne!(first, second);

        files::write(&root.join("style/node_modules/big"), "not an input").unwrap();
        assert_eq!(second, for_inputs(&root, "dev").unwrap());

        fs::remove_file(root.join("public/file")).unwrap();
        assert_ne!(second, for_inputs(&root, "dev").unwrap());
        files::remove_dir(&root).unwrap();
    }
}
