//! Times that state their zone, and durations that tick.
//!
//! The server renders every instant in the zone and on the clock that the user's cookies name, and in UTC on the first
//! visit or if the user prefers UTC. The document names both. Hydration formats in the same way, so no time changes, and
//! then stores the browser's zone for the next page. After hydration one [`PageClock`] updates the relative times every
//! second. It uses the *server's* clock, because a countdown shows when the scheduler will act, and the user's clock may
//! be wrong.

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use leptos::prelude::*;

use crate::{
    api::session::chosen_zone,
    browser::{self, CLOCK_COOKIE, TIME_STYLE_COOKIE, ZONE_COOKIE, ZONE_MODE_COOKIE},
    format::{self, ClockStyle},
};

/// The attribute of the document's root element that names the zone of its times; absent if that is UTC by default or
/// by choice.
#[cfg(not(feature = "ssr"))]
const ZONE_ATTRIBUTE: &str = "data-zone";
/// The attribute of the document's root element that contains `12` if its times have 12 hours.
#[cfg(not(feature = "ssr"))]
const CLOCK_ATTRIBUTE: &str = "data-clock";

/// Returns the zone in which the server renders the times of this document; `None` for UTC.
#[cfg(feature = "ssr")]
#[must_use]
pub fn document_zone() -> Option<String> {
    if crate::api::request_cookie(ZONE_MODE_COOKIE).is_some_and(|mode| mode == "utc") {
        return None;
    }
    crate::api::session::viewer_zone().filter(|zone| milvaion_schedule::schedule::parse_zone(zone).is_ok())
}

/// Returns the zone in which the server rendered the times of this document; `None` for UTC.
#[cfg(not(feature = "ssr"))]
#[must_use]
pub fn document_zone() -> Option<String> {
    browser::root_attribute(ZONE_ATTRIBUTE)
}

/// Returns the clock on which the server renders the times of this document.
#[cfg(feature = "ssr")]
#[must_use]
pub fn document_clock() -> ClockStyle {
    clock_style(crate::api::request_cookie(CLOCK_COOKIE).as_deref())
}

/// Returns the clock on which the server rendered the times of this document.
#[cfg(not(feature = "ssr"))]
#[must_use]
pub fn document_clock() -> ClockStyle {
    clock_style(browser::root_attribute(CLOCK_ATTRIBUTE).as_deref())
}

/// Returns the clock of a cookie or attribute. Any other value means 24 hours.
fn clock_style(value: Option<&str>) -> ClockStyle {
    if value == Some("12") { ClockStyle::Hours12 } else { ClockStyle::Hours24 }
}

/// The clock shared by all times on the page.
#[derive(Clone, Copy)]
pub struct PageClock {
    started: RwSignal<bool>,
    /// The zone in which times are shown; `None` for UTC.
    zone: RwSignal<Option<String>>,
    style: RwSignal<ClockStyle>,
    /// True if no time is relative.
    is_exact: RwSignal<bool>,
    now: RwSignal<DateTime<Utc>>,
    offset_millis: StoredValue<i64>,
}

impl PageClock {
    /// Creates the clock, which starts after hydration. Called once, by the root.
    pub fn provide() {
        let clock = Self {
            started: RwSignal::new(false),
            zone: RwSignal::new(document_zone()),
            style: RwSignal::new(document_clock()),
            is_exact: RwSignal::new(false),
            now: RwSignal::new(DateTime::UNIX_EPOCH),
            offset_millis: StoredValue::new(0),
        };
        provide_context(clock);
        Effect::new(move |_| {
            if let Some(zone) = browser::zone_name() {
                browser::set_cookie(ZONE_COOKIE, &zone);
            }
            clock.read_preferences();
            clock.tick();
            clock.started.set(true);
            let _ = set_interval(move || clock.tick(), std::time::Duration::from_secs(1));
        });
    }

    /// Shows times as the browser's cookies say.
    pub fn read_preferences(self) {
        let in_utc = browser::cookie(ZONE_MODE_COOKIE).is_some_and(|mode| mode == "utc");
        let zone = if in_utc { None } else { chosen_zone().or_else(browser::zone_name) };
        if self.zone.with_untracked(|known| *known != zone) {
            self.zone.set(zone);
        }
        let style = clock_style(browser::cookie(CLOCK_COOKIE).as_deref());
        if self.style.get_untracked() != style {
            self.style.set(style);
        }
        let is_exact = browser::cookie(TIME_STYLE_COOKIE).is_some_and(|style| style == "exact");
        if self.is_exact.get_untracked() != is_exact {
            self.is_exact.set(is_exact);
        }
    }

    fn tick(self) {
        let millis = browser::now_millis() + self.offset_millis.get_value();
        if let Some(now) = DateTime::from_timestamp_millis(millis) {
            self.now.set(now);
        }
    }

    /// Sets the offset to the server's clock from a time that the server has just reported.
    pub fn sync(self, server_now: DateTime<Utc>) {
        self.sync_at(server_now, browser::now_millis());
    }

    /// Sets the offset from the time at which the server read a page's data. If that page is the HTML being hydrated,
    /// the browser received it earlier than now, by the time that loading the script took.
    pub fn sync_page(self, server_now: DateTime<Utc>) {
        let is_hydrating = !self.started.get_untracked();
        let here = if is_hydrating { browser::page_arrived_millis() } else { browser::now_millis() };
        self.sync_at(server_now, here);
    }

    fn sync_at(self, server_now: DateTime<Utc>, here: i64) {
        if here > 0 {
            self.offset_millis.set_value(server_now.timestamp_millis() - here);
            self.tick();
        }
    }

    /// Converts an instant of the browser's clock to the server's clock.
    #[must_use]
    pub fn server_time(self, browser_millis: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(browser_millis + self.offset_millis.get_value()).unwrap_or_default()
    }

    /// Returns the server's time to the second; `None` before hydration, when nothing may tick yet.
    #[must_use]
    pub fn now(self) -> Option<DateTime<Utc>> {
        self.started.get().then(|| self.now.get())
    }

    /// Returns the time for a text that ticks; `None` before hydration, and if the user prefers exact times. Those do not
    /// read the clock, so that no tick computes them again.
    fn ticking_now(self) -> Option<DateTime<Utc>> {
        if self.is_exact.get() { None } else { self.now() }
    }

    /// Formats an instant, as its distance from now if it is `relative`.
    fn instant_text(self, at: DateTime<Utc>, relative: bool) -> String {
        let now = if relative { self.ticking_now() } else { None };
        now.map_or_else(|| self.text(at), |now| format::relative(now, at))
    }

    /// Returns true if times are shown in UTC, by the user's choice or because the server does not know the zone yet.
    #[must_use]
    pub fn is_utc(self) -> bool {
        self.zone.with(Option::is_none)
    }

    /// Returns true if times are shown in a zone that the user has chosen instead of the browser's.
    #[must_use]
    pub fn is_chosen_zone(self) -> bool {
        self.zone.with(|zone| zone.is_some() && *zone == chosen_zone())
    }

    /// Selects UTC or the user's zone and stores the choice.
    pub fn set_utc(self, utc: bool) {
        browser::set_cookie(ZONE_MODE_COOKIE, if utc { "utc" } else { "local" });
        self.read_preferences();
    }

    /// Formats an instant in the selected zone: `2026-11-21 14:02:05 UTC`.
    #[must_use]
    pub fn text(self, at: DateTime<Utc>) -> String {
        let (local, offset) = self.local(at);
        format!("{} {} {offset}", format::date(local), format::clock(local, self.style.get()))
    }

    /// Formats the date in the selected zone: `2026-11-21`.
    #[must_use]
    pub fn date_text(self, at: DateTime<Utc>) -> String {
        format::date(self.local(at).0)
    }

    /// Formats the time of a log line in the selected zone to the millisecond, with its date unless that is
    /// `first_day`.
    #[must_use]
    pub fn log_text(self, at: DateTime<Utc>, first_day: &str) -> String {
        let (local, _) = self.local(at);
        let (date, time) = (format::date(local), format::clock_millis(local, self.style.get()));
        if date == first_day { time } else { format!("{date} {time}") }
    }

    /// Returns the name of the selected zone: `UTC` or `Europe/Berlin`.
    #[must_use]
    pub fn zone_text(self) -> String {
        self.zone.get().unwrap_or_else(|| "UTC".to_owned())
    }

    /// Converts an instant to the selected zone. The second value is the distance from UTC, and not the abbreviation of
    /// the zone, because most abbreviations stand for several zones.
    fn local(self, at: DateTime<Utc>) -> (NaiveDateTime, String) {
        // A browser may know fewer zones than the server. The offset in the text then says that it is UTC.
        let minutes = self.zone.with(|zone| zone.as_deref().and_then(|zone| browser::zone_offset(zone, at)));
        let minutes = minutes.unwrap_or(0);
        let utc = at.naive_utc();
        let local = utc.checked_add_signed(TimeDelta::minutes(minutes.into())).unwrap_or(utc);
        (local, format::offset(minutes))
    }
}

/// Returns the page's clock.
///
/// # Panics
///
/// Panics outside the app, which provides the clock at its root.
#[must_use]
pub fn use_page_clock() -> PageClock {
    expect_context()
}

/// An instant. A relative one is shown as absolute before hydration, and always if the user prefers exact times. The title is always the absolute time, and
/// `datetime` is ISO 8601.
#[component]
pub fn Time(
    /// The instant.
    #[prop(into)]
    at: Signal<DateTime<Utc>>,
    /// True to show the distance from now.
    #[prop(optional)]
    relative: bool,
) -> impl IntoView {
    let clock = use_page_clock();
    // The memo avoids a repaint if a tick does not change the text.
    let text = Memo::new(move |_| clock.instant_text(at.get(), relative));
    view! {
        <time class="time" datetime=move || format::iso(at.get()) title=move || clock.text(at.get())>
            {move || text.get()}
        </time>
    }
}

/// An instant that may be absent.
#[component]
pub fn MaybeTime(
    /// The instant, if any.
    #[prop(into)]
    at: Signal<Option<DateTime<Utc>>>,
    /// True to show the distance from now.
    #[prop(optional)]
    relative: bool,
) -> impl IntoView {
    move || match at.get() {
        Some(at) => view! { <Time at=at relative=relative/> }.into_any(),
        None => view! { <span class="muted">"–"</span> }.into_any(),
    }
}

/// A duration, which ticks while the activity is running.
#[component]
pub fn Duration(
    /// Start of the activity.
    #[prop(into)]
    started_at: Signal<Option<DateTime<Utc>>>,
    /// Final duration in milliseconds, once it is known.
    #[prop(into)]
    millis: Signal<Option<i64>>,
    /// True while the activity is running.
    #[prop(into)]
    running: Signal<bool>,
) -> impl IntoView {
    let clock = use_page_clock();
    let text = move || match (millis.get(), started_at.get()) {
        (_, Some(start)) if running.get() => match clock.now() {
            Some(now) => format::duration_whole((now - start).max(TimeDelta::zero()).num_milliseconds()),
            None => "running".to_owned(),
        },
        (Some(millis), _) => format::duration(millis),
        _ => "–".to_owned(),
    };
    let text = Memo::new(move |_| text());
    let exact = move || millis.get().filter(|_| !running.get()).map(|millis| format!("{} ms", format::count(millis)));
    view! { <span class="duration" title=exact>{move || text.get()}</span> }
}

/// A ticking countdown to an instant. A past instant is shown as due now. A user who prefers exact times sees the
/// instant.
#[component]
pub fn Countdown(
    /// The instant to count down to.
    #[prop(into)]
    at: Signal<DateTime<Utc>>,
) -> impl IntoView {
    let clock = use_page_clock();
    let text = move || match clock.ticking_now() {
        Some(now) if at.get() > now => {
            format!("in {}", format::duration_whole((at.get() - now).num_milliseconds().saturating_add(999)))
        }
        Some(_) => "due now".to_owned(),
        None => clock.text(at.get()),
    };
    let text = Memo::new(move |_| text());
    view! {
        <time class="countdown" datetime=move || format::iso(at.get()) title=move || clock.text(at.get())>
            {move || text.get()}
        </time>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_time_has_a_date_on_another_day() {
        Owner::new().with(|| {
            PageClock::provide();
            let clock = use_page_clock();
            let first = DateTime::UNIX_EPOCH + TimeDelta::milliseconds(86_399_250);
            let day = clock.date_text(first);
            assert_eq!(clock.log_text(first, &day), "23:59:59.250");
            assert_eq!(clock.log_text(first + TimeDelta::seconds(1), &day), "1970-01-02 00:00:00.250");
            assert_eq!(clock.zone_text(), "UTC", "without a cookie the server renders UTC");
        });
    }

    #[test]
    fn tick_computes_only_relative_times_again() {
        Owner::new().with(|| {
            PageClock::provide();
            let clock = use_page_clock();
            clock.started.set(true);
            let computed = |relative: bool| {
                let runs = StoredValue::new(0);
                let text = Memo::new(move |_| {
                    runs.update_value(|runs| *runs += 1);
                    clock.instant_text(DateTime::UNIX_EPOCH, relative)
                });
                let first = text.get_untracked();
                clock.now.update(|now| *now += TimeDelta::minutes(5));
                (first != text.get_untracked(), runs.get_value())
            };
            assert_eq!(computed(false), (false, 1));
            assert_eq!(computed(true), (true, 2));
            clock.is_exact.set(true);
            assert_eq!(computed(true), (false, 1));
        });
    }

    #[cfg(not(feature = "hydrate"))]
    #[test]
    fn times_follow_the_zone_and_its_clock_changes() {
        Owner::new().with(|| {
            PageClock::provide();
            let clock = use_page_clock();
            clock.zone.set(Some("America/New_York".into()));
            let at = |text: &str| text.parse().expect("a valid instant");
            assert_eq!(clock.text(at("2026-11-21T02:02:05Z")), "2026-11-20 21:02:05 UTC−5");
            assert_eq!(clock.text(at("2026-07-01T02:02:05Z")), "2026-06-30 22:02:05 UTC−4");
            assert_eq!(clock.log_text(at("2026-11-21T02:02:05.007Z"), "2026-11-20"), "21:02:05.007");
            assert_eq!(clock.zone_text(), "America/New_York");
            clock.style.set(ClockStyle::Hours12);
            assert_eq!(clock.text(at("2026-11-21T02:02:05Z")), "2026-11-20 09:02:05 PM UTC−5");
            assert_eq!(clock.log_text(at("2026-11-21T02:02:05.007Z"), "2026-11-20"), "09:02:05.007 PM");
            clock.zone.set(None);
            assert_eq!(clock.text(at("2026-11-21T02:02:05Z")), "2026-11-21 02:02:05 AM UTC");
        });
    }
}
