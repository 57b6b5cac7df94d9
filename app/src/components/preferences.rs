//! The user's preferences: theme and time zone. Both are cookies, so that the server's HTML already respects them.

use leptos::prelude::*;

use super::{
    icon::{Icon, LiveIcon},
    time::use_page_clock,
};
use crate::browser;

/// The cookie that stores the theme; the HTML shell reads it.
pub const THEME_COOKIE: &str = "theme";

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

/// A button that cycles through the themes: system, light, dark.
#[component]
pub fn ThemeButton() -> impl IntoView {
    let theme = RwSignal::new(Theme::System);
    Effect::new(move |_| {
        if let Some(slug) = browser::cookie(THEME_COOKIE) {
            theme.set(Theme::from_slug(&slug));
        }
    });
    let label = move || format!("Theme: {}. Change to {}", theme.get().slug(), theme.get().next().slug());
    let change = move |_| {
        let next = theme.get_untracked().next();
        theme.set(next);
        browser::set_cookie(THEME_COOKIE, next.slug());
        browser::set_root_attribute("data-theme", next.slug());
    };
    view! {
        <button type="button" class="icon-btn needs-js" aria-label=label title=label on:click=change>
            <LiveIcon name=Signal::derive(move || theme.get().icon())/>
        </button>
    }
}

/// A button that switches all times between the user's zone and UTC.
#[component]
pub fn ZoneButton() -> impl IntoView {
    let clock = use_page_clock();
    let word = move || if clock.is_utc() { "UTC" } else { "Local" };
    let title = move || {
        if clock.is_utc() {
            "Times are shown in UTC. Switch to your time zone."
        } else {
            "Times are shown in your time zone. Switch to UTC."
        }
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
