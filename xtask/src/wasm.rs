//! `app` as WebAssembly, with the script that loads it.
//!
//! cargo compiles the crate, wasm-bindgen writes the script and the bindings, and wasm-opt makes the file smaller. The
//! last two and the compression take most of the build time and depend only on cargo's output. Their result is cached
//! in `target/xtask` and reused while that output and this program are unchanged.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use wasm_bindgen_cli_support::Bindgen;

use crate::{cargo, compress, files, front::step, run_command, stamp, target_dir};

const WASM_TARGET: &str = "wasm32-unknown-unknown";

/// The extensions of the first WebAssembly version that rustc uses today and every current browser supports.
const WASM_FEATURES: [&str; 6] = [
    "--enable-bulk-memory",
    "--enable-multivalue",
    "--enable-mutable-globals",
    "--enable-nontrapping-float-to-int",
    "--enable-reference-types",
    "--enable-sign-ext",
];

/// The profile of a build: the effort spent on the size of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuildProfile {
    /// Fast to build, with names in stack traces, not compressed.
    Dev,
    /// Small: optimised for size by the compiler and by wasm-opt, and compressed.
    Release,
}

impl BuildProfile {
    /// Returns the profile's name in messages and stamps.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Release => "release",
        }
    }

    /// Returns cargo's profile and its output folder.
    const fn cargo(self) -> (&'static str, &'static str) {
        match self {
            Self::Dev => ("dev", "debug"),
            Self::Release => ("wasm-release", "wasm-release"),
        }
    }
}

/// Builds the script and the WebAssembly file. Returns their folder.
///
/// # Errors
/// Returns an error if the target is not installed, `app` does not compile, or a tool rejects the result.
pub(crate) fn bundle(root: &Path, profile: BuildProfile, packages: &Path) -> Result<PathBuf> {
    let compiled = step("cargo", || compile(root, profile))?;
    let folder = target_dir(root).join("xtask").join(profile.name());
    let tool = std::env::current_exe().context("cannot find this program's own file")?;
    let key = format!("{}\n{}\n", stamp::for_file(&compiled)?, stamp::for_file(&tool)?);
    let key_file = folder.with_extension("key");
    if folder.is_dir() && fs::read_to_string(&key_file).is_ok_and(|found| found == key) {
        println!("front: WebAssembly unchanged");
        return Ok(folder);
    }
    // The key is removed first and written last, so that an interrupted build does not count as a finished one.
    if key_file.exists() {
        fs::remove_file(&key_file).with_context(|| format!("cannot remove {}", key_file.display()))?;
    }
    files::fresh_dir(&folder)?;
    let module = step("wasm-bindgen", || bind(&compiled, &folder, profile))?;
    if profile == BuildProfile::Release {
        step("wasm-opt", || optimise(&module, packages))?;
        step("compression of script and wasm", || compress::all_below(&folder))?;
    }
    files::write(&key_file, key)?;
    Ok(folder)
}

/// Compiles `app` for the browser. Returns cargo's output file.
fn compile(root: &Path, profile: BuildProfile) -> Result<PathBuf> {
    let (name, folder) = profile.cargo();
    run_command(
        cargo(root)
            .args(["build", "--package", "milvaion-app", "--lib", "--no-default-features", "--features", "hydrate"])
            .args(["--target", WASM_TARGET, "--profile", name]),
        "see the compiler's messages above; if the target is missing, run `make install`",
    )?;
    let output = target_dir(root).join(WASM_TARGET).join(folder).join("milvaion_app.wasm");
    ensure!(output.is_file(), "cargo wrote no {}: `app` must be a cdylib", output.display());
    Ok(output)
}

/// Writes the script and the module with bindings. Returns the module's path. The page passes the module's URL to the
/// script and expects it under the script's name, without the suffix that wasm-bindgen adds.
fn bind(compiled: &Path, folder: &Path, profile: BuildProfile) -> Result<PathBuf> {
    let dev = profile == BuildProfile::Dev;
    Bindgen::new()
        .web(true)?
        .typescript(false)
        .omit_default_module_path(true)
        .debug(dev)
        .keep_debug(dev)
        .remove_name_section(!dev)
        .remove_producers_section(!dev)
        .input_path(compiled)
        .out_name("app")
        .generate(folder)?;
    let module = folder.join("app.wasm");
    fs::rename(folder.join("app_bg.wasm"), &module).context("wasm-bindgen wrote no app_bg.wasm")?;
    Ok(module)
}

/// Reduces the size of the module, in place.
fn optimise(module: &Path, packages: &Path) -> Result<()> {
    let small = module.with_extension("small");
    run_command(
        Command::new(packages.join(".bin/wasm-opt")).arg("-Oz").args(WASM_FEATURES).arg("-o").arg(&small).arg(module),
        "it comes with the npm packages and needs node: run `make install`",
    )?;
    fs::rename(&small, module).context("wasm-opt wrote no file")?;
    Ok(())
}
