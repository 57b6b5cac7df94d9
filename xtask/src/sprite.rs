//! One SVG file with all icons of the dashboard, which the server writes into each document.
//!
//! A page shows an icon with `<use href="#icon-name">`. The icons need no request, add nothing to the WebAssembly file,
//! and the content security policy needs no exception. `style/icons.txt` lists the icons, so icons that no page uses
//! are not transferred.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, Result, bail, ensure};

use crate::files;

/// The attributes of a symbol. Lucide draws every icon on this grid and with these lines. Each symbol repeats them,
/// because the style sheet of a page does not apply inside the file.
const SYMBOL_ATTRIBUTES: &str = r#"viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round""#;

/// Builds the sprite from a list of names (one per line, `#` starts a comment) and the folder of the SVG files.
///
/// # Errors
/// Returns an error if a name is listed twice or has no file, or if a file has other drawing attributes than the rest.
pub(crate) fn build(names: &str, folder: &Path) -> Result<String> {
    let mut sprite = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" hidden>\n<!-- Lucide icons, ISC licence: see licences/lucide.txt -->\n",
    );
    let mut seen = BTreeSet::new();
    for name in
        names.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).filter(|name| !name.is_empty())
    {
        ensure!(seen.insert(name), "style/icons.txt lists {name} twice: remove one");
        let path = folder.join(name).with_extension("svg");
        ensure!(path.is_file(), "style/icons.txt lists {name}, which Lucide does not have: check the name");
        let shapes = shapes(&files::read(&path)?).with_context(|| path.display().to_string())?;
        sprite.push_str(&format!("<symbol id=\"icon-{name}\" {SYMBOL_ATTRIBUTES}>{shapes}</symbol>\n"));
    }
    ensure!(!seen.is_empty(), "style/icons.txt lists no icon");
    sprite.push_str("</svg>\n");
    Ok(sprite)
}

/// Returns the content of the outer element, on one line.
fn shapes(svg: &str) -> Result<String> {
    let inside = svg
        .split_once("<svg")
        .and_then(|(_, rest)| rest.split_once('>'))
        .and_then(|(head, rest)| rest.rsplit_once("</svg>").map(|(inside, _)| (head, inside)));
    let Some((head, inside)) = inside else {
        bail!("this is not an SVG file");
    };
    for expected in ["viewBox=\"0 0 24 24\"", "stroke-width=\"2\"", "fill=\"none\""] {
        ensure!(head.contains(expected), "this icon is drawn differently: {expected} is missing");
    }
    let shapes: Vec<&str> = inside.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    Ok(shapes.join("").replace(" />", "/>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ICON: &str = "<!-- licence -->\n<svg\n  viewBox=\"0 0 24 24\"\n  fill=\"none\"\n  stroke-width=\"2\"\n>\n  <path d=\"M0 0\" />\n  <circle r=\"1\" />\n</svg>\n";

    #[test]
    fn a_symbol_has_only_the_shapes() {
        assert_eq!(shapes(ICON).unwrap(), "<path d=\"M0 0\"/><circle r=\"1\"/>");
        assert!(shapes("<p>no</p>").is_err());
        assert!(shapes(&ICON.replace("0 0 24 24", "0 0 32 32")).is_err());
    }

    /// A missing icon shows nothing: no error and no placeholder, only a button without a picture.
    #[test]
    fn every_icon_of_the_pages_is_listed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let list = files::read(&root.join("style/icons.txt")).unwrap();
        let listed: BTreeSet<&str> = list.lines().map(str::trim).collect();
        let mut missing = BTreeSet::new();
        for path in files::list(&root.join("app/src")).unwrap() {
            let source = files::read(&path).unwrap();
            for before in ["Icon name=\"", " icon=\"", " listed(\""] {
                for rest in source.split(before).skip(1) {
                    let name = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next().unwrap_or_default();
                    if !name.is_empty() && !listed.contains(name) {
                        missing.insert(format!("{name} ({})", path.display()));
                    }
                }
            }
        }
        assert!(missing.is_empty(), "not in style/icons.txt: {missing:?}");
    }

    #[test]
    fn an_invalid_list_is_rejected_by_name() {
        let folder = std::env::temp_dir().join(format!("milvaion-sprite-{}", std::process::id()));
        files::write(&folder.join("dot.svg"), ICON).unwrap();
        let sprite = build("# all\ndot # one\n\n", &folder).unwrap();
        assert!(sprite.contains("<symbol id=\"icon-dot\""));
        assert!(build("dot\ndot", &folder).unwrap_err().to_string().contains("dot twice"));
        assert!(build("dash", &folder).unwrap_err().to_string().contains("lists dash"));
        assert!(build("# none", &folder).is_err());
        files::remove_dir(&folder).unwrap();
    }
}
