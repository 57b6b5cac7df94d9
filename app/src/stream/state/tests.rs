//! The rules of one tab, one row each.

mod user;

use chrono::DateTime;
use milvaion_api::{events::LiveEvent, permissions::Role};
use milvaion_protocol::id::UserId;

use super::{
    TabEffect::{
        AskUser, CloseChannel, Connect, Deliver, Disconnect, FlushAfter, FlushOnFrame, OpenChannel, ReleaseLock,
        ReopenAfter, RequestLock, Send, ShowBuild, ShowState, SyncClock,
    },
    *,
};

const NOW: i64 = 100_000;

pub(super) fn ann() -> CurrentUser {
    CurrentUser { id: UserId::default(), name: "Ann".into(), email: "ann@example.org".into(), role: Role::Operator }
}

fn shared_name() -> String {
    format!("milvaion-events-{}", ann().id)
}

/// A tab whose page was read at position 5, and its properties.
struct TestTab {
    state: TabState,
    now: i64,
    is_hidden: bool,
    is_paused: bool,
    is_sign_out_expected: bool,
    is_in_use: bool,
}

impl TestTab {
    fn at(position: Option<&str>) -> Self {
        Self {
            state: TabState::new(position.map(Into::into)),
            now: NOW,
            is_hidden: false,
            is_paused: false,
            is_sign_out_expected: false,
            is_in_use: false,
        }
    }

    fn report(&mut self, input: TabInput) -> Vec<TabEffect> {
        let facts = TabFacts {
            now: self.now,
            is_hidden: self.is_hidden,
            is_paused: self.is_paused,
            is_sign_out_expected: self.is_sign_out_expected,
            is_in_use: &|| self.is_in_use,
        };
        self.state.step(input, &facts)
    }

    fn after(mut self, input: TabInput) -> Self {
        self.report(input);
        self
    }

    fn later(self, millis: i64) -> Self {
        Self { now: self.now + millis, ..self }
    }

    fn hidden(self) -> Self {
        Self { is_hidden: true, ..self }
    }

    fn paused(self) -> Self {
        Self { is_paused: true, ..self }.after(TabInput::PauseChanged)
    }

    fn resuming(self) -> Self {
        Self { is_paused: false, ..self }
    }

    fn in_use(self) -> Self {
        Self { is_in_use: true, ..self }
    }

    fn signing_out(self) -> Self {
        Self { is_sign_out_expected: true, ..self }
    }
}

fn joining() -> TestTab {
    TestTab::at(Some("5")).after(TabInput::UserKnown(ann()))
}

fn waiting() -> TestTab {
    joining().after(TabInput::ChannelOpened(true))
}

fn following() -> TestTab {
    waiting().after(TabInput::Message(state(LiveState::Live, Some("5"))))
}

fn leading() -> TestTab {
    waiting().after(TabInput::LockGranted)
}

fn live() -> TestTab {
    leading().after(TabInput::Connected)
}

fn state(state: LiveState, position: Option<&str>) -> TabMessage {
    TabMessage::State { state, position: position.map(Into::into) }
}

fn tells(link: LiveState) -> TabEffect {
    Send(state(link, Some("5")))
}

fn frame(kind: FrameKind, data: &str) -> StreamFrame {
    StreamFrame { kind, id: String::new(), data: data.into() }
}

pub(super) fn event(id: &str) -> EventEnvelope {
    EventEnvelope { id: id.into(), at: DateTime::UNIX_EPOCH, event: LiveEvent::Workers }
}

pub(super) fn event_frame(envelope: &EventEnvelope) -> StreamFrame {
    let data = serde_json::to_string(envelope).expect("JSON");
    StreamFrame { kind: FrameKind::Event, id: envelope.id.clone(), data }
}

fn session_frame(me: &CurrentUser) -> StreamFrame {
    frame(FrameKind::Session, &serde_json::to_string(me).expect("JSON"))
}

fn resync() -> EventEnvelope {
    let at = DateTime::from_timestamp_millis(NOW).expect("a time");
    EventEnvelope { id: String::new(), at, event: LiveEvent::Resync }
}

fn relayed(before: &str, frame: StreamFrame) -> TabMessage {
    TabMessage::Frame { before: before.into(), frame }
}

fn received(id: &str) -> TabInput {
    TabInput::Received(event_frame(&event(id)))
}

const fn lost(is_closed: bool, random: f64) -> TabInput {
    TabInput::ConnectionLost { is_closed, is_online: true, random }
}

const TICK: TabInput = TabInput::Tick { is_online: true };

/// Checks rules, each a name, a tab, an input and its effects.
fn check<const N: usize>(rules: [(&str, TestTab, TabInput, Vec<TabEffect>); N]) {
    for (rule, mut tab, input, effects) in rules {
        assert_eq!(tab.report(input), effects, "{rule}");
    }
}

#[test]
fn visible_tab_takes_part_in_the_stream() {
    let name = shared_name;
    let away = || live().after(TabInput::PageLeft);
    let resuming = || live().paused().resuming();
    check([
        ("it joins", TestTab::at(Some("5")), TabInput::UserKnown(ann()), vec![OpenChannel(name())]),
        (
            "it waits for the lock",
            joining(),
            TabInput::ChannelOpened(true),
            vec![Send(TabMessage::Hello), RequestLock(name())],
        ),
        ("it leads without locks", joining(), TabInput::ChannelOpened(false), vec![Connect("?last=5".into())]),
        (
            "a hidden one waits for none",
            joining().hidden(),
            TabInput::ChannelOpened(true),
            vec![Send(TabMessage::Hello)],
        ),
        (
            "a paused one waits for none",
            joining().paused(),
            TabInput::ChannelOpened(true),
            vec![Send(TabMessage::Hello)],
        ),
        (
            "a refused lock is requested again",
            waiting().after(TabInput::LockRefused),
            TabInput::VisibilityChanged,
            vec![Send(TabMessage::Hello), RequestLock(name())],
        ),
        ("it continues at its position", waiting(), TabInput::LockGranted, vec![Connect("?last=5".into())]),
        ("a second grant changes nothing", leading(), TabInput::LockGranted, vec![]),
        (
            "an open stream is shown and reported",
            leading(),
            TabInput::Connected,
            vec![ShowState(LiveState::Live), tells(LiveState::Live)],
        ),
        (
            "a hidden one closes the stream before it releases the lock",
            live().hidden(),
            TabInput::VisibilityChanged,
            vec![Disconnect, ReleaseLock, ShowState(LiveState::Reconnecting)],
        ),
        ("a hidden one stops waiting", following().hidden(), TabInput::VisibilityChanged, vec![ReleaseLock]),
        (
            "a paused one closes the stream",
            TestTab { is_paused: true, ..live() },
            TabInput::PauseChanged,
            vec![ShowState(LiveState::Paused), Disconnect, ReleaseLock],
        ),
        (
            "a resumed one waits again",
            resuming(),
            TabInput::PauseChanged,
            vec![ShowState(LiveState::Reconnecting), Send(TabMessage::Hello), RequestLock(name())],
        ),
        (
            "a resumed one may be older than the stream",
            resuming().after(TabInput::PauseChanged),
            TabInput::LockGranted,
            vec![Connect(String::new())],
        ),
        (
            "a page in the history holds nothing",
            live(),
            TabInput::PageLeft,
            vec![Disconnect, ReleaseLock, ShowState(LiveState::Reconnecting), CloseChannel],
        ),
        ("a page from the history joins again", away(), TabInput::PageRestored, vec![OpenChannel(name())]),
    ]);
}

#[test]
fn tabs_share_what_the_leading_one_receives() {
    let six = || event_frame(&event("6"));
    let eight = || TabInput::Message(relayed("7", event_frame(&event("8"))));
    let build = || frame(FrameKind::Build, "b1");
    let ping = || frame(FrameKind::Ping, "2026-11-23T09:00:00Z");
    check([
        ("it is relayed and painted", live(), received("6"), vec![Send(relayed("5", six())), FlushOnFrame]),
        (
            "it is delivered once per frame",
            live().after(received("6")).after(received("7")),
            TabInput::FlushDue,
            vec![Deliver(vec![event("6"), event("7")])],
        ),
        (
            "a hidden tab paints no frames",
            following().hidden(),
            TabInput::Message(relayed("5", six())),
            vec![FlushAfter(Duration::from_millis(250))],
        ),
        ("a paused tab applies none", following().paused(), TabInput::Message(relayed("5", six())), vec![]),
        ("a pause drops what waits", live().after(received("6")).paused(), TabInput::FlushDue, vec![]),
        (
            "a tab that missed one reads again",
            following().after(eight()),
            TabInput::FlushDue,
            vec![Deliver(vec![resync(), event("8")])],
        ),
        (
            "a tab without a position waits for a resync",
            TestTab::at(None).after(TabInput::UserKnown(ann())).after(TabInput::ChannelOpened(true)).after(eight()),
            TabInput::LockGranted,
            vec![Connect(String::new())],
        ),
        ("the tab that leads ignores a late one", live(), eight(), vec![]),
        (
            "the position follows the frames",
            following().after(TabInput::Message(relayed("5", six()))),
            TabInput::LockGranted,
            vec![Connect("?last=6".into())],
        ),
        (
            "a tab elsewhere reads again",
            following(),
            TabInput::Message(state(LiveState::Live, Some("9"))),
            vec![FlushOnFrame],
        ),
        ("a leading tab may not know where", following(), TabInput::Message(state(LiveState::Live, None)), vec![]),
        (
            "the leading tab introduces itself",
            live().after(TabInput::Received(build())),
            TabInput::Message(TabMessage::Hello),
            vec![tells(LiveState::Live), Send(relayed("5", session_frame(&ann()))), Send(relayed("5", build()))],
        ),
        ("the others do not", following(), TabInput::Message(TabMessage::Hello), vec![]),
        (
            "a build is shown",
            live(),
            TabInput::Received(build()),
            vec![Send(relayed("5", build())), ShowBuild("b1".into())],
        ),
        (
            "a ping sets the clock",
            live(),
            TabInput::Received(ping()),
            vec![Send(relayed("5", ping())), SyncClock("2026-11-23T09:00:00Z".parse().expect("a time"))],
        ),
        (
            "an event of a newer server is a resync",
            live().after(TabInput::Received(StreamFrame { id: "6".into(), ..frame(FrameKind::Event, "{}") })),
            TabInput::FlushDue,
            vec![Deliver(vec![resync()])],
        ),
        (
            "a backlog is a resync",
            (0..501).fold(live(), |tab, id| tab.after(received(&id.to_string()))),
            TabInput::FlushDue,
            vec![Deliver(vec![resync()])],
        ),
    ]);
}

#[test]
fn lost_connection_is_opened_again() {
    let offline = || live().after(TabInput::NetworkLost);
    let given_up = || live().after(lost(true, 1.0));
    let reconnecting = [ShowState(LiveState::Reconnecting), tells(LiveState::Reconnecting)];
    let with = |effects: &[TabEffect]| [&reconnecting[..], effects].concat();
    let again = || vec![Connect("?last=5".into())];
    check([
        ("the browser reconnects", live(), lost(false, 1.0), with(&[])),
        ("it gives up", live(), lost(true, 1.0), with(&[ReopenAfter(Duration::from_secs(1)), AskUser])),
        (
            "jitter shortens the delay",
            live(),
            lost(true, 0.0),
            with(&[ReopenAfter(Duration::from_millis(500)), AskUser]),
        ),
        (
            "the delay doubles",
            given_up().later(1_000).after(TabInput::ReopenDue),
            lost(true, 1.0),
            vec![tells(LiveState::Reconnecting), ReopenAfter(Duration::from_secs(2)), AskUser],
        ),
        (
            "a success resets the delay",
            given_up().later(1_000).after(TabInput::ReopenDue).after(TabInput::Connected),
            lost(true, 1.0),
            with(&[ReopenAfter(Duration::from_secs(1)), AskUser]),
        ),
        ("a timer may be early", given_up(), TabInput::ReopenDue, vec![]),
        ("a timer opens it", given_up().later(1_000), TabInput::ReopenDue, again()),
        ("the watch opens it", given_up().later(1_000), TICK, again()),
        ("a second timer opens none", given_up().later(1_000).after(TICK), TabInput::ReopenDue, vec![]),
        (
            "the timer of a tab that is hidden now opens none",
            given_up().hidden().after(TabInput::VisibilityChanged).later(1_000),
            TabInput::ReopenDue,
            vec![],
        ),
        ("a late report of a closed one changes nothing", given_up(), received("6"), vec![]),
        ("a refused one is tried again", leading().after(TabInput::ConnectRefused), TICK, again()),
        ("20 s are no outage", live().after(lost(false, 1.0)).later(20_000), TICK, vec![]),
        (
            "more than 20 s are one",
            live().after(lost(false, 1.0)).later(20_001),
            TICK,
            vec![ShowState(LiveState::Offline), tells(LiveState::Offline)],
        ),
        ("40 s may be silent", live().later(40_000), TICK, vec![]),
        (
            "more than 40 s are a lost connection",
            live().later(40_001),
            TICK,
            with(&[Send(TabMessage::Hello), Connect("?last=5".into())]),
        ),
        (
            "a following tab asks its leader",
            following().later(40_001),
            TICK,
            vec![ShowState(LiveState::Reconnecting), Send(TabMessage::Hello)],
        ),
        (
            "no network is an outage at once",
            live(),
            TabInput::NetworkLost,
            vec![Disconnect, ShowState(LiveState::Offline), tells(LiveState::Offline)],
        ),
        ("no network opens none", offline(), TabInput::Tick { is_online: false }, vec![]),
        ("a network that nothing reported opens it", offline(), TICK, again()),
        (
            "a new network opens it",
            offline(),
            TabInput::NetworkRestored,
            [vec![Send(TabMessage::Hello)], again()].concat(),
        ),
    ]);
}
