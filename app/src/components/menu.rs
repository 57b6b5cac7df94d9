//! The pages that the menus list.
//!
//! The menu page, the navigation at the side and at the bottom, the user menu and the keys are drawn from [`MENU`]. The
//! table has text only, because every page loads it. The code of a page is in the table of the module `lazy_pages`,
//! whose tests compare the two.

use milvaion_api::permissions::{
    Permission::{self, Read, ReadAudit, ReadTeam},
    Role,
};

use self::Bar::{Bottom, Top, User};

/// The headings of the groups of the navigation at the side, in its order.
pub const GROUPS: [&str; 4] = ["Operate", "Define", "Infrastructure", "Govern"];

/// The bar with the link to a page where the navigation at the side is not shown or lacks the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bar {
    /// The bar at the bottom of a phone.
    Bottom,
    /// The top bar, which has a link of its own for the page.
    Top,
    /// The user menu.
    User,
}

/// A page that the menus list.
#[derive(Clone, Copy, Debug)]
pub struct MenuEntry {
    /// The name of the icon.
    pub icon: &'static str,
    /// The path.
    pub path: &'static str,
    /// The name of the page.
    pub name: &'static str,
    /// The heading of its group in the navigation at the side; empty if that navigation does not have the page.
    pub group: &'static str,
    /// The bar that also has its link.
    pub bar: Bar,
    /// The key that opens the page after `g`; empty without one.
    pub key: &'static str,
    /// The permission that the page requires.
    pub permission: Permission,
}

const fn listed(
    icon: &'static str,
    path: &'static str,
    name: &'static str,
    group: &'static str,
    bar: Bar,
    key: &'static str,
    permission: Permission,
) -> MenuEntry {
    MenuEntry { icon, path, name, group, bar, key, permission }
}

/// Every entry, in the order of the menu page.
pub static MENU: [MenuEntry; 13] = [
    listed("layout-dashboard", "/", "Overview", "Operate", Bottom, "o", Read),
    listed("briefcase-business", "/jobs", "Jobs", "Define", Bottom, "j", Read),
    listed("list-checks", "/occurrences", "Occurrences", "Operate", Bottom, "r", Read),
    listed("octagon-x", "/failed", "Failures", "Operate", Bottom, "f", Read),
    listed("bell", "/alerts", "Alerts", "Operate", Top, "a", Read),
    listed("server", "/workers", "Workers", "Infrastructure", User, "w", Read),
    listed("refresh-cw", "/singleton-loops", "Singleton loops", "Infrastructure", User, "", Read),
    listed("calendar-off", "/calendars", "Calendars", "Define", User, "c", Read),
    listed("users", "/team", "Team", "Govern", User, "", ReadTeam),
    listed("scroll-text", "/audit", "Audit log", "Govern", User, "", ReadAudit),
    listed("user-cog", "/account", "Account", "", User, "", Read),
    listed("key-round", "/tokens", "API tokens", "", User, "", Read),
    listed("circle-help", "/help", "Help", "", Top, "", Read),
];

/// Returns the entries of the pages that a user of this role may open; if the user is not known, those of a Viewer.
pub fn entries_for(role: Option<Role>) -> impl Iterator<Item = &'static MenuEntry> {
    MENU.iter().filter(move |entry| role.unwrap_or(Role::Viewer).allows(entry.permission))
}

/// Returns the entry of the page that `key` opens after `g`.
#[must_use]
pub fn entry_of_key(key: &str) -> Option<&'static MenuEntry> {
    MENU.iter().find(|entry| !entry.key.is_empty() && entry.key == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_opens_one_page() {
        for entry in &MENU {
            let opened = entry_of_key(entry.key).map(|opened| opened.path);
            assert_eq!(opened, (!entry.key.is_empty()).then_some(entry.path));
        }
    }

    #[test]
    fn each_entry_has_a_place_in_every_layout() {
        for entry in &MENU {
            let is_at_side = GROUPS.contains(&entry.group);
            assert!(is_at_side || entry.group.is_empty(), "no heading {:?} for {}", entry.group, entry.name);
            assert!(is_at_side || entry.bar != Bottom, "wide screens have no link to {}", entry.name);
        }
    }
}
