//! The fields of an alert rule.
//!
//! Every condition is in the form, and the kind selects the one that counts. With a script only its fields are visible;
//! without one, each group of fields has a heading that names its kind.

use std::collections::BTreeMap;

use leptos::prelude::*;
use milvaion_api::{alerts::AlertSeverity, failures::FailureCause, permissions::Permission};
use milvaion_protocol::id::AlertChannelId;

use crate::{
    api::alerts::{AlertRuleForm, CHECKED, channel_field},
    components::{
        check_field::CheckField,
        fields::{SelectField, use_script},
        form::{FieldErrorText, described_by},
        input_form::FormState,
        schedule_field::TextField,
        session_context::may,
    },
    format::capitalized,
};

/// The kinds of conditions with their labels.
const KINDS: [(&str, &str); 13] = [
    ("occurrence_failed", "An occurrence failed for good"),
    ("failure_rate", "Failure rate of a job"),
    ("long_run", "Long run"),
    ("late_start", "Late start"),
    ("misfire", "Misfire"),
    ("lost_run", "Lost run"),
    ("auto_disabled", "Job disabled automatically"),
    ("no_live_worker", "No live worker for a due job"),
    ("worker_gone", "Worker instance gone"),
    ("queue_age", "Age of a queue"),
    ("dead_letter", "Dead letter"),
    ("service_unhealthy", "Unhealthy background task"),
    ("loop_without_leader", "Singleton loop without leader"),
];
/// The kinds that are not about single jobs.
const KINDS_WITHOUT_JOBS: [&str; 5] =
    ["worker_gone", "queue_age", "dead_letter", "service_unhealthy", "loop_without_leader"];
/// The kinds with a time as their only number.
const KINDS_WITH_TIME: [&str; 3] = ["late_start", "no_live_worker", "queue_age"];

/// The fields of a rule.
#[component]
pub fn RuleFields(
    /// The state of the enclosing form.
    state: FormState,
    /// The initial values.
    form: AlertRuleForm,
    /// The id and the name of every channel.
    channels: Vec<(AlertChannelId, String)>,
) -> impl IntoView {
    let AlertRuleForm { name, kind, condition, causes, jobs, tags, severity, channels: chosen, is_enabled, .. } = form;
    let kinds = options(KINDS.into_iter(), &kind);
    let severities =
        options(AlertSeverity::ALL.into_iter().map(|severity| (severity.slug(), severity.label())), &severity);
    let kind = RwSignal::new(kind);
    let has_script = use_script();
    let is_any = move |kinds: &'static [&'static str]| kind.with(|kind| kinds.contains(&kind.as_str()));
    let is_off = move |kinds: &'static [&'static str]| has_script.get() && !is_any(kinds);
    let loops = condition.get("loops").cloned().unwrap_or_default();
    let number = move |field: &'static str, label, hint, is_required| {
        let name = field.rsplit('.').next().unwrap_or_default();
        let value = condition.get(name).cloned().unwrap_or_default();
        view! { <TextField state field label hint value inputmode="numeric" is_required/> }
    };
    let selects_no_jobs = move || has_script.get() && is_any(&KINDS_WITHOUT_JOBS) && !state.is_wrong(&["jobs", "tags"]);
    view! {
        <fieldset class="form-section">
            <legend>"Condition"</legend>
            <TextField state field="name" label="Name" hint="Shown in alerts and messages; 1 to 100 characters." value=name/>
            <SelectField
                id="f-kind"
                name="form[kind]"
                label="Condition"
                hint="The alert fires when the condition becomes true, and is resolved when it is over."
                error=state.error("kind")
                chosen=kind
            >
                {kinds}
            </SelectField>
            <div hidden=move || is_off(&["occurrence_failed"])>
                <Causes checked=causes/>
            </div>
            <fieldset class="input-group" hidden=move || is_off(&["failure_rate"])>
                <legend>"Failure rate of a job"</legend>
                <div class="field-row">
                    {number("condition.percent", "Failed occurrences (%)", "1 to 100.", true)}
                    {number("condition.windowMinutes", "Window (minutes)", "1 to 1,440.", true)}
                    {number("condition.minimumRuns", "Minimum of ended occurrences", "In the window; 1 to 10,000.", true)}
                </div>
            </fieldset>
            <fieldset class="input-group" hidden=move || is_off(&["long_run"])>
                <legend>"Long run"</legend>
                <p class="hint">"Enter one of them or both; the alert fires when the first is exceeded."</p>
                <div class="field-row">
                    {number(
                        "condition.timesMedian",
                        "Multiple of the median duration",
                        "2 to 100. Counts once the job has 5 completed runs.",
                        false,
                    )}
                    {number("condition.limitSeconds", "Limit (seconds)", "1 to 604,800, which is 7 days.", false)}
                </div>
            </fieldset>
            <fieldset class="input-group" hidden=move || is_off(&KINDS_WITH_TIME)>
                <legend>"Late start, no live worker, age of a queue"</legend>
                {number(
                    "condition.seconds",
                    "Time (seconds)",
                    "After the due time, or in the queue; 1 to 604,800, which is 7 days.",
                    true,
                )}
            </fieldset>
            <fieldset class="input-group" hidden=move || is_off(&["loop_without_leader"])>
                <legend>"Singleton loop without leader"</legend>
                {number(
                    "condition.loopSeconds",
                    "Time without a leader (seconds)",
                    "1 to 604,800, which is 7 days. Default: twice the lease of the loop.",
                    false,
                )}
                <TextField
                    state
                    field="condition.loops"
                    label="Singleton loops"
                    hint="Names, separated by commas; at most 50. Empty means every loop."
                    value=loops
                    is_required=false
                />
            </fieldset>
        </fieldset>
        <fieldset class="form-section" hidden=selects_no_jobs>
            <legend>"Jobs"</legend>
            <TextField
                state
                field="jobs"
                label="Jobs"
                hint="Keys or ids, separated by commas; at most 50. Empty means every job."
                value=jobs
                is_required=false
            />
            <TextField
                state
                field="tags"
                label="Tags"
                hint="Separated by commas; at most 50. Only jobs with one of them count. Empty means every job. Leave jobs and tags empty if the condition is not about single jobs."
                value=tags
                is_required=false
            />
        </fieldset>
        <fieldset class="form-section">
            <legend>"Messages"</legend>
            <SelectField
                id="f-severity"
                name="form[severity]"
                label="Severity"
                hint="Warning: worth a look during working hours. Critical: needs a person now. Default: Warning."
                error=state.error("severity")
            >
                {severities}
            </SelectField>
            <Channels state channels chosen/>
            <CheckField
                field="isEnabled"
                label="Enabled"
                hint="A rule that is off fires no alerts. Default: on."
                checked=is_enabled == CHECKED
                error=state.error("isEnabled")
            />
        </fieldset>
    }
}

/// Returns the options of a select.
pub(super) fn options(choices: impl Iterator<Item = (&'static str, &'static str)>, chosen: &str) -> Vec<AnyView> {
    choices
        .map(|(value, label)| view! { <option value=value selected=value == chosen>{label}</option> }.into_any())
        .collect()
}

/// The causes of a failure.
#[component]
fn Causes(checked: BTreeMap<String, String>) -> impl IntoView {
    let boxes: Vec<_> = FailureCause::ALL
        .into_iter()
        .map(|cause| {
            let word = cause.as_str();
            view! {
                <label class="check">
                    <input
                        type="checkbox"
                        name=format!("form[causes][{word}]")
                        value=CHECKED
                        checked=checked.contains_key(word)
                    />
                    <span>{capitalized(&word.replace('_', " "))}</span>
                </label>
            }
        })
        .collect();
    view! {
        <fieldset class="input-group" aria-describedby="causes-hint">
            <legend>"Causes of the failure"</legend>
            <p class="hint" id="causes-hint">"Choose none for every cause."</p>
            <div class="cluster">{boxes}</div>
        </fieldset>
    }
}

/// The channels that get the messages.
#[component]
fn Channels(
    state: FormState,
    channels: Vec<(AlertChannelId, String)>,
    chosen: BTreeMap<String, String>,
) -> impl IntoView {
    let error = state.error("channels");
    let none = channels.is_empty().then(|| {
        if may(Permission::ManageAlertChannels) {
            view! { <p>"There is no channel yet. " <a href="/alerts/channels/new">"Create a channel"</a></p> }
                .into_any()
        } else {
            view! { <p>"There is no channel yet. Ask an Admin to create one."</p> }.into_any()
        }
    });
    let boxes: Vec<_> = channels
        .into_iter()
        .map(|(id, name)| {
            let field = channel_field(id);
            let checked = chosen.contains_key(&field);
            view! {
                <label class="check">
                    <input type="checkbox" name=format!("form[channels][{field}]") value=name.clone() checked=checked/>
                    <span>{name}</span>
                </label>
            }
        })
        .collect();
    view! {
        <div class="field" class:has-error=move || error.get().is_some()>
            <fieldset class="input-group" id="f-channels" tabindex="-1" aria-describedby=described_by("f-channels")>
                <legend>"Channels"</legend>
                {none}
                <div class="cluster">{boxes}</div>
            </fieldset>
            <p class="hint" id="f-channels-hint">
                "They get a message when an alert fires and when it is resolved; at most 10. Without a channel, alerts show on the dashboard only."
            </p>
            <FieldErrorText id="f-channels-error" error/>
        </div>
    }
}
