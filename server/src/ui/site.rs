//! The compiled browser side, as `cargo xtask front` publishes it in the site root.
//!
//! `build.txt` names the build, whose files are in `pkg/<build>/`. The server reads both once at its start. A server that
//! is started before the first build, as in most tests, serves pages without scripts and style.

use std::{fs, path::Path};

use milvaion_app::shell::SiteAssets;

/// Reads the browser side below `site_root`. Without a build, the server logs a warning and serves bare pages.
pub(crate) fn read(site_root: &Path) -> SiteAssets {
    match try_read(site_root) {
        Ok(assets) => assets,
        Err(error) => {
            tracing::warn!(
                "the browser side in {} cannot be read ({error}); build it with `cargo xtask front` or set SITE_ROOT",
                site_root.display()
            );
            SiteAssets::default()
        }
    }
}

fn try_read(site_root: &Path) -> std::io::Result<SiteAssets> {
    let build = fs::read_to_string(site_root.join("build.txt"))?.trim().to_owned();
    let icons = fs::read_to_string(site_root.join("pkg").join(&build).join("icons.svg"))?;
    Ok(SiteAssets { build, icons })
}

/// Returns the folder of the build's files, relative to the site root and to the server's address.
pub(super) fn pkg_dir(site: &SiteAssets) -> String {
    if site.build.is_empty() { "pkg".to_owned() } else { format!("pkg/{}", site.build) }
}
