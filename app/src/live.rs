//! The stream of events, and what pages do with it.
//!
//! One [`EventSource`](https://developer.mozilla.org/docs/Web/API/EventSource) serves the whole app while somebody is
//! signed in. Events are hints with contents: a page patches what it shows at once and, where an event does not say
//! enough, reads again through a [`throttled_refresh`]. Nothing depends on an event arriving. Whatever may have been missed —
//! the moment between the server's HTML and the stream's beginning, a lost connection, a hidden tab — ends in one
//! [`LiveEvent::Resync`], and every page reads again what it shows.
//!
//! Bursts are handed on once for each frame the screen paints: more often would be work nobody can see.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leptos::prelude::*;
use leptos_router::{NavigateOptions, hooks::use_navigate};
use milvaion_api::events::{EventEnvelope, LiveEvent};
use milvaion_protocol::id::OccurrenceId;

use crate::{api::session::query_value, browser, error::AppError};

#[cfg(feature = "hydrate")]
mod stream;

/// A page's first reading takes less than this.
const FIRST_READ_OVERLAP_MILLIS: i64 = 5_000;

/// How the stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveState {
    /// Not open yet.
    Connecting,
    /// Open.
    Live,
    /// Lost a moment ago.
    Reconnecting,
    /// Lost for longer: what is shown may be old.
    Offline,
    /// The reader has stopped it.
    Paused,
}

impl LiveState {
    /// The word for style sheets and tests.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Connecting | Self::Reconnecting => "reconnecting",
            Self::Offline => "offline",
            Self::Paused => "paused",
        }
    }

    /// The word people read.
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

/// The stream as pages see it.
#[derive(Clone, Copy)]
pub struct LiveUpdates {
    /// How it is.
    pub state: RwSignal<LiveState>,
    /// Whether the reader has stopped it.
    pub paused: RwSignal<bool>,
    log: RwSignal<Option<OccurrenceId>>,
    last_event_at: StoredValue<Option<i64>>,
    listeners: StoredValue<Vec<(u64, EnvelopeListener)>>,
    next_listener: StoredValue<u64>,
}

impl LiveUpdates {
    /// Makes the stream; it opens once the page runs and closes with the owner. Called once, by the layout.
    pub fn provide() -> Self {
        let live = Self {
            state: RwSignal::new(LiveState::Connecting),
            paused: RwSignal::new(false),
            log: RwSignal::new(None),
            last_event_at: StoredValue::new(None),
            listeners: StoredValue::new(Vec::new()),
            next_listener: StoredValue::new(0),
        };
        provide_context(live);
        #[cfg(feature = "hydrate")]
        stream::run(live, to_sign_in());
        live
    }

    /// Whether something was heard a moment ago. A page whose first reading may have crossed with an event asks this
    /// once it listens, and reads again if so.
    #[must_use]
    pub fn received_recently(self) -> bool {
        self.last_event_at.get_value().is_some_and(|at| browser::now_millis() - at < FIRST_READ_OVERLAP_MILLIS)
    }

    /// Hands one event to everybody who listens.
    pub fn deliver(self, envelope: &EventEnvelope) {
        self.last_event_at.set_value(Some(browser::now_millis()));
        let listeners: Vec<EnvelopeListener> =
            self.listeners.with_value(|all| all.iter().map(|(_, listener)| listener.clone()).collect());
        untrack(|| {
            for listener in listeners {
                listener(envelope);
            }
        });
    }

    /// Wishes for the log lines of one occurrence, or of none any more.
    fn watch_log(self, id: Option<OccurrenceId>) {
        if self.log.try_get_untracked().is_some_and(|now| now != id) {
            self.log.set(id);
        }
    }
}

/// Calls `listener` for every event while the current owner lives. Pages outside the layout have no stream and hear
/// nothing.
pub fn use_live_updates(listener: impl Fn(&EventEnvelope) + Send + Sync + 'static) {
    // On the server there is no stream, and a listener kept there would outlive its page.
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

/// Asks the stream for the log lines of one occurrence while the current owner lives.
pub fn use_occurrence_log(id: OccurrenceId) {
    if let Some(live) = use_context::<LiveUpdates>() {
        live.watch_log(Some(id));
        on_cleanup(move || live.watch_log(None));
    }
}

/// Whether an event means that everything is to be read again.
#[must_use]
pub fn is_resync(envelope: &EventEnvelope) -> bool {
    matches!(envelope.event, LiveEvent::Resync)
}

/// Something that reads again what a page shows. Asking it often costs one reading per `pause`.
#[derive(Clone)]
pub struct ThrottledRefresh(Arc<dyn Fn() + Send + Sync>);

impl ThrottledRefresh {
    /// Asks for a reading soon.
    pub fn request(&self) {
        (self.0)();
    }
}

#[derive(Default)]
struct RefreshFlags {
    gone: AtomicBool,
    waiting: AtomicBool,
    reading: AtomicBool,
    again: AtomicBool,
}

/// Makes a [`ThrottledRefresh`]: `read` is called at most once per `pause` and never twice at once, `apply` gets what it read.
/// A reading that fails changes nothing, for what is shown is still the best that is known; one that finds the session
/// ended leads to the sign-in page. Ends with the current owner.
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
    let sign_in = to_sign_in();
    ThrottledRefresh(Arc::new(move || schedule_read(pause, flags.clone(), read.clone(), apply.clone(), sign_in)))
}

fn schedule_read<T, Fut>(
    pause: Duration,
    flags: Arc<RefreshFlags>,
    read: impl Fn() -> Fut + Clone + Send + Sync + 'static,
    apply: impl Fn(T) + Clone + Send + Sync + 'static,
    sign_in: Callback<()>,
) where
    T: 'static,
    Fut: Future<Output = Result<T, AppError>> + 'static,
{
    if flags.reading.load(Ordering::Relaxed) {
        flags.again.store(true, Ordering::Relaxed);
        return;
    }
    if flags.waiting.swap(true, Ordering::Relaxed) {
        return;
    }
    let later = move || {
        flags.waiting.store(false, Ordering::Relaxed);
        if flags.gone.load(Ordering::Relaxed) {
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
                Ok(value) => untrack(|| apply(value)),
                Err(AppError::SignedOut) => sign_in.run(()),
                Err(_) => {}
            }
            if flags.again.swap(false, Ordering::Relaxed) {
                schedule_read(pause, flags, read, apply, sign_in);
            }
        });
    };
    set_timeout(later, pause);
}

/// Leads to the sign-in page and, after it, back to where the reader is.
fn to_sign_in() -> Callback<()> {
    let navigate = use_navigate();
    Callback::new(move |()| {
        let options = NavigateOptions { replace: true, ..NavigateOptions::default() };
        navigate(&format!("/login?next={}", query_value(&browser::current_path())), options);
    })
}
