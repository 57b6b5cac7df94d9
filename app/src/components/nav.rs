//! The layout's bars: the top bar, and the side and bottom navigation.

use leptos::{ev, html, prelude::*, server_fn::ServerFn, task::spawn_local};
use leptos_router::{components::A, hooks::use_location};
use milvaion_api::views::CurrentUser;

use super::{
    action_error::{ActionError, LastError},
    action_menu::{close_on_tab, close_when_left},
    alert_bell::AlertBell,
    icon::{Icon, LiveIcon},
    menu::{Bar, GROUPS, MENU, MenuEntry, entries_for},
    preferences::{ThemeButton, ZoneButton},
    session_context::{use_role, use_signed_in_user},
};
use crate::{
    api::session::{SignOut, sign_out},
    browser,
    live::{LiveState, LiveUpdates},
};

/// The bar at the top of every signed-in page.
#[component]
pub fn TopBar() -> impl IntoView {
    let user = use_signed_in_user();
    let is_known = Memo::new(move |_| user.with(Option::is_some));
    view! {
        <header class="topbar">
            <a class="brand" href="/">
                <Icon name="calendar-clock"/>
                <span>"Milvaion"</span>
            </a>
            <span class="grow"></span>
            <div class="topbar-actions">
                <AlertBell/>
                <LivePill/>
                <ZoneButton/>
                <ThemeButton/>
                <a class="icon-btn topbar-help" href="/help" aria-label="Help" title="Help">
                    <Icon name="circle-help"/>
                </a>
                {move || is_known.get().then(|| view! { <UserMenu user/> })}
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
fn UserMenu(
    /// The user. The signal lives longer than the menu, which disappears with the user.
    user: Signal<Option<CurrentUser>>,
) -> impl IntoView {
    let menu = NodeRef::<html::Details>::new();
    let button = NodeRef::<html::Summary>::new();
    close_when_left(menu, button);
    let text = move |of: fn(&CurrentUser) -> String| move || user.with(|me| me.as_ref().map(of).unwrap_or_default());
    let links = move || {
        let role = user.with(|me| me.as_ref().map(|me| me.role));
        let entries = entries_for(role).filter(|entry| entry.bar == Bar::User);
        let links = entries.map(|entry| {
            view! {
                <a class="btn btn-quiet" href=entry.path>
                    <Icon name=entry.icon/>
                    {entry.name}
                </a>
            }
        });
        links.collect::<Vec<_>>()
    };
    view! {
        <details class="user-menu" node_ref=menu on:focusout=close_on_tab(menu)>
            <summary node_ref=button>
                <Icon name="users"/>
                <span>{text(|me| me.name.clone())}</span>
                <Icon name="chevron-down"/>
            </summary>
            <div>
                <p>
                    <span class="muted">{text(|me| me.email.clone())}</span>
                    <br/>
                    <span>{text(|me| me.role.label().to_owned())}</span>
                </p>
                {links}
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
    let live = use_context::<LiveUpdates>();
    let error = LastError::of("Sign out");
    let submit = move |event: ev::SubmitEvent| {
        event.prevent_default();
        error.clear();
        // The end of the session that this tab asked for must not be reported as an unexpected one.
        let expect = move |is_expected| {
            if let Some(live) = live {
                live.expect_sign_out(is_expected);
            }
        };
        expect(true);
        spawn_local(async move {
            match sign_out().await {
                Ok(()) => {
                    if let Some(live) = live {
                        live.report_sign_out();
                    }
                    // Everything on the page depends on the user, so a full load discards it.
                    browser::load("/login");
                }
                Err(found) => {
                    expect(false);
                    error.show(found);
                }
            }
        });
    };
    view! {
        <form method="post" action=SignOut::PATH on:submit=submit>
            <button type="submit" class=class>
                <Icon name="log-out"/>
                "Sign out"
            </button>
        </form>
        <ActionError error/>
    }
}

/// The navigation at the side.
#[component]
pub fn SideNav() -> impl IntoView {
    let role = use_role();
    let groups = move || {
        let role = role.get();
        let groups = GROUPS.into_iter().filter_map(|group| {
            let links = entries_for(role).filter(|entry| entry.group == group);
            let links = links.map(|entry| view! { <NavLink entry/> }).collect::<Vec<_>>();
            (!links.is_empty()).then(|| {
                view! {
                    <div class="nav-group">
                        <p class="nav-title">{group}</p>
                        {links}
                    </div>
                }
            })
        });
        untrack(|| groups.collect::<Vec<_>>())
    };
    view! { <nav class="sidenav" aria-label="Main">{groups}</nav> }
}

/// The navigation at the bottom of a phone's screen. Its last link leads to the menu with all pages.
#[component]
pub fn BottomBar() -> impl IntoView {
    let pathname = use_location().pathname;
    let is_in_menu = move || pathname.with(|path| is_reached_by_menu(path));
    let groups = GROUPS.into_iter();
    let links =
        groups.flat_map(|group| MENU.iter().filter(move |entry| entry.bar == Bar::Bottom && entry.group == group));
    view! {
        <nav class="bottombar" aria-label="Main, compact">
            {links.map(|entry| view! { <NavLink entry/> }).collect::<Vec<_>>()}
            <a class="nav-link" href="/menu" aria-current=move || is_in_menu().then_some("page")>
                <Icon name="menu"/>
                <span>"More"</span>
            </a>
        </nav>
    }
}

/// Returns true for the menu, and for the pages that the bottom bar reaches only through the menu.
fn is_reached_by_menu(path: &str) -> bool {
    let section = section_of(path);
    section == "menu" || MENU.iter().any(|entry| entry.bar != Bar::Bottom && section_of(entry.path) == section)
}

/// Returns the first segment of `path`, which the pages of one section share.
fn section_of(path: &str) -> &str {
    path.split('/').nth(1).unwrap_or_default()
}

/// A link of a navigation.
#[component]
pub fn NavLink(
    /// The page.
    entry: &'static MenuEntry,
) -> impl IntoView {
    let MenuEntry { icon, path, name, .. } = *entry;
    view! {
        <A href=path exact={path == "/"} attr:class="nav-link">
            <Icon name=icon/>
            <span>{name}</span>
            // The tooltip of the side navigation when it shows only icons. The label stays the only accessible name.
            <span class="nav-tip" aria-hidden="true" title=name></span>
        </A>
    }
}
