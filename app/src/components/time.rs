//! Times that state their zone, and durations that tick.
//!
//! The server renders every instant in the zone that the user's cookie names, and in UTC on the first visit or if the
//! user prefers UTC. The document names the zone of its times. Hydration formats in the same zone, so no time changes,
//! and then stores the browser's zone for the next page. After hydration one [`PageClock`] updates the relative times
//! every second. It uses the *server's* clock, because a countdown shows when the scheduler will act, and the user's
//! clock may be wrong.

use chrono::{DateTime, TimeDelta, Utc};
use leptos::prelude::*;

use crate::{browser, format};

/// The cookie that stores whether times are shown in UTC or in the user's zone.
const ZONE_MODE_COOKIE: &str = "zone_mode";
/// The cookie that gives the server the user's zone, for previews in that zone.
const ZONE_COOKIE: &str = "zone";

/// The attribute of the document's root element that names the zone of its times; absent if that is UTC by default or
/// by choice.
#[cfg(not(feature = "ssr"))]
const ZONE_ATTRIBUTE: &str = "data-zone";

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

/// The zone in which times are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ZoneMode {
    /// UTC.
    Utc,
    /// The user's zone.
    Local,
    /// A zone that the browser had at the last visit, while the document is hydrated. The browser's clock has only the
    /// present zone, so the page keeps the server's texts and replaces all of them afterwards.
    Former,
}

/// The clock shared by all times on the page.
#[derive(Clone, Copy)]
pub struct PageClock {
    started: RwSignal<bool>,
    zone_mode: RwSignal<ZoneMode>,
    /// The name of the user's zone, if it is known.
    zone: StoredValue<Option<String>>,
    now: RwSignal<DateTime<Utc>>,
    offset_millis: StoredValue<i64>,
}

impl PageClock {
    /// Creates the clock, which starts after hydration. Called once, by the root.
    pub fn provide() {
        let zone = document_zone();
        let zone_mode = match &zone {
            None => ZoneMode::Utc,
            Some(zone) if cfg!(feature = "hydrate") && browser::zone_name().as_ref() != Some(zone) => ZoneMode::Former,
            Some(_) => ZoneMode::Local,
        };
        let clock = Self {
            started: RwSignal::new(false),
            zone_mode: RwSignal::new(zone_mode),
            zone: StoredValue::new(zone),
            now: RwSignal::new(DateTime::UNIX_EPOCH),
            offset_millis: StoredValue::new(0),
        };
        provide_context(clock);
        Effect::new(move |_| {
            let zone = browser::zone_name();
            if let Some(zone) = &zone {
                browser::set_cookie(ZONE_COOKIE, zone);
            }
            clock.zone.set_value(zone);
            let in_utc = browser::cookie(ZONE_MODE_COOKIE).is_some_and(|mode| mode == "utc");
            let zone_mode = if in_utc { ZoneMode::Utc } else { ZoneMode::Local };
            if clock.zone_mode.get_untracked() != zone_mode {
                clock.zone_mode.set(zone_mode);
            }
            clock.tick();
            clock.started.set(true);
            let ticker = set_interval_with_handle(move || clock.tick(), std::time::Duration::from_secs(1));
            on_cleanup(move || {
                if let Ok(ticker) = ticker {
                    ticker.clear();
                }
            });
        });
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

    /// Returns true if times are shown in UTC, by the user's choice or because the server does not know the zone yet.
    #[must_use]
    pub fn is_utc(self) -> bool {
        self.zone_mode.get() == ZoneMode::Utc
    }

    /// Selects UTC or the user's zone and stores the choice.
    pub fn set_utc(self, utc: bool) {
        self.zone_mode.set(if utc { ZoneMode::Utc } else { ZoneMode::Local });
        browser::set_cookie(ZONE_MODE_COOKIE, if utc { "utc" } else { "local" });
    }

    /// Formats an instant in the selected zone: `2026-11-21 14:02:05 UTC`.
    #[must_use]
    pub fn text(self, at: DateTime<Utc>) -> String {
        self.local(at)
            .map_or_else(|| format::utc(at), |local| format!("{} {} {}", local.date, local.clock, local.offset))
    }

    /// Formats the date in the selected zone: `2026-11-21`.
    #[must_use]
    pub fn date_text(self, at: DateTime<Utc>) -> String {
        self.local(at).map_or_else(|| format::date(at), |local| local.date)
    }

    /// Formats the time of a log line in the selected zone to the millisecond, with its date unless that is
    /// `first_day`.
    #[must_use]
    pub fn log_text(self, at: DateTime<Utc>, first_day: &str) -> String {
        let (date, time) = self.local(at).map_or_else(
            || (format::date(at), format::clock_millis(at)),
            |local| (local.date, format!("{}.{:03}", local.clock, at.timestamp_subsec_millis())),
        );
        if date == first_day { time } else { format!("{date} {time}") }
    }

    /// Returns the name of the selected zone: `UTC` or `Europe/Berlin`.
    #[must_use]
    pub fn zone_text(self) -> String {
        if self.is_utc() {
            return "UTC".to_owned();
        }
        self.zone.get_value().unwrap_or_else(|| "local time".to_owned())
    }

    fn local(self, at: DateTime<Utc>) -> Option<browser::LocalTime> {
        match self.zone_mode.get() {
            ZoneMode::Utc => None,
            ZoneMode::Local => {
                self.zone.with_value(|zone| browser::local_time(zone.as_deref().unwrap_or_default(), at))
            }
            // Hydration keeps the server's text. An empty one differs from the text that replaces it.
            ZoneMode::Former => Some(browser::LocalTime::default()),
        }
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

/// An instant. A relative one is shown as absolute before hydration. The title is always the absolute time, and
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
    let text = move || match clock.now() {
        Some(now) if relative => format::relative(now, at.get()),
        _ => clock.text(at.get()),
    };
    // The memo avoids a repaint if a tick does not change the text.
    let text = Memo::new(move |_| text());
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

/// A ticking countdown to an instant. A past instant is shown as due now.
#[component]
pub fn Countdown(
    /// The instant to count down to.
    #[prop(into)]
    at: Signal<DateTime<Utc>>,
) -> impl IntoView {
    let clock = use_page_clock();
    let text = move || match clock.now() {
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

    #[cfg(not(feature = "hydrate"))]
    #[test]
    fn times_follow_the_zone_and_its_clock_changes() {
        Owner::new().with(|| {
            PageClock::provide();
            let clock = use_page_clock();
            clock.zone.set_value(Some("America/New_York".into()));
            clock.set_utc(false);
            let at = |text: &str| text.parse().expect("a valid instant");
            assert_eq!(clock.text(at("2026-11-21T02:02:05Z")), "2026-11-20 21:02:05 UTC−5");
            assert_eq!(clock.text(at("2026-07-01T02:02:05Z")), "2026-06-30 22:02:05 UTC−4");
            assert_eq!(clock.log_text(at("2026-11-21T02:02:05.007Z"), "2026-11-20"), "21:02:05.007");
            assert_eq!(clock.zone_text(), "America/New_York");
            clock.set_utc(true);
            assert_eq!(clock.text(at("2026-11-21T02:02:05Z")), "2026-11-21 02:02:05 UTC");
        });
    }
}
