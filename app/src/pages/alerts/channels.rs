//! The list of alert channels. Operators read it, and Admins manage the channels.

use leptos::prelude::*;
use leptos_meta::Title;
use milvaion_api::{
    alerts::{AlertChannelRow, AlertTarget},
    permissions::Permission,
};

use super::{
    AlertSection, AlertTabs,
    badges::off_badge,
    rows::{REFRESH_DELAY, is_about_alerts},
};
use crate::{
    api::alerts::{alert_channels, channel_address},
    components::{
        empty_state::EmptyState,
        icon::Icon,
        live_rows::LiveRows,
        loading::render_page,
        page_header::PageHeader,
        session_context::may,
        table::{Table, Text},
        time::Time,
    },
    format::plural,
    live::live_page,
};

/// `/alerts/channels`.
#[component]
pub fn AlertChannelsPage() -> impl IntoView {
    let data = Resource::new_blocking(|| (), |()| alert_channels());
    render_page(data, |rows: Vec<AlertChannelRow>| view! { <ChannelsContent rows/> })
}

#[component]
fn ChannelsContent(rows: Vec<AlertChannelRow>) -> impl IntoView {
    let rows = LiveRows::of_all(rows, |row: &AlertChannelRow| row.id.to_string());
    live_page(REFRESH_DELAY, alert_channels, is_about_alerts, move |read| rows.apply_all(read));
    let is_empty = Memo::new(move |_| rows.is_empty());
    let may_manage = may(Permission::ManageAlertChannels);
    let new = may_manage.then(|| {
        view! {
            <a class="btn btn-primary" href="/alerts/channels/new">
                <Icon name="plus"/>
                "New channel"
            </a>
        }
    });
    let next = if may_manage {
        view! { <a class="btn btn-primary" href="/alerts/channels/new">"Create the first channel"</a> }.into_any()
    } else {
        view! { <p>"Ask an Admin to create one."</p> }.into_any()
    };
    view! {
        <Title text="Alert channels · Alerts"/>
        <PageHeader
            title="Alert channels"
            sub="A channel sends the messages of the rules that use it: by e-mail, to a webhook or to Slack."
        >
            {new}
        </PageHeader>
        <div class="stack">
            <AlertTabs here=AlertSection::Channels/>
            <div hidden=move || !is_empty.get()>
                <EmptyState
                    icon="webhook"
                    title="No alert channels"
                    text="Alerts show on the dashboard only. With a channel, a rule also sends a message when an alert fires and when it is resolved."
                >
                    {next}
                </EmptyState>
            </div>
            <Table
                caption="Alert channels by name"
                columns=[
                    Text("Channel"), Text("Kind"), Text("Destination"), Text("Used by"), Text("Last sent"),
                    Text("Last error"),
                ]
                id="alert-channels"
                hidden=move || is_empty.get()
            >
                {rows.view(move |row| view! { <ChannelTableRow row may_manage/> }.into_any())}
            </Table>
        </div>
    }
}

#[component]
fn ChannelTableRow(row: RwSignal<AlertChannelRow>, may_manage: bool) -> impl IntoView {
    let id = row.with_untracked(|row| row.id);
    let name = move || row.with(|row| row.definition.name.clone());
    let name = if may_manage {
        view! { <a class="row-link" href=channel_address(id)>{name}</a> }.into_any()
    } else {
        view! { <strong>{name}</strong> }.into_any()
    };
    let off = move || row.with(|row| !row.definition.is_enabled).then(|| view! { <div>{off_badge()}</div> });
    let users = move || match row.with(|row| row.rules) {
        0 => "No rule".to_owned(),
        rules => plural(rules, "rule"),
    };
    let sent = Memo::new(move |_| row.with(|row| row.last_sent_at));
    let sent = move || match sent.get() {
        Some(at) => view! { <Time at relative=true/> }.into_any(),
        None => view! { <span class="muted">"Not used yet"</span> }.into_any(),
    };
    let error = move || row.with(|row| row.last_error.clone()).unwrap_or_else(|| "None".into());
    view! {
        <tr role="row" data-id=id.to_string()>
            <th role="rowheader" scope="row" data-label="Channel">{name} {off}</th>
            <td role="cell" data-label="Kind">{move || row.with(|row| row.definition.target.label())}</td>
            <td role="cell" data-label="Destination" class="breaks">
                {move || row.with(|row| destination(&row.definition.target))}
            </td>
            <td role="cell" data-label="Used by">{users}</td>
            <td role="cell" data-label="Last sent">{sent}</td>
            <td role="cell" data-label="Last error" class="breaks">{error}</td>
        </tr>
    }
}

/// Returns the destination without its secrets.
fn destination(target: &AlertTarget) -> String {
    match target {
        AlertTarget::Email { to } => to.join(", "),
        AlertTarget::Webhook { url, signing_secret: None } => url.clone(),
        AlertTarget::Webhook { url, signing_secret: Some(secret) } => format!("{url}, signed with {secret}"),
        AlertTarget::Slack { url_secret } => format!("The address in the secret {url_secret}"),
    }
}
