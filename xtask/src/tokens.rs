//! Tests of the palette in `style/tokens.css`.
//!
//! A change of a colour takes one line. It may make text unreadable, or make two statuses indistinguishable for one
//! reader in twelve, and most reviewers would not notice. These tests do.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result, ensure};

use crate::{
    colour::{Colour, ColourVision},
    files,
};

/// The minimum contrast of text (WCAG 2.2, 1.4.3).
const MIN_TEXT_CONTRAST: f64 = 4.5;
/// The minimum contrast of lines and shapes that carry meaning (WCAG 2.2, 1.4.11).
const MIN_SHAPE_CONTRAST: f64 = 3.0;
/// The minimum difference of two status colours, so that readers distinguish them at a glance.
const MIN_STATUS_DIFFERENCE: f64 = 10.0;

/// The families of status colours. Each has three tokens: `-fg`, `-tint` and `-solid`.
const STATUS_FAMILIES: [&str; 7] = ["success", "failed", "running", "waiting", "retrying", "stopped", "dead"];

/// Foreground, background and minimum contrast of every pair that the components use.
const CONTRAST_PAIRS: [(&str, &str, f64); 34] = [
    ("text", "bg", MIN_TEXT_CONTRAST),
    ("text", "panel", MIN_TEXT_CONTRAST),
    ("text", "raised", MIN_TEXT_CONTRAST),
    ("text", "row-hover", MIN_TEXT_CONTRAST),
    ("text", "row-selected", MIN_TEXT_CONTRAST),
    ("text-muted", "bg", MIN_TEXT_CONTRAST),
    ("text-muted", "panel", MIN_TEXT_CONTRAST),
    ("text-muted", "raised", MIN_TEXT_CONTRAST),
    ("text-muted", "row-hover", MIN_TEXT_CONTRAST),
    ("text-muted-selected", "row-selected", MIN_TEXT_CONTRAST),
    ("accent", "bg", MIN_TEXT_CONTRAST),
    ("accent", "panel", MIN_TEXT_CONTRAST),
    ("accent", "raised", MIN_TEXT_CONTRAST),
    ("accent", "row-hover", MIN_TEXT_CONTRAST),
    ("accent", "row-selected", MIN_TEXT_CONTRAST),
    ("on-accent", "accent-fill", MIN_TEXT_CONTRAST),
    ("on-accent", "accent-fill-hover", MIN_TEXT_CONTRAST),
    ("on-danger", "danger-fill", MIN_TEXT_CONTRAST),
    ("on-danger", "danger-fill-hover", MIN_TEXT_CONTRAST),
    ("accent", "card", MIN_TEXT_CONTRAST),
    ("text", "card", MIN_TEXT_CONTRAST),
    ("text-muted", "card", MIN_TEXT_CONTRAST),
    ("border-control", "bg", MIN_SHAPE_CONTRAST),
    ("border-control", "panel", MIN_SHAPE_CONTRAST),
    ("border-control", "card", MIN_SHAPE_CONTRAST),
    ("border-control", "raised", MIN_SHAPE_CONTRAST),
    ("border-control", "row-hover", MIN_SHAPE_CONTRAST),
    ("accent-fill", "bg", MIN_SHAPE_CONTRAST),
    ("accent-fill", "panel", MIN_SHAPE_CONTRAST),
    ("danger-fill", "bg", MIN_SHAPE_CONTRAST),
    ("danger-fill", "panel", MIN_SHAPE_CONTRAST),
    ("focus", "bg", MIN_SHAPE_CONTRAST),
    ("focus", "panel", MIN_SHAPE_CONTRAST),
    ("focus", "row-selected", MIN_SHAPE_CONTRAST),
];

/// The colours of both themes by token.
struct ThemePalette {
    light: BTreeMap<String, Colour>,
    dark: BTreeMap<String, Colour>,
}

impl ThemePalette {
    /// Parses the colours of a sheet: every `--name: light-dark(#rrggbb, #rrggbb);`.
    fn parse(sheet: &str) -> Result<Self> {
        let mut palette = Self { light: BTreeMap::new(), dark: BTreeMap::new() };
        for line in sheet.lines().map(str::trim) {
            let Some((name, value)) = line.strip_prefix("--").and_then(|line| line.split_once(": light-dark(")) else {
                continue;
            };
            let pair = value.strip_suffix(");").and_then(|pair| pair.split_once(", "));
            let (light, dark) = pair.with_context(|| format!("--{name}: write light-dark(#rrggbb, #rrggbb);"))?;
            ensure!(palette.light.insert(name.to_owned(), Colour::parse(light)?).is_none(), "--{name} is set twice");
            palette.dark.insert(name.to_owned(), Colour::parse(dark)?);
        }
        Ok(palette)
    }

    fn dashboard() -> Self {
        let sheet = Path::new(env!("CARGO_MANIFEST_DIR")).join("../style/tokens.css");
        Self::parse(&files::read(&sheet).unwrap()).unwrap()
    }

    fn themes(&self) -> [(&str, &BTreeMap<String, Colour>); 2] {
        [("light", &self.light), ("dark", &self.dark)]
    }
}

fn get(theme: &BTreeMap<String, Colour>, token: &str) -> Colour {
    *theme.get(token).unwrap_or_else(|| panic!("style/tokens.css has no colour --{token}"))
}

#[test]
fn text_and_lines_have_enough_contrast() {
    let palette = ThemePalette::dashboard();
    let mut failures = Vec::new();
    for (name, theme) in palette.themes() {
        for (ink, ground, least) in CONTRAST_PAIRS {
            let found = get(theme, ink).contrast(get(theme, ground));
            if found < least {
                failures.push(format!("{name}: --{ink} on --{ground} is {found:.2}, less than {least}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn statuses_contrast_with_tint_and_surfaces() {
    let palette = ThemePalette::dashboard();
    let mut failures = Vec::new();
    for (name, theme) in palette.themes() {
        for family in STATUS_FAMILIES {
            let [ink, tint, solid] = ["fg", "tint", "solid"].map(|part| get(theme, &format!("{family}-{part}")));
            if ink.contrast(tint) < MIN_TEXT_CONTRAST {
                failures.push(format!("{name}: --{family}-fg on its tint is {:.2}", ink.contrast(tint)));
            }
            // Raised surfaces (menus, dialogs) show the words of a status, but no charts.
            for (surface, has_shapes) in [("bg", true), ("panel", true), ("card", true), ("raised", false)] {
                let ground = get(theme, surface);
                if ink.contrast(ground) < MIN_TEXT_CONTRAST {
                    failures.push(format!("{name}: --{family}-fg on --{surface} is {:.2}", ink.contrast(ground)));
                }
                if has_shapes && solid.contrast(ground) < MIN_SHAPE_CONTRAST {
                    failures.push(format!("{name}: --{family}-solid on --{surface} is {:.2}", solid.contrast(ground)));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn statuses_differ_for_every_colour_vision() {
    let palette = ThemePalette::dashboard();
    for (name, theme) in palette.themes() {
        for vision in ColourVision::ALL {
            let mut nearest = (f64::INFINITY, "", "");
            for (at, first) in STATUS_FAMILIES.iter().enumerate() {
                for second in &STATUS_FAMILIES[at + 1..] {
                    let [a, b] = [first, second].map(|family| get(theme, &format!("{family}-solid")).seen_by(vision));
                    let found = a.difference(b);
                    if found < nearest.0 {
                        nearest = (found, first, second);
                    }
                }
            }
            let (found, first, second) = nearest;
            println!("{name}, {vision:?}: nearest are {first} and {second}, {found:.1} apart");
            assert!(
                found >= MIN_STATUS_DIFFERENCE,
                "{name}, {vision:?}: {first} and {second} are only {found:.1} apart"
            );
        }
    }
}

#[test]
fn invalid_tokens_are_rejected() {
    assert!(ThemePalette::parse("--a: light-dark(#fff, #000000);").is_err());
    assert!(ThemePalette::parse("--a: light-dark(#ffffff);").is_err());
    assert!(ThemePalette::parse("--a: light-dark(#ffffff, #000000);\n--a: light-dark(#ffffff, #000000);").is_err());
    assert_eq!(ThemePalette::parse("--gap: 4px;\n--a: light-dark(#ffffff, #000000);").unwrap().light.len(), 1);
}
