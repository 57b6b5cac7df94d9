//! The event stream and its use by pages and components. The module `stream` opens the stream.
//!
//! One [`EventSource`](https://developer.mozilla.org/docs/Web/API/EventSource) serves all tabs of a browser while a user
//! is signed in, because over plain HTTP/1.1 a browser opens six connections per server, and a stream per tab would use
//! them up. The tab that holds a lock leads: it opens the stream and relays every frame to the other tabs. A hidden or
//! paused tab releases the lock, so that a visible one takes over and continues at the same position; while all tabs
//! are hidden or paused, no stream is open. A page without a secure context (plain HTTP from another machine) has no
//! locks; there each visible tab opens its own stream and closes it when it is hidden.
//!
//! A page applies each event to its data at once and, where the event is not sufficient, reads again: its [`live_page`]
//! has the rules for both. No page depends on the delivery of an event. Events can be missed between the server's HTML
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

use futures::future::LocalBoxFuture;
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

/// Sets a signal if the value differs, so that nothing is drawn again for a read that found no change.
pub fn set_if_changed<T: PartialEq + Send + Sync + 'static>(signal: RwSignal<T>, value: T) {
    if signal.with_untracked(|known| *known != value) {
        signal.set(value);
    }
}

/// Keeps the data of a page current: calls `read` at most once per `pause` and passes its result to `apply`.
///
/// The page is read after each event for which `on_event` returns true, and when events may have been missed. It is also
/// read now if an event arrived while the page was being read, because its first data may predate that event. `on_event`
/// may also apply an event to the page, and then returns true only if that does not suffice.
pub fn live_page<T, Fut>(
    pause: Duration,
    read: impl Fn() -> Fut + Send + Sync + 'static,
    on_event: impl Fn(&EventEnvelope) -> bool + Send + Sync + 'static,
    apply: impl Fn(T) + Clone + Send + Sync + 'static,
) -> ThrottledRefresh
where
    T: 'static,
    Fut: Future<Output = Result<T, AppError>> + 'static,
{
    let refresh = throttled_refresh(pause, read, apply);
    refresh.follow_events(Box::new(on_event));
    refresh
}

/// Requests `refresh` as [`live_page`] does, for data that the whole layout shares.
pub fn refresh_on_events(refresh: &ThrottledRefresh, is_news: impl Fn(&LiveEvent) -> bool + Send + Sync + 'static) {
    refresh.follow_events(Box::new(move |envelope| is_news(&envelope.event)));
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
        let _ = set_interval(tick, interval);
    });
}

/// The step that shows the answer of a read.
type ApplyAnswer = Box<dyn FnOnce()>;
type ReadAnswer = LocalBoxFuture<'static, Result<ApplyAnswer, AppError>>;

/// A handle that refreshes a page's data. Frequent requests cost one read per pause.
#[derive(Clone)]
pub struct ThrottledRefresh(Arc<RefreshState>);

struct RefreshState {
    pause: Duration,
    read: Box<dyn Fn() -> ReadAnswer + Send + Sync>,
    report: ReadReport,
    live: Option<LiveUpdates>,
    session_end: SessionEnd,
    own_action: AtomicBool,
    gone: AtomicBool,
    waiting: AtomicBool,
    reading: AtomicBool,
    again: AtomicBool,
}

impl ThrottledRefresh {
    fn new(pause: Duration, read: Box<dyn Fn() -> ReadAnswer + Send + Sync>) -> Self {
        let refresh = Self(Arc::new(RefreshState {
            pause,
            read,
            report: ReadReport::default(),
            live: use_context::<LiveUpdates>(),
            session_end: SessionEnd::current(),
            own_action: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            reading: AtomicBool::new(false),
            again: AtomicBool::new(false),
        }));
        let state = refresh.0.clone();
        on_cleanup(move || state.gone.store(true, Ordering::Relaxed));
        refresh.0.report.register(refresh.clone());
        refresh
    }

    /// Requests a refresh because of an event or a timer. Ignored while live updates are paused: the resync after the
    /// pause reads everything again.
    pub fn request(&self) {
        let state = &self.0;
        if state.is_held() {
            return;
        }
        if state.reading.load(Ordering::Relaxed) {
            state.again.store(true, Ordering::Relaxed);
        } else if !state.waiting.swap(true, Ordering::Relaxed) {
            let refresh = self.clone();
            browser::run_after(state.pause, move || refresh.read());
        }
    }

    /// Requests a refresh because of an action of this user. It shows even while live updates are paused.
    pub fn request_own(&self) {
        self.0.own_action.store(true, Ordering::Relaxed);
        self.request();
    }

    /// Requests a refresh every `interval` too.
    pub fn every(self, interval: Duration) -> Self {
        let refresh = self.clone();
        use_polling(interval, move || refresh.request());
        self
    }

    /// Requests a refresh after each change by this page too, which `changes` counts.
    pub fn after_changes(self, changes: RwSignal<u32>) -> Self {
        let refresh = self.clone();
        Effect::new(move |before: Option<u32>| {
            let changes = changes.get();
            if before.is_some_and(|before| before != changes) {
                refresh.request_own();
            }
            changes
        });
        self
    }

    fn follow_events(&self, on_event: Box<dyn Fn(&EventEnvelope) -> bool + Send + Sync>) {
        if self.0.live.is_some_and(LiveUpdates::received_recently) {
            self.request();
        }
        let refresh = self.clone();
        use_live_updates(move |envelope| {
            if on_event(envelope) || is_resync(envelope) {
                refresh.request();
            }
        });
    }

    fn read(self) {
        self.0.waiting.store(false, Ordering::Relaxed);
        if self.0.gone.load(Ordering::Relaxed) || self.0.is_held() {
            return;
        }
        self.0.reading.store(true, Ordering::Relaxed);
        leptos::task::spawn_local(async move {
            let state = &self.0;
            let answer = (state.read)().await;
            state.reading.store(false, Ordering::Relaxed);
            if state.gone.load(Ordering::Relaxed) {
                return;
            }
            match answer {
                Err(AppError::SignedOut) => state.session_end.report_refused_read(),
                _ if state.is_held() => {}
                Ok(apply) => {
                    untrack(apply);
                    state.report.succeeded();
                }
                Err(error) => state.report.failed(error),
            }
            if state.again.swap(false, Ordering::Relaxed) {
                self.request();
            } else {
                state.own_action.store(false, Ordering::Relaxed);
            }
        });
    }
}

impl RefreshState {
    /// Returns true while a pause holds what others cause. The answer of a read that began before the pause is dropped
    /// too.
    fn is_held(&self) -> bool {
        self.live.is_some_and(LiveUpdates::is_paused) && !self.own_action.load(Ordering::Relaxed)
    }
}

/// Creates a [`ThrottledRefresh`], which calls `read` at most once per `pause` and never concurrently, and passes its
/// result to `apply`. Pages use [`live_page`], which also requests it.
///
/// A failed read changes no data, because the data on the page is still the best available. It is reported to the
/// [`ReadState`](read_state::ReadState), which labels the page until a read succeeds. If the session has ended, the user is redirected to the
/// sign-in page. The refresh ends with the current owner.
pub fn throttled_refresh<T, Fut>(
    pause: Duration,
    read: impl Fn() -> Fut + Send + Sync + 'static,
    apply: impl Fn(T) + Clone + Send + Sync + 'static,
) -> ThrottledRefresh
where
    T: 'static,
    Fut: Future<Output = Result<T, AppError>> + 'static,
{
    let read = move || -> ReadAnswer {
        let (answer, apply) = (read(), apply.clone());
        Box::pin(async move { answer.await.map(|value| Box::new(move || apply(value)) as ApplyAnswer) })
    };
    ThrottledRefresh::new(pause, Box::new(read))
}
