//! The rules about the user and the session.

use super::*;
use crate::stream::inputs::TabEffect::{
    CheckRenewal, ClearNotice, RefetchUser, Reload, RenameUser, ReportEnd, ShowNotice, ShowToast,
};

fn ann_as(role: Role) -> CurrentUser {
    CurrentUser { role, ..ann() }
}

fn bob() -> CurrentUser {
    CurrentUser { id: UserId::from_parts(DateTime::UNIX_EPOCH, [1; 10]), ..ann() }
}

#[test]
fn changed_user_changes_the_page() {
    let viewer = || ann_as(Role::Viewer);
    let renamed = || CurrentUser { name: "Anna".into(), ..ann() };
    let toast = || ShowToast("Your role is now Viewer (was Operator).".into());
    let notice = || ShowNotice("Your role is now Viewer. Reload the page to apply it.".into());
    let demoted = || TabInput::UserRead(Some(viewer()));
    let held = || live().in_use().after(demoted());
    check([
        ("another user has another page", live(), TabInput::UserKnown(bob()), vec![Reload]),
        ("another session too", live(), TabInput::UserRead(Some(bob())), vec![Reload]),
        ("the same user changes nothing", live(), TabInput::UserRead(Some(ann())), vec![]),
        (
            "a name is shown",
            live(),
            TabInput::Received(session_frame(&renamed())),
            vec![Send(relayed("5", session_frame(&renamed()))), RenameUser(renamed())],
        ),
        ("a role draws the page again", live(), demoted(), vec![toast(), RefetchUser, FlushOnFrame]),
        ("a page in use stays", live().in_use(), demoted(), vec![toast(), notice()]),
        ("until the user leaves it", held(), TabInput::PageChanged, vec![RefetchUser, FlushOnFrame]),
        ("which happens once", held().after(TabInput::PageChanged), TabInput::PageChanged, vec![]),
        ("a paused page stays", live().paused(), demoted(), vec![toast(), notice()]),
        (
            "until the user resumes",
            live().paused().after(demoted()).resuming(),
            TabInput::PauseChanged,
            vec![
                ShowState(LiveState::Reconnecting),
                Send(TabMessage::Hello),
                RefetchUser,
                FlushOnFrame,
                ClearNotice,
                RequestLock(shared_name()),
            ],
        ),
        ("a paused tab does not ask", live().paused().later(59_999), TICK, vec![]),
        ("but once a minute", live().paused().later(60_000), TICK, vec![AskUser]),
        ("and not twice", live().paused().later(60_000).after(TICK), TICK, vec![]),
        ("a hidden tab does not ask", live().paused().hidden().later(60_000), TICK, vec![]),
    ]);
}

#[test]
fn ended_session_leaves_the_stream() {
    let end = |reason| frame(FrameKind::SessionEnd, reason);
    let ends = |reason| TabInput::Received(end(reason));
    let relays = |reason| Send(relayed("5", end(reason)));
    let leaves =
        || [Disconnect, ReleaseLock, ShowState(LiveState::Reconnecting), ShowState(LiveState::Offline)].to_vec();
    let ended = |reason, report: &[TabEffect]| [vec![relays(reason)], leaves(), report.to_vec()].concat();
    let renewed = || live().after(ends("passphrase-changed"));
    let elsewhere = || TabInput::Message(relayed("9", end("signed-out")));
    check([
        (
            "the server names the reason",
            live(),
            ends("revoked"),
            ended("revoked", &[ReportEnd(SessionEndReason::Revoked)]),
        ),
        ("it is reported once", live().after(ends("revoked")), elsewhere(), vec![]),
        (
            "a refusal names none",
            live(),
            TabInput::UserRead(None),
            ended("ended", &[ReportEnd(SessionEndReason::SignedOut)]),
        ),
        ("a paused tab notices it", live().paused(), TabInput::UserRead(None), {
            let relay = Send(relayed("", end("ended")));
            vec![relay, ReportEnd(SessionEndReason::SignedOut)]
        }),
        ("a sign-out is relayed", live(), TabInput::SignedOutHere, vec![relays("signed-out")]),
        ("this tab ended it itself", live().signing_out(), ends("signed-out"), ended("signed-out", &[])),
        (
            "another tab ended it",
            following(),
            elsewhere(),
            vec![ReleaseLock, ShowState(LiveState::Offline), ReportEnd(SessionEndReason::SignedOutElsewhere)],
        ),
        ("an expiry is one", live(), ends("expired"), ended("expired", &[ReportEnd(SessionEndReason::Expired)])),
        (
            "a deactivation is one",
            live(),
            ends("deactivated"),
            ended("deactivated", &[ReportEnd(SessionEndReason::Deactivated)]),
        ),
        (
            "a new passphrase may have a new session",
            live(),
            ends("passphrase-changed"),
            ended("passphrase-changed", &[CheckRenewal]),
        ),
        ("it has none", renewed(), TabInput::RenewalRead(None), vec![ReportEnd(SessionEndReason::PassphraseChanged)]),
        ("it has one", renewed(), TabInput::RenewalRead(Some(ann())), vec![OpenChannel(shared_name())]),
        (
            "a new sign-in opens a new stream",
            live(),
            TabInput::SignedInAgain(ann()),
            vec![Connect(String::new()), OpenChannel(shared_name())],
        ),
    ]);
}
