//! One file for each page, which contains all modules that the page needs.
//!
//! The splitter writes a module for each combination of pages that share code, so a page needs up to a hundred modules,
//! most of them below one kilobyte. A browser that requests each of them waits longer for answers than for bytes, and
//! Brotli compresses small files badly. So all modules of a page are stored in one archive, and the code that several
//! pages share is stored in the archive of each of them: loading a few kilobytes twice costs less than a request.
//!
//! An archive is a WebAssembly module without code: each module of the page is a custom section with the module's name.
//! A browser needs no format of ours to read it, and `instantiate` of a module that another archive brought is omitted.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, ensure};
use wasm_encoder::{CustomSection, Module};

use crate::files;

/// The modules of each page, or the archive of each page, by the page's name.
pub(crate) type Manifest = BTreeMap<String, Vec<String>>;

/// The loader of archives, which replaces the splitter's loader of single modules.
const LOADER: &str = include_str!("archive_loader.js");
/// The first line of the splitter's script that the loader above replaces. The lines before it connect the modules with
/// the main module, and are kept.
const REPLACED_FROM: &str = "function makeLoad(";
/// The name of the function that a page's code calls to load its modules, without the page's name.
const LOAD_FUNCTION: &str = "__wasm_split_load_";

/// Puts the modules of each page into one archive. Rewrites the manifest and the loader, and removes the modules.
///
/// # Errors
/// Returns an error if a file cannot be read or written, or if the splitter's script has another form than this module
/// knows.
pub(crate) fn pack(folder: &Path, manifest: &Path, loader: &Path) -> Result<()> {
    let pages: Manifest = serde_json::from_str(&files::read(manifest)?)?;
    let script = archive_script(&files::read(loader)?, &pages)?;
    let mut archives = Manifest::new();
    for (page, names) in &pages {
        let name = archive_name(page);
        let mut archive = Module::new();
        for module in names {
            let code = fs::read(module_path(folder, module)).with_context(|| format!("cannot read module {module}"))?;
            archive.section(&CustomSection { name: module.into(), data: code.into() });
        }
        files::write(&module_path(folder, &name), archive.finish())?;
        archives.insert(page.clone(), vec![name]);
    }
    for module in pages.values().flatten() {
        let path = module_path(folder, module);
        // Several pages name a shared module.
        if path.exists() {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    files::write(loader, script)?;
    files::write(manifest, serde_json::to_string_pretty(&archives)?)
}

/// Returns the script that loads archives: the start of the splitter's script, the loader, and a function for each page.
fn archive_script(splitter: &str, pages: &Manifest) -> Result<String> {
    let (start, rest) = splitter
        .split_once(REPLACED_FROM)
        .with_context(|| format!("the splitter's script has no {REPLACED_FROM:?}: adapt xtask/src/archive.rs to it"))?;
    let mut script = format!("{start}{LOADER}");
    for (page, modules) in pages {
        let function = format!("{LOAD_FUNCTION}{page}");
        ensure!(
            rest.contains(&format!("export const {function} =")),
            "the splitter's script exports no {function}: adapt xtask/src/archive.rs to it"
        );
        let (file, modules) = (archive_name(page), serde_json::to_string(modules)?);
        script += &format!("export const {function} = wrapAsyncCb(archive(\"./{file}.wasm\", {modules}));\n");
    }
    Ok(script)
}

/// Returns the name of a page's archive, which no module has.
fn archive_name(page: &str) -> String {
    format!("page_{page}")
}

/// Returns the path of a module or an archive.
pub(crate) fn module_path(folder: &Path, name: &str) -> std::path::PathBuf {
    folder.join(format!("{name}.wasm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPLITTER: &str = "import { initSync } from \"./app.js\";\nfunction wrapAsyncCb(callee) {}\nfunction makeLoad(a) {}\n\
        export const __wasm_split_load_jobs = wrapAsyncCb(makeLoad(1));\n\
        export const __wasm_split_load_help = wrapAsyncCb(makeLoad(1));\n";

    #[test]
    fn archive_of_a_page_contains_each_of_its_modules() {
        let folder = std::env::temp_dir().join(format!("milvaion-archive-{}", std::process::id()));
        let (manifest, loader) = (folder.join("manifest.json"), folder.join("loader.js"));
        files::write(&manifest, r#"{"jobs":["chunk_1","split_jobs"],"help":["chunk_1"]}"#).unwrap();
        files::write(&loader, SPLITTER).unwrap();
        files::write(&folder.join("chunk_1.wasm"), "shared code").unwrap();
        files::write(&folder.join("split_jobs.wasm"), "code of jobs").unwrap();
        pack(&folder, &manifest, &loader).unwrap();

        let jobs = fs::read(folder.join("page_jobs.wasm")).unwrap();
        assert!(jobs.starts_with(b"\0asm\x01\0\0\0"));
        for part in ["chunk_1shared code", "split_jobscode of jobs"] {
            assert!(jobs.windows(part.len()).any(|found| found == part.as_bytes()), "{part}");
        }
        assert!(!folder.join("chunk_1.wasm").exists(), "modules are only in archives");
        assert_eq!(serde_json::from_str::<Manifest>(&files::read(&manifest).unwrap()).unwrap()["help"], ["page_help"]);
        let script = files::read(&loader).unwrap();
        assert!(script.starts_with("import { initSync }") && !script.contains("makeLoad"), "{script}");
        assert!(script.contains(r#"wrapAsyncCb(archive("./page_jobs.wasm", ["chunk_1","split_jobs"]))"#), "{script}");
        files::remove_dir(&folder).unwrap();
    }

    #[test]
    fn script_of_another_form_is_refused() {
        let pages = Manifest::from([("team".to_owned(), vec![])]);
        archive_script(SPLITTER, &pages).unwrap_err();
        archive_script("", &Manifest::new()).unwrap_err();
    }
}
