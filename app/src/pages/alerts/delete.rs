//! Deletes a rule or a channel after a confirmation: a dialog, or without scripts a section of the page.

use leptos::{prelude::*, server_fn::ServerFn};
use leptos_router::{
    NavigateOptions,
    hooks::{use_navigate, use_query_map},
};
use milvaion_protocol::id::{AlertChannelId, AlertRuleId};

use super::edited_form::EditedForm;
use crate::{
    api::alerts::{
        CHANNELS_ADDRESS, DeleteAlertChannel, DeleteAlertRule, RULES_ADDRESS, channel_address, delete_alert_channel,
        delete_alert_rule, rule_address,
    },
    components::{
        action_error::LastError,
        busy::Busy,
        dialog::ConfirmDialog,
        icon::Icon,
        toast::{ToastKind, toasts},
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
    const fn noun(self) -> &'static str {
        match self {
            Self::Rule(_) => "rule",
            Self::Channel(_) => "channel",
        }
    }

    const fn consequence(self) -> &'static str {
        match self {
            Self::Rule(_) => {
                "The rule is deleted permanently, with its alerts. To stop its messages only, mute it or switch it off."
            }
            Self::Channel(_) => {
                "The channel is deleted permanently. A channel that rules use cannot be deleted; remove it from those rules first."
            }
        }
    }

    fn address(self) -> String {
        match self {
            Self::Rule(id) => rule_address(id),
            Self::Channel(id) => channel_address(id),
        }
    }

    const fn list(self) -> &'static str {
        match self {
            Self::Rule(_) => RULES_ADDRESS,
            Self::Channel(_) => CHANNELS_ADDRESS,
        }
    }

    const fn path(self) -> &'static str {
        match self {
            Self::Rule(_) => DeleteAlertRule::PATH,
            Self::Channel(_) => DeleteAlertChannel::PATH,
        }
    }

    fn id(self) -> String {
        match self {
            Self::Rule(id) => id.to_string(),
            Self::Channel(id) => id.to_string(),
        }
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
    let (toasts, navigate) = (toasts(), use_navigate());
    let open = RwSignal::new(false);
    let busy = Busy::new();
    let delete = Callback::new(move |()| {
        let navigate = navigate.clone();
        busy.run(async move {
            error.clear();
            let answer = match object {
                DeletedObject::Rule(id) => delete_alert_rule(id, Some(version)).await,
                DeletedObject::Channel(id) => delete_alert_channel(id, Some(version)).await,
            };
            match answer {
                Ok(notice) => {
                    form.guarded.forget();
                    toasts.show(ToastKind::Success, notice);
                    navigate(object.list(), NavigateOptions::default());
                }
                Err(found) => error.show(found),
            }
        });
    });
    view! {
        <button
            type="button"
            class="btn needs-js"
            aria-disabled=move || busy.disabled()
            on:click=move |_| busy.ask(open)
        >
            <Icon name="trash-2"/>
            "Delete…"
        </button>
        <a class="btn hide-js" href=format!("{}?confirm=delete#delete", object.address())>"Delete…"</a>
        <ConfirmDialog
            open
            id="delete-title"
            title=Signal::stored(question(object, &name))
            verb=format!("Delete {}", object.noun())
            on_confirm=delete
        >
            <p>{object.consequence()}</p>
        </ConfirmDialog>
    }
}

fn question(object: DeletedObject, name: &str) -> String {
    format!("Delete {} {name}?", object.noun())
}

/// The confirmation as a section of the page, for users without scripts. Drawn if the address asks for it.
#[component]
pub fn DeleteSection(
    /// What is deleted.
    object: DeletedObject,
    /// The version on the page.
    version: i32,
    /// The name.
    name: String,
) -> impl IntoView {
    let is_asked = use_query_map().with_untracked(|query| query.get("confirm").as_deref() == Some("delete"));
    is_asked.then(|| {
        view! {
            <section class="card stack hide-js" id="delete" aria-labelledby="delete-heading">
                <h2 id="delete-heading">{question(object, &name)}</h2>
                <p>{object.consequence()}</p>
                <form class="form-actions" method="post" action=object.path()>
                    <input type="hidden" name="id" value=object.id()/>
                    <input type="hidden" name="version" value=version.to_string()/>
                    <a class="btn" href=object.address()>"Cancel"</a>
                    <button type="submit" class="btn btn-danger">{format!("Delete {}", object.noun())}</button>
                </form>
            </section>
        }
    })
}
