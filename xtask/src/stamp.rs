//! Whether a build would change anything.
//!
//! A stamp is the list of all inputs with length and time of change, and the profile. It is compared as a whole, not by
//! "newer than": a file that was removed, or that a checkout gave an older time, is a change too.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use anyhow::{Context, Result};

use crate::files;

/// What the browser side is made from, relative to the workspace. `Cargo.toml` and `.cargo` carry the profile and the
/// environment of the build.
const BUILD_INPUTS: [&str; 10] =
    ["app", "api", "protocol", "schedule", "style", "public", "xtask", "Cargo.lock", "Cargo.toml", ".cargo"];

/// The name of the stamp inside the site's folder.
const STAMP_FILE_NAME: &str = ".stamp";

/// Describes the inputs as they are now.
///
/// # Errors
/// If one of them cannot be read.
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

/// Describes one file: path, length, and time of change in nanoseconds.
///
/// # Errors
/// If the file cannot be read.
pub(crate) fn for_file(path: &Path) -> Result<String> {
    let about = fs::metadata(path).with_context(|| format!("cannot find {}", path.display()))?;
    let changed = about.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Ok(format!("{} {} {}", path.display(), about.len(), changed.map_or(0, |age| age.as_nanos())))
}

/// Whether the finished build in `folder` was made from exactly this stamp.
pub(crate) fn matches(folder: &Path, stamp: &str) -> bool {
    fs::read_to_string(at(folder)).is_ok_and(|found| found == stamp)
}

/// Puts a stamp into a finished build.
///
/// # Errors
/// If it cannot be written.
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
    fn a_changed_or_removed_input_makes_another_stamp() {
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
