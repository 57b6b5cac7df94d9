//! The banners above every page: what is wrong, and how old the data on the page is.
//!
//! There is one line per condition: each part that does not work, the cluster pause, failed reads, a lost connection,
//! paused live updates and a new version of the dashboard. The server renders those it can determine, so a page without
//! scripts shows them too. The two live regions exist from the start, because screen readers do not announce a region
//! that is inserted with its text. They are not atomic: a new banner is announced without those that are already shown.

use leptos::{ev, prelude::*, server_fn::ServerFn};
use milvaion_api::{
    permissions::Permission,
    views::{ClusterPause, HealthItem, HealthState},
};

use super::{
    action::use_action,
    action_error::{ActionError, LastError},
    cluster_state::{ClusterState, use_cluster_pause, use_cluster_status},
    focus::hand_focus,
    health_parts::explanation_address,
    icon::Icon,
    session_context::use_role,
    session_end::use_ended_session,
    time::{Time, use_page_clock},
};
use crate::{
    api::cluster::{CLUSTER_RESUMED_NOTICE, ResumeCluster, resume_cluster},
    browser,
    live::{LiveState, LiveUpdates, read_state::ReadState},
};

/// The id of the banner of the cluster pause.
const PAUSED_ID: &str = "paused";

/// The banners of the layout.
#[component]
pub fn StatusBanners(
    /// The state of the cluster.
    cluster: ClusterState,
) -> impl IntoView {
    let role = use_role();
    let status = use_cluster_status();
    // The memos keep a banner, and the focus in it, while other parts of the status change.
    let troubles =
        Memo::new(move |_| status.with(|status| status.as_ref().map(|status| status.troubles()).unwrap_or_default()));
    let of_state = move |state: HealthState| {
        let found = troubles.get().into_iter().filter(|item| item.state == state);
        found.map(|item| trouble_banner(item).into_any()).collect::<Vec<_>>()
    };
    let pause = use_cluster_pause();
    let pause = Memo::new(move |_| pause.get());
    let pause_banner = {
        let cluster = cluster.clone();
        move || {
            let cluster = cluster.clone();
            let on_change = Callback::new(move |()| cluster.request_own());
            let may_resume = role.get().is_some_and(|role| role.allows(Permission::PauseCluster));
            pause.get().map(|pause| cluster_pause_banner(pause, may_resume, on_change))
        }
    };
    view! {
        <div class="banners">
            <div role="alert" aria-atomic="false">{move || of_state(HealthState::Down)}</div>
            <div role="status" aria-atomic="false">
                {move || of_state(HealthState::Warn)} {pause_banner} <StaleDataBanner cluster/> <PausedUpdatesBanner/>
                <NewVersionBanner/>
            </div>
        </div>
    }
}

/// Renders a part that does not work: its name, what that means, and the time of the first check that found it.
fn trouble_banner(item: HealthItem) -> impl IntoView {
    let (kind, icon) = match item.state {
        HealthState::Down => ("error", "octagon-x"),
        HealthState::Ok | HealthState::Warn => ("warn", "triangle-alert"),
    };
    let text = format!(" {}.", item.detail);
    let name = item.name.clone();
    let address = explanation_address(&name);
    let since = item.since.map(|at| view! { " First noticed at " <Time at/> "." });
    view! {
        <div class="notice" data-kind=kind data-part=name>
            <Icon name=icon/>
            <p><strong><a href=address>{item.name}</a></strong> {text} {since}</p>
        </div>
    }
}

/// Renders the cluster pause: its user, its start and its reason, with a button that resumes the cluster.
fn cluster_pause_banner(pause: ClusterPause, may_resume: bool, on_change: Callback<()>) -> impl IntoView {
    let by = format!("Paused by {} since ", pause.by);
    let why = format!(": {} No schedule starts a run until the pause ends.", sentence(&pause.reason));
    view! {
        <div class="notice" data-kind="warn" id=PAUSED_ID>
            <Icon name="circle-pause"/>
            <p>{by} <Time at=pause.since/> {why}</p>
            {may_resume.then(|| view! { <ResumeForm on_change/> })}
        </div>
    }
}

/// Appends a full stop to `text` unless it already ends with a punctuation mark.
fn sentence(text: &str) -> String {
    let text = text.trim();
    if text.ends_with(['.', '!', '?', '…']) { text.to_owned() } else { format!("{text}.") }
}

#[component]
fn ResumeForm(on_change: Callback<()>) -> impl IntoView {
    let error = LastError::of("Resume");
    let action = use_action(error);
    let resume = move |event: ev::SubmitEvent| {
        event.prevent_default();
        action.run(async move {
            let answer = resume_cluster().await;
            if answer.is_ok() {
                hand_focus(PAUSED_ID, browser::PAGE_TITLE_ID);
            }
            let _ = on_change.try_run(());
            answer.map(|()| Some(CLUSTER_RESUMED_NOTICE.to_owned()))
        });
    };
    view! {
        <form method="post" action=ResumeCluster::PATH on:submit=resume>
            <button type="submit" class="btn" aria-disabled=move || action.disabled()>
                <Icon name="play"/>
                "Resume"
            </button>
        </form>
        <ActionError error/>
    }
}

/// The condition that makes the data on the page old.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StaleCause {
    /// A read failed, for this reason.
    FailedRead(String),
    /// PostgreSQL is down, which a banner of its own states.
    Outage,
    /// The stream is offline.
    Offline,
}

/// Labels the data on the page with its time while it cannot be read again, or while the stream is offline.
#[component]
fn StaleDataBanner(cluster: ClusterState) -> impl IntoView {
    let clock = use_page_clock();
    let live = use_context::<LiveUpdates>();
    let reads = use_context::<ReadState>();
    let state = cluster.clone();
    let has_ended = use_ended_session();
    let stale = Memo::new(move |_| {
        let reads = reads?;
        let outage = state.outage_data_at();
        let is_outage = state.status().is_some_and(|status| !status.is_database_up());
        let failed = reads.failure.get();
        // The end of the session closes the stream too, and has a notice of its own.
        let is_ended = has_ended.get().is_some();
        let is_offline = !is_ended && live.is_some_and(|live| live.state.get() == LiveState::Offline);
        let offline_at = reads.not_live_since.get().filter(|_| is_offline).map(|at| clock.server_time(at));
        let failed_at = failed.as_ref().map(|failure| clock.server_time(failure.data_at_millis));
        let at = [outage, failed_at, offline_at].into_iter().flatten().min()?;
        let cause = match failed {
            // An outage and a lost connection are one condition each, even though reads fail because of them.
            _ if is_outage => StaleCause::Outage,
            Some(failure) if !is_offline => StaleCause::FailedRead(failure.error.to_string()),
            _ => StaleCause::Offline,
        };
        Some((cause, at))
    });
    let banner = move |(cause, at)| {
        let (icon, text) = match cause {
            StaleCause::FailedRead(reason) => (
                "triangle-alert",
                format!("Could not read the latest data ({}). The page shows data from ", without_full_stop(&reason)),
            ),
            StaleCause::Outage => ("triangle-alert", "The page shows data from ".to_owned()),
            StaleCause::Offline => ("wifi-off", "No connection. The page shows data from ".to_owned()),
        };
        let cluster = cluster.clone();
        let retry = move |_| {
            cluster.request_own();
            if let Some(reads) = reads {
                reads.try_again();
            }
        };
        view! {
            <div class="notice" data-kind="warn" id="stale-data">
                <Icon name=icon/>
                <p>{text} <Time at=at/> "."</p>
                <button type="button" class="btn" on:click=retry>
                    <Icon name="refresh-cw"/>
                    "Try again"
                </button>
            </div>
        }
    };
    move || stale.get().map(&banner)
}

/// Removes the full stop at the end of a reason that is part of a longer sentence.
fn without_full_stop(text: &str) -> &str {
    text.trim().trim_end_matches('.')
}

/// States that the user has paused live updates, and since when nothing changes on the page.
#[component]
fn PausedUpdatesBanner() -> impl IntoView {
    let clock = use_page_clock();
    let live = use_context::<LiveUpdates>();
    let reads = use_context::<ReadState>();
    let at = Memo::new(move |_| {
        let (live, reads) = (live?, reads?);
        let at = reads.not_live_since.get().filter(|_| live.paused.get())?;
        Some(clock.server_time(at))
    });
    let resume = move |_| {
        if let Some(live) = live {
            browser::keep_focus();
            live.paused.set(false);
        }
    };
    move || {
        at.get().map(|at| {
            view! {
                <div class="notice" data-kind="info" id="updates-paused">
                    <Icon name="circle-pause"/>
                    <p>"Live updates are paused. The page shows data from " <Time at=at/> "."</p>
                    <button type="button" class="btn" on:click=resume>
                        <Icon name="play"/>
                        "Resume live updates"
                    </button>
                </div>
            }
        })
    }
}

/// Offers to reload while the server has another build of the dashboard than the page. The page stays until the user
/// reloads it, so that nothing typed is lost. The banner disappears if the stream continues at a server with the page's
/// build, as during an update of several servers.
#[component]
fn NewVersionBanner() -> impl IntoView {
    let live = use_context::<LiveUpdates>();
    let is_other = Memo::new(move |_| {
        live.is_some_and(|live| live.server_build.with(|build| build.is_some() && *build != browser::page_build()))
    });
    move || {
        is_other.get().then(|| {
            view! {
                <div class="notice" data-kind="info" id="new-version">
                    <Icon name="refresh-cw"/>
                    <p>"A new version of Milvaion is running. Reload to use it."</p>
                    <button type="button" class="btn" on:click=|_| browser::reload()>
                        "Reload"
                    </button>
                </div>
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_ends_with_one_punctuation_mark() {
        assert_eq!(sentence("the disk is full"), "the disk is full.");
        assert_eq!(sentence("The disk is full. "), "The disk is full.");
        assert_eq!(sentence("full!"), "full!");
        assert_eq!(without_full_stop("Try again. "), "Try again");
    }
}
