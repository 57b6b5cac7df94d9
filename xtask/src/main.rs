//! The build steps that neither cargo nor make can do, as `cargo xtask <task>`.
//!
//! A page needs a script, a WebAssembly file, one stylesheet, one icon sprite and four fonts. Ready-made tools for this
//! exist, but each takes longer to install than the whole of this crate takes to compile, and some fetch further tools
//! while they run. So the browser side is put together here from three libraries and a few hundred lines, and a build
//! needs nothing but cargo and the packages listed in `style/package.json`.
//!
//! The second task, `prepare`, records what PostgreSQL says about each query of the server, so that the server compiles
//! on a machine without a database. The record is kept in the repository, and the build fails when it is out of date.
//!
//! How to read it: [`front`] is the order of the steps; each step is one module named after what it makes. [`prepare`]
//! stands alone. [`tokens`] and [`colour`] are tests only: they hold the palette to its contrast figures.

mod assets;
#[cfg(test)]
mod colour;
mod compress;
mod css;
mod files;
mod front;
mod prepare;
mod scratch_database;
mod sprite;
mod stamp;
#[cfg(test)]
mod tokens;
mod wasm;

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail, ensure};

const USAGE: &str = "usage: cargo xtask <task>
  front [--release]   build the browser side into target/site (release: optimised and pre-compressed)
  sizes               print what a page costs to load, from the last build
  prepare [--check]   record the server's queries in server/.sqlx, or fail if the record is out of date";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let root = root()?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["front"] => front::build(&root, wasm::BuildProfile::Dev),
        ["front", "--release"] => front::build(&root, wasm::BuildProfile::Release),
        ["sizes"] => compress::print_sizes(&front::site_dir(&root)),
        ["prepare"] => prepare::write(&root),
        ["prepare", "--check"] => prepare::check(&root),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        [] => bail!("no task given\n{USAGE}"),
        other => bail!("unknown task or option: {}\n{USAGE}", other.join(" ")),
    }
}

/// The folder of the workspace, wherever the task was started from. `cargo run` says where; a program that is started
/// by hand looks where it was compiled.
fn root() -> Result<PathBuf> {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let root = Path::new(&here).parent().context("xtask has no parent folder")?;
    ensure!(root.join("Cargo.toml").is_file(), "{} is not the workspace: start this as `cargo xtask`", root.display());
    Ok(root.to_path_buf())
}

/// The cargo that started this task, to be run in the workspace's folder.
fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// Cargo's output folder: `target`, unless `CARGO_TARGET_DIR` names another.
fn target_dir(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

/// Runs a command to its end with its output shown.
///
/// # Errors
/// If the program cannot be started or ends with a failure; the message names it and ends with `remedy`.
fn run_command(command: &mut Command, remedy: &str) -> Result<()> {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("{name} could not be started: {remedy}"))?;
    ensure!(status.success(), "{name} failed ({status}): {remedy}");
    Ok(())
}
