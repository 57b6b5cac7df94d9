//! One stylesheet from `style/main.css` and the files it imports.
//!
//! The sheets are plain CSS that a browser could load as they are. Two things are done to them: each `@import` is
//! replaced by the file, inside the cascade layer it names, because a chain of imports costs a round trip each; and a
//! release loses comments and spaces. Nothing else is rewritten, so what is read in the inspector is what was written.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::files;

/// Reads a sheet and puts the files it imports in their places. Imports inside imported files are refused: `main.css`
/// is the one page where the order of the cascade can be read.
///
/// # Errors
/// If a file is missing or an `@import` is written in another form than `@import "./file.css" layer(name);`.
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
            bail!("{}: imports belong into {}, so that the order is read in one place", path.display(), main.display());
        }
        out.push_str(&format!("@layer {layer} {{\n{sheet}}}\n"));
    }
    Ok(out)
}

/// The file and the layer of an import line.
fn import(line: &str) -> Option<(&str, &str)> {
    let rest = line.trim().strip_prefix("@import \"./")?;
    let (file, rest) = rest.split_once('"')?;
    let layer = rest.trim().strip_prefix("layer(")?.strip_suffix(");")?;
    let plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    (plain(file) && plain(layer) && !layer.is_empty()).then_some((file, layer))
}

/// Removes comments and the spaces that mean nothing. Text in quotes is left as it is.
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
                // A space counts between two words. Beside these signs it does not; before `:` it may (a descendant
                // whose selector starts with a pseudo-class), so only the one after it goes.
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
    fn only_spaces_and_comments_without_meaning_are_removed() {
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
    fn the_sheets_of_the_dashboard_fit_together() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let sheet = minify(&inline_imports(&root.join("style/main.css")).unwrap());
        assert!(!sheet.contains("@import") && !sheet.contains("/*"));
        assert_eq!(sheet.matches('{').count(), sheet.matches('}').count(), "a brace is missing");
        assert!(!sheet.contains("//"), "the stylesheet must not load anything from another place");
    }
}
