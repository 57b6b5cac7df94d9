//! The reasons for the size of a page: the crates and functions that its code comes from.
//!
//! The modules that a browser loads have no names of functions. So this task splits cargo's last output once more and
//! reads the modules as the splitter writes them. Their sizes are those of the code alone, before Binaryen and Brotli:
//! they compare the parts of a page with each other, and are not what a browser transfers.

use std::{cmp::Reverse, collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use wasmparser::{KnownCustom, Name, Parser, Payload, TypeRef};

use crate::{
    archive::{self, Manifest},
    files, wasm,
};

/// The number of lines of each list.
const LISTED: usize = 40;
/// The crates of the standard library.
const STANDARD: [&str; 3] = ["core", "alloc", "std"];
/// The functions with which wasm-bindgen describes types to itself. It removes them from the main module.
const DESCRIPTIONS: [&str; 2] = ["__wbindgen_describe", "WasmDescribe"];

/// A function of a module.
struct NamedFunction {
    /// The readable name, without the hash of the instance.
    name: String,
    /// The name without type arguments, which all instances of a generic function have.
    generic: String,
    bytes: u64,
}

/// The name of a part of the code, its bytes, and the number of its functions.
type CodeShare<'a> = (&'a str, u64, usize);

/// Prints which crates, generic functions and functions a page loads, the largest first.
///
/// # Errors
/// Returns an error if there is no build, or no page of this name; the message then lists the pages.
pub(crate) fn print(root: &Path, page: &str) -> Result<()> {
    let (compiled, folder) = wasm::split_last_output(root)?;
    let pages: Manifest = serde_json::from_str(&files::read(&folder.join(wasm::CHUNK_MANIFEST))?)?;
    let modules = pages.get(page).with_context(|| {
        let names: Vec<&str> = pages.keys().map(String::as_str).collect();
        format!("there is no page {page}; the pages are {}", names.join(", "))
    })?;
    let read = |module: &str| -> Result<Vec<NamedFunction>> {
        let path = archive::module_path(&folder, module);
        let code = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        functions_of(&code).with_context(|| format!("cannot parse {}", path.display()))
    };
    let mut functions = read("app")?;
    let bytes_of = |functions: &[NamedFunction]| functions.iter().map(|function| function.bytes).sum::<u64>();
    let main = bytes_of(&functions);
    for module in modules {
        functions.extend(read(module)?);
    }
    let total = bytes_of(&functions);
    println!("{page}: {total} bytes of code, {main} in the main module and the rest in {} others", modules.len());
    println!("{}, before Binaryen and Brotli", compiled.display());
    print_shares("crates", grouped(&functions, |function| crate_of(&function.generic)), total);
    print_shares("generic functions, with all instances", grouped(&functions, |function| &function.generic), total);
    let single = functions.iter().map(|function| (function.name.as_str(), function.bytes, 1)).collect();
    print_shares("functions", single, total);
    Ok(())
}

/// Prints the largest parts: their bytes, their share, the number of their functions, and their names.
fn print_shares(title: &str, mut shares: Vec<CodeShare<'_>>, total: u64) {
    shares.sort_by_key(|(name, bytes, _)| (Reverse(*bytes), *name));
    println!("\n{title}");
    for (name, bytes, count) in shares.into_iter().take(LISTED) {
        let tenths = bytes * 1000 / total.max(1);
        println!("{bytes:>10} {:>4}.{} % {count:>6}  {name:.160}", tenths / 10, tenths % 10);
    }
}

/// Adds up the functions that have the same key.
fn grouped<'a>(functions: &'a [NamedFunction], key: impl Fn(&'a NamedFunction) -> &'a str) -> Vec<CodeShare<'a>> {
    let mut groups: BTreeMap<&str, (u64, usize)> = BTreeMap::new();
    for function in functions {
        let (bytes, count) = groups.entry(key(function)).or_default();
        *bytes += function.bytes;
        *count += 1;
    }
    groups.into_iter().map(|(name, (bytes, count))| (name, bytes, count)).collect()
}

/// Returns the functions of a module that a browser gets.
fn functions_of(module: &[u8]) -> Result<Vec<NamedFunction>> {
    let (mut names, mut sizes) = (BTreeMap::new(), Vec::new());
    // Imported functions have the first indices.
    let mut index: u32 = 0;
    for payload in Parser::new(0).parse_all(module) {
        match payload? {
            Payload::ImportSection(imports) => {
                for import in imports.into_imports() {
                    index += u32::from(matches!(import?.ty, TypeRef::Func(_)));
                }
            }
            Payload::CodeSectionEntry(body) => {
                sizes.push((index, body.range().end - body.range().start));
                index += 1;
            }
            Payload::CustomSection(section) => {
                if let KnownCustom::Name(parts) = section.as_known() {
                    for part in parts {
                        if let Name::Function(functions) = part? {
                            for naming in functions {
                                let naming = naming?;
                                names.insert(naming.index, naming.name);
                            }
                        }
                    }
                }
            }
            _ => {}
        }
    }
    let named = sizes.into_iter().map(|(index, bytes)| (names.get(&index).copied().unwrap_or("no name"), bytes));
    let kept = named.filter(|(symbol, _)| !DESCRIPTIONS.iter().any(|part| symbol.contains(part)));
    Ok(kept.map(|(symbol, bytes)| named_function(symbol, bytes)).collect())
}

/// Returns a function by its symbol. The splitter adds words to the symbols of the functions through which modules call
/// each other; those are counted as one generic function.
fn named_function(symbol: &str, bytes: u64) -> NamedFunction {
    let is_shim = symbol.ends_with("_shim") && symbol.contains(' ');
    let name =
        if is_shim { "call between modules".to_owned() } else { format!("{:#}", rustc_demangle::demangle(symbol)) };
    NamedFunction { generic: without_type_arguments(&name), name, bytes }
}

/// Returns a name without type arguments: `a::B<C>::d` becomes `a::B::d`. Implementations, such as `<a::B<C> as D>::e`,
/// keep their brackets.
fn without_type_arguments(name: &str) -> String {
    let mut generic = String::new();
    let mut depth = 0;
    let mut before = ' ';
    for (at, character) in name.char_indices() {
        let is_after_name = generic.ends_with(|last: char| last.is_alphanumeric() || last == '_')
            || (generic.ends_with("::") && !name[at..].starts_with("<impl "));
        match character {
            '<' if depth > 0 || is_after_name => {
                // Of `a::<B>` stays `a`.
                generic.truncate(generic.trim_end_matches(':').len());
                depth += 1;
            }
            // The arrow of a function type is no bracket.
            '>' if depth > 0 && before != '-' => depth -= 1,
            _ if depth == 0 => generic.push(character),
            _ => {}
        }
        before = character;
    }
    generic
}

/// Returns the crate of a function by its name without type arguments. If a trait is implemented for a type of the
/// standard library or for a parameter, that is the crate of the trait.
fn crate_of(generic: &str) -> &str {
    let paths = generic.split(|character: char| !(character.is_alphanumeric() || "_:".contains(character)));
    let crates: Vec<&str> = paths.filter_map(|path| path.split_once("::")).map(|(first, _)| first).collect();
    let is_standard = |name: &&str| name.is_empty() || STANDARD.contains(name);
    let other = crates.iter().copied().find(|name| !is_standard(name));
    other.unwrap_or(if crates.is_empty() { "no crate" } else { "std" })
}

#[cfg(test)]
mod tests {
    use wasm_encoder::{
        CodeSection, EntityType, Function, FunctionSection, ImportSection, Module, NameMap, NameSection, TypeSection,
    };

    use super::*;

    #[test]
    fn instances_of_a_generic_function_are_one_group() {
        let functions = [
            "_ZN6tachys14reactive_graph52_$LT$impl$u20$tachys..view..Render$u20$for$u20$F$GT$5build5h0123E",
            "_ZN6tachys14reactive_graph52_$LT$impl$u20$tachys..view..Render$u20$for$u20$F$GT$5build5h4567E",
            "_ZN4core3ptr40drop_in_place$LT$milvaion_app..Drawn$GT$5h0123E",
            "_ZN46_$LT$T$u20$as$u20$serde_core..de..Expected$GT$3fmt5h0123E",
            "_RNvNtCs5cOc02OMXlo_5alloc5boxed14box_new_uninit",
            "_ZN6tachys5build5h0123E indirect_call_shim",
            "memcpy",
        ]
        .map(|symbol| named_function(symbol, 10));
        let generic = grouped(&functions, |function| &function.generic);
        let expected = [
            ("<T as serde_core::de::Expected>::fmt", 10, 1),
            ("alloc::boxed::box_new_uninit", 10, 1),
            ("call between modules", 10, 1),
            ("core::ptr::drop_in_place", 10, 1),
            ("memcpy", 10, 1),
            ("tachys::reactive_graph::<impl tachys::view::Render for F>::build", 20, 2),
        ];
        assert_eq!(generic, expected);
        let crates = grouped(&functions, |function| crate_of(&function.generic));
        assert_eq!(crates, [("no crate", 20, 2), ("serde_core", 10, 1), ("std", 20, 2), ("tachys", 20, 2)]);
        let view = "<core::option::Option as reactive_graph::graph::WithObserver>::with";
        assert_eq!(crate_of(view), "reactive_graph");
    }

    #[test]
    fn type_arguments_are_not_part_of_a_name() {
        for (name, generic) in [
            ("a::B<C<D>>::e::{{closure}}", "a::B::e::{{closure}}"),
            ("a::b::<C, D>", "a::b"),
            ("<a::B<C> as d::E<F>>::g", "<a::B as d::E>::g"),
            ("<(A,b::C<D>) as e::F>::g", "<(A,b::C) as e::F>::g"),
            ("core::ptr::drop_in_place<alloc::boxed::Box<dyn Fn() -> A>>", "core::ptr::drop_in_place"),
            ("a::<impl b::C for d::E<F>>::g", "a::<impl b::C for d::E>::g"),
        ] {
            assert_eq!(without_type_arguments(name), generic);
        }
    }

    #[test]
    fn functions_have_the_names_of_their_indices() {
        let mut types = TypeSection::new();
        types.ty().function([], []);
        let mut imports = ImportSection::new();
        imports.import("main", "imported", EntityType::Function(0));
        let (mut functions, mut code) = (FunctionSection::new(), CodeSection::new());
        let mut body = Function::new([]);
        body.instructions().end();
        for _ in 0..2 {
            functions.function(0);
            code.function(&body);
        }
        let mut names = NameMap::new();
        for (index, name) in [(0, "imported"), (1, "__wbindgen_describe_cast"), (2, "first")] {
            names.append(index, name);
        }
        let mut section = NameSection::new();
        section.functions(&names);
        let mut module = Module::new();
        module.section(&types).section(&imports).section(&functions).section(&code).section(&section);
        let found = functions_of(&module.finish()).unwrap();
        assert_eq!(grouped(&found, |function| &function.name), [("first", 2, 1)]);
    }
}
