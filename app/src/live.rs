//! The event stream and its use by pages and components. The module `stream` opens the stream.
//!
//! One [`EventSource`](https://developer.mozilla.org/docs/Web/API/EventSource) serves all tabs of a browser while a user
//! is signed in, because over plain HTTP/1.1 a browser opens six connections per server, and a stream per tab would use
//! them up. The tab that holds a lock leads: it opens the stream and relays every frame to the other tabs. A hidden or
//! paused tab releases the lock, so that a visible one takes over and continues at the same position; while all tabs
//! are hidden or paused, no stream is open. A page without a secure context (plain HTTP from another machine) has no
//! locks; there each visible tab opens its own stream and closes it when it is hidden.
//!
//! A page applies each event to its data at once and, where the event is not sufficient, reads again through
//! a [`throttled_refresh`]. No page depends on the delivery of an event. Events can be missed between the server's HTML
//! and the start of the stream, while the connection is lost, and in a hidden tab. The document names the newest event
//! before its data, so that a new page is not read twice. The server replays what it still has; each other case ends
//! with one [`LiveEvent::Resync`], after which every page reads its data again.
//!
//! The stream also reports a changed role and the end of the session, and every tab acts on them at once. It names the
//! build of the server that it comes from, which each tab compares with the build of its own page.
//!
//! Bursts are delivered once per animation frame, because more frequent updates would not be visible.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leptos::prelude::*;
use milvaion_api::{
    events::{EventEnvelope, LiveEvent},
    views::CurrentUser,
};

use self::read_state::ReadReport;
use crate::{api::session::SessionEnd, browser, error::AppError};

pub mod announcer;
pub mod read_state;
#[cfg(any(feature = "hydrate", test))]
pub(crate) mod tab_message;

/// The name of the `<meta>` element that names the newest event of the stream before the page was read.
pub const POSITION_META: &str = "milvaion-position";

/// The maximum age of an event that a page's first read may have missed, in milliseconds. A first read takes less time.
const FIRST_READ_OVERLAP_MILLIS: i64 = 5_000;

/// The state of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveState {
    /// Not opened yet.
    Connecting,
    /// Open and receiving.
    Live,
    /// Lost, and being reopened.
    Reconnecting,
    /// Lost for 20 s or longer, or reported offline by the browser; the data may be out of date.
    Offline,
    /// Paused by the user.
    Paused,
}

impl LiveState {
    /// Returns the name used by style sheets and tests.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Connecting | Self::Reconnecting => "reconnecting",
            Self::Offline => "offline",
            Self::Paused => "paused",
        }
    }

    /// Returns the label shown to the user.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Live => "Live",
            Self::Connecting => "Connecting",
            Self::Reconnecting => "Reconnecting",
            Self::Offline => "Offline",
            Self::Paused => "Paused",
        }
    }
}

type EnvelopeListener = Arc<dyn Fn(&EventEnvelope) + Send + Sync>;

/// The access of pages to the stream.
#[derive(Clone, Copy)]
pub struct LiveUpdates {
    /// The current state.
    pub state: RwSignal<LiveState>,
    /// True while the user has paused the stream.
    pub paused: RwSignal<bool>,
    /// The build of the dashboard that the server of the stream has, once it is known.
    pub server_build: RwSignal<Option<String>>,
    pub(crate) is_sign_out_expected: StoredValue<bool>,
    pub(crate) sign_out_report: StoredValue<Option<Callback<()>>>,
    pub(crate) new_sign_in: RwSignal<Option<CurrentUser>>,
    last_event_at: StoredValue<Option<i64>>,
    last_log_event_at: StoredValue<Option<i64>>,
    listeners: StoredValue<Vec<(u64, EnvelopeListener)>>,
    next_listener: StoredValue<u64>,
}

fn is_recent(at: StoredValue<Option<i64>>) -> bool {
    at.get_value().is_some_and(|at| browser::now_millis() - at < FIRST_READ_OVERLAP_MILLIS)
}

impl LiveUpdates {
    /// Provides the access to everything inside the layout. Called once, by the layout, which then starts the stream.
    pub fn provide() {
        provide_context(Self {
            state: RwSignal::new(LiveState::Connecting),
            paused: RwSignal::new(false),
            server_build: RwSignal::new(None),
            is_sign_out_expected: StoredValue::new(false),
            sign_out_report: StoredValue::new(None),
            new_sign_in: RwSignal::new(None),
            last_event_at: StoredValue::new(None),
            last_log_event_at: StoredValue::new(None),
            listeners: StoredValue::new(Vec::new()),
            next_listener: StoredValue::new(0),
        });
    }

    /// Returns true while the user has paused live updates.
    #[must_use]
    pub fn is_paused(self) -> bool {
        self.paused.try_get_untracked() == Some(true)
    }

    /// Sets whether this tab itself is ending the session, so that the end is not reported as an unexpected one.
    pub fn expect_sign_out(self, is_expected: bool) {
        self.is_sign_out_expected.set_value(is_expected);
    }

    /// Reports to the other tabs at once that this tab has ended the session.
    pub fn report_sign_out(self) {
        if let Some(report) = self.sign_out_report.try_get_value().flatten() {
            report.run(());
        }
    }

    /// Reports that the same user has signed in again after the session had ended.
    pub fn report_sign_in(self, me: CurrentUser) {
        self.new_sign_in.set(Some(me));
    }

    /// Returns true if an event arrived during the last five seconds, which the first read of a page may lack. Events about
    /// log lines do not count: there are two of them each second while any run writes.
    #[must_use]
    pub fn received_recently(self) -> bool {
        is_recent(self.last_event_at)
    }

    /// Returns the same for events about log lines.
    #[must_use]
    pub fn received_log_recently(self) -> bool {
        is_recent(self.last_log_event_at)
    }

    /// Delivers one event to every listener.
    pub fn deliver(self, envelope: &EventEnvelope) {
        let is_log = matches!(envelope.event, LiveEvent::Log { .. });
        let last = if is_log { self.last_log_event_at } else { self.last_event_at };
        last.set_value(Some(browser::now_millis()));
        let listeners: Vec<EnvelopeListener> =
            self.listeners.with_value(|all| all.iter().map(|(_, listener)| listener.clone()).collect());
        untrack(|| {
            for listener in listeners {
                listener(envelope);
            }
        });
    }
}

/// Calls `listener` for every event while the current owner lives. Pages outside the layout have no stream and receive
/// no events.
pub fn use_live_updates(listener: impl Fn(&EventEnvelope) + Send + Sync + 'static) {
    // The server has no stream, and a listener stored there would outlive its page.
    if cfg!(not(feature = "hydrate")) {
        return;
    }
    let Some(live) = use_context::<LiveUpdates>() else { return };
    let id = live.next_listener.get_value();
    live.next_listener.set_value(id + 1);
    live.listeners.update_value(|all| all.push((id, Arc::new(listener))));
    on_cleanup(move || {
        let _ = live.listeners.try_update_value(|all| all.retain(|(other, _)| *other != id));
    });
}

/// Returns true if the event requires pages to read all of their data again.
#[must_use]
pub fn is_resync(envelope: &EventEnvelope) -> bool {
    matches!(envelope.event, LiveEvent::Resync)
}

/// Requests `refresh` after each event for which `is_news` returns true, when events may have been missed, and now if an
/// event arrived while the page was being read.
pub fn refresh_on_events(refresh: &ThrottledRefresh, is_news: impl Fn(&LiveEvent) -> bool + Send + Sync + 'static) {
    refresh.request_after_first_read();
    let refresh = refresh.clone();
    use_live_updates(move |envelope| {
        if is_resync(envelope) || is_news(&envelope.event) {
            refresh.request();
        }
    });
}

/// Requests `refresh` when events may have been missed, for a page whose data no event announces.
pub fn refresh_on_resync(refresh: &ThrottledRefresh) {
    let refresh = refresh.clone();
    use_live_updates(move |envelope| {
        if is_resync(envelope) {
            refresh.request();
        }
    });
}

/// Calls `read` every `interval` while the current owner lives, the tab is visible and live updates are not paused.
pub fn use_polling(interval: Duration, read: impl Fn() + Clone + Send + Sync + 'static) {
    let live = use_context::<LiveUpdates>();
    Effect::new(move |_| {
        let read = read.clone();
        let is_due = move || !browser::is_hidden() && !live.is_some_and(LiveUpdates::is_paused);
        let tick = move || {
            if is_due() {
                read();
            }
        };
        let timer = set_interval_with_handle(tick, interval);
        on_cleanup(move || {
            if let Ok(timer) = timer {
                timer.clear();
            }
        });
    });
}

/// A handle that refreshes a page's data. Frequent requests cost one read per `pause`.
#[derive(Clone)]
pub struct ThrottledRefresh(Arc<dyn Fn(RefreshCause) + Send + Sync>);

/// The cause of a refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefreshCause {
    /// An event or a timer. While live updates are paused, nothing is read and nothing changes on the page.
    Update,
    /// An action of this user, whose effect shows even while live updates are paused.
    OwnAction,
}

impl ThrottledRefresh {
    /// Requests a refresh because of an event or a timer. Ignored while live updates are paused: the resync after the
    /// pause reads everything again.
    pub fn request(&self) {
        (self.0)(RefreshCause::Update);
    }

    /// Requests a refresh because of an action of this user. It shows even while live updates are paused.
    pub fn request_own(&self) {
        (self.0)(RefreshCause::OwnAction);
    }

    /// Requests a refresh if an event arrived while the page was being read, because the data may predate that event.
    /// Called once, when the page starts to follow the events.
    pub fn request_after_first_read(&self) {
        if use_context::<LiveUpdates>().is_some_and(LiveUpdates::received_recently) {
            self.request();
        }
    }
}

#[derive(Default)]
struct RefreshFlags {
    own_action: AtomicBool,
    gone: AtomicBool,
    waiting: AtomicBool,
    reading: AtomicBool,
    again: AtomicBool,
}

/// Creates a [`ThrottledRefresh`], which calls `read` at most once per `pause` and never concurrently, and passes its
/// result to `apply`.
///
/// A failed read changes no data, because the data on the page is still the best available. It is reported to the
/// [`ReadState`](read_state::ReadState), which labels the page until a read succeeds. If the session has ended, the user is redirected to the
/// sign-in page. The refresh ends with the current owner.
pub fn throttled_refresh<T, Fut>(
    pause: Duration,
    read: impl Fn() -> Fut + Clone + Send + Sync + 'static,
    apply: impl Fn(T) + Clone + Send + Sync + 'static,
) -> ThrottledRefresh
where
    T: 'static,
    Fut: Future<Output = Result<T, AppError>> + 'static,
{
    let flags = Arc::new(RefreshFlags::default());
    on_cleanup({
        let flags = flags.clone();
        move || flags.gone.store(true, Ordering::Relaxed)
    });
    let session_end = SessionEnd::current();
    let live = use_context::<LiveUpdates>();
    let report = ReadReport::default();
    let refresh = ThrottledRefresh(Arc::new({
        let report = report.clone();
        move |cause| {
            if cause == RefreshCause::OwnAction {
                flags.own_action.store(true, Ordering::Relaxed);
            }
            schedule_read(pause, flags.clone(), read.clone(), apply.clone(), report.clone(), live, session_end);
        }
    }));
    report.register(refresh.clone());
    refresh
}

fn schedule_read<T, Fut>(
    pause: Duration,
    flags: Arc<RefreshFlags>,
    read: impl Fn() -> Fut + Clone + Send + Sync + 'static,
    apply: impl Fn(T) + Clone + Send + Sync + 'static,
    report: ReadReport,
    live: Option<LiveUpdates>,
    session_end: SessionEnd,
) where
    T: 'static,
    Fut: Future<Output = Result<T, AppError>> + 'static,
{
    // A pause holds what others cause. The answer of a read that began before the pause is dropped too.
    let is_held = {
        let flags = flags.clone();
        move || live.is_some_and(LiveUpdates::is_paused) && !flags.own_action.load(Ordering::Relaxed)
    };
    if is_held() {
        return;
    }
    if flags.reading.load(Ordering::Relaxed) {
        flags.again.store(true, Ordering::Relaxed);
        return;
    }
    if flags.waiting.swap(true, Ordering::Relaxed) {
        return;
    }
    let later = move || {
        flags.waiting.store(false, Ordering::Relaxed);
        if flags.gone.load(Ordering::Relaxed) || is_held() {
            return;
        }
        flags.reading.store(true, Ordering::Relaxed);
        leptos::task::spawn_local(async move {
            let answer = read().await;
            flags.reading.store(false, Ordering::Relaxed);
            if flags.gone.load(Ordering::Relaxed) {
                return;
            }
            match answer {
                Err(AppError::SignedOut) => session_end.report_refused_read(),
                _ if is_held() => {}
                Ok(value) => {
                    untrack(|| apply(value));
                    report.succeeded();
                }
                Err(error) => report.failed(error),
            }
            if flags.again.swap(false, Ordering::Relaxed) {
                schedule_read(pause, flags, read, apply, report, live, session_end);
            } else {
                flags.own_action.store(false, Ordering::Relaxed);
            }
        });
    };
    set_timeout(later, pause);
}
