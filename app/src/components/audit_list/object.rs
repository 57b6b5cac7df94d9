//! The object of an audit row, with a link to its page.

use leptos::prelude::*;
use milvaion_api::alerts::is_loop_name;
use milvaion_protocol::id::JobId;

use super::NAME_MAX_CHARS;
use crate::format::{clip, short_id};

/// An object for display.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamedObject {
    /// The name, or the kind with the end of the id.
    name: String,
    /// The kind, unless the name states it.
    kind: Option<&'static str>,
    /// The address of its page.
    href: Option<String>,
}

/// Shows an object, which is `kind:id` in the log. Only Admins have pages of users and channels.
pub(super) fn object_view(object: &str, name: Option<&str>, links_users: bool) -> AnyView {
    let NamedObject { name, kind, href } = named(object, name, links_users);
    let title = clip(object, NAME_MAX_CHARS);
    let name = match href {
        Some(href) => view! { <a href=href title=title>{name}</a> }.into_any(),
        None => view! { <span title=title>{name}</span> }.into_any(),
    };
    view! {
        {name}
        {kind.map(|kind| view! { <div class="row-note">{kind}</div> })}
    }
    .into_any()
}

fn named(object: &str, name: Option<&str>, links_users: bool) -> NamedObject {
    let unknown = || NamedObject { name: clip(object, NAME_MAX_CHARS), kind: None, href: None };
    let Some((kind, id)) = object.split_once(':') else { return unknown() };
    let (word, path) = match kind {
        "job" => ("Job", Some(("/jobs/", ""))),
        "occurrence" => ("Occurrence", Some(("/occurrences/", ""))),
        "user" => ("User", links_users.then_some(("/team/", ""))),
        "calendar" => ("Calendar", Some(("/calendars/", "/edit"))),
        "alert_rule" => ("Alert rule", Some(("/alerts/rules/", ""))),
        "alert_channel" => ("Alert channel", links_users.then_some(("/alerts/channels/", ""))),
        "invite" => ("Invitation", None),
        "dead_letter" => ("Dead letter", None),
        "singleton_loop" if is_loop_name(id) => {
            let href = Some(format!("/singleton-loops?q={id}"));
            return NamedObject { name: id.to_owned(), kind: Some("Singleton loop"), href };
        }
        "cluster" => return NamedObject { name: "Cluster".into(), kind: None, href: None },
        "account" if id == "unknown" => return NamedObject { name: "Unknown account".into(), kind: None, href: None },
        _ => return unknown(),
    };
    // All ids have the same form. Only an id that was parsed becomes part of an address.
    let Ok(id) = id.parse::<JobId>().map(|id| id.to_string()) else { return unknown() };
    let href = path.map(|(before, after)| format!("{before}{id}{after}"));
    match name {
        Some(name) => NamedObject { name: clip(name, NAME_MAX_CHARS), kind: Some(word), href },
        None => NamedObject { name: format!("{word} {}", short_id(&id)), kind: None, href },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01980000-0000-7000-8000-000000000001";

    fn shown(object: &str, name: Option<&str>, links_users: bool) -> (String, Option<String>) {
        let NamedObject { name, href, .. } = named(object, name, links_users);
        (name, href)
    }

    #[test]
    fn known_objects_link_to_their_pages() {
        for (kind, href) in [
            ("job", format!("/jobs/{ID}")),
            ("occurrence", format!("/occurrences/{ID}")),
            ("user", format!("/team/{ID}")),
            ("calendar", format!("/calendars/{ID}/edit")),
            ("alert_rule", format!("/alerts/rules/{ID}")),
            ("alert_channel", format!("/alerts/channels/{ID}")),
        ] {
            let object = format!("{kind}:{ID}");
            assert_eq!(shown(&object, Some("report"), true), ("report".into(), Some(href)));
        }
        assert_eq!(shown(&format!("job:{ID}"), None, true).0, "Job 00000001");
        assert_eq!(shown(&format!("user:{ID}"), Some("Ada"), false), ("Ada".into(), None));
        assert_eq!(shown(&format!("invite:{ID}"), None, true), ("Invitation 00000001".into(), None));
    }

    #[test]
    fn other_objects_are_text() {
        let href = "/singleton-loops?q=price-feed".to_owned();
        assert_eq!(shown("singleton_loop:price-feed", None, false), ("price-feed".into(), Some(href)));
        assert_eq!(shown("singleton_loop:a/../b", None, true).1, None);
        assert_eq!(shown("cluster:all", None, true), ("Cluster".into(), None));
        for object in ["account:unknown", "planet:9", "job:../../login", "job:", "nonsense", ""] {
            assert_eq!(shown(object, None, true).1, None, "{object}");
        }
        assert_eq!(shown("planet:9", None, true).0, "planet:9");
        assert!(shown(&"x".repeat(9_000), None, true).0.len() < 300);
    }
}
