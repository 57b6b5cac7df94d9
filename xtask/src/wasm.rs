//! `app` as WebAssembly, with the script that loads it.
//!
//! cargo compiles the crate. The splitter cuts the module at each page, so that a browser loads only the code of the
//! pages that a user opens. wasm-bindgen writes the script and the bindings of the main module, and Binaryen makes every
//! module smaller. The modules of one build refer to each other by table index, so they are only valid together: they
//! are published in one folder whose name is a hash of all of them.
//!
//! Everything after cargo depends only on cargo's output. Its result is cached in `target/xtask` and reused while that
//! output and these programs are unchanged.

use std::{
    cmp::Reverse,
    fs,
    num::NonZero,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use wasm_bindgen_cli_support::Bindgen;
use wasm_split_cli_support::Options;

use crate::{archive, cargo, compress, compress::CompressionEffort, files, run_command, stamp, target_dir};

const WASM_TARGET: &str = "wasm32-unknown-unknown";

/// The package, its features and its target, as options of cargo.
pub(crate) const CARGO_SELECTION: [&str; 7] =
    ["--package", "milvaion-app", "--no-default-features", "--features", "hydrate", "--target", WASM_TARGET];

/// The script that loads the modules of pages. Leptos expects this name.
const CHUNK_LOADER: &str = "./__wasm_split.______________________.js";
/// The list of the modules that each page needs. The server reads it to preload them. Leptos expects this name.
pub(crate) const CHUNK_MANIFEST: &str = "__wasm_split_manifest.json";

/// The script that reduces the size of modules.
const OPTIMISER: &str = "xtask/wasm-opt.mjs";

/// The profile of a build: the effort spent on the size of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuildProfile {
    /// Fast to build, with names in stack traces, not compressed.
    Dev,
    /// For trying the product on the own machine: fast to build from nothing, without Binaryen.
    Local,
    /// Small: optimised for size by the compiler and by Binaryen, and compressed.
    Release,
}

impl BuildProfile {
    /// Returns the profile's name in messages and stamps.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Local => "local",
            Self::Release => "release",
        }
    }

    /// Returns cargo's profile and its output folder.
    const fn cargo(self) -> (&'static str, &'static str) {
        match self {
            Self::Dev => ("dev", "debug"),
            Self::Local => ("local", "local"),
            Self::Release => ("wasm-release", "wasm-release"),
        }
    }

    /// Returns the effort spent on compressed copies, or none if there are no copies.
    pub(crate) const fn compression(self) -> Option<CompressionEffort> {
        match self {
            Self::Dev => None,
            Self::Local => Some(CompressionEffort::Fast),
            Self::Release => Some(CompressionEffort::Best),
        }
    }
}

/// Runs one step of the build of the browser side and prints its duration.
///
/// # Errors
/// Returns the error of the step, with the step's name in front.
pub(crate) fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    let result = work().with_context(|| format!("{name} failed"))?;
    println!("front: {name} {}", seconds(started.elapsed()));
    Ok(result)
}

/// Returns a duration for messages.
pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Builds the script and the WebAssembly file. Returns their folder.
///
/// # Errors
/// Returns an error if the target is not installed, `app` does not compile, or a tool rejects the result.
pub(crate) fn bundle(root: &Path, profile: BuildProfile, packages: &Path) -> Result<PathBuf> {
    let compiled = step("cargo", || compile(root, profile))?;
    let folder = target_dir(root).join("xtask").join(profile.name());
    let tool = std::env::current_exe().context("cannot find this program's own file")?;
    let script = root.join(OPTIMISER);
    let key = [&compiled, &tool, &script].into_iter().map(|file| stamp::for_file(file)).collect::<Result<Vec<_>>>()?;
    let key = key.join("\n");
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
    let main = folder.join("main.wasm");
    let mut modules = step("split into modules", || split(&compiled, &folder, &main))?;
    modules.push(step("wasm-bindgen", || bind(&main, &folder, profile))?);
    fs::remove_file(&main).context("cannot remove the module that wasm-bindgen has read")?;
    if profile == BuildProfile::Release {
        step("wasm-opt", || optimise_all(&script, &modules, packages))?;
    }
    step("archives of pages", || archive::pack(&folder, &folder.join(CHUNK_MANIFEST), &folder.join(CHUNK_LOADER)))?;
    if let Some(effort) = profile.compression() {
        step("compression of script and wasm", || compress::all_below(&folder, effort))?;
    }
    files::write(&key_file, key)?;
    Ok(folder)
}

/// Compiles `app` for the browser. Returns cargo's output file.
fn compile(root: &Path, profile: BuildProfile) -> Result<PathBuf> {
    run_command(
        &mut cargo_command(root, profile, &[]),
        "see the compiler's messages above; if the target is missing, run `make install`",
    )?;
    let output = output(root, profile);
    ensure!(output.is_file(), "cargo wrote no {}", output.display());
    Ok(output)
}

/// Returns the path of cargo's output.
fn output(root: &Path, profile: BuildProfile) -> PathBuf {
    let (_, folder) = profile.cargo();
    target_dir(root).join(WASM_TARGET).join(folder).join("milvaion_app.wasm")
}

/// Cuts the last output of cargo into modules that keep the names of functions, in a folder of their own. Returns that
/// output and the folder.
///
/// # Errors
/// Returns an error if there is no output, or the splitter rejects it.
pub(crate) fn split_last_output(root: &Path) -> Result<(PathBuf, PathBuf)> {
    let outputs = [BuildProfile::Dev, BuildProfile::Local, BuildProfile::Release].map(|profile| output(root, profile));
    let dated = outputs.into_iter().filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)));
    let (_, compiled) = dated.max().context("there is no build: run `cargo xtask front --local`")?;
    let folder = target_dir(root).join("xtask/why");
    files::fresh_dir(&folder)?;
    split(&compiled, &folder, &folder.join("app.wasm"))?;
    Ok((compiled, folder))
}

/// Returns the command that compiles `app` for the browser, with more options of cargo.
///
/// The crate type is given here and not in the manifest: cargo omits link-time optimisation without a message if a crate
/// has several types and one of them, such as `rlib`, cannot have it.
pub(crate) fn cargo_command(root: &Path, profile: BuildProfile, options: &[&str]) -> Command {
    let (name, _) = profile.cargo();
    let mut command = cargo(root);
    command
        .arg("rustc")
        .args(CARGO_SELECTION)
        .args(["--lib", "--crate-type", "cdylib", "--profile", name])
        .args(options);
    // The splitter needs the relocations to find the functions that each page refers to.
    command.args(["--", "-C", "link-args=--emit-relocs"]);
    command
}

/// Cuts cargo's output into the main module, written to `main`, and the modules of pages, written to `folder` with the
/// script that loads them. Returns the paths of the modules of pages.
fn split(compiled: &Path, folder: &Path, main: &Path) -> Result<Vec<PathBuf>> {
    let input = fs::read(compiled).with_context(|| format!("cannot read {}", compiled.display()))?;
    let mut options = Options::new(&input);
    options.output_dir = folder;
    options.main_out_path = main;
    options.main_module = "./app.js";
    options.link_name = CHUNK_LOADER;
    let split = wasm_split_cli_support::transform(options).map_err(|error| anyhow!("{error:#}"))?;
    // In a fixed order, so that equal sources give equal files.
    let manifest: archive::Manifest = split.prefetch_map.into_iter().collect();
    files::write(&folder.join(CHUNK_MANIFEST), serde_json::to_string_pretty(&manifest)?)?;
    Ok(split.split_modules)
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
        // The modules of pages import functions of the main module under the names that the linker gave them.
        .keep_lld_exports(true)
        .demangle(false)
        .remove_producers_section(!dev)
        .input_path(compiled)
        .out_name("app")
        .generate(folder)?;
    let module = folder.join("app.wasm");
    fs::rename(folder.join("app_bg.wasm"), &module).context("wasm-bindgen wrote no app_bg.wasm")?;
    Ok(module)
}

/// Reduces the size of the modules, in place, with one process on each core.
fn optimise_all(script: &Path, modules: &[PathBuf], packages: &Path) -> Result<()> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let running: Vec<_> = shares(modules, cores)?
            .into_iter()
            .map(|share| scope.spawn(move || optimise(script, &share, packages)))
            .collect();
        running
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread that ran {OPTIMISER} panicked"))?)
    })
}

/// Divides the modules into at most `count` shares of about the same size: the largest module first, each to the smallest
/// share.
fn shares(modules: &[PathBuf], count: usize) -> Result<Vec<Vec<PathBuf>>> {
    let mut sized = Vec::new();
    for module in modules {
        let size = fs::metadata(module).with_context(|| format!("cannot read {}", module.display()))?.len();
        sized.push((size, module));
    }
    sized.sort_by_key(|(size, _)| Reverse(*size));
    let mut shares: Vec<(u64, Vec<PathBuf>)> = vec![(0, Vec::new()); count];
    for (size, module) in sized {
        if let Some((total, share)) = shares.iter_mut().min_by_key(|(total, _)| *total) {
            *total += size;
            share.push(module.clone());
        }
    }
    Ok(shares.into_iter().map(|(_, share)| share).filter(|share| !share.is_empty()).collect())
}

/// Reduces the size of some modules, in place.
fn optimise(script: &Path, modules: &[PathBuf], packages: &Path) -> Result<()> {
    const REMEDY: &str = "it needs node and the npm packages: run `make install`";
    let mut command = Command::new("node");
    command.arg(script).arg(packages).args(modules);
    // Its output is shown only if it fails: it warns of each part of the splitter's name section that it does not know.
    let output = command.output().with_context(|| format!("{OPTIMISER} could not be started: {REMEDY}"))?;
    ensure!(
        output.status.success(),
        "{OPTIMISER} failed ({}): {REMEDY}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
