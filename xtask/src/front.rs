//! The browser side, built from its sources into a folder that a server can serve.
//!
//! A build goes into a new folder, which a rename puts in place at the end, so a running server never serves a partial
//! build. The code below lists the steps in their order. The slow one (WebAssembly) has its own cache, so a change of a
//! colour takes seconds.
//!
//! The files are published below `pkg/<build>/`, where the build is a hash of all of them. A browser may therefore keep
//! each file for ever, and a page never loads files of two builds. `build.txt` names the build for the server.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, ensure};

use crate::{
    assets, compress, css, files, sizes, sprite, stamp,
    wasm::{self, BuildProfile, seconds, step},
};

/// The file that names the build, in the site root.
const BUILD_FILE: &str = "build.txt";

/// Returns the folder of a finished build, which is the default site root of a server.
pub(crate) fn site_dir(root: &Path) -> PathBuf {
    root.join("target/site")
}

/// Returns the folder of the build that `make run` serves. It is another one, so that a build for the tests does not
/// replace the files of a running server.
pub(crate) fn local_site_dir(root: &Path) -> PathBuf {
    root.join("target/site-local")
}

/// Builds the browser side into the folder `site`, or prints that it is up to date.
///
/// # Errors
/// Returns an error if a source is invalid, an npm package or the WebAssembly target is missing, or a file cannot be
/// written. The existing build then stays unchanged.
pub(crate) fn build(root: &Path, profile: BuildProfile, site: &Path) -> Result<()> {
    let stamp = stamp::for_inputs(root, profile.name())?;
    if stamp::matches(site, &stamp) {
        println!("front: up to date");
        return Ok(());
    }
    let packages = packages(root)?;
    let started = Instant::now();
    let new = site.with_extension("new");
    let pkg = new.join("pkg/building");
    files::fresh_dir(&pkg)?;

    let bundle = wasm::bundle(root, profile, &packages)?;
    files::copy_dir(&bundle, &pkg)?;
    step("stylesheet", || {
        let sheet = css::inline_imports(&root.join("style/main.css"))?;
        let sheet = if profile == BuildProfile::Dev { sheet } else { css::minify(&sheet) };
        files::write(&pkg.join("app.css"), sheet)
    })?;
    step("icons", || {
        let names = files::read(&root.join("style/icons.txt"))?;
        let sprite = sprite::build(&names, &packages.join("lucide-static/icons"))?;
        files::write(&pkg.join("icons.svg"), sprite)
    })?;
    step("fonts and public files", || {
        assets::copy_fonts(&packages, &pkg)?;
        assets::copy_licences(&packages, &pkg)?;
        files::copy_dir(&root.join("public"), &new)
    })?;
    if let Some(effort) = profile.compression() {
        step("compression", || compress::all_below(&new, effort))?;
    }
    let build = name_build(&pkg)?;
    files::write(&new.join(BUILD_FILE), &build)?;
    stamp::write(&new, &stamp)?;
    swap(&new, site)?;
    println!("front: {} build finished in {}", profile.name(), seconds(started.elapsed()));
    // Sizes and their limits mean nothing for a build that was made to be fast.
    if profile == BuildProfile::Local { Ok(()) } else { sizes::print(site) }
}

/// Renames the folder of the files to a hash of their names and contents. Returns the hash.
fn name_build(pkg: &Path) -> Result<String> {
    let mut hash = DefaultHasher::new();
    for path in files::list(pkg)? {
        path.strip_prefix(pkg).unwrap_or(&path).hash(&mut hash);
        fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?.hash(&mut hash);
    }
    let build = format!("{:016x}", hash.finish());
    let named = pkg.with_file_name(&build);
    fs::rename(pkg, &named).with_context(|| format!("cannot rename {}", pkg.display()))?;
    Ok(build)
}

/// Returns the folder of the npm packages.
fn packages(root: &Path) -> Result<PathBuf> {
    let packages = root.join("style/node_modules");
    for package in ["lucide-static", "binaryen", "@fontsource-variable/inter", "@fontsource-variable/jetbrains-mono"] {
        ensure!(
            packages.join(package).is_dir(),
            "npm packages are missing (no {package} in style/node_modules): run `make install`"
        );
    }
    Ok(packages)
}

/// Replaces the old folder with a finished one. Between the two renames the path is missing for some microseconds, but
/// it never names a mixture of both.
fn swap(new: &Path, site: &Path) -> Result<()> {
    let old = site.with_extension("old");
    files::remove_dir(&old)?;
    if site.exists() {
        fs::rename(site, &old).with_context(|| format!("cannot rename {}", site.display()))?;
    }
    fs::rename(new, site).with_context(|| format!("cannot rename {} to {}", new.display(), site.display()))?;
    files::remove_dir(&old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_name_follows_the_content() {
        let base = std::env::temp_dir().join(format!("milvaion-build-name-{}", std::process::id()));
        let name = |text: &str| {
            files::fresh_dir(&base).unwrap();
            files::write(&base.join("pkg/building/app.js"), text).unwrap();
            name_build(&base.join("pkg/building")).unwrap()
        };
        let first = name("one");
        assert_eq!(name("one"), first);
        assert_ne!(name("two"), first);
        assert!(!base.join("pkg/building").exists());
        files::remove_dir(&base).unwrap();
    }

    #[test]
    fn swap_replaces_the_whole_folder() {
        let base = std::env::temp_dir().join(format!("milvaion-swap-{}", std::process::id()));
        files::fresh_dir(&base).unwrap();
        let (site, new) = (base.join("site"), base.join("site.new"));
        files::write(&site.join("old.css"), "old").unwrap();
        files::write(&new.join("new.css"), "new").unwrap();
        swap(&new, &site).unwrap();
        assert_eq!(files::list(&base).unwrap(), [site.join("new.css")]);
        files::remove_dir(&base).unwrap();
    }
}
