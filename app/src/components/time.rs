//! Times that say their zone, and lengths that tick.
//!
//! The server writes every instant in UTC, because it cannot know the reader's clock. Once the page runs, one [`PageClock`]
//! turns them all to the reader's zone (or leaves them, if the reader prefers UTC) and lets the relative ones tick. It
//! ticks by the *server's* clock: a countdown is about when the scheduler will act, whatever the reader's computer
//! believes the time to be.

use chrono::{DateTime, TimeDelta, Utc};
use leptos::prelude::*;

use crate::{browser, format};

/// The cookie that keeps which of the two is wanted.
const ZONE_MODE_COOKIE: &str = "zone_mode";
/// The cookie that tells the server the reader's zone, for previews in it.
const ZONE_COOKIE: &str = "zone";

/// The page's clock.
#[derive(Clone, Copy)]
pub struct PageClock {
    started: RwSignal<bool>,
    in_utc: RwSignal<bool>,
    now: RwSignal<DateTime<Utc>>,
    offset_millis: StoredValue<i64>,
}

impl PageClock {
    /// Makes the page's clock and starts it once the page runs. Called once, by the root.
    pub fn provide() {
        let clock = Self {
            started: RwSignal::new(false),
            in_utc: RwSignal::new(true),
            now: RwSignal::new(DateTime::UNIX_EPOCH),
            offset_millis: StoredValue::new(0),
        };
        provide_context(clock);
        Effect::new(move |_| {
            if let Some(zone) = browser::zone_name() {
                browser::set_cookie(ZONE_COOKIE, &zone);
            }
            clock.in_utc.set(browser::cookie(ZONE_MODE_COOKIE).is_some_and(|mode| mode == "utc"));
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

    /// Learns the server's clock from something it said just now.
    pub fn learn(self, server_now: DateTime<Utc>) {
        let here = browser::now_millis();
        if here > 0 {
            self.offset_millis.set_value(server_now.timestamp_millis() - here);
            self.tick();
        }
    }

    /// The server's clock, second by second; none before the page runs, when nothing may tick yet.
    #[must_use]
    pub fn now(self) -> Option<DateTime<Utc>> {
        self.started.get().then(|| self.now.get())
    }

    /// Whether times are shown in UTC. True until the page runs.
    #[must_use]
    pub fn is_utc(self) -> bool {
        !self.started.get() || self.in_utc.get()
    }

    /// Shows times in UTC, or in the reader's zone, and remembers it.
    pub fn set_utc(self, utc: bool) {
        self.in_utc.set(utc);
        browser::set_cookie(ZONE_MODE_COOKIE, if utc { "utc" } else { "local" });
    }

    /// An instant in the zone that is shown: `2026-11-21 14:02:05 UTC`.
    #[must_use]
    pub fn text(self, at: DateTime<Utc>) -> String {
        self.local(at)
            .map_or_else(|| format::utc(at), |local| format!("{} {} {}", local.date, local.clock, local.offset))
    }

    /// The time of day with milliseconds in the zone that is shown, for log lines.
    #[must_use]
    pub fn millis_text(self, at: DateTime<Utc>) -> String {
        self.local(at).map_or_else(
            || format::clock_millis(at),
            |local| format!("{}.{:03}", local.clock, at.timestamp_subsec_millis()),
        )
    }

    fn local(self, at: DateTime<Utc>) -> Option<browser::LocalTime> {
        if self.is_utc() { None } else { browser::local_time(at) }
    }
}

/// The page's clock.
///
/// # Panics
///
/// Outside the app, which provides it at its root.
#[must_use]
pub fn use_page_clock() -> PageClock {
    expect_context()
}

/// An instant. Relative ones read as absolute until the page runs; the absolute time is always the title, with the
/// machine's form in `datetime`.
#[component]
pub fn Time(
    /// When.
    #[prop(into)]
    at: Signal<DateTime<Utc>>,
    /// Whether to say how far it is from now.
    #[prop(optional)]
    relative: bool,
) -> impl IntoView {
    let clock = use_page_clock();
    let text = move || match clock.now() {
        Some(now) if relative => format::relative(now, at.get()),
        _ => clock.text(at.get()),
    };
    // A Memo spares the page the paint when a tick changes nothing.
    let text = Memo::new(move |_| text());
    view! {
        <time class="time" datetime=move || format::iso(at.get()) title=move || clock.text(at.get())>
            {move || text.get()}
        </time>
    }
}

/// An instant that may not have come.
#[component]
pub fn MaybeTime(
    /// When, if ever.
    #[prop(into)]
    at: Signal<Option<DateTime<Utc>>>,
    /// As in [`Time`].
    #[prop(optional)]
    relative: bool,
) -> impl IntoView {
    move || match at.get() {
        Some(at) => view! { <Time at=at relative=relative/> }.into_any(),
        None => view! { <span class="muted">"–"</span> }.into_any(),
    }
}

/// How long something took, or takes: it ticks while there is a start and no length yet.
#[component]
pub fn Duration(
    /// When it began.
    #[prop(into)]
    started_at: Signal<Option<DateTime<Utc>>>,
    /// How long it took, once that is known.
    #[prop(into)]
    millis: Signal<Option<i64>>,
    /// Whether it goes on.
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

/// How long it is until an instant, ticking; what is past is due now.
#[component]
pub fn Countdown(
    /// Until when.
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
