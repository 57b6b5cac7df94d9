//! The page of a channel: a test message, and the form.

use leptos::{prelude::*, server_fn::ServerFn};
use leptos_meta::Title;
use leptos_router::{
    NavigateOptions,
    hooks::{use_navigate, use_params_map},
};
use milvaion_api::alerts::AlertChannelRow;
use milvaion_protocol::id::AlertChannelId;
use serde_json::Value;

use super::{
    channel_form::ChannelFields,
    delete::{DeleteButton, DeletedObject},
    edited_form::{EditedForm, EditedFormButtons},
    rule::missing,
};
use crate::{
    api::alerts::{
        AlertChannelForm, AlertChannelPage as PageData, CHANNELS_ADDRESS, SaveAlertChannel, TestAlertChannel,
        channel_address, channel_saved_notice, load_alert_channel, save_alert_channel,
    },
    components::{
        action::SubmitButton,
        action_error::{ActionError, LastError},
        confirm::ConfirmSection,
        form::ErrorSummary,
        form_draft::{DraftNotice, FormDraft, render_with_draft},
        icon::Icon,
        input_form::FormState,
        loading::render_page,
        page_header::{Breadcrumbs, PageHeader},
        time::{MaybeTime, Time},
    },
};

/// `/alerts/channels/new`.
#[component]
pub fn NewAlertChannelPage() -> impl IntoView {
    let data = Resource::new_blocking(|| (), |()| load_alert_channel(None));
    render_page(data, restorable)
}

/// `/alerts/channels/:id`.
#[component]
pub fn AlertChannelPage() -> impl IntoView {
    let params = use_params_map();
    let id =
        Memo::new(move |_| params.with(|params| params.get("id").and_then(|id| id.parse::<AlertChannelId>().ok())));
    let data = Resource::new_blocking(
        move || id.get(),
        |id| async move { load_alert_channel(Some(id.ok_or_else(|| missing("alert channel"))?)).await },
    );
    render_page(data, restorable)
}

fn restorable(data: PageData) -> AnyView {
    render_with_draft(data, restore_draft, |data, draft| view! { <ChannelContent data draft/> }.into_any())
}

/// Returns the page with the values of a draft, at the version of the page. The values of a plain post that was just
/// rejected are newer.
fn restore_draft(mut data: PageData, values: Value) -> Option<PageData> {
    let form = serde_json::from_value::<AlertChannelForm>(values).ok()?;
    if form.id != data.form.id || !data.flash.typed.is_null() {
        return None;
    }
    data.form = AlertChannelForm { version: data.form.version, ..form };
    Some(data)
}

#[component]
fn ChannelContent(data: PageData, draft: FormDraft) -> impl IntoView {
    let PageData { channel, form, flash } = data;
    let navigate = use_navigate();
    let is_edit = channel.is_some();
    let edited = EditedForm::new(
        &flash,
        draft,
        |state: FormState| state.read::<SaveAlertChannel>().map(|save| save.form),
        save_alert_channel,
        move |id: AlertChannelId| {
            let next = if is_edit { CHANNELS_ADDRESS.to_owned() } else { channel_address(id) };
            navigate(&next, NavigateOptions::default());
            channel_saved_notice(is_edit).to_owned()
        },
    );
    let known = channel
        .as_ref()
        .map(|channel| (DeletedObject::Channel(channel.id), channel.version, channel.definition.name.clone()));
    let (title, here, verb) = match &known {
        Some((_, _, name)) => (name.clone(), name.clone(), "Save"),
        None => ("New alert channel".to_owned(), "New".to_owned(), "Create"),
    };
    let delete_error = LastError::of("Delete channel");
    let delete = known.clone().map(|(object, version, name)| {
        view! { <DeleteButton object version name form=edited error=delete_error/> }
    });
    let section = known.map(|(object, version, name)| {
        view! { <ConfirmSection id="delete" what=object.question(version, &name)/> }
    });
    view! {
        <Title text=format!("{title} · Alert channels")/>
        <Breadcrumbs
            steps=vec![("/alerts".into(), "Alerts".into()), (CHANNELS_ADDRESS.into(), "Channels".into())]
            here
        />
        <PageHeader title>{delete}</PageHeader>
        <ActionError error=delete_error/>
        <DraftNotice draft noun="channel" version=form.version.clone() on_discard=move |()| edited.guarded.forget()/>
        <ErrorSummary id="error-summary" errors=edited.state.listed_errors()/>
        {section}
        {channel.map(|channel| view! { <TestCard channel state=edited.state/> })}
        <form
            id="alert-channel-form"
            class="form"
            method="post"
            action=SaveAlertChannel::PATH
            node_ref=edited.state.node
            novalidate
            on:submit=move |event| edited.submit.run(event)
            on:input=move |_| edited.guarded.changed()
        >
            <input type="hidden" name="form[id]" value=form.id.clone()/>
            <input type="hidden" name="form[version]" value=form.version.clone()/>
            <ChannelFields state=edited.state form/>
            <EditedFormButtons form=edited verb list=CHANNELS_ADDRESS/>
        </form>
    }
}

/// The last result of the channel, and the button that sends a test.
#[component]
fn TestCard(channel: AlertChannelRow, state: FormState) -> impl IntoView {
    let AlertChannelRow { id, last_sent_at, last_error, modified_at, modified_by, version, .. } = channel;
    let test = ServerAction::<TestAlertChannel>::new();
    Effect::new(move |_| {
        if let Some(Err(error)) = test.value().get() {
            state.refuse(&error);
        }
    });
    let result = move || {
        let report = test.value().get()?.ok().filter(|_| !test.pending().get())?;
        let (kind, icon) = if report.was_accepted { ("success", "circle-check") } else { ("error", "circle-alert") };
        Some(view! {
            <div class="notice" data-kind=kind>
                <Icon name=icon/>
                <p>{report.text}</p>
            </div>
        })
    };
    view! {
        <section class="card stack" aria-labelledby="test-heading">
            <h2 class="card-title" id="test-heading">"Messages"</h2>
            <dl class="kv">
                <dt>"Last sent"</dt>
                <dd><MaybeTime at=last_sent_at relative=true/></dd>
                <dt>"Last error"</dt>
                <dd>{last_error.unwrap_or_else(|| "None".into())}</dd>
                <dt>"Changed"</dt>
                <dd><Time at=modified_at/> {format!(" by {modified_by}, version {version}")}</dd>
            </dl>
            <ActionForm action=test attr:class="form-actions" attr:id="test">
                <input type="hidden" name="id" value=id.to_string()/>
                <SubmitButton is_busy=test.pending() class="btn">
                    <Icon name="send"/>
                    {move || if test.pending().get() { "Sending…" } else { "Send a test" }}
                </SubmitButton>
                <span class="hint">"Sends a message with the saved values. It takes at most 15 s."</span>
            </ActionForm>
            <div role="status" id="test-result">{result}</div>
        </section>
    }
}
