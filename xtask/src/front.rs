//! The browser side, from sources to a folder that a server can serve.
//!
//! Everything is built into a folder of its own and put in place by a rename, so a server that is running while a build
//! goes on never serves half of it. The order below is the order of the steps; the slow one (WebAssembly) keeps its own
//! cache, so a change of a colour takes seconds.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{assets, compress, css, files, sprite, stamp, wasm, wasm::BuildProfile};

/// Where a finished build lies: the folder a server is given as its site root.
pub(crate) fn site_dir(root: &Path) -> PathBuf {
    root.join("target/site")
}

/// Builds the browser side, or says that nothing has changed since the last time.
///
/// # Errors
/// If a source is wrong, an npm package or the WebAssembly target is missing, or a file cannot be written. The build
/// that is in place stays untouched then.
pub(crate) fn build(root: &Path, profile: BuildProfile) -> Result<()> {
    let site = site_dir(root);
    let stamp = stamp::for_inputs(root, profile.name())?;
    if stamp::matches(&site, &stamp) {
        println!("front: up to date");
        return Ok(());
    }
    let packages = packages(root)?;
    let started = Instant::now();
    let new = site.with_extension("new");
    let pkg = new.join("pkg");
    files::fresh_dir(&pkg)?;

    let bundle = wasm::bundle(root, profile, &packages)?;
    files::copy_dir(&bundle, &pkg)?;
    step("stylesheet", || {
        let sheet = css::inline_imports(&root.join("style/main.css"))?;
        let sheet = if profile == BuildProfile::Release { css::minify(&sheet) } else { sheet };
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
    if profile == BuildProfile::Release {
        step("compression", || compress::all_below(&new))?;
    }
    stamp::write(&new, &stamp)?;
    swap(&new, &site)?;
    println!("front: {} build finished in {}", profile.name(), seconds(started.elapsed()));
    compress::print_sizes(&site)
}

/// Runs one step and says how long it took.
///
/// # Errors
/// Those of the step, with its name in front.
pub(crate) fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    let made = work().with_context(|| format!("{name} failed"))?;
    println!("front: {name} {}", seconds(started.elapsed()));
    Ok(made)
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// The folder of the npm packages.
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

/// Puts a finished folder in the place of the old one. Between the two renames the place is empty for some
/// microseconds; it never holds a mixture.
fn swap(new: &Path, place: &Path) -> Result<()> {
    let old = place.with_extension("old");
    files::remove_dir(&old)?;
    if place.exists() {
        fs::rename(place, &old).with_context(|| format!("cannot move {} aside", place.display()))?;
    }
    fs::rename(new, place).with_context(|| format!("cannot put {} in place", place.display()))?;
    files::remove_dir(&old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_replaces_the_whole_folder_and_leaves_nothing_behind() {
        let base = std::env::temp_dir().join(format!("milvaion-swap-{}", std::process::id()));
        files::fresh_dir(&base).unwrap();
        let (place, new) = (base.join("site"), base.join("site.new"));
        files::write(&place.join("old.css"), "old").unwrap();
        files::write(&new.join("new.css"), "new").unwrap();
        swap(&new, &place).unwrap();
        assert_eq!(files::list(&base).unwrap(), [place.join("new.css")]);
        files::remove_dir(&base).unwrap();
    }
}
