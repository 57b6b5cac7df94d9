//! The page of the own account: name, passphrase, sessions, security log, and the preferences of this browser.
//!
//! All sections are on one page with a link to each, so that it works without a script. The stream does not report the
//! start of a session, so the page reads the account again after each of its actions, when the user returns to the tab,
//! and every 30 seconds.

pub mod passphrase;
pub mod preferences;
pub mod profile;
pub mod sessions;

use std::time::Duration;

use leptos::prelude::*;
use leptos_meta::Title;

use self::{
    passphrase::PassphraseSection, preferences::PreferencesSection, profile::ProfileSection, sessions::SessionsSection,
};
use crate::{
    api::{
        account::{AccountPageData, account, load_account_page, part},
        session::FlashView,
    },
    browser,
    components::{audit_list::OwnAudit, icon::Icon, loading::render_page, page_header::PageHeader},
    live::{live_page, set_if_changed},
};

/// The interval at which the account is read again.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);
/// The minimum time between two reads.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);
/// The id of the security log.
const SECURITY_LOG_ID: &str = "security-log";

/// Id and heading of each section.
const SECTIONS: [(&str, &str); 5] = [
    (part::PROFILE, "Profile"),
    (part::PASSPHRASE, "Passphrase"),
    (part::SESSIONS, "Sessions"),
    (SECURITY_LOG_ID, "Security log"),
    (part::PREFERENCES, "Preferences"),
];

/// `/account`.
#[component]
pub fn AccountPage() -> impl IntoView {
    let data = Resource::new_blocking(|| (), |()| load_account_page());
    render_page(data, |data: AccountPageData| view! { <AccountContent data/> })
}

#[component]
fn AccountContent(data: AccountPageData) -> impl IntoView {
    let AccountPageData { account: view, preferences, zones, flash } = data;
    let flash = flash.unwrap_or_default();
    let of = |section: &str| if flash.typed("part") == section { flash.clone() } else { FlashView::default() };
    let (me, joined_at) = (view.user.clone(), view.created_at);
    let view = RwSignal::new(view);
    let refresh = live_page(REFRESH_PAUSE, account, |_| false, move |read| set_if_changed(view, read));
    let refresh = refresh.every(REFRESH_INTERVAL);
    let own_refresh = refresh.clone();
    let on_change = Callback::new(move |()| own_refresh.request_own());
    Effect::new(move |_| {
        let refresh = refresh.clone();
        browser::on_capture("visibilitychange", move |_| {
            if !browser::is_hidden() {
                refresh.request();
            }
        });
    });
    let links = SECTIONS
        .into_iter()
        .map(|(id, heading)| view! { <li><a href=format!("#{id}") rel="external">{heading}</a></li> })
        .collect::<Vec<_>>();
    let passphrase_changed_at = Signal::derive(move || view.with(|view| view.passphrase_changed_at));
    let sessions = Signal::derive(move || view.with(|view| view.sessions.clone()));
    view! {
        <Title text="Account"/>
        <PageHeader title="Account" sub="Your name, your passphrase, the devices that are signed in, and the preferences of this browser.">
            <a class="btn" href="/tokens">
                <Icon name="key-round"/>
                "API tokens"
            </a>
        </PageHeader>
        <div class="stack">
            <nav class="tabs" aria-label="Sections of the page">
                <ul>{links}</ul>
            </nav>
            <ProfileSection me=me.clone() joined_at flash=of(part::PROFILE) on_change/>
            <PassphraseSection me changed_at=passphrase_changed_at flash=of(part::PASSPHRASE) on_change/>
            <SessionsSection sessions flash=of(part::SESSIONS) on_change/>
            <section class="card" id=SECURITY_LOG_ID aria-labelledby="security-log-heading">
                <h2 class="card-title" id="security-log-heading">"Security log"</h2>
                <p class="muted">
                    "Sign-ins, refused sign-ins and changes of this account. If you do not recognize an entry, change your passphrase and tell an Admin."
                </p>
                <OwnAudit/>
            </section>
            <PreferencesSection form=preferences zones flash=of(part::PREFERENCES)/>
        </div>
    }
}
