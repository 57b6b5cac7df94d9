//! Files that are shipped as they are: fonts, and the licences they and the icons come with.

use std::path::Path;

use anyhow::Result;

use crate::files;

/// The fonts in use: package, file in the package, name on the server. One variable file each carries all weights; the
/// wider alphabet is a file of its own that a browser loads only when a page needs it.
const FONT_FILES: [(&str, &str, &str); 4] = [
    ("inter", "inter-latin-wght-normal", "inter-latin"),
    ("inter", "inter-latin-ext-wght-normal", "inter-latin-ext"),
    ("jetbrains-mono", "jetbrains-mono-latin-wght-normal", "jetbrains-mono-latin"),
    ("jetbrains-mono", "jetbrains-mono-latin-ext-wght-normal", "jetbrains-mono-latin-ext"),
];

/// Copies the fonts to `pkg/fonts`.
///
/// # Errors
/// If one is missing from its package.
pub(crate) fn copy_fonts(packages: &Path, pkg: &Path) -> Result<()> {
    for (package, file, name) in FONT_FILES {
        let from = packages.join("@fontsource-variable").join(package).join("files").join(file).with_extension("woff2");
        files::copy(&from, &pkg.join("fonts").join(name).with_extension("woff2"))?;
    }
    Ok(())
}

/// Copies the licences to `pkg/licences`; both the OFL and the ISC licence ask that they travel with the files.
///
/// # Errors
/// If one is missing from its package.
pub(crate) fn copy_licences(packages: &Path, pkg: &Path) -> Result<()> {
    for (package, name) in [
        ("@fontsource-variable/inter", "inter"),
        ("@fontsource-variable/jetbrains-mono", "jetbrains-mono"),
        ("lucide-static", "lucide"),
    ] {
        files::copy(&packages.join(package).join("LICENSE"), &pkg.join("licences").join(name).with_extension("txt"))?;
    }
    Ok(())
}
