//! The layout's bars: the top bar, and the side and bottom navigation.

use leptos::{html, prelude::*};
use leptos_router::{components::A, hooks::use_location};
use milvaion_api::{permissions::Permission, views::CurrentUser};

use super::{
    action_error::{ActionError, LastError},
    action_menu::{close_on_tab, close_when_left},
    alert_bell::AlertBell,
    cluster_state::ClusterState,
    icon::{Icon, LiveIcon},
    preferences::{ThemeButton, ZoneButton},
    session_context::{SessionContext, may, use_signed_in_user},
};
use crate::{
    api::session::SignOut,
    live::{LiveState, LiveUpdates},
};

/// The bar at the top of every signed-in page.
#[component]
pub fn TopBar(
    /// The session of the user.
    session: SessionContext,
    /// The state of the cluster, with the number of firing alerts.
    cluster: ClusterState,
) -> impl IntoView {
    let user = move || {
        let session = session.clone();
        Suspend::new(async move {
            let me = session.user().await.ok().flatten();
            untrack(|| me.map(|me| view! { <UserMenu me/> }))
        })
    };
    view! {
        <header class="topbar">
            <a class="brand" href="/">
                <Icon name="calendar-clock"/>
                <span>"Milvaion"</span>
            </a>
            <span class="grow"></span>
            <div class="topbar-actions">
                <AlertBell cluster/>
                <LivePill/>
                <ZoneButton/>
                <ThemeButton/>
                <a class="icon-btn topbar-help" href="/help" aria-label="Help" title="Help">
                    <Icon name="circle-help"/>
                </a>
                <Transition>{user}</Transition>
            </div>
        </header>
    }
}

/// The state of the live updates, as a button that pauses and resumes them.
#[component]
fn LivePill() -> impl IntoView {
    let live = expect_context::<LiveUpdates>();
    let title = move || match live.state.get() {
        LiveState::Live => "Live updates are on. Click to pause.",
        LiveState::Paused => "Live updates are paused. Click to resume.",
        LiveState::Offline => "No connection. The data may be out of date.",
        LiveState::Connecting | LiveState::Reconnecting => "Connecting to live updates.",
    };
    let icon = move || match live.state.get() {
        LiveState::Live => "circle-dot",
        LiveState::Paused => "circle-pause",
        LiveState::Offline => "wifi-off",
        LiveState::Connecting | LiveState::Reconnecting => "loader-circle",
    };
    view! {
        <button
            type="button"
            class="live-pill needs-js"
            data-state=move || live.state.get().slug()
            aria-pressed=move || if live.paused.get() { "true" } else { "false" }
            title=title
            on:click=move |_| live.paused.update(|paused| *paused = !*paused)
        >
            <LiveIcon name=Signal::derive(icon)/>
            <span>{move || live.state.get().word()}</span>
            <span class="sr-only">", pause live updates"</span>
        </button>
    }
}

#[component]
fn UserMenu(me: CurrentUser) -> impl IntoView {
    let menu = NodeRef::<html::Details>::new();
    let button = NodeRef::<html::Summary>::new();
    close_when_left(menu, button);
    let user = use_signed_in_user();
    let initial_name = me.name;
    // A changed user draws the menu again. The signal of this menu may then be disposed before its text is updated.
    let name = move || {
        let name = user.try_with(|me| me.as_ref().map(|me| me.name.clone())).flatten();
        name.unwrap_or_else(|| initial_name.clone())
    };
    let govern = me.role.allows(Permission::ReadTeam).then(|| {
        view! {
            <a class="btn btn-quiet" href="/team">
                <Icon name="users"/>
                "Team"
            </a>
            <a class="btn btn-quiet" href="/audit">
                <Icon name="scroll-text"/>
                "Audit log"
            </a>
        }
    });
    view! {
        <details class="user-menu" node_ref=menu on:focusout=close_on_tab(menu)>
            <summary node_ref=button>
                <Icon name="users"/>
                <span>{name}</span>
                <Icon name="chevron-down"/>
            </summary>
            <div>
                <p>
                    <span class="muted">{me.email}</span>
                    <br/>
                    <span>{me.role.label()}</span>
                </p>
                <a class="btn btn-quiet" href="/workers">
                    <Icon name="server"/>
                    "Workers"
                </a>
                <a class="btn btn-quiet" href="/singleton-loops">
                    <Icon name="refresh-cw"/>
                    "Singleton loops"
                </a>
                <a class="btn btn-quiet" href="/calendars">
                    <Icon name="calendar-off"/>
                    "Calendars"
                </a>
                {govern}
                <a class="btn btn-quiet" href="/account">
                    <Icon name="user-cog"/>
                    "Account"
                </a>
                <a class="btn btn-quiet" href="/tokens">
                    <Icon name="key-round"/>
                    "API tokens"
                </a>
                <SignOutForm class="btn btn-quiet"/>
            </div>
        </details>
    }
}

/// The form that ends the user's session.
#[component]
pub fn SignOutForm(
    /// The classes of its button.
    class: &'static str,
) -> impl IntoView {
    let sign_out = ServerAction::<SignOut>::new();
    let live = use_context::<LiveUpdates>();
    let error = LastError::of("Sign out");
    Effect::new(move |_| {
        if sign_out.pending().get() {
            error.clear();
        } else if let Some(Err(found)) = sign_out.value().get() {
            error.show(found);
        }
    });
    Effect::new(move |_| {
        // The end of the session that this tab asked for must not be reported as an unexpected one.
        let is_expected = sign_out.pending().get() || matches!(sign_out.value().get(), Some(Ok(())));
        if let Some(live) = live {
            live.expect_sign_out(is_expected);
        }
    });
    Effect::new(move |_| {
        if matches!(sign_out.value().get(), Some(Ok(()))) {
            if let Some(live) = live {
                live.report_sign_out();
            }
            // Everything on the page depends on the user, so a full load discards it.
            let _ = window().location().set_href("/login");
        }
    });
    view! {
        <ActionForm action=sign_out>
            <button type="submit" class=class>
                <Icon name="log-out"/>
                "Sign out"
            </button>
        </ActionForm>
        <ActionError error/>
    }
}

/// The navigation at the side.
#[component]
pub fn SideNav(
    /// The session of the user.
    session: SessionContext,
) -> impl IntoView {
    let govern = move || {
        let session = session.clone();
        Suspend::new(async move {
            let _ = session.user().await;
            untrack(|| may(Permission::ReadTeam)).then(|| {
                view! {
                    <div class="nav-group">
                        <p class="nav-title">"Govern"</p>
                        <NavLink href="/team" icon="users" word="Team"/>
                        <NavLink href="/audit" icon="scroll-text" word="Audit log"/>
                    </div>
                }
            })
        })
    };
    view! {
        <nav class="sidenav" aria-label="Main">
            <div class="nav-group">
                <p class="nav-title">"Operate"</p>
                <NavLink href="/" icon="layout-dashboard" word="Overview"/>
                <NavLink href="/occurrences" icon="list-checks" word="Occurrences"/>
                <NavLink href="/failed" icon="octagon-x" word="Failures"/>
                <NavLink href="/alerts" icon="bell" word="Alerts"/>
            </div>
            <div class="nav-group">
                <p class="nav-title">"Define"</p>
                <NavLink href="/jobs" icon="briefcase-business" word="Jobs"/>
                <NavLink href="/calendars" icon="calendar-off" word="Calendars"/>
            </div>
            <div class="nav-group">
                <p class="nav-title">"Infrastructure"</p>
                <NavLink href="/workers" icon="server" word="Workers"/>
                <NavLink href="/singleton-loops" icon="refresh-cw" word="Singleton loops"/>
            </div>
            <Transition>{govern}</Transition>
        </nav>
    }
}

/// The first segments of the paths whose pages the bottom bar reaches only through the menu.
const MENU_SECTIONS: [&str; 10] =
    ["menu", "alerts", "workers", "singleton-loops", "calendars", "team", "audit", "account", "tokens", "help"];

/// The navigation at the bottom of a phone's screen. Its last link leads to the menu with all pages.
#[component]
pub fn BottomBar() -> impl IntoView {
    let pathname = use_location().pathname;
    let is_in_menu =
        move || pathname.with(|path| path.split('/').nth(1).is_some_and(|section| MENU_SECTIONS.contains(&section)));
    view! {
        <nav class="bottombar" aria-label="Main, compact">
            <NavLink href="/" icon="layout-dashboard" word="Overview"/>
            <NavLink href="/occurrences" icon="list-checks" word="Occurrences"/>
            <NavLink href="/failed" icon="octagon-x" word="Failures"/>
            <NavLink href="/jobs" icon="briefcase-business" word="Jobs"/>
            <a class="nav-link" href="/menu" aria-current=move || is_in_menu().then_some("page")>
                <Icon name="menu"/>
                <span>"More"</span>
            </a>
        </nav>
    }
}

/// A link of a navigation.
#[component]
pub fn NavLink(
    /// The path of the page.
    href: &'static str,
    /// The name of the icon.
    icon: &'static str,
    /// The name of the page.
    word: &'static str,
) -> impl IntoView {
    view! {
        <A href=href exact={href == "/"} attr:class="nav-link">
            <Icon name=icon/>
            <span>{word}</span>
            // The tooltip of the side navigation when it shows only icons. The label stays the only accessible name.
            <span class="nav-tip" aria-hidden="true" title=word></span>
        </A>
    }
}
