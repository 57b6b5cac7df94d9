//! Mutes a rule for a while, and ends the mute.

use chrono::{DateTime, Utc};
use leptos::prelude::*;
use milvaion_api::alerts::MAX_MUTE_DAYS;
use milvaion_protocol::id::AlertRuleId;

use crate::{
    api::alerts::{MUTE_CHOICES, MUTE_UNTIL, MuteAlertRule, UnmuteAlertRule},
    components::{
        action::SubmitButton,
        fields::{InputField, SelectField, use_script},
        focus::hand_focus,
        icon::Icon,
        input_form::FormState,
        time::Time,
        toast::{ToastKind, toasts},
    },
    error::AppError,
};

/// The id of the heading of the section with the forms.
pub const STATE_HEADING_ID: &str = "state-heading";
/// The id of the form that mutes the rule.
const MUTE_ID: &str = "mute";
/// The id of the form that ends the mute.
const UNMUTE_ID: &str = "unmute";

/// The forms that mute a rule and end its mute. One of them is shown.
#[component]
pub fn MuteForms(
    /// The rule.
    id: AlertRuleId,
    /// The end of the mute, if the rule is muted.
    muted_until: Memo<Option<DateTime<Utc>>>,
    /// The form on the page, which shows a refusal.
    state: FormState,
    /// Called after a change.
    on_change: Callback<()>,
) -> impl IntoView {
    let mute = ServerAction::<MuteAlertRule>::new();
    let unmute = ServerAction::<UnmuteAlertRule>::new();
    let toasts = toasts();
    let report = move |answer: Option<Result<String, AppError>>| match answer {
        Some(Ok(notice)) => {
            // The form that was used is hidden once the page has read the change.
            hand_focus(MUTE_ID, STATE_HEADING_ID);
            hand_focus(UNMUTE_ID, STATE_HEADING_ID);
            toasts.show(ToastKind::Success, notice);
            on_change.run(());
        }
        Some(Err(error)) => state.refuse(&error),
        None => {}
    };
    Effect::new(move |_| report(mute.value().get()));
    Effect::new(move |_| report(unmute.value().get()));
    let end = move || {
        muted_until.get().map(|until| {
            view! { <p>"Muted until " <Time at=until/> ". No messages are sent. Alerts still show on the dashboard."</p> }
        })
    };
    let is_muted = Memo::new(move |_| muted_until.with(Option::is_some));
    view! {
        <div hidden=move || is_muted.get()>
            <ActionForm action=mute attr:class="filterbar" attr:id=MUTE_ID>
                <input type="hidden" name="id" value=id.to_string()/>
                <MuteFields state/>
                <SubmitButton is_busy=mute.pending() class="btn">
                    <Icon name="bell-off"/>
                    "Mute"
                </SubmitButton>
            </ActionForm>
        </div>
        <div hidden=move || !is_muted.get()>
            <ActionForm action=unmute attr:class="stack" attr:id=UNMUTE_ID>
                <input type="hidden" name="id" value=id.to_string()/>
                {end}
                <div class="form-actions">
                    <SubmitButton is_busy=unmute.pending() class="btn">
                        <Icon name="bell"/>
                        "End the mute"
                    </SubmitButton>
                </div>
            </ActionForm>
        </div>
    }
}

/// The choice of the length, and the day of a mute that ends on a chosen day.
#[component]
fn MuteFields(state: FormState) -> impl IntoView {
    let until_error = state.error("until");
    let length = RwSignal::new(MUTE_CHOICES[0].0.to_owned());
    let has_script = use_script();
    let choices = MUTE_CHOICES.into_iter().map(|(value, label, _)| (value, label));
    let options: Vec<_> = choices
        .chain([(MUTE_UNTIL, "Until a day")])
        .map(|(value, label)| view! { <option value=value>{label}</option> })
        .collect();
    let hides_day =
        move || has_script.get() && length.with(|length| length != MUTE_UNTIL) && until_error.get().is_none();
    view! {
        <SelectField
            id="f-length"
            name="length"
            label="Mute for"
            hint="A muted rule sends no messages. Its alerts still show on the dashboard."
            error=state.error("length")
            chosen=length
        >
            {options}
        </SelectField>
        <div hidden=hides_day>
            <InputField
                id="f-until"
                name="until"
                label="Until the start of the day (UTC)"
                hint=format!("Used with Until a day; at most {MAX_MUTE_DAYS} days from now.")
                kind="date"
                error=until_error
            />
        </div>
    }
}
