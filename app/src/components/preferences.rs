//! The user's preferences: theme, times and shortcuts. All are cookies, so that the server's HTML already respects them.
//! They belong to the browser, not to the account. The account page has a form for all of them.

use leptos::prelude::*;

use super::{
    icon::{Icon, LiveIcon},
    time::use_page_clock,
};
use crate::browser::{self, SHORTCUTS_COOKIE, THEME_COOKIE};

/// The color theme.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Theme {
    /// The theme of the user's operating system.
    #[default]
    System,
    /// Light colors.
    Light,
    /// Dark colors.
    Dark,
}

impl Theme {
    /// Returns the name used in the cookie and on the root element.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }

    /// Parses a [`slug`](Self::slug). An unknown name means [`Theme::System`].
    #[must_use]
    pub fn from_slug(slug: &str) -> Self {
        match slug {
            "light" => Self::Light,
            "dark" => Self::Dark,
            _ => Self::System,
        }
    }

    const fn next(self) -> Self {
        match self {
            Self::System => Self::Light,
            Self::Light => Self::Dark,
            Self::Dark => Self::System,
        }
    }

    const fn icon(self) -> &'static str {
        match self {
            Self::System => "monitor",
            Self::Light => "sun",
            Self::Dark => "moon",
        }
    }
}

/// The preferences that several parts of a page show and change. Those about times are in the
/// [`PageClock`](super::time::PageClock).
#[derive(Clone, Copy)]
pub struct SharedPreferences {
    theme: RwSignal<Theme>,
    has_shortcuts: RwSignal<bool>,
}

impl SharedPreferences {
    /// Provides the preferences, which are read from the cookies after hydration. Called once, by the layout.
    pub fn provide() {
        let preferences = Self { theme: RwSignal::new(Theme::System), has_shortcuts: RwSignal::new(true) };
        provide_context(preferences);
        Effect::new(move |_| preferences.read());
    }

    /// Returns the preferences of the layout.
    ///
    /// # Panics
    ///
    /// Panics outside the layout, which provides them.
    #[must_use]
    pub fn current() -> Self {
        expect_context()
    }

    /// Reads the preferences from the cookies and applies them.
    pub fn read(self) {
        if let Some(slug) = browser::cookie(THEME_COOKIE) {
            let theme = Theme::from_slug(&slug);
            self.theme.set(theme);
            browser::set_root_attribute("data-theme", theme.slug());
        }
        self.has_shortcuts.set(browser::cookie(SHORTCUTS_COOKIE).is_none_or(|value| value != "off"));
    }

    /// Returns the theme.
    #[must_use]
    pub fn theme(self) -> Theme {
        self.theme.get()
    }

    /// Selects a theme and stores the choice.
    pub fn set_theme(self, theme: Theme) {
        self.theme.set(theme);
        browser::set_cookie(THEME_COOKIE, theme.slug());
        browser::set_root_attribute("data-theme", theme.slug());
    }

    /// Returns true if the keyboard shortcuts are on.
    #[must_use]
    pub fn has_shortcuts(self) -> bool {
        self.has_shortcuts.get()
    }

    /// Turns the keyboard shortcuts on or off and stores the choice.
    pub fn set_shortcuts(self, is_on: bool) {
        self.has_shortcuts.set(is_on);
        browser::set_cookie(SHORTCUTS_COOKIE, if is_on { "on" } else { "off" });
    }
}

/// A button that cycles through the themes: system, light, dark.
#[component]
pub fn ThemeButton() -> impl IntoView {
    let preferences = SharedPreferences::current();
    let label = move || {
        let theme = preferences.theme();
        format!("Theme: {}. Change to {}", theme.slug(), theme.next().slug())
    };
    let change = move |_| preferences.set_theme(untrack(|| preferences.theme()).next());
    view! {
        <button type="button" class="icon-btn needs-js" aria-label=label title=label on:click=change>
            <LiveIcon name=Signal::derive(move || preferences.theme().icon())/>
        </button>
    }
}

/// A button that switches all times between the user's zone and UTC.
#[component]
pub fn ZoneButton() -> impl IntoView {
    let clock = use_page_clock();
    let word = move || match (clock.is_utc(), clock.is_chosen_zone()) {
        (true, _) => "UTC",
        (false, false) => "Local",
        (false, true) => "Chosen",
    };
    let title = move || match (clock.is_utc(), clock.is_chosen_zone()) {
        (true, _) => "Times are shown in UTC. Switch to your time zone.".to_owned(),
        (false, false) => "Times are shown in your time zone. Switch to UTC.".to_owned(),
        (false, true) => format!("Times are shown in {}. Switch to UTC.", clock.zone_text()),
    };
    view! {
        <button
            type="button"
            class="btn btn-quiet btn-small needs-js"
            title=title
            on:click=move |_| clock.set_utc(!untrack(|| clock.is_utc()))
        >
            <Icon name="globe"/>
            <span class="sr-only">"Time zone: "</span>
            <span>{word}</span>
        </button>
    }
}
