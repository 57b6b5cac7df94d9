//! The rules of a job: overlap, misfires, start limit, concurrency limits, retries, lost runs and auto-disable.
//!
//! Every rule has a usable default. Both sections are therefore collapsed until one of their fields differs from its
//! default or has an error. Only the retries stay visible, because most jobs set them.

use leptos::prelude::*;
use milvaion_api::requests::JobForm;
use milvaion_schedule::rules::{LostRunPolicy, MisfirePolicy, OverlapPolicy, Rules};

use crate::components::{
    collapsible_section::CollapsibleSection, fields::use_script, input_form::FormState, radio_field::RadioField,
    schedule_field::TextField,
};

/// The fields of the first section, by their names in the form.
const OVERLAP_FIELDS: [&str; 8] = [
    "rules.overlap",
    "rules.misfire",
    "rules.catch_up_limit",
    "rules.catch_up_window_seconds",
    "rules.start_within_seconds",
    "rules.max_concurrent",
    "rules.concurrency_key",
    "rules.concurrency_key_limit",
];
/// The fields that apply only to the misfire policy that catches up.
const CATCH_UP_FIELDS: [&str; 2] = ["rules.catch_up_limit", "rules.catch_up_window_seconds"];
/// The fields of the second section.
const FAILURE_FIELDS: [&str; 6] = [
    "rules.heartbeat_timeout_seconds",
    "rules.unreachable_timeout_seconds",
    "rules.on_lost",
    "rules.auto_disable_threshold",
    "rules.auto_disable_window_seconds",
    "rules.auto_disable_cool_down_seconds",
];

/// The section for overlap, misfires, start limit and concurrency limits.
#[component]
pub fn OverlapSection(
    /// The state of the form.
    state: FormState,
    /// The initial values of the fields.
    form: JobForm,
) -> impl IntoView {
    let misfire = RwSignal::new(form.rule("misfire"));
    let has_script = use_script();
    let catches_up = move || {
        !has_script.get()
            || misfire.with(|misfire| misfire == MisfirePolicy::CatchUp.as_str())
            || state.is_wrong(&CATCH_UP_FIELDS)
    };
    view! {
        <fieldset class="form-section">
            <legend>"Overlap, misfires and concurrency"</legend>
            <CollapsibleSection
                state
                fields=&OVERLAP_FIELDS
                is_open=form.has_non_default(&OVERLAP_FIELDS)
                summary="Overlap policy, misfire policy, start limit, concurrency limits"
            >
                <RadioField
                    state
                    field="rules.overlap"
                    label="Overlap policy"
                    hint="Applies when the job is due while its previous run is still open."
                    options=OverlapPolicy::ALL.iter().map(|overlap| (overlap.as_str(), overlap.label())).collect()
                    chosen=RwSignal::new(form.rule("overlap"))
                />
                <RadioField
                    state
                    field="rules.misfire"
                    label="Misfire policy"
                    hint="Applies to due times that passed while no scheduler could start a run."
                    options=MisfirePolicy::ALL.iter().map(|misfire| (misfire.as_str(), misfire.label())).collect()
                    chosen=misfire
                />
                <div class="field-row" hidden=move || !catches_up()>
                    <TextField
                        state
                        field="rules.catch_up_limit"
                        label="Maximum missed due times"
                        hint="1 to 10,000, default 100. Of more missed due times, the oldest are skipped. Applies only if each missed due time is run."
                        value=form.rule("catch_up_limit")
                        inputmode="numeric"
                        is_required=false
                    />
                    <TextField
                        state
                        field="rules.catch_up_window_seconds"
                        label="Catch-up window (seconds)"
                        hint="1 to 2,592,000 (30 days), default 3,600 (1 hour). Older due times are skipped."
                        value=form.rule("catch_up_window_seconds")
                        inputmode="numeric"
                        is_required=false
                    />
                </div>
                <TextField
                    state
                    field="rules.start_within_seconds"
                    label="Start limit (seconds)"
                    hint="A run that no worker has begun this long after its due time is skipped, 1 to 2,592,000 (30 days). \
                          Empty: no start limit. A retry has none. EXPIRE_QUEUED_HOURS of the server (default 30 days) always applies."
                    value=form.rule("start_within_seconds")
                    inputmode="numeric"
                    is_required=false
                />
                <TextField
                    state
                    field="rules.max_concurrent"
                    label="Maximum concurrent runs"
                    hint="Maximum number of open runs of this job, 1 to 10,000; further runs wait for a slot. Empty: no limit. \
                          An overlap policy that waits for or replaces the previous run always limits the job to one."
                    value=form.rule("max_concurrent")
                    inputmode="numeric"
                    is_required=false
                />
                <div class="field-row">
                    <TextField
                        state
                        field="rules.concurrency_key"
                        label="Concurrency key"
                        hint="Name of a resource that several jobs share, such as a database or a customer. All jobs with this \
                              key share one limit. At most 100 characters."
                        value=form.rule("concurrency_key")
                        is_required=false
                    />
                    <TextField
                        state
                        field="rules.concurrency_key_limit"
                        label="Limit for this key"
                        hint="Maximum number of open runs for the key, 1 to 10,000. Empty: 1."
                        value=form.rule("concurrency_key_limit")
                        inputmode="numeric"
                        is_required=false
                    />
                </div>
            </CollapsibleSection>
        </fieldset>
    }
}

/// The section for retries, lost runs and auto-disable.
#[component]
pub fn FailureSection(
    /// The state of the form.
    state: FormState,
    /// The initial values of the fields.
    form: JobForm,
) -> impl IntoView {
    let retries = RwSignal::new(retries(&form));
    let describe = move || {
        if let Some(form) = state.read_job_form() {
            retries.set(self::retries(&form));
        }
    };
    // The fields may have been filled before this script ran.
    Effect::new(move |_| describe());
    view! {
        <fieldset class="form-section">
            <legend>"Retries and failures"</legend>
            <div class="stack" on:input=move |_| describe()>
                <div class="field-row">
                    <TextField
                        state
                        field="rules.max_retries"
                        label="Maximum retries"
                        hint="Number of further attempts after a failed one, 0 to 100, default 0."
                        value=form.rule("max_retries")
                        inputmode="numeric"
                        is_required=false
                    />
                    <TextField
                        state
                        field="rules.base_retry_delay_seconds"
                        label="First retry delay (seconds)"
                        hint="Backoff before the first retry, 1 to 86,400, default 5. It doubles with each further retry, up to 1 day."
                        value=form.rule("base_retry_delay_seconds")
                        inputmode="numeric"
                        is_required=false
                    />
                </div>
                <TextField
                    state
                    field="rules.retry_jitter_percent"
                    label="Retry jitter (%)"
                    hint="0 to 100, default 0. Each retry delay is shortened by a random share of up to this value, so that runs \
                          that failed together do not retry together. A delay that the job itself requests is not shortened."
                    value=form.rule("retry_jitter_percent")
                    inputmode="numeric"
                    is_required=false
                />
                <p class="hint" id="retries" role="status" hidden=move || retries.with(Option::is_none)>
                    {move || retries.get()}
                </p>
            </div>
            <CollapsibleSection
                state
                fields=&FAILURE_FIELDS
                is_open=form.has_non_default(&FAILURE_FIELDS)
                summary="Heartbeat timeout, lost runs, auto-disable"
            >
                <TextField
                    state
                    field="rules.heartbeat_timeout_seconds"
                    label="Heartbeat timeout (seconds)"
                    hint="A run whose worker sends no heartbeat for this long counts as lost; 15 to 86,400. Empty: the server's HEARTBEAT_TIMEOUT_SECONDS (default 15)."
                    value=form.rule("heartbeat_timeout_seconds")
                    inputmode="numeric"
                    is_required=false
                />
                <TextField
                    state
                    field="rules.unreachable_timeout_seconds"
                    label="Unreachable timeout (seconds)"
                    hint="A worker that is alive and cannot reach RabbitMQ keeps its run for this long; 15 to 86,400. Empty: the server's UNREACHABLE_SECONDS (default 300)."
                    value=form.rule("unreachable_timeout_seconds")
                    inputmode="numeric"
                    is_required=false
                />
                <RadioField
                    state
                    field="rules.on_lost"
                    label="Lost run policy"
                    hint="A lost run may have done all or part of its work. Do not run it again if doing the work twice causes harm."
                    options=LostRunPolicy::ALL.iter().map(|lost| (lost.as_str(), lost.label())).collect()
                    chosen=RwSignal::new(form.rule("on_lost"))
                />
                <TextField
                    state
                    field="rules.auto_disable_threshold"
                    label="Auto-disable after N failures in a row"
                    hint="1 to 100. Empty: the server's AUTO_DISABLE_THRESHOLD (default 0: never)."
                    value=form.rule("auto_disable_threshold")
                    inputmode="numeric"
                    is_required=false
                />
                <div class="field-row">
                    <TextField
                        state
                        field="rules.auto_disable_window_seconds"
                        label="Failure window (seconds)"
                        hint="These failures must occur within this time, 1 to 2,592,000 (30 days). Empty: 3,600 (1 hour)."
                        value=form.rule("auto_disable_window_seconds")
                        inputmode="numeric"
                        is_required=false
                    />
                    <TextField
                        state
                        field="rules.auto_disable_cool_down_seconds"
                        label="Re-enable after (seconds)"
                        hint="1 to 2,592,000 (30 days). Empty: the job stays disabled until it is resumed."
                        value=form.rule("auto_disable_cool_down_seconds")
                        inputmode="numeric"
                        is_required=false
                    />
                </div>
            </CollapsibleSection>
        </fieldset>
    }
}

/// Describes the retries that the fields define. Returns `None` while one of the fields is invalid.
fn retries(form: &JobForm) -> Option<String> {
    let defaults = Rules::default();
    let number = |field: &str, default: u32| match form.rule(field).trim() {
        "" => Some(default),
        text => text.parse().ok(),
    };
    let max_retries = number("max_retries", defaults.max_retries.into())?.try_into().ok()?;
    let base_retry_delay_seconds = number("base_retry_delay_seconds", defaults.base_retry_delay_seconds)?;
    let retry_jitter_percent = number("retry_jitter_percent", defaults.retry_jitter_percent.into())?.try_into().ok()?;
    let rules = Rules { max_retries, base_retry_delay_seconds, retry_jitter_percent, ..defaults };
    rules.check().ok()?;
    Some(rules.describe_retries())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_described_unless_a_field_is_invalid() {
        let described = |retries: &str, base: &str, jitter: &str| {
            let fields =
                [("max_retries", retries), ("base_retry_delay_seconds", base), ("retry_jitter_percent", jitter)];
            let rules = fields.map(|(field, text)| (field.to_owned(), text.to_owned())).into();
            super::retries(&JobForm { rules, ..JobForm::default() })
        };
        assert_eq!(described("2", "5", "").as_deref(), Some("Up to 2 retries, after 5 s and 10 s."));
        assert_eq!(described("1", "", "0").as_deref(), Some("1 retry, after 5 s."));
        assert_eq!(described("1", "", "20").as_deref(), Some("1 retry, after 5 s, or up to 20 % sooner."));
        assert_eq!(described("", "", ""), super::retries(&JobForm::default()));
        let invalid = [("101", "5", ""), ("2", "0", ""), ("many", "5", ""), ("-1", "5", ""), ("2", "86401", "")];
        for (retries, base, jitter) in invalid.into_iter().chain([("2", "5", "101"), ("2", "5", "half")]) {
            assert_eq!(described(retries, base, jitter), None, "{retries}, {base}, {jitter}");
        }
    }
}
