//! One stylesheet from `style/main.css` and the files it imports.
//!
//! The sheets are plain CSS that a browser could load unchanged. Two steps are applied to them. Each `@import` is
//! replaced by the content of the file, inside the cascade layer it names, because each import of a chain costs a round
//! trip. A release build also removes comments and spaces. Nothing else is rewritten, so the browser's inspector shows
//! the CSS as it was written.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::files;

/// Reads a sheet and inlines the files it imports. Imports inside imported files are rejected, so that the order of the
/// cascade is written in `main.css` alone.
///
/// # Errors
/// Returns an error if a file is missing or an `@import` differs from `@import "./file.css" layer(name);`.
pub(crate) fn inline_imports(main: &Path) -> Result<String> {
    let folder = main.parent().context("the main sheet has no folder")?;
    let mut out = String::new();
    for line in files::read(main)?.lines() {
        if !line.trim_start().starts_with("@import") {
            out.push_str(line);
            out.push('\n');
            continue;
        }
        let Some((file, layer)) = import(line) else {
            bail!("{}: write `@import \"./file.css\" layer(name);` instead of `{}`", main.display(), line.trim());
        };
        let path = folder.join(file);
        let sheet = files::read(&path)?;
        if sheet.lines().any(|line| line.trim_start().starts_with("@import")) {
            bail!("{}: imports belong in {}, so that the order is in one place", path.display(), main.display());
        }
        out.push_str(&format!("@layer {layer} {{\n{sheet}}}\n"));
    }
    Ok(out)
}

/// Returns the file and the layer of an import line.
fn import(line: &str) -> Option<(&str, &str)> {
    let rest = line.trim().strip_prefix("@import \"./")?;
    let (file, rest) = rest.split_once('"')?;
    let layer = rest.trim().strip_prefix("layer(")?.strip_suffix(");")?;
    let plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    (plain(file) && plain(layer) && !layer.is_empty()).then_some((file, layer))
}

/// Removes comments and redundant spaces. Quoted text is left unchanged.
pub(crate) fn minify(sheet: &str) -> String {
    let mut out = String::with_capacity(sheet.len());
    let mut chars = sheet.chars().peekable();
    let mut gap = false;
    while let Some(c) = chars.next() {
        match c {
            '/' if chars.peek() == Some(&'*') => {
                chars.next();
                skip_comment(&mut chars);
                gap = true;
            }
            c if c.is_whitespace() => gap = true,
            c => {
                // A space matters between two words. It does not matter beside these characters. Before `:` it may (a
                // descendant whose selector starts with a pseudo-class), so only the one after `:` is removed.
                let beside = |sign: char| "{};,".contains(sign);
                let after_colon = out.ends_with(':');
                if gap && !out.is_empty() && !out.ends_with(beside) && !beside(c) && !after_colon {
                    out.push(' ');
                }
                gap = false;
                if c == '}' && out.ends_with(';') {
                    out.pop();
                }
                out.push(c);
                if c == '"' || c == '\'' {
                    copy_quoted(c, &mut chars, &mut out);
                }
            }
        }
    }
    out.push('\n');
    out
}

fn skip_comment(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    while let Some(c) = chars.next() {
        if c == '*' && chars.peek() == Some(&'/') {
            chars.next();
            return;
        }
    }
}

fn copy_quoted(quote: char, chars: &mut std::iter::Peekable<std::str::Chars<'_>>, out: &mut String) {
    while let Some(c) = chars.next() {
        out.push(c);
        if c == '\\' {
            out.extend(chars.next());
        } else if c == quote {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_redundant_spaces_and_comments_are_removed() {
        for (from, to) in [
            ("a {\n  color: red;\n}\n", "a{color:red}\n"),
            ("/* why */ a,\n b { margin: 0  auto; }", "a,b{margin:0 auto}\n"),
            ("a :hover { width: calc(1px + 2px) }", "a :hover{width:calc(1px + 2px)}\n"),
            (".x::before { content: \" /* kept */ ; \"; }", ".x::before{content:\" /* kept */ ; \"}\n"),
            ("a { content: \"\\\"\" ; color: red }", "a{content:\"\\\"\";color:red}\n"),
            ("@media (width >= 40rem) { a { top: 0 } }", "@media (width >= 40rem){a{top:0}}\n"),
        ] {
            assert_eq!(minify(from), to, "{from}");
        }
    }

    #[test]
    fn an_import_line_names_a_file_and_a_layer() {
        assert_eq!(import("@import \"./nav.css\" layer(components);"), Some(("nav.css", "components")));
        for bad in [
            "@import \"nav.css\";",
            "@import url(x);",
            "@import \"./../x/y.css\" layer(a);",
            "@import \"./a.css\" layer();",
        ] {
            assert_eq!(import(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_dashboard_sheets_inline_and_balance() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let sheet = minify(&inline_imports(&root.join("style/main.css")).unwrap());
        assert!(!sheet.contains("@import") && !sheet.contains("/*"));
        assert_eq!(sheet.matches('{').count(), sheet.matches('}').count(), "a brace is missing");
        assert!(!sheet.contains("//"), "the stylesheet must not load anything from another origin");
    }
}
