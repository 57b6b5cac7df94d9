//! Licences, sources and use of the dependencies.
//!
//! `cargo deny` and `cargo machete` check the same, but installing them takes longer than the whole test run, and a
//! check that is skipped where its tool is missing is no check. `cargo metadata` reports all that is needed, so this
//! module applies the rules. They stay in `deny.toml`, where `cargo deny` reads them too.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::{Metadata, MetadataCommand, Package};
use regex::Regex;
use serde::Deserialize;
use spdx::{Expression, LicenseReq};

use crate::files;

/// The part of `deny.toml` that is applied here.
#[derive(Deserialize)]
struct DenyConfig {
    licenses: LicenseRules,
    bans: BanRules,
}

/// The licences that may be used.
#[derive(Deserialize)]
struct LicenseRules {
    allow: Vec<String>,
}

/// The crates that may not be used.
#[derive(Deserialize)]
struct BanRules {
    deny: Vec<BannedCrate>,
}

/// A crate that may not be used, with the reason.
#[derive(Deserialize)]
struct BannedCrate {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

/// Checks every package of `Cargo.lock` against `deny.toml`, and that each of our packages uses what it depends on.
///
/// # Errors
/// Returns an error if `cargo metadata` or `cargo tree` fails, a file cannot be read, or a package breaks a rule. The
/// message lists every such package.
pub(crate) fn check(root: &Path) -> Result<()> {
    let metadata = MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .other_options(vec!["--locked".to_owned()])
        .exec()
        .context("cargo metadata failed: is Cargo.lock up to date?")?;
    let used = used_packages(root, &metadata, &["--all-features"])?;
    // A feature of the SDK may bring a crate that our own programs do without.
    let built = used_packages(root, &metadata, &[])?;
    let rules: DenyConfig =
        toml::from_str(&files::read(&root.join("deny.toml"))?).context("deny.toml cannot be read")?;
    let mut broken = license_problems(&used, &rules.licenses)?;
    broken.extend(ban_problems(&built, &rules.bans));
    broken.extend(source_problems(&used));
    broken.extend(unused_dependencies(root, &metadata)?);
    if !broken.is_empty() {
        bail!("dependencies break the rules of deny.toml\n  {}", broken.join("\n  "));
    }
    println!("dependencies: licences, sources and use of {} packages follow deny.toml", used.len());
    Ok(())
}

/// Returns the packages that a build of the workspace with these features compiles on any target.
///
/// `Cargo.lock`, and with it `cargo metadata`, also names optional packages that none of our features enables; `cargo
/// tree` does not.
fn used_packages<'a>(root: &Path, metadata: &'a Metadata, features: &[&str]) -> Result<Vec<&'a Package>> {
    let output = crate::cargo(root)
        .args(["tree", "--workspace", "--target", "all", "--edges", "normal,build,dev"])
        .args(features)
        .args(["--prefix", "none", "--format", "{p}", "--locked"])
        .output()
        .context("cargo tree could not be started")?;
    ensure!(output.status.success(), "cargo tree failed: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).context("cargo tree wrote something that is not UTF-8")?;
    let names: BTreeSet<(&str, &str)> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?, words.next()?.trim_start_matches('v')))
        })
        .collect();
    ensure!(!names.is_empty(), "cargo tree named no package");
    let is_used = |package: &&Package| names.contains(&(package.name.as_str(), package.version.to_string().as_str()));
    Ok(metadata.packages.iter().filter(is_used).collect())
}

fn license_problems(packages: &[&Package], rules: &LicenseRules) -> Result<Vec<String>> {
    let allowed = allowed_licenses(&rules.allow)?;
    let foreign = packages.iter().filter(|package| package.source.is_some());
    Ok(foreign
        .filter_map(|package| {
            let Some(license) = &package.license else {
                // The crates without an expression name a file; none is used today.
                return Some(format!("{} {} names no licence", package.name, package.version));
            };
            let is_allowed = Expression::parse_mode(license, spdx::ParseMode::LAX)
                .is_ok_and(|expression| expression.evaluate(|required| allowed.contains(&normal(required))));
            (!is_allowed).then(|| {
                format!("{} {} has the licence {license}, which is not allowed", package.name, package.version)
            })
        })
        .collect())
}

/// Parses each allowed licence as an expression, so that a misspelled one is an error.
fn allowed_licenses(allow: &[String]) -> Result<BTreeSet<String>> {
    let mut allowed = BTreeSet::new();
    for text in allow {
        let expression =
            Expression::parse(text).with_context(|| format!("deny.toml allows {text}, which is no licence"))?;
        allowed.extend(expression.requirements().map(|required| normal(&required.req)));
    }
    Ok(allowed)
}

fn normal(required: &LicenseReq) -> String {
    required.to_string()
}

fn ban_problems(packages: &[&Package], rules: &BanRules) -> Vec<String> {
    let banned: BTreeMap<&str, &str> = rules.deny.iter().map(|one| (one.name.as_str(), one.reason.as_str())).collect();
    let problem = |package: &Package| {
        banned.get(package.name.as_str()).map(|reason| format!("{} must not be used: {reason}", package.name))
    };
    packages.iter().copied().filter_map(problem).collect()
}

/// Names each package that comes from neither this repository nor the one registry.
fn source_problems(packages: &[&Package]) -> Vec<String> {
    let mut registries = BTreeSet::new();
    let mut broken = Vec::new();
    for package in packages {
        let Some(source) = &package.source else { continue };
        if source.repr.starts_with("registry+") || source.repr.starts_with("sparse+") {
            registries.insert(source.repr.clone());
        } else {
            broken.push(format!("{} {} comes from {source}, not from the registry", package.name, package.version));
        }
    }
    if registries.len() > 1 {
        broken.push(format!("packages come from {} registries: one is allowed", registries.len()));
    }
    broken
}

/// Names each dependency of our packages whose name occurs in none of their files.
///
/// A dependency that only enables a feature is listed in its manifest under `[package.metadata.unused]` with a reason.
fn unused_dependencies(root: &Path, metadata: &Metadata) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for package in metadata.workspace_packages() {
        let folder = package.manifest_path.parent().context("a manifest has a folder")?;
        let folder = folder.strip_prefix(root.to_str().unwrap_or_default()).unwrap_or(folder);
        let others: Vec<_> = metadata
            .workspace_packages()
            .into_iter()
            .filter_map(|other| other.manifest_path.parent())
            .filter_map(|other| other.strip_prefix(root.to_str().unwrap_or_default()).ok())
            .filter(|other| *other != folder && other.starts_with(folder))
            .collect();
        let mut code = String::new();
        for path in files::tracked(root)? {
            let is_ours = path.starts_with(folder.as_std_path())
                && !others.iter().any(|other| path.starts_with(other.as_std_path()));
            if is_ours && path.extension().is_some_and(|extension| extension == "rs") {
                code.push_str(&files::read(&root.join(&path))?);
            }
        }
        let excepted = &package.metadata["unused"];
        for dependency in &package.dependencies {
            let name = dependency.rename.as_ref().unwrap_or(&dependency.name);
            let word = Regex::new(&format!(r"\b{}\b", regex::escape(&name.replace('-', "_"))))?;
            if !word.is_match(&code) && excepted.get(name.as_str()).is_none() {
                broken.push(format!("{} depends on {name} and does not use it", package.name));
            }
        }
    }
    Ok(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_allowed(license: &str) -> bool {
        let allowed = allowed_licenses(&["MIT".into(), "Apache-2.0 WITH LLVM-exception".into()]).expect("licences");
        let expression = Expression::parse_mode(license, spdx::ParseMode::LAX).expect("a licence");
        expression.evaluate(|required| allowed.contains(&normal(required)))
    }

    #[test]
    fn one_allowed_side_of_a_choice_is_enough() {
        assert!(is_allowed("MIT") && is_allowed("GPL-3.0-only OR MIT") && is_allowed("MIT/Apache-2.0"));
        assert!(is_allowed("Apache-2.0 WITH LLVM-exception"));
        assert!(!is_allowed("GPL-3.0-only") && !is_allowed("MIT AND GPL-3.0-only") && !is_allowed("Apache-2.0"));
    }
}
