//! One tab's part in the event stream that all tabs of a user share.
//!
//! A visible tab waits for the lock of its user. The tab that holds it leads: it opens the connection and relays each
//! frame to the others. The lock and the channel carry the user's id in their names, so the tabs of two users who
//! signed in one after the other in the same browser share nothing.
//!
//! Every tab keeps the position of the last frame it has applied. A tab that takes over opens its connection at that
//! position, and the server replays what was missed. A tab that begins to follow compares its position with that of the
//! leading tab, and reads its page again if they differ. The first position is that of the document, which the server
//! took before it read the page's data. A page that may be older than the stream, as after a pause, has no position and
//! reads again once.
//!
//! After a network failure the browser reconnects by itself. It gives up if the response is not a stream at all, such as
//! a proxy's error page, a full server, or the response to an ended session. The connection is then reopened with
//! exponential backoff. A connection that dies silently is detected by missing pings.
//!
//! Pages and components receive what the stream delivers through [`live`](crate::live). The stream itself acts on the
//! page around it: its user, its notices and its unsaved changes. It is therefore above the components, and the layout
//! starts it.

mod connection;
mod session;
mod tabs;

use std::time::Duration;

use chrono::{DateTime, Utc};
use leptos::prelude::*;
use leptos_router::hooks::use_location;
use milvaion_api::{
    events::{EventEnvelope, LiveEvent, StreamEndReason},
    views::CurrentUser,
};
use milvaion_protocol::backoff::Backoff;
use wasm_bindgen::JsCast;
use web_sys::PageTransitionEvent;

use self::{
    connection::EventConnection,
    session::end_reason,
    tabs::{TabChannel, TabLock},
};
use crate::{
    api::session::{SessionEnd, query_value},
    browser,
    components::{
        action_error::PageNotice,
        leave_guard::LeaveGuard,
        session_context::{SessionContext, use_signed_in_user},
        time::use_page_clock,
        toast::ToastQueue,
    },
    live::{
        LiveState, LiveUpdates, is_resync,
        tab_message::{FrameKind, StreamFrame, TabMessage},
    },
};

/// The timeout of a silent stream. The server pings every 15 s, so this is two missed pings plus 10 s.
const PING_TIMEOUT_MILLIS: i64 = 40_000;
/// The time after which a lost connection is shown as offline.
const OFFLINE_AFTER_MILLIS: i64 = 20_000;
/// The interval at which these timeouts are checked.
const WATCH_INTERVAL: Duration = Duration::from_secs(5);
/// The backoff before a connection that the browser has given up is opened again.
const REOPEN_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(16));
/// The delivery interval of a hidden tab, which paints no frames.
const HIDDEN_DELIVERY_INTERVAL: Duration = Duration::from_millis(250);
/// The maximum number of events that wait for a frame. A page that is further behind reads everything again.
const MAX_PENDING_EVENTS: usize = 500;

#[derive(Clone, Copy)]
struct EventStream {
    live: LiveUpdates,
    /// The user whose tabs share the stream.
    user: StoredValue<Option<CurrentUser>>,
    channel: StoredValue<Option<TabChannel>, LocalStorage>,
    lock: StoredValue<Option<TabLock>, LocalStorage>,
    is_leader: StoredValue<bool>,
    /// True after the end of the session or while the page is in the browser's history.
    is_left: StoredValue<bool>,
    connection: StoredValue<Option<EventConnection>, LocalStorage>,
    /// The state of the stream, which a pause hides.
    link: StoredValue<LiveState>,
    /// The id of the last applied frame; `None` if the page may be older than the stream.
    position: StoredValue<Option<String>>,
    waiting: StoredValue<Vec<EventEnvelope>>,
    heard_at: StoredValue<i64>,
    lost_since: StoredValue<Option<i64>>,
    backoff: StoredValue<Backoff>,
    reopen_at: StoredValue<Option<i64>>,
    sync_clock: Callback<DateTime<Utc>>,
    session: StoredValue<Option<SessionContext>>,
    session_end: SessionEnd,
    toasts: Option<ToastQueue>,
    guard: Option<LeaveGuard>,
    notice: PageNotice,
    /// The path of the page.
    path: Memo<String>,
    /// True if the page still shows what the user could do before the last change of the user.
    is_user_held: StoredValue<bool>,
    user_checked_at: StoredValue<i64>,
}

/// Takes part in the stream while the current owner lives. Called once, by the layout, after [`LiveUpdates::provide`].
pub(super) fn run() {
    let live = expect_context::<LiveUpdates>();
    let clock = use_page_clock();
    let path = use_location().pathname;
    let stream = EventStream {
        live,
        user: StoredValue::new(None),
        channel: StoredValue::new_local(None),
        lock: StoredValue::new_local(None),
        is_leader: StoredValue::new(false),
        is_left: StoredValue::new(false),
        connection: StoredValue::new_local(None),
        link: StoredValue::new(LiveState::Connecting),
        position: StoredValue::new(tabs::document_position()),
        waiting: StoredValue::new(Vec::new()),
        heard_at: StoredValue::new(0),
        lost_since: StoredValue::new(None),
        backoff: StoredValue::new(REOPEN_BACKOFF),
        reopen_at: StoredValue::new(None),
        sync_clock: Callback::new(move |now| clock.sync(now)),
        session: StoredValue::new(use_context()),
        session_end: SessionEnd::current(),
        toasts: use_context(),
        guard: use_context(),
        notice: PageNotice::current(),
        path,
        is_user_held: StoredValue::new(false),
        user_checked_at: StoredValue::new(0),
    };
    live.sign_out_report.set_value(Some(Callback::new(move |()| {
        stream.relay_session_end(StreamEndReason::SignedOut.slug());
    })));
    Effect::new(move |_| {
        if let Some(me) = live.new_sign_in.get() {
            stream.rejoin(me);
        }
    });
    Effect::new(move |before: Option<String>| {
        let path = path.get();
        if before.is_some_and(|before| before != path) {
            // The page that was in use is left.
            stream.redraw_for_user();
        }
        path
    });
    Effect::new(move |before: Option<bool>| {
        let is_paused = live.paused.get();
        match before {
            // A reload or a navigation keeps the pause of this tab.
            None if tabs::remembered_pause() => live.paused.set(true),
            None => {}
            Some(before) if before == is_paused => {}
            Some(_) => {
                tabs::remember_pause(is_paused);
                stream.pause_changed(is_paused);
            }
        }
        is_paused
    });
    let user = use_signed_in_user();
    Effect::new(move |_| {
        if let Some(me) = user.get() {
            stream.signed_in_as(me);
        }
    });
    follow_browser(stream);
    on_cleanup(move || {
        let _ = stream.connection.try_update_value(Option::take);
        let _ = stream.lock.try_update_value(Option::take);
        let _ = stream.channel.try_update_value(Option::take);
    });
}

/// Follows the browser's reports about the page and the network, and checks the timeouts.
fn follow_browser(stream: EventStream) {
    Effect::new(move |_| {
        let watch = set_interval_with_handle(move || stream.watch(), WATCH_INTERVAL);
        let hide = window_event_listener_untyped("pagehide", move |_| {
            stream.is_left.set_value(true);
            stream.choose_role();
            // A page that waits in the browser's history must not hold a channel.
            stream.channel.set_value(None);
        });
        let show = window_event_listener_untyped("pageshow", move |event| {
            if event.dyn_ref::<PageTransitionEvent>().is_some_and(PageTransitionEvent::persisted) {
                stream.is_left.set_value(false);
                stream.join();
            }
        });
        // The browser reports a lost network at once; the ping timeout would show "Live" for up to 40 s more.
        let gone = window_event_listener_untyped("offline", move |_| {
            stream.connection.set_value(None);
            stream.lost_since.set_value(Some(browser::now_millis()));
            stream.set_link(LiveState::Offline);
        });
        let back = window_event_listener_untyped("online", move |_| {
            stream.send(&TabMessage::Hello);
            stream.open();
        });
        let seen = window_event_listener_untyped("visibilitychange", move |_| {
            if !browser::is_hidden() {
                stream.heard_at.set_value(browser::now_millis());
                stream.send(&TabMessage::Hello);
            }
            stream.choose_role();
        });
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
}

/// The part of a tab: joining the other tabs, leading and following.
impl EventStream {
    /// Returns false after the page's owner is gone, when a late callback must do nothing.
    fn is_alive(self) -> bool {
        self.live.state.try_get_untracked().is_some()
    }

    fn is_paused(self) -> bool {
        self.live.is_paused()
    }

    fn send(self, message: &TabMessage) {
        self.channel.with_value(|channel| {
            if let Some(channel) = channel {
                channel.send(&message.to_text());
            }
        });
    }

    /// Joins the tabs of the signed-in user, or applies a change of that user.
    fn signed_in_as(self, me: CurrentUser) {
        match self.user.get_value() {
            None => {
                self.user.set_value(Some(me));
                self.join();
            }
            Some(known) if known.id == me.id => self.user.set_value(Some(me)),
            // Everything on the page belongs to another user.
            Some(_) => browser::reload(),
        }
    }

    fn shared_name(self) -> Option<String> {
        self.user.with_value(|user| user.as_ref().map(|me| format!("milvaion-events-{}", me.id)))
    }

    fn join(self) {
        let Some(name) = self.shared_name() else { return };
        self.channel.set_value(TabChannel::open(&name, move |text| {
            if self.is_alive()
                && let Some(message) = TabMessage::parse(&text)
            {
                self.received_message(message);
            }
        }));
        self.heard_at.set_value(browser::now_millis());
        self.send(&TabMessage::Hello);
        self.choose_role();
    }

    /// Waits for the lock if this tab may lead, and releases it otherwise.
    fn choose_role(self) {
        let Some(name) = self.shared_name() else { return };
        if self.is_left.get_value() || self.is_paused() || browser::is_hidden() {
            return self.step_down();
        }
        if self.channel.with_value(Option::is_none) {
            // Without locks every visible tab leads alone.
            if !self.is_leader.get_value() {
                self.lead();
            }
        } else if self.lock.with_value(Option::is_none) {
            let lead = move || {
                if self.is_alive() {
                    self.lead();
                }
            };
            self.lock.set_value(TabLock::request(&name, lead));
        }
    }

    fn lead(self) {
        self.is_leader.set_value(true);
        self.backoff.set_value(REOPEN_BACKOFF);
        self.open();
    }

    fn step_down(self) {
        self.connection.set_value(None);
        // Released after the connection is closed, so that there are never two.
        self.lock.set_value(None);
        if self.is_leader.try_update_value(|is_leader| std::mem::replace(is_leader, false)) == Some(true) {
            self.reopen_at.set_value(None);
            self.lost_since.set_value(None);
            self.set_link(LiveState::Reconnecting);
        }
    }

    fn pause_changed(self, is_paused: bool) {
        if is_paused {
            // What happens from now on is not applied, so the page must read again afterwards.
            self.position.set_value(None);
            self.user_checked_at.set_value(browser::now_millis());
            self.live.state.set(LiveState::Paused);
        } else {
            self.live.state.set(self.link.get_value());
            self.heard_at.set_value(browser::now_millis());
            self.send(&TabMessage::Hello);
            if !self.is_page_in_use() && self.redraw_for_user() {
                self.notice.clear();
            }
        }
        self.choose_role();
    }

    fn received_message(self, message: TabMessage) {
        match message {
            TabMessage::Hello if self.is_leader.get_value() => {
                self.send_state();
                // The new tab may have been rendered before the last change of the user.
                let me = self.user.with_value(|me| serde_json::to_string(me).ok());
                if let Some(data) = me {
                    self.relay(&StreamFrame { kind: FrameKind::Session, id: String::new(), data });
                }
                // A tab that was frozen has missed the frame that named the build.
                if let Some(data) = self.live.server_build.get_untracked() {
                    self.relay(&StreamFrame { kind: FrameKind::Build, id: String::new(), data });
                }
            }
            TabMessage::Hello => {}
            // A late message of a tab that has just lost the lock.
            TabMessage::Frame { .. } | TabMessage::State { .. } if self.is_leader.get_value() => {}
            TabMessage::Frame { before, frame } => {
                // Every tab may relay the end of the session, whatever its position is.
                let has_missed = frame.kind != FrameKind::SessionEnd
                    && self.position.with_value(|known| known.as_ref().is_some_and(|known| *known != before));
                if has_missed {
                    self.position.set_value(Some(before));
                    self.resync();
                }
                self.apply(frame);
            }
            TabMessage::State { state, position } => {
                self.heard_at.set_value(browser::now_millis());
                self.lost_since.set_value(None);
                self.set_link(state);
                // Without a position, the leading tab waits for a resync of the server and relays it.
                if state == LiveState::Live
                    && position.is_some()
                    && !self.is_paused()
                    && self.position.get_value() != position
                {
                    self.position.set_value(position);
                    self.resync();
                }
            }
        }
    }

    fn send_state(self) {
        self.send(&TabMessage::State { state: self.link.get_value(), position: self.position.get_value() });
    }

    fn relay(self, frame: &StreamFrame) {
        let before = self.position.get_value().unwrap_or_default();
        self.send(&TabMessage::Frame { before, frame: frame.clone() });
    }

    /// Sets the state of the stream. The leading tab reports it to the others.
    fn set_link(self, link: LiveState) {
        self.link.set_value(link);
        if !self.is_paused() && self.live.state.get_untracked() != link {
            self.live.state.set(link);
        }
        if self.is_leader.get_value() {
            self.send_state();
        }
    }
}

/// The connection of the leading tab.
impl EventStream {
    fn open(self) {
        if !self.is_leader.get_value() {
            return;
        }
        let now = browser::now_millis();
        self.reopen_at.set_value(None);
        self.heard_at.set_value(now);
        if self.link.get_value() != LiveState::Live && self.lost_since.get_value().is_none() {
            // A connection that is never answered, because the browser has too many, is shown as offline too.
            self.lost_since.set_value(Some(now));
        }
        let alive = move || self.is_alive();
        let opened = move || {
            if alive() {
                self.backoff.set_value(REOPEN_BACKOFF);
                self.lost_since.set_value(None);
                self.heard_at.set_value(browser::now_millis());
                self.set_link(LiveState::Live);
            }
        };
        let failed = move || {
            if alive() {
                self.lost();
            }
        };
        let received = move |frame: StreamFrame| {
            if alive() {
                self.relay(&frame);
                self.apply(frame);
            }
        };
        let query = self.query();
        self.connection.set_value(None);
        self.connection.set_value(EventConnection::open(&query, opened, failed, received));
    }

    /// Returns the query of a new connection. It names the position, because only the browser's own reconnect can send
    /// it as a header.
    fn query(self) -> String {
        let position = self.position.get_value().filter(|position| !position.is_empty());
        position.map(|position| format!("?last={}", query_value(&position))).unwrap_or_default()
    }

    /// Handles a connection error. The browser is already reconnecting unless it gave up.
    fn lost(self) {
        let now = browser::now_millis();
        let since = self.lost_since.get_value().unwrap_or(now);
        self.lost_since.set_value(Some(since));
        let is_offline = !browser::is_online() || now - since > OFFLINE_AFTER_MILLIS;
        self.set_link(if is_offline { LiveState::Offline } else { LiveState::Reconnecting });
        let gave_up =
            self.connection.with_value(|connection| connection.as_ref().is_none_or(EventConnection::is_closed));
        if gave_up {
            let random = js_sys::Math::random();
            let wait = self.backoff.try_update_value(|backoff| backoff.next_delay(random)).unwrap_or_default();
            self.reopen_at.set_value(Some(now + i64::try_from(wait.as_millis()).unwrap_or_default()));
            set_timeout(move || self.reopen_if_due(), wait);
            self.check_user();
        }
    }

    fn reopen_if_due(self) {
        if self.is_alive() && self.reopen_at.get_value().is_some_and(|at| browser::now_millis() >= at) {
            self.open();
        }
    }

    /// Checks the timeouts, which no event reports.
    fn watch(self) {
        if !self.is_alive() || self.is_left.get_value() || browser::is_hidden() {
            return;
        }
        if self.is_paused() {
            return self.check_paused_user();
        }
        let now = browser::now_millis();
        let link = self.link.get_value();
        let is_silent = link == LiveState::Live && now - self.heard_at.get_value() > PING_TIMEOUT_MILLIS;
        if is_silent {
            self.lost_since.set_value(Some(now));
            self.set_link(LiveState::Reconnecting);
            self.send(&TabMessage::Hello);
            self.open();
            return;
        }
        let since = match self.lost_since.get_value() {
            Some(since) => since,
            None => {
                let since = (link != LiveState::Live).then_some(now);
                self.lost_since.set_value(since);
                now
            }
        };
        if !matches!(link, LiveState::Live | LiveState::Offline) && now - since > OFFLINE_AFTER_MILLIS {
            self.set_link(LiveState::Offline);
        }
        let is_waiting = self.reopen_at.get_value().is_some();
        if is_waiting {
            self.reopen_if_due();
        } else if self.is_leader.get_value() && self.connection.with_value(Option::is_none) && browser::is_online() {
            self.open();
        }
    }
}

/// The frames, received by this tab's connection or relayed by another tab.
impl EventStream {
    fn apply(self, frame: StreamFrame) {
        self.heard_at.set_value(browser::now_millis());
        let StreamFrame { kind, id, data } = frame;
        let mut is_resync_frame = false;
        match kind {
            FrameKind::Event => {
                // An event that this build cannot parse comes from a newer server; reading again shows its effect.
                let envelope = serde_json::from_str::<EventEnvelope>(&data).unwrap_or_else(|_| resync_now());
                is_resync_frame = is_resync(&envelope);
                if !self.is_paused() {
                    self.queue(envelope);
                }
            }
            FrameKind::Ping => {
                if let Ok(now) = data.parse() {
                    self.sync_clock.run(now);
                }
            }
            FrameKind::Build => self.live.server_build.set(Some(data)),
            FrameKind::Session => {
                if let Ok(me) = serde_json::from_str::<CurrentUser>(&data) {
                    self.user_changed(me);
                }
            }
            FrameKind::SessionEnd => return self.session_ended(end_reason(&data)),
        }
        // A page that may be older than the stream gets its first position from a resync only.
        let has_position = self.position.with_value(Option::is_some);
        if !self.is_paused() && (is_resync_frame || (has_position && !id.is_empty())) {
            self.position.set_value(Some(id));
        }
    }

    fn queue(self, envelope: EventEnvelope) {
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
                set_timeout(move || self.flush(), HIDDEN_DELIVERY_INTERVAL);
            } else {
                request_animation_frame(move || self.flush());
            }
        }
    }

    fn flush(self) {
        let Some(waiting) = self.waiting.try_update_value(std::mem::take) else { return };
        // Events received before a pause are dropped; a resync replaces them when the user resumes.
        if self.is_paused() {
            return;
        }
        for envelope in waiting {
            self.live.deliver(&envelope);
        }
    }

    fn resync(self) {
        if !self.is_paused() {
            self.queue(resync_now());
        }
    }
}

fn resync_now() -> EventEnvelope {
    let at = DateTime::from_timestamp_millis(browser::now_millis()).unwrap_or_default();
    EventEnvelope { id: String::new(), at, event: LiveEvent::Resync }
}
