//! The browser's end of the event stream: opening, losing and reopening the connection.
//!
//! After a network failure the browser reconnects by itself and sends the id of the last event. The server replays the
//! missed events or reports that it cannot. The browser gives up if the response is not a stream at all, such as a
//! proxy's error page or the response to an ended session. The connection is then reopened with exponential backoff. A
//! connection that dies silently is detected by missing pings.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leptos::{prelude::*, task::spawn_local};
use milvaion_api::events::{EventEnvelope, LiveEvent};
use wasm_bindgen::{JsCast, closure::Closure};
use web_sys::{EventSource, MessageEvent, PageTransitionEvent};

use super::{LiveState, LiveUpdates};
use crate::{
    api::session::whoami,
    browser,
    components::{
        session_end::{SessionEnd, SessionEndReason},
        time::use_page_clock,
    },
};

/// The path of the server's event stream.
const EVENTS_PATH: &str = "/events";
/// The timeout of a silent connection. The server pings every 15 s, so this is two missed pings plus 10 s.
const PING_TIMEOUT_MILLIS: i64 = 40_000;
/// The time after which a hidden tab closes its connection: 5 min. The tab reads again when it becomes visible.
const HIDDEN_TAB_TIMEOUT_MILLIS: i64 = 300_000;
/// The time after which a lost connection is shown as offline.
const OFFLINE_AFTER_MILLIS: i64 = 20_000;
/// The interval at which these timeouts are checked.
const WATCH_INTERVAL: Duration = Duration::from_secs(5);
/// The maximum number of events that wait for a frame. A page that is further behind reads everything again.
const MAX_PENDING_EVENTS: usize = 500;

/// An open connection. Dropping it closes it.
struct EventConnection {
    source: EventSource,
    _open: Closure<dyn FnMut()>,
    _error: Closure<dyn FnMut()>,
    _message: Closure<dyn FnMut(MessageEvent)>,
    _ping: Closure<dyn FnMut(MessageEvent)>,
}

impl Drop for EventConnection {
    fn drop(&mut self) {
        self.source.set_onopen(None);
        self.source.set_onerror(None);
        self.source.set_onmessage(None);
        self.source.close();
    }
}

#[derive(Clone, Copy)]
struct EventStream {
    live: LiveUpdates,
    connection: StoredValue<Option<EventConnection>, LocalStorage>,
    waiting: StoredValue<Vec<EventEnvelope>>,
    last_frame: StoredValue<i64>,
    lost_since: StoredValue<Option<i64>>,
    hidden_since: StoredValue<Option<i64>>,
    failures: StoredValue<u32>,
    reopen_at: StoredValue<Option<i64>>,
    sync_clock: Callback<DateTime<Utc>>,
    session_end: SessionEnd,
}

/// Keeps the stream open while the current owner lives.
pub(super) fn run(live: LiveUpdates, session_end: SessionEnd) {
    let clock = use_page_clock();
    let stream = EventStream {
        live,
        connection: StoredValue::new_local(None),
        waiting: StoredValue::new(Vec::new()),
        last_frame: StoredValue::new(0),
        lost_since: StoredValue::new(None),
        hidden_since: StoredValue::new(None),
        failures: StoredValue::new(0),
        reopen_at: StoredValue::new(None),
        sync_clock: Callback::new(move |now| clock.sync(now)),
        session_end,
    };
    Effect::new(move |_| {
        // The occurrence whose log is requested is part of the address, so a change of it needs a new connection.
        live.log.track();
        if live.paused.get() {
            stream.close(LiveState::Paused);
        } else {
            stream.open();
        }
    });
    Effect::new(move |_| {
        let watch = set_interval_with_handle(move || stream.watch(), WATCH_INTERVAL);
        let hide = window_event_listener_untyped("pagehide", move |_| stream.close(LiveState::Reconnecting));
        let show = window_event_listener_untyped("pageshow", move |event| {
            if event.dyn_ref::<PageTransitionEvent>().is_some_and(PageTransitionEvent::persisted) {
                stream.open();
            }
        });
        // The browser reports a lost network at once; the ping timeout would show "Live" for up to 40 s more.
        let gone = window_event_listener_untyped("offline", move |_| {
            if stream.live.paused.try_get_untracked() == Some(false) {
                stream.lost_since.set_value(Some(browser::now_millis()));
                stream.close(LiveState::Offline);
            }
        });
        let back = window_event_listener_untyped("online", move |_| stream.open());
        let seen = window_event_listener_untyped("visibilitychange", move |_| stream.watch());
        on_cleanup(move || {
            if let Ok(watch) = watch {
                watch.clear();
            }
            hide.remove();
            show.remove();
            gone.remove();
            back.remove();
            seen.remove();
        });
    });
    on_cleanup(move || {
        let _ = stream.connection.try_update_value(Option::take);
    });
}

impl EventStream {
    fn open(self) {
        if self.live.paused.try_get_untracked() != Some(false) {
            return;
        }
        let address = match self.live.log.get_untracked() {
            Some(id) => format!("{EVENTS_PATH}?log={id}"),
            None => EVENTS_PATH.to_owned(),
        };
        self.reopen_at.set_value(None);
        self.last_frame.set_value(browser::now_millis());
        self.connection.set_value(None);
        let Ok(source) = EventSource::new(&address) else { return };
        // Events can be lost between the page's read and the start of this connection, so a new connection starts with
        // a resync. A reconnect by the browser needs none, because the server replays the missed events.
        let fresh = StoredValue::new(true);
        let open = Closure::<dyn FnMut()>::new(move || {
            self.failures.set_value(0);
            self.lost_since.set_value(None);
            self.last_frame.set_value(browser::now_millis());
            self.live.state.set(LiveState::Live);
            if fresh.try_get_value() == Some(true) {
                fresh.set_value(false);
                self.resync();
            }
        });
        let error = Closure::<dyn FnMut()>::new(move || self.lost());
        let message = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| self.message(&event));
        let ping = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
            self.last_frame.set_value(browser::now_millis());
            if let Some(now) = event.data().as_string().and_then(|text| text.parse().ok()) {
                self.sync_clock.run(now);
            }
        });
        source.set_onopen(Some(open.as_ref().unchecked_ref()));
        source.set_onerror(Some(error.as_ref().unchecked_ref()));
        source.set_onmessage(Some(message.as_ref().unchecked_ref()));
        // Fails only if the listener is not a function.
        let _ = source.add_event_listener_with_callback("ping", ping.as_ref().unchecked_ref());
        let connection = EventConnection { source, _open: open, _error: error, _message: message, _ping: ping };
        self.connection.set_value(Some(connection));
    }

    fn close(self, state: LiveState) {
        let _ = self.connection.try_update_value(Option::take);
        self.live.state.set(state);
    }

    fn message(self, event: &MessageEvent) {
        self.last_frame.set_value(browser::now_millis());
        let Some(text) = event.data().as_string() else { return };
        // An event that this build cannot parse comes from a newer server; reading again shows its effect.
        let Ok(envelope) = serde_json::from_str::<EventEnvelope>(&text) else { return self.resync() };
        let first = self.waiting.try_update_value(|waiting| {
            if waiting.len() >= MAX_PENDING_EVENTS {
                waiting.clear();
                waiting.push(resync_now());
                return false;
            }
            waiting.push(envelope);
            waiting.len() == 1
        });
        if first == Some(true) {
            // A hidden page paints no frames.
            if browser::is_hidden() {
                set_timeout(move || self.flush(), Duration::from_millis(250));
            } else {
                request_animation_frame(move || self.flush());
            }
        }
    }

    fn flush(self) {
        let Some(waiting) = self.waiting.try_update_value(std::mem::take) else { return };
        // Events received before a pause are dropped; a resync replaces them when the user resumes.
        if self.live.paused.get_untracked() {
            return;
        }
        for envelope in waiting {
            self.live.deliver(&envelope);
        }
    }

    fn resync(self) {
        self.live.deliver(&resync_now());
    }

    /// Handles a connection error. The browser is already reconnecting unless it gave up.
    fn lost(self) {
        let now = browser::now_millis();
        if self.lost_since.get_value().is_none() {
            self.lost_since.set_value(Some(now));
        }
        let online = browser::is_online();
        self.live.state.set(if online { LiveState::Reconnecting } else { LiveState::Offline });
        let gave_up = self.connection.with_value(|connection| {
            connection.as_ref().is_none_or(|connection| connection.source.ready_state() == EventSource::CLOSED)
        });
        if gave_up {
            let failures = self.failures.get_value();
            self.failures.set_value(failures.saturating_add(1));
            let wait = 1_000_i64 << failures.min(4);
            self.reopen_at.set_value(Some(now + wait));
            set_timeout(move || self.reopen_if_due(), Duration::from_millis(wait.unsigned_abs()));
            spawn_local(async move {
                if matches!(whoami().await, Ok(None)) && self.live.state.try_get_untracked().is_some() {
                    self.session_end.report(SessionEndReason::SignedOut);
                }
            });
        }
    }

    fn reopen_if_due(self) {
        if self.reopen_at.try_get_value().flatten().is_some_and(|at| browser::now_millis() >= at) {
            self.open();
        }
    }

    /// Checks the timeouts, which no event reports.
    fn watch(self) {
        let now = browser::now_millis();
        let Some(state) = self.live.state.try_get_untracked() else { return };
        if state == LiveState::Paused {
            return;
        }
        if browser::is_hidden() {
            let since = self.hidden_since.get_value().unwrap_or(now);
            self.hidden_since.set_value(Some(since));
            if now - since > HIDDEN_TAB_TIMEOUT_MILLIS && self.connection.with_value(Option::is_some) {
                self.close(LiveState::Reconnecting);
            }
            return;
        }
        self.hidden_since.set_value(None);
        let is_closed = self.connection.with_value(Option::is_none);
        let is_silent = state == LiveState::Live && now - self.last_frame.get_value() > PING_TIMEOUT_MILLIS;
        if is_silent {
            self.lost_since.set_value(Some(now));
            self.live.state.set(LiveState::Reconnecting);
        }
        if (is_closed && browser::is_online()) || is_silent {
            self.open();
        } else if state == LiveState::Reconnecting
            && self.lost_since.get_value().is_some_and(|since| now - since > OFFLINE_AFTER_MILLIS)
        {
            self.live.state.set(LiveState::Offline);
        } else {
            self.reopen_if_due();
        }
    }
}

fn resync_now() -> EventEnvelope {
    let at = DateTime::from_timestamp_millis(browser::now_millis()).unwrap_or_default();
    EventEnvelope { id: String::new(), at, event: LiveEvent::Resync }
}
