//! Focus and scroll position after a navigation inside the app.
//!
//! A full load gives a page its focus and its scroll position. A navigation inside the app does both here: a new page
//! starts at its top with the focus on its heading, and a page of the history gets the position that it had. The
//! browser's own restoration runs before the page has its rows and would find a page that is too short, so it is turned
//! off while the document is open and on again for the next load.
//!
//! The positions are kept by address, and in the tab's storage while another document is open. A position is recorded
//! whenever the page scrolls, except while the next page is awaited: the old page may then become shorter, which moves
//! it without the user.

use leptos::{prelude::*, web_sys::Event};
use leptos_router::hooks::use_location;

use crate::browser::{self, PAGE_TITLE_ID};

/// The item of the tab's storage with the positions.
const POSITIONS_KEY: &str = "scroll";
/// The maximum number of kept positions. The oldest are forgotten first.
const MAX_POSITIONS: usize = 50;
/// The time within which a page must be tall enough for its former position, in milliseconds.
const RESTORE_TIMEOUT_MILLIS: i64 = 3_000;
/// The browser's events that matter here. The last four end a restoration, because the user has taken over.
const EVENTS: [&str; 9] =
    ["popstate", "click", "scroll", "pageshow", "pagehide", "wheel", "touchstart", "keydown", "pointerdown"];

/// The scroll position of each address, in CSS pixels. The last recorded is the last.
#[derive(Debug, Default, PartialEq, Eq)]
struct ScrollPositions(Vec<(String, u32)>);

impl ScrollPositions {
    /// Reads the lines of [`Self::to_text`]. Other lines are skipped.
    fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let (offset, address) = line.split_once(' ')?;
            Some((address.to_owned(), offset.parse().ok()?))
        };
        Self(text.lines().filter_map(line).take(MAX_POSITIONS).collect())
    }

    /// Returns one line for each address. An address contains no spaces.
    fn to_text(&self) -> String {
        let mut text = String::new();
        for (address, offset) in &self.0 {
            text.push_str(&offset.to_string());
            text.push(' ');
            text.push_str(address);
            text.push('\n');
        }
        text
    }

    fn of(&self, address: &str) -> u32 {
        self.0.iter().find(|(other, _)| other == address).map_or(0, |(_, offset)| *offset)
    }

    fn set(&mut self, address: String, offset: u32) {
        self.0.retain(|(other, _)| *other != address);
        if self.0.len() >= MAX_POSITIONS {
            self.0.remove(0);
        }
        self.0.push((address, offset));
    }
}

/// The page that is about to be shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum NextPage {
    /// No navigation is in progress.
    #[default]
    None,
    /// A new page. The router scrolls it to its top or to the fragment of the address.
    New,
    /// A page of the history with its former position.
    Former(u32),
}

#[derive(Debug, Default)]
struct ArrivalState {
    positions: ScrollPositions,
    /// The path and query of the page that is shown or awaited.
    address: String,
    next: NextPage,
    /// The heading that receives the focus if the followed link changes the page of a list.
    list_heading: Option<String>,
    /// The heading that has received the focus for a change of its list. The list's page may be drawn again when its
    /// rows arrive, which removes the focused element.
    focused_heading: Option<String>,
    /// The time until which a position is being restored, by the browser's clock.
    restoring_until: Option<i64>,
}

/// The focus and the scroll position of the next page.
#[derive(Clone, Copy)]
pub struct PageArrival(StoredValue<ArrivalState>);

impl PageArrival {
    /// Creates the state, which listens at once. Called once, by the root: after the leave guard, which hides the moves
    /// that it stops, and before the router.
    pub fn provide() {
        let arrival = Self(StoredValue::new(ArrivalState::default()));
        provide_context(arrival);
        // An entry of the history keeps the setting with which it was left. The browser may then restore nothing.
        let is_left_to_script = browser::is_scroll_restored_by_script();
        for name in EVENTS {
            browser::on_capture(name, move |event| arrival.handle(&event));
        }
        Effect::new(move |_| arrival.start(is_left_to_script));
    }

    fn start(self, is_left_to_script: bool) {
        let known = browser::tab_item(POSITIONS_KEY).map(|text| ScrollPositions::parse(&text)).unwrap_or_default();
        let here = browser::current_path();
        let offset = known.of(&here);
        self.0.update_value(|state| {
            state.positions = known;
            state.address = here;
        });
        if is_left_to_script && offset > 0 {
            self.restore_within_timeout(offset);
        } else {
            self.record();
        }
        // Before its `pageshow` event the document may still wait for the browser's own restoration.
        if browser::is_loaded() {
            browser::restore_scroll_by_script(true);
        }
    }

    fn handle(self, event: &Event) {
        match event.type_().as_str() {
            "popstate" => self.on_popstate(),
            "click" => self.0.update_value(|state| state.list_heading = browser::list_heading(event, PAGE_TITLE_ID)),
            "scroll" => self.record(),
            "pageshow" => browser::restore_scroll_by_script(true),
            "pagehide" => {
                browser::restore_scroll_by_script(false);
                browser::set_tab_item(POSITIONS_KEY, &self.0.with_value(|state| state.positions.to_text()));
            }
            _ => self.0.update_value(|state| state.restoring_until = None),
        }
    }

    fn on_popstate(self) {
        let here = browser::current_path();
        self.0.update_value(|state| {
            // A move between fragments stays on the page.
            if here != state.address {
                state.next = NextPage::Former(state.positions.of(&here));
            }
        });
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "no page is that tall")]
    fn record(self) {
        let offset = browser::scroll_offset().round() as u32;
        self.0.update_value(|state| {
            if state.next == NextPage::None && state.restoring_until.is_none() {
                state.positions.set(browser::current_path(), offset);
            }
        });
    }

    /// Handles a change of the address. With the same path the page stays and replaces its list, otherwise the next
    /// heading completes the navigation.
    fn begin(self, address: String, is_same_path: bool) {
        let heading = self.0.try_update_value(|state| {
            // A link may be followed while an earlier move through the history is still in progress.
            let is_move = matches!(state.next, NextPage::Former(_)) && browser::current_path() == address;
            if !is_move {
                state.next = NextPage::New;
                state.positions.set(address.clone(), 0);
            }
            state.address = address;
            state.restoring_until = None;
            let heading = state.list_heading.take();
            state.focused_heading = heading.clone().filter(|_| is_same_path);
            heading
        });
        if is_same_path {
            self.complete(heading.flatten().as_deref());
        }
    }

    /// Handles a heading that has appeared: it completes the navigation, if there is one.
    pub fn heading_shown(self) {
        // Waits one frame, so that the component that begins a navigation has run.
        browser::run_on_next_frame(move || self.complete(Some(PAGE_TITLE_ID)));
    }

    /// Completes the navigation: focuses a heading and sets the scroll position.
    fn complete(self, heading: Option<&str>) {
        let next = self.0.try_update_value(|state| std::mem::take(&mut state.next)).unwrap_or_default();
        match (next, heading) {
            (NextPage::None, _) => {
                let lost = self.0.try_update_value(|state| state.focused_heading.take()).flatten();
                if let Some(heading) = lost.filter(|_| !browser::has_focus()) {
                    browser::focus_in_place(&heading);
                }
            }
            (NextPage::New, None) => {}
            (NextPage::New, Some(PAGE_TITLE_ID)) => browser::focus_in_place(PAGE_TITLE_ID),
            // The heading of a list may be further down.
            (NextPage::New, Some(heading)) => browser::focus(heading),
            (NextPage::Former(offset), _) => {
                browser::focus_in_place(PAGE_TITLE_ID);
                self.restore_within_timeout(offset);
            }
        }
    }

    fn restore_within_timeout(self, offset: u32) {
        let until = browser::now_millis() + RESTORE_TIMEOUT_MILLIS;
        self.0.update_value(|state| state.restoring_until = Some(until));
        self.restore(offset, until);
    }

    /// Scrolls to `offset` in each frame until the page is tall enough.
    fn restore(self, offset: u32, until: i64) {
        if self.0.try_with_value(|state| state.restoring_until) != Some(Some(until)) {
            return;
        }
        browser::scroll_to(offset);
        if browser::scroll_offset() + 1.0 < f64::from(offset) && browser::now_millis() < until {
            browser::run_on_next_frame(move || self.restore(offset, until));
        } else {
            self.0.update_value(|state| state.restoring_until = None);
            self.record();
        }
    }
}

/// Begins a navigation of [`PageArrival`] whenever the path or the query changes. Rendered once, inside the router.
#[component]
pub fn FollowAddress() -> impl IntoView {
    let arrival = expect_context::<PageArrival>();
    let location = use_location();
    Effect::new(move |before: Option<(String, String)>| {
        let here = (location.pathname.get(), location.search.get());
        if let Some((path, search)) = before
            && (&path, &search) != (&here.0, &here.1)
        {
            let search = here.1.trim_start_matches('?');
            let address = if search.is_empty() { here.0.clone() } else { format!("{}?{search}", here.0) };
            arrival.begin(address, path == here.0);
        }
        here
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_survive_the_storage() {
        let mut positions = ScrollPositions::default();
        positions.set("/jobs?q=a%20b".into(), 310);
        positions.set("/".into(), 20);
        positions.set("/jobs?q=a%20b".into(), 400);
        let read = ScrollPositions::parse(&positions.to_text());
        assert_eq!(read, positions);
        assert_eq!((read.of("/jobs?q=a%20b"), read.of("/"), read.of("/jobs")), (400, 20, 0));
        assert_eq!(ScrollPositions::parse("x /jobs\n-1 /\n7"), ScrollPositions::default());
    }

    #[test]
    fn oldest_positions_are_forgotten() {
        let mut positions = ScrollPositions::default();
        for offset in 0..=50 {
            positions.set(format!("/jobs?q={offset}"), offset);
        }
        assert_eq!(positions.0.len(), MAX_POSITIONS);
        assert_eq!((positions.of("/jobs?q=0"), positions.of("/jobs?q=1"), positions.of("/jobs?q=50")), (0, 1, 50));
    }
}
