//! Deletes a rule or a channel after a confirmation.

use leptos::{prelude::*, server_fn::ServerFn};
use leptos_router::{NavigateOptions, hooks::use_navigate};
use milvaion_protocol::id::{AlertChannelId, AlertRuleId};

use super::edited_form::EditedForm;
use crate::{
    api::alerts::{
        CHANNELS_ADDRESS, DeleteAlertChannel, DeleteAlertRule, RULES_ADDRESS, channel_address, delete_alert_channel,
        delete_alert_rule, rule_address,
    },
    components::{
        action::use_action,
        action_error::LastError,
        confirm::{ConfirmAction, Confirmation},
    },
};

/// What is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletedObject {
    /// A rule.
    Rule(AlertRuleId),
    /// A channel.
    Channel(AlertChannelId),
}

impl DeletedObject {
    /// Returns the question before this version of the object is deleted.
    pub(super) fn question(self, version: i32, name: &str) -> Confirmation {
        let (noun, consequence, path, id, page) = match self {
            Self::Rule(id) => (
                "rule",
                "The rule is deleted permanently, with its alerts. To stop its messages only, mute it or switch it off.",
                DeleteAlertRule::PATH,
                id.to_string(),
                rule_address(id),
            ),
            Self::Channel(id) => (
                "channel",
                "The channel is deleted permanently. A channel that rules use cannot be deleted; remove it from those rules first.",
                DeleteAlertChannel::PATH,
                id.to_string(),
                channel_address(id),
            ),
        };
        let fields = vec![("id", id), ("version", version.to_string())];
        Confirmation::new(format!("Delete {noun} {name}?"), consequence, format!("Delete {noun}"))
            .with_form(path, fields, page)
    }
}

/// The button that deletes an object, with its dialog.
#[component]
pub fn DeleteButton(
    /// What is deleted.
    object: DeletedObject,
    /// The version on the page.
    version: i32,
    /// The name.
    name: String,
    /// The form on the page.
    form: EditedForm,
    /// The error of the last try, which the page shows near the button.
    error: LastError,
) -> impl IntoView {
    let navigate = use_navigate();
    let action = use_action(error);
    let delete = move |()| {
        let navigate = navigate.clone();
        action.run(async move {
            let (notice, list) = match object {
                DeletedObject::Rule(id) => (delete_alert_rule(id, Some(version)).await?, RULES_ADDRESS),
                DeletedObject::Channel(id) => (delete_alert_channel(id, Some(version)).await?, CHANNELS_ADDRESS),
            };
            form.guarded.forget();
            navigate(list, NavigateOptions::default());
            Ok(Some(notice))
        });
    };
    let what = object.question(version, &name);
    view! { <ConfirmAction action id="delete" label="Delete…" icon="trash-2" what on_confirm=delete/> }
}
