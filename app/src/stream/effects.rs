//! The browser around a tab's state: its events become inputs, and the effects are performed.

use std::time::Duration;

use leptos::{prelude::*, task::spawn_local};
use leptos_router::hooks::use_location;
use wasm_bindgen::JsCast;
use web_sys::PageTransitionEvent;

use super::{
    connection::EventConnection,
    inputs::{TabEffect, TabFacts, TabInput},
    state::TabState,
    tabs::{self, TabChannel, TabLock},
};
use crate::{
    api::session::{SessionEnd, whoami},
    browser,
    components::{
        action_error::PageNotice,
        leave_guard::LeaveGuard,
        session_context::{SessionContext, use_signed_in_user},
        time::{PageClock, use_page_clock},
        toast::{ToastKind, ToastQueue},
    },
    live::{LiveUpdates, tab_message::TabMessage},
};

/// The interval at which the timeouts are checked.
const WATCH_INTERVAL: Duration = Duration::from_secs(5);
/// The time after which a tab checks whether a change of the passphrase has given this browser a new session. The
/// response with the new session may arrive after the end of the old one. An earlier request would still carry the old
/// session, and its response would remove the cookie.
const RENEWAL_CHECK_DELAY: Duration = Duration::from_millis(1_500);

/// The state of this tab, with everything on which its effects act.
#[derive(Clone, Copy)]
struct EventStream {
    state: StoredValue<TabState>,
    channel: StoredValue<Option<TabChannel>, LocalStorage>,
    lock: StoredValue<Option<TabLock>, LocalStorage>,
    connection: StoredValue<Option<EventConnection>, LocalStorage>,
    live: LiveUpdates,
    clock: PageClock,
    session: StoredValue<Option<SessionContext>>,
    session_end: SessionEnd,
    toasts: Option<ToastQueue>,
    guard: Option<LeaveGuard>,
    notice: PageNotice,
    /// The path of the page.
    path: Memo<String>,
}

/// Takes part in the stream while the current owner lives. Called once, by the layout, after [`LiveUpdates::provide`].
pub(crate) fn run() {
    let live = expect_context::<LiveUpdates>();
    let path = use_location().pathname;
    let stream = EventStream {
        state: StoredValue::new(TabState::new(tabs::document_position())),
        channel: StoredValue::new_local(None),
        lock: StoredValue::new_local(None),
        connection: StoredValue::new_local(None),
        live,
        clock: use_page_clock(),
        session: StoredValue::new(use_context()),
        session_end: SessionEnd::current(),
        toasts: use_context(),
        guard: use_context(),
        notice: PageNotice::current(),
        path,
    };
    live.sign_out_report.set_value(Some(Callback::new(move |()| stream.report(TabInput::SignedOutHere))));
    Effect::new(move |_| {
        if let Some(me) = live.new_sign_in.get() {
            stream.report(TabInput::SignedInAgain(me));
        }
    });
    Effect::new(move |before: Option<String>| {
        let path = path.get();
        if before.is_some_and(|before| before != path) {
            stream.report(TabInput::PageChanged);
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
                stream.report(TabInput::PauseChanged);
            }
        }
        is_paused
    });
    let user = use_signed_in_user();
    Effect::new(move |_| {
        if let Some(me) = user.get() {
            stream.report(TabInput::UserKnown(me));
        }
    });
    follow_browser(stream);
    on_cleanup(move || {
        let _ = stream.connection.try_update_value(Option::take);
        let _ = stream.lock.try_update_value(Option::take);
        let _ = stream.channel.try_update_value(Option::take);
    });
}

/// Reports the browser's events about the page and the network, and lets the timeouts be checked.
fn follow_browser(stream: EventStream) {
    Effect::new(move |_| {
        let tick = move || stream.report(TabInput::Tick { is_online: browser::is_online() });
        let _ = set_interval(tick, WATCH_INTERVAL);
        let show = window_event_listener_untyped("pageshow", move |event| {
            if event.dyn_ref::<PageTransitionEvent>().is_some_and(PageTransitionEvent::persisted) {
                stream.report(TabInput::PageRestored);
            }
        });
        let inputs = [
            ("pagehide", TabInput::PageLeft),
            ("offline", TabInput::NetworkLost),
            ("online", TabInput::NetworkRestored),
            ("visibilitychange", TabInput::VisibilityChanged),
        ];
        let listeners =
            inputs.map(|(name, input)| window_event_listener_untyped(name, move |_| stream.report(input.clone())));
        on_cleanup(move || {
            show.remove();
            for listener in listeners {
                listener.remove();
            }
        });
    });
}

impl EventStream {
    /// Returns false after the page's owner is gone, when a late callback must do nothing.
    fn is_alive(self) -> bool {
        self.live.state.try_get_untracked().is_some()
    }

    /// Gives the state an input, and performs the effects.
    fn report(self, input: TabInput) {
        if !self.is_alive() {
            return;
        }
        let tab = TabFacts {
            now: browser::now_millis(),
            is_hidden: browser::is_hidden(),
            is_paused: self.live.is_paused(),
            is_sign_out_expected: self.live.is_sign_out_expected.get_value(),
            is_in_use: &|| self.guard.is_some_and(LeaveGuard::is_dirty) || tabs::has_open_dialog_or_selection(),
        };
        for effect in self.state.try_update_value(|state| state.step(input, &tab)).unwrap_or_default() {
            self.perform(effect);
        }
    }

    fn report_after(self, delay: Duration, input: TabInput) {
        browser::run_after(delay, move || self.report(input));
    }

    fn perform(self, effect: TabEffect) {
        match effect {
            TabEffect::OpenChannel(name) => self.open_channel(&name),
            TabEffect::CloseChannel => self.channel.set_value(None),
            TabEffect::Send(message) => self.channel.with_value(|channel| {
                if let Some(channel) = channel {
                    channel.send(&message.to_text());
                }
            }),
            TabEffect::RequestLock(name) => self.request_lock(&name),
            TabEffect::ReleaseLock => self.lock.set_value(None),
            TabEffect::Connect(query) => self.connect(&query),
            TabEffect::Disconnect => self.connection.set_value(None),
            TabEffect::ReopenAfter(delay) => self.report_after(delay, TabInput::ReopenDue),
            TabEffect::FlushOnFrame => browser::run_on_next_frame(move || self.report(TabInput::FlushDue)),
            TabEffect::FlushAfter(delay) => self.report_after(delay, TabInput::FlushDue),
            TabEffect::Deliver(events) => events.iter().for_each(|envelope| self.live.deliver(envelope)),
            TabEffect::ShowState(state) => self.live.state.set(state),
            TabEffect::ShowBuild(build) => self.live.server_build.set(Some(build)),
            TabEffect::SyncClock(now) => self.clock.sync(now),
            TabEffect::Reload => browser::reload(),
            TabEffect::RenameUser(me) => self.with_session(|session| session.rename(me)),
            TabEffect::RefetchUser => self.with_session(SessionContext::refetch),
            TabEffect::ShowToast(text) => {
                if let Some(toasts) = self.toasts {
                    toasts.show(ToastKind::Info, text);
                }
            }
            TabEffect::ShowNotice(text) => self.notice.warn_at(&self.path.get_untracked(), text),
            TabEffect::ClearNotice => self.notice.clear(),
            TabEffect::AskUser => spawn_local(async move {
                if let Ok(me) = whoami().await {
                    self.report(TabInput::UserRead(me));
                }
            }),
            TabEffect::CheckRenewal => {
                browser::run_after(RENEWAL_CHECK_DELAY, move || self.check_renewal());
            }
            TabEffect::ReportEnd(reason) => self.session_end.report(reason),
        }
    }

    fn open_channel(self, name: &str) {
        let received = move |text: String| {
            if let Some(message) = TabMessage::parse(&text) {
                self.report(TabInput::Message(message));
            }
        };
        self.channel.set_value(TabChannel::open(name, received));
        self.report(TabInput::ChannelOpened(self.channel.with_value(Option::is_some)));
    }

    fn request_lock(self, name: &str) {
        let lock = TabLock::request(name, move || self.report(TabInput::LockGranted));
        let is_refused = lock.is_none();
        self.lock.set_value(lock);
        if is_refused {
            self.report(TabInput::LockRefused);
        }
    }

    fn connect(self, query: &str) {
        let connected = move || self.report(TabInput::Connected);
        let lost = move || {
            let is_closed =
                self.connection.try_with_value(|connection| connection.as_ref().is_none_or(EventConnection::is_closed));
            self.report(TabInput::ConnectionLost {
                is_closed: is_closed.unwrap_or(true),
                is_online: browser::is_online(),
                random: js_sys::Math::random(),
            });
        };
        let received = move |frame| self.report(TabInput::Received(frame));
        // The present connection is closed first, so that there are never two.
        self.connection.set_value(None);
        let connection = EventConnection::open(query, connected, lost, received);
        let is_refused = connection.is_none();
        self.connection.set_value(connection);
        if is_refused {
            self.report(TabInput::ConnectRefused);
        }
    }

    fn check_renewal(self) {
        spawn_local(async move {
            if self.is_alive() {
                self.report(TabInput::RenewalRead(whoami().await.ok().flatten()));
            }
        });
    }

    fn with_session(self, change: impl FnOnce(&SessionContext)) {
        if let Some(session) = self.session.get_value() {
            change(&session);
        }
    }
}
