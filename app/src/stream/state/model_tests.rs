//! Several tabs of one browser, with its lock, its channel and a server, under random actions.
//!
//! After each action, at most one tab holds a stream, and no hidden, paused or left tab does. The page of a tab has every
//! event up to its position, or is about to read again. No event is delivered twice between two reads. Whatever has
//! happened, all tabs are live and lack nothing once they are in use again.

use std::collections::{BTreeSet, VecDeque};

use chrono::DateTime;
use milvaion_api::events::LiveEvent;
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};

use super::{
    tests::{ann, event, event_frame},
    *,
};

/// The number of events before the tabs are opened.
const FIRST_EVENTS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum ModelAction {
    PublishEvent,
    ForgetEvents,
    GrantLock,
    ToggleNetwork,
    PassSeconds(i64),
    OnTab(usize, TabAction),
}

#[derive(Clone, Copy, Debug)]
enum TabAction {
    ToggleHistory,
    ToggleHidden,
    TogglePause,
    SignIn,
    ReadMessage,
    FireFlush,
    FireReopen,
    Accept,
    SendFrame,
    SkipEvents,
    EndSession,
    Cut,
    Refuse,
}

fn action() -> impl Strategy<Value = ModelAction> {
    let common = vec![
        TabAction::ReadMessage,
        TabAction::FireFlush,
        TabAction::Accept,
        TabAction::SendFrame,
        TabAction::ToggleHidden,
    ];
    let rare = vec![
        TabAction::ToggleHistory,
        TabAction::TogglePause,
        TabAction::SignIn,
        TabAction::FireReopen,
        TabAction::SkipEvents,
        TabAction::EndSession,
        TabAction::Cut,
        TabAction::Refuse,
    ];
    prop_oneof![
        3 => Just(ModelAction::PublishEvent),
        1 => Just(ModelAction::ForgetEvents),
        3 => Just(ModelAction::GrantLock),
        1 => Just(ModelAction::ToggleNetwork),
        2 => select(vec![1, 5, 21, 45, 70]).prop_map(ModelAction::PassSeconds),
        14 => (0..4_usize, select(common)).prop_map(|(at, action)| ModelAction::OnTab(at, action)),
        6 => (0..4_usize, select(rare)).prop_map(|(at, action)| ModelAction::OnTab(at, action)),
    ]
}

/// A connection as the browser and the server see it.
struct ServerConnection {
    is_open: bool,
    /// True after the browser has given it up.
    is_closed: bool,
    /// The id of the last frame, at which the browser reconnects.
    last: String,
    queue: VecDeque<StreamFrame>,
    /// The number of published events that were sent or are in the queue.
    sent: usize,
}

struct ModelTab {
    state: TabState,
    is_hidden: bool,
    is_paused: bool,
    /// True while the page is in the browser's history.
    is_frozen: bool,
    has_channel: bool,
    inbox: VecDeque<TabMessage>,
    connection: Option<ServerConnection>,
    flushes: usize,
    reopens: usize,
    /// The number of events that the page has read.
    read: usize,
    /// The events that the page has received since then.
    delivered: BTreeSet<usize>,
}

struct ModelBrowser {
    now: i64,
    is_online: bool,
    /// True if the browser has locks here.
    is_sharing: bool,
    /// The number of events that the server has published.
    published: usize,
    /// The number of those that it no longer replays.
    forgotten: usize,
    /// The tabs that wait for the lock, of which the first may hold it.
    lock: VecDeque<usize>,
    is_lock_held: bool,
    tabs: Vec<ModelTab>,
}

fn number(id: &str) -> usize {
    id.parse().unwrap_or_default()
}

fn numbered_frame(number: usize) -> StreamFrame {
    event_frame(&event(&number.to_string()))
}

fn resync_frame(id: String) -> StreamFrame {
    let resync = EventEnvelope { id: String::new(), at: DateTime::UNIX_EPOCH, event: LiveEvent::Resync };
    StreamFrame { id, ..event_frame(&resync) }
}

impl ModelBrowser {
    fn new(is_sharing: bool, positions: &[Option<usize>]) -> Self {
        let tab = |position: &Option<usize>| ModelTab {
            state: TabState::new(position.map(|position| position.to_string())),
            is_hidden: false,
            is_paused: false,
            is_frozen: false,
            has_channel: false,
            inbox: VecDeque::new(),
            connection: None,
            flushes: 0,
            reopens: 0,
            read: position.unwrap_or_default(),
            delivered: BTreeSet::new(),
        };
        let mut browser = Self {
            now: 1_000,
            is_online: true,
            is_sharing,
            published: FIRST_EVENTS,
            forgotten: 0,
            lock: VecDeque::new(),
            is_lock_held: false,
            tabs: positions.iter().map(tab).collect(),
        };
        browser.report_to_all(&TabInput::UserKnown(ann()));
        browser
    }

    fn report_to_all(&mut self, input: &TabInput) {
        for at in 0..self.tabs.len() {
            self.report(at, input.clone());
        }
    }

    fn report(&mut self, at: usize, input: TabInput) {
        let tab = &mut self.tabs[at];
        if tab.is_frozen {
            return;
        }
        let facts = TabFacts {
            now: self.now,
            is_hidden: tab.is_hidden,
            is_paused: tab.is_paused,
            is_sign_out_expected: false,
            is_in_use: &|| false,
        };
        for effect in tab.state.step(input, &facts) {
            self.perform(at, effect);
        }
    }

    fn perform(&mut self, at: usize, effect: TabEffect) {
        let tab = &mut self.tabs[at];
        match effect {
            TabEffect::OpenChannel(_) => {
                tab.has_channel = self.is_sharing;
                tab.inbox.clear();
                self.report(at, TabInput::ChannelOpened(self.is_sharing));
            }
            TabEffect::CloseChannel => {
                tab.has_channel = false;
                tab.inbox.clear();
            }
            TabEffect::Send(message) => {
                for (other, tab) in self.tabs.iter_mut().enumerate() {
                    if other != at && tab.has_channel {
                        tab.inbox.extend(TabMessage::parse(&message.to_text()));
                    }
                }
            }
            TabEffect::RequestLock(_) => self.lock.push_back(at),
            TabEffect::ReleaseLock => {
                self.is_lock_held &= self.lock.front() != Some(&at);
                self.lock.retain(|other| *other != at);
            }
            TabEffect::Connect(query) => {
                let last = query.strip_prefix("?last=").unwrap_or_default().to_owned();
                let queue = VecDeque::new();
                tab.connection = Some(ServerConnection { is_open: false, is_closed: false, last, queue, sent: 0 });
            }
            TabEffect::Disconnect => tab.connection = None,
            TabEffect::ReopenAfter(_) => tab.reopens += 1,
            TabEffect::FlushOnFrame | TabEffect::FlushAfter(_) => tab.flushes += 1,
            TabEffect::Deliver(events) => {
                for envelope in events {
                    if envelope.event == LiveEvent::Resync {
                        tab.read = self.published;
                        tab.delivered.clear();
                    } else {
                        assert!(tab.delivered.insert(number(&envelope.id)), "{at}: {} came twice", envelope.id);
                    }
                }
            }
            // What the page shows does not change the stream.
            _ => {}
        }
    }

    fn act(&mut self, action: ModelAction) {
        match action {
            ModelAction::PublishEvent => self.published += 1,
            ModelAction::ForgetEvents => self.forgotten = self.published,
            ModelAction::GrantLock => {
                if let (Some(at), false) = (self.lock.front().copied(), self.is_lock_held) {
                    self.is_lock_held = true;
                    self.report(at, TabInput::LockGranted);
                }
            }
            ModelAction::ToggleNetwork => {
                self.is_online = !self.is_online;
                let input = if self.is_online { TabInput::NetworkRestored } else { TabInput::NetworkLost };
                self.report_to_all(&input);
            }
            ModelAction::PassSeconds(seconds) => {
                self.now += seconds * 1_000;
                self.report_to_all(&TabInput::Tick { is_online: self.is_online });
            }
            ModelAction::OnTab(at, action) => self.act_on(at % self.tabs.len(), action),
        }
    }

    fn act_on(&mut self, at: usize, action: TabAction) {
        let (published, forgotten, is_online) = (self.published, self.forgotten, self.is_online);
        let tab = &mut self.tabs[at];
        let connection = tab.connection.as_mut().filter(|connection| !connection.is_closed);
        let input = match action {
            TabAction::ToggleHistory if tab.is_frozen => {
                tab.is_frozen = false;
                Some(TabInput::PageRestored)
            }
            TabAction::ToggleHistory => {
                self.report(at, TabInput::PageLeft);
                self.tabs[at].is_frozen = true;
                None
            }
            _ if tab.is_frozen => None,
            TabAction::ToggleHidden => {
                tab.is_hidden = !tab.is_hidden;
                Some(TabInput::VisibilityChanged)
            }
            TabAction::TogglePause => {
                tab.is_paused = !tab.is_paused;
                Some(TabInput::PauseChanged)
            }
            TabAction::SignIn => Some(TabInput::SignedInAgain(ann())),
            TabAction::ReadMessage => tab.inbox.pop_front().map(TabInput::Message),
            TabAction::FireFlush => tab.flushes.checked_sub(1).map(|rest| {
                tab.flushes = rest;
                TabInput::FlushDue
            }),
            TabAction::FireReopen => tab.reopens.checked_sub(1).map(|rest| {
                tab.reopens = rest;
                TabInput::ReopenDue
            }),
            TabAction::Accept => connection.filter(|connection| is_online && !connection.is_open).map(|connection| {
                connection.is_open = true;
                connection.sent = published;
                let last = number(&connection.last);
                connection.queue = if last > forgotten {
                    (last + 1..=published).map(numbered_frame).collect()
                } else {
                    VecDeque::from([resync_frame(published.to_string())])
                };
                TabInput::Connected
            }),
            TabAction::SendFrame => connection.filter(|connection| connection.is_open).and_then(|connection| {
                let mut frame = connection.queue.pop_front().or_else(|| {
                    (connection.sent < published).then(|| {
                        connection.sent += 1;
                        numbered_frame(connection.sent)
                    })
                })?;
                if frame.id.is_empty() {
                    frame.id.clone_from(&connection.last);
                }
                connection.last.clone_from(&frame.id);
                Some(TabInput::Received(frame))
            }),
            TabAction::SkipEvents => {
                if let Some(connection) = connection.filter(|connection| connection.sent < published) {
                    connection.sent = published;
                    connection.queue.push_back(resync_frame(String::new()));
                }
                None
            }
            TabAction::EndSession => connection.filter(|connection| connection.is_open).map(|_| {
                let data = "revoked".to_owned();
                TabInput::Received(StreamFrame { kind: FrameKind::SessionEnd, id: String::new(), data })
            }),
            TabAction::Cut | TabAction::Refuse => connection.map(|connection| {
                let is_closed = matches!(action, TabAction::Refuse);
                (connection.is_open, connection.is_closed) = (false, is_closed);
                connection.queue.clear();
                TabInput::ConnectionLost { is_closed, is_online, random: 1.0 }
            }),
        };
        if let Some(input) = input {
            self.report(at, input);
        }
    }

    fn check(&self) {
        for (at, tab) in self.tabs.iter().enumerate() {
            let state = &tab.state;
            let is_open = tab.connection.as_ref().is_some_and(|connection| !connection.is_closed);
            if is_open && self.is_sharing {
                assert!(self.is_lock_held && self.lock.front() == Some(&at), "{at} has a stream without the lock");
            }
            if tab.is_hidden || tab.is_paused || tab.is_frozen || state.is_left {
                assert!(tab.connection.is_none() && !self.lock.contains(&at), "{at} is away and takes part");
            }
            let has_connection = matches!(state.role, TabRole::Leading { connection: LeaderConnection::Open, .. });
            assert_eq!(has_connection, is_open, "{at}");
            assert_eq!(state.shown, if tab.is_paused { LiveState::Paused } else { state.link }, "{at}");
            assert!(state.waiting.is_empty() || tab.flushes > 0, "{at} delivers nothing");
            let reads = state.waiting.iter().any(|envelope| envelope.event == LiveEvent::Resync);
            for event in tab.read + 1..=state.position.as_deref().map_or(0, number) {
                let is_waiting = state.waiting.iter().any(|envelope| number(&envelope.id) == event);
                assert!(reads || is_waiting || tab.delivered.contains(&event), "{at} lacks {event}");
            }
        }
    }

    /// Does everything that needs no user and no time.
    fn settle(&mut self) {
        for _ in 0..6 {
            for at in 0..self.tabs.len() {
                self.act(ModelAction::GrantLock);
                self.act_on(at, TabAction::Accept);
                while !self.tabs[at].inbox.is_empty() {
                    self.act_on(at, TabAction::ReadMessage);
                }
                let published = self.published;
                let has_frames = |connection: &ServerConnection| {
                    connection.is_open && (!connection.queue.is_empty() || connection.sent < published)
                };
                while self.tabs[at].connection.as_ref().is_some_and(has_frames) {
                    self.act_on(at, TabAction::SendFrame);
                }
                while self.tabs[at].flushes > 0 {
                    self.act_on(at, TabAction::FireFlush);
                }
            }
            self.check();
        }
    }

    /// Uses all tabs again, and checks that they recover.
    fn recover(&mut self) {
        if !self.is_online {
            self.act(ModelAction::ToggleNetwork);
        }
        for at in 0..self.tabs.len() {
            let tab = &self.tabs[at];
            let (is_hidden, is_paused) = (tab.is_hidden, tab.is_paused);
            if tab.is_frozen {
                self.act_on(at, TabAction::ToggleHistory);
            }
            if is_hidden {
                self.act_on(at, TabAction::ToggleHidden);
            }
            if is_paused {
                self.act_on(at, TabAction::TogglePause);
            }
        }
        // Before they sign in, they must learn that the session has ended.
        self.settle();
        for at in 0..self.tabs.len() {
            self.act_on(at, TabAction::SignIn);
        }
        self.settle();
        for _ in 0..3 {
            self.act(ModelAction::PassSeconds(20));
            self.settle();
        }
        self.act(ModelAction::PublishEvent);
        self.settle();
        for (at, tab) in self.tabs.iter().enumerate() {
            assert_eq!(tab.state.shown, LiveState::Live, "{at}");
            for event in tab.read + 1..=self.published {
                assert!(tab.delivered.contains(&event), "{at} lacks {event}");
            }
        }
    }
}

#[test]
fn tabs_share_one_stream_and_lose_no_event() {
    let positions = vec(select(vec![None, Some(0), Some(2), Some(FIRST_EVENTS)]), 1..4);
    let cases = (any::<bool>(), positions, vec(action(), 0..80));
    TestRunner::new(Config { cases: 500, failure_persistence: None, ..Config::default() })
        .run(&cases, |(is_sharing, positions, actions)| {
            let mut browser = ModelBrowser::new(is_sharing, &positions);
            for action in actions {
                browser.act(action);
                browser.check();
            }
            browser.recover();
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}
