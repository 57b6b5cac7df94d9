//! The Python that runs workers.

use std::process::{Command, Stdio};

/// Returns the Python that has these packages. Debian's Python is tried first, because its packages are installed for it.
///
/// # Panics
///
/// Panics if no Python has them.
#[must_use]
pub fn with_packages(packages: &str) -> &'static str {
    let has_all = |python: &&str| {
        let import = format!("import {packages}");
        let imported = Command::new(python).args(["-c", &import]).stderr(Stdio::null()).status();
        imported.is_ok_and(|status| status.success())
    };
    let found = ["/usr/bin/python3", "python3"].into_iter().find(has_all);
    found.unwrap_or_else(|| panic!("no Python with {packages}: `sh xtask/install.sh test` installs these packages"))
}
