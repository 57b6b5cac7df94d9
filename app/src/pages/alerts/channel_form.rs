//! The fields of an alert channel. Every kind is in the form; with a script only the fields of the chosen one are
//! visible.

use leptos::prelude::*;

use super::rule_form::options;
use crate::{
    api::alerts::{AlertChannelForm, CHECKED},
    components::{
        check_field::CheckField,
        fields::{SelectField, TextareaField, use_script},
        input_form::FormState,
        schedule_field::TextField,
    },
};

/// The kinds of destinations with their labels.
const KINDS: [(&str, &str); 3] = [("email", "E-mail"), ("webhook", "Webhook"), ("slack", "Slack")];

/// The fields of a channel.
#[component]
pub fn ChannelFields(
    /// The state of the enclosing form.
    state: FormState,
    /// The initial values.
    form: AlertChannelForm,
) -> impl IntoView {
    let AlertChannelForm { name, kind, target, is_enabled, .. } = form;
    let kinds = options(KINDS.into_iter(), &kind);
    let kind = RwSignal::new(kind);
    let has_script = use_script();
    let is_off = move |this: &'static str| has_script.get() && kind.with(|kind| kind != this);
    let [to, url, signing_secret, url_secret] =
        ["to", "url", "signingSecret", "urlSecret"].map(|name| target.get(name).cloned().unwrap_or_default());
    view! {
        <fieldset class="form-section">
            <legend>"Channel"</legend>
            <TextField state field="name" label="Name" hint="Shown in the form of a rule; 1 to 100 characters." value=name/>
            <SelectField
                id="f-kind"
                name="form[kind]"
                label="Kind"
                hint="How the messages are sent."
                error=state.error("kind")
                chosen=kind
            >
                {kinds}
            </SelectField>
            <fieldset class="input-group" hidden=move || is_off("email")>
                <legend>"E-mail"</legend>
                <TextareaField
                    id="f-target-to"
                    name="form[target][to]"
                    label="Recipients"
                    hint="One e-mail address per line; 1 to 20. The messages are sent over the SMTP server in the settings of the server."
                    text=to
                    error=state.error("target.to")
                    rows="4"
                    class=""
                    aria_required=true
                />
            </fieldset>
            <fieldset class="input-group" hidden=move || is_off("webhook")>
                <legend>"Webhook"</legend>
                <TextField
                    state
                    field="target.url"
                    label="Address"
                    hint="Receives a POST with a JSON document, such as https://example.org/hook. It must contain no secret; at most 2,000 characters."
                    value=url
                    inputmode="url"
                />
                <TextField
                    state
                    field="target.signingSecret"
                    label="Name of the signing secret"
                    hint="Capital letters, digits and underscores, such as HOOK. Set the environment variable ALERT_SECRET_NAME on every server, as in ALERT_SECRET_HOOK. Empty means no signature."
                    value=signing_secret
                    is_required=false
                />
            </fieldset>
            <fieldset class="input-group" hidden=move || is_off("slack")>
                <legend>"Slack"</legend>
                <TextField
                    state
                    field="target.urlSecret"
                    label="Name of the secret with the address"
                    hint="Capital letters, digits and underscores, such as SLACK_OPS. The address of the webhook is a secret: set the environment variable ALERT_SECRET_NAME on every server, as in ALERT_SECRET_SLACK_OPS."
                    value=url_secret
                />
            </fieldset>
            <CheckField
                field="isEnabled"
                label="Enabled"
                hint="The messages of a channel that is off are dropped. Default: on."
                checked=is_enabled == CHECKED
                error=state.error("isEnabled")
            />
        </fieldset>
    }
}
