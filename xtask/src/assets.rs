//! Files that are shipped unchanged: the fonts, and the licences of the fonts and icons.

use std::path::Path;

use anyhow::Result;

use crate::files;

/// The fonts: package, file in the package, name on the server. Each is one variable file with all weights. The
/// extended alphabet has its own file, which a browser loads only when a page needs it.
const FONT_FILES: [(&str, &str, &str); 4] = [
    ("inter", "inter-latin-wght-normal", "inter-latin"),
    ("inter", "inter-latin-ext-wght-normal", "inter-latin-ext"),
    ("jetbrains-mono", "jetbrains-mono-latin-wght-normal", "jetbrains-mono-latin"),
    ("jetbrains-mono", "jetbrains-mono-latin-ext-wght-normal", "jetbrains-mono-latin-ext"),
];

/// Copies the fonts to `pkg/fonts`.
///
/// # Errors
/// Returns an error if a font is missing from its package.
pub(crate) fn copy_fonts(packages: &Path, pkg: &Path) -> Result<()> {
    for (package, file, name) in FONT_FILES {
        let from = packages.join("@fontsource-variable").join(package).join("files").join(file).with_extension("woff2");
        files::copy(&from, &pkg.join("fonts").join(name).with_extension("woff2"))?;
    }
    Ok(())
}

/// Copies the licences to `pkg/licences`. Both the OFL and the ISC licence require that they accompany the files.
///
/// # Errors
/// Returns an error if a licence is missing from its package.
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
