//! The links of the documents, checked without a network.
//!
//! A renamed file or heading breaks links that no compiler reads. Links to other sites are not followed: a check that
//! fails because another site is down would be switched off.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

use anyhow::{Result, bail};
use pulldown_cmark::{Event, Parser, Tag, TagEnd};

use crate::files;

/// The targets of a document: the links it holds and the headings it offers.
struct MarkdownPage {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

/// Checks that each relative link of each Markdown file names a file of the repository, and each fragment a heading.
///
/// # Errors
/// Returns an error if a file cannot be read or a link has no target. The message lists all such links.
pub(crate) fn check(root: &Path) -> Result<()> {
    let tracked = files::tracked(root)?;
    let mut pages = BTreeMap::new();
    for path in tracked.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        pages.insert(path.clone(), read_page(&files::read(&root.join(path))?));
    }
    let (mut count, mut broken) = (0, Vec::new());
    for (path, page) in &pages {
        for link in page.links.iter().filter(|link| !is_external(link)) {
            count += 1;
            let (target, fragment) =
                link.split_once('#').map_or((link.as_str(), None), |(path, part)| (path, Some(part)));
            let target = if target.is_empty() { path.clone() } else { resolve(path, target) };
            let exists = tracked.contains(&target) || root.join(&target).is_dir();
            let heading_exists =
                fragment.is_none_or(|part| pages.get(&target).is_none_or(|page| page.anchors.contains(part)));
            if !exists || !heading_exists {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    if !broken.is_empty() {
        bail!("these links have no target: correct the path or the heading\n  {}", broken.join("\n  "));
    }
    println!("links: all {count} links in {} pages have a target", pages.len());
    Ok(())
}

fn is_external(link: &str) -> bool {
    link.contains("://") || link.starts_with("mailto:")
}

/// Returns the path of a link's target, relative to the workspace.
fn resolve(from: &Path, target: &str) -> PathBuf {
    let mut path = from.parent().map(Path::to_path_buf).unwrap_or_default();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

fn read_page(text: &str) -> MarkdownPage {
    let mut page = MarkdownPage { links: Vec::new(), anchors: BTreeSet::new() };
    let mut heading: Option<String> = None;
    for event in Parser::new(text) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                page.links.push(dest_url.to_string())
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(words) | Event::Code(words) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&words);
                }
            }
            Event::End(TagEnd::Heading(_)) => page.anchors.extend(heading.take().map(|words| anchor(&words))),
            Event::Html(html) | Event::InlineHtml(html) => {
                for attribute in ["src=\"", "srcset=\""] {
                    let values = html.split(attribute).skip(1).filter_map(|rest| rest.split('"').next());
                    page.links.extend(values.map(str::to_owned));
                }
            }
            _ => {}
        }
    }
    page
}

/// Returns the fragment that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let kept = heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .collect::<String>();
    kept.replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_become_github_fragments() {
        assert_eq!(anchor("Backup and restore"), "backup-and-restore");
        assert_eq!(anchor("`make test`, in full"), "make-test-in-full");
    }

    #[test]
    fn links_resolve_relative_to_their_page() {
        assert_eq!(resolve(Path::new("docs/protocol/README.md"), "../FAULTS.md"), Path::new("docs/FAULTS.md"));
        assert_eq!(resolve(Path::new("README.md"), "./docs/SCHEDULES.md"), Path::new("docs/SCHEDULES.md"));
    }

    #[test]
    fn pages_yield_links_images_and_headings() {
        let page = read_page("# A title\n[x](a.md#b) ![y](p.png)\n\n<img src=\"q.png\">\n");
        assert_eq!(page.links, ["a.md#b", "p.png", "q.png"]);
        assert!(page.anchors.contains("a-title"));
    }
}
