//! The build steps that neither cargo nor make can do, as `cargo xtask <task>`.
//!
//! A page needs a script, a WebAssembly file, one stylesheet, one icon sprite and four fonts. Ready-made tools for this
//! exist, but each takes longer to install than this whole crate takes to compile, and some download further tools when
//! they run. So this crate builds the browser side from three libraries and a few hundred lines, and a build needs
//! nothing but cargo and the packages listed in `style/package.json`.
//!
//! The task `prepare` records PostgreSQL's description of each query of the server, so that the server compiles on a
//! machine without a database. The record is in the repository, and the tests fail when it is out of date. The task
//! `settings` generates the tables of `docs/configuration.md`, the task `lint` runs the checks that cargo lacks, and the
//! task `budget` limits what the tests may start and how long each may take.
//!
//! Reading order: [`front`] lists the steps of the build, and each step is one module named after its product.
//! [`local`] also builds the rest of what `make run` starts, and [`progress`] counts its crates. [`sizes`] limits what a
//! browser downloads, and [`why`] shows what that consists of.
//! [`prepare`], [`settings`], [`budget`] and the modules of `lint` ([`prose`], [`links`], [`dependencies`],
//! [`weight`]) stand alone.
//! `tokens` and `colour` are only tests; they check the contrast of the palette.

mod archive;
mod assets;
mod budget;
#[cfg(test)]
mod colour;
mod compress;
mod css;
mod dependencies;
mod files;
mod front;
mod links;
mod local;
mod prepare;
mod progress;
mod prose;
mod scratch_database;
mod settings;
mod sizes;
mod sprite;
mod stamp;
#[cfg(test)]
mod tokens;
mod wasm;
mod weight;
mod why;

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail, ensure};

const USAGE: &str = "usage: cargo xtask <task>
  front [--local | --release]
                      build the browser side into target/site (local: as for `make run`; release: optimised, pre-compressed)
  local               build everything that `make run` starts, and print the progress
  sizes [--estimate | --check | --why PAGE]
                      print the transfer sizes of the pages, estimate those of a release build from a local one, fail if
                      one exceeds its limit (release build), or print the crates and functions that a page consists of
  prepare [--check]   record the server's queries in server/.sqlx, or fail if the record is out of date
  settings [--check]  write the tables of docs/configuration.md, or fail if they are out of date
  lint                check the language, the links of the documents, the dependencies, and the circles of files
  weight [EXPRESSION] print the lines of Rust and the circles of files, or the files in which an expression matches
  budget [--all]      print the times and counts of the last `make test`, and fail if one exceeds its limit (--all: print
                      those of the last `make test-all`, without limits)";

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
    let site = front::site_dir(&root);
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["front"] => front::build(&root, wasm::BuildProfile::Dev, &site),
        ["front", "--local"] => front::build(&root, wasm::BuildProfile::Local, &site),
        ["front", "--release"] => front::build(&root, wasm::BuildProfile::Release, &site),
        ["local"] => local::build(&root),
        ["sizes"] => sizes::print(&site),
        ["sizes", "--estimate"] => sizes::estimate(&site),
        ["sizes", "--check"] => sizes::check(&site),
        ["sizes", "--why", page] => why::print(&root, page),
        ["prepare"] => prepare::write(&root),
        ["prepare", "--check"] => prepare::check(&root),
        ["settings"] => settings::write(&root),
        ["settings", "--check"] => settings::check(&root),
        ["lint"] => lint(&root),
        ["weight"] => weight::print(&root, None),
        ["weight", word] => weight::print(&root, Some(word)),
        ["budget"] => budget::check(&root),
        ["budget", "--all"] => budget::print(&root),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        [] => bail!("no task given\n{USAGE}"),
        other => bail!("unknown task or option: {}\n{USAGE}", other.join(" ")),
    }
}

/// Runs every check, so that one failure does not hide another.
fn lint(root: &Path) -> Result<()> {
    let results =
        [prose::check(root), links::check(root), settings::check(root), dependencies::check(root), weight::check(root)];
    let failures: Vec<String> = results.into_iter().filter_map(Result::err).map(|error| format!("{error:#}")).collect();
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Returns the folder of the workspace, whatever the working folder is. `cargo run` sets it in the environment; a
/// program that is started directly uses the folder in which it was compiled.
fn root() -> Result<PathBuf> {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let root = Path::new(&here).parent().context("xtask has no parent folder")?;
    ensure!(root.join("Cargo.toml").is_file(), "{} is not the workspace: start this as `cargo xtask`", root.display());
    Ok(root.to_path_buf())
}

/// Returns a command for the cargo that started this task, with the workspace as its working folder. The tests are compiled
/// by clippy, which does not optimise as well; programs for users are not.
fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).env_remove("RUSTC_WORKSPACE_WRAPPER").env_remove("CLIPPY_ARGS");
    command
}

/// Returns cargo's output folder: `target`, unless `CARGO_TARGET_DIR` names another.
fn target_dir(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

/// Runs a command until it exits, and shows its output.
///
/// # Errors
/// Returns an error if the program cannot be started or fails. The message names it and ends with `remedy`.
fn run_command(command: &mut Command, remedy: &str) -> Result<()> {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("{name} could not be started: {remedy}"))?;
    ensure!(status.success(), "{name} failed ({status}): {remedy}");
    Ok(())
}
