//! Paths inside the repository.

use std::path::{Path, PathBuf};

/// Returns the repository's root folder, independent of the working directory.
///
/// # Panics
///
/// Never: this crate is two folders below the root.
#[must_use]
pub fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate is in end2end/support").to_owned()
}
