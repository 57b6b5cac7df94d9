//! What a job does about itself still running, about missed fires, about others of its kind, and about failing.
//!
//! Every rule has a default that does; but for retries, which most jobs want, both sections are folded until one of
//! theirs differs from it or is wrong.

use leptos::prelude::*;
use milvaion_api::requests::JobForm;
use milvaion_schedule::rules::{LostRunPolicy, MisfirePolicy, OverlapPolicy, Rules, describe_retries};

use crate::components::{
    collapsible_section::CollapsibleSection, input_form::FormState, radio_field::RadioField, schedule_field::TextField,
};

/// The fields of the first section, by their names in the form.
const OVERLAP_FIELDS: [&str; 7] = [
    "rules.overlap",
    "rules.misfire",
    "rules.catch_up_limit",
    "rules.catch_up_window_seconds",
    "rules.max_concurrent",
    "rules.concurrency_key",
    "rules.concurrency_key_limit",
];
/// Those that count only while missed fires are caught up.
const CATCH_UP_FIELDS: [&str; 2] = ["rules.catch_up_limit", "rules.catch_up_window_seconds"];
/// The fields of the second section.
const FAILURE_FIELDS: [&str; 5] = [
    "rules.heartbeat_timeout_seconds",
    "rules.on_lost",
    "rules.auto_disable_threshold",
    "rules.auto_disable_window_seconds",
    "rules.auto_disable_cool_down_seconds",
];

/// What happens when the job is due while it runs, or was due while nobody could run it.
#[component]
pub fn OverlapSection(
    /// The form it is in.
    state: FormState,
    /// What stands in the fields at first.
    form: JobForm,
) -> impl IntoView {
    let misfire = RwSignal::new(form.rule("misfire"));
    // Nothing is hidden before there is a script that can show it again.
    let has_script = RwSignal::new(false);
    Effect::new(move |_| has_script.set(true));
    let catches_up = move || {
        !has_script.get()
            || misfire.with(|misfire| misfire == MisfirePolicy::CatchUp.as_str())
            || state.is_wrong(&CATCH_UP_FIELDS)
    };
    view! {
        <fieldset class="form-section">
            <legend>"When things overlap or are missed"</legend>
            <CollapsibleSection
                state
                fields=&OVERLAP_FIELDS
                is_open=form.has_non_default(&OVERLAP_FIELDS)
                summary="Overlap, missed fires, how many at once"
            >
                <RadioField
                    state
                    field="rules.overlap"
                    label="When it is due while the run before goes on"
                    options=OverlapPolicy::ALL.iter().map(|overlap| (overlap.as_str(), overlap.label())).collect()
                    chosen=RwSignal::new(form.rule("overlap"))
                />
                <RadioField
                    state
                    field="rules.misfire"
                    label="When fires were missed, because no scheduler was there"
                    options=MisfirePolicy::ALL.iter().map(|misfire| (misfire.as_str(), misfire.label())).collect()
                    chosen=misfire
                />
                <div class="field-row" hidden=move || !catches_up()>
                    <TextField
                        state
                        field="rules.catch_up_limit"
                        label="Missed fires to run at most"
                        hint="1 to 10,000. Counts only when each missed fire is run."
                        value=form.rule("catch_up_limit")
                        inputmode="numeric"
                        is_required=false
                    />
                    <TextField
                        state
                        field="rules.catch_up_window_seconds"
                        label="How far back, in seconds"
                        hint="3,600 is an hour; at most 2,592,000, thirty days. Older ones are left out."
                        value=form.rule("catch_up_window_seconds")
                        inputmode="numeric"
                        is_required=false
                    />
                </div>
                <TextField
                    state
                    field="rules.max_concurrent"
                    label="At most so many at once"
                    hint="How many of its runs may be open at the same time, 1 to 10,000; the others wait. Left empty, any number. \
                          A job that waits for its last run or takes its place has one anyway."
                    value=form.rule("max_concurrent")
                    inputmode="numeric"
                    is_required=false
                />
                <div class="field-row">
                    <TextField
                        state
                        field="rules.concurrency_key"
                        label="Shared with"
                        hint="A name for what several jobs share, such as a database or a customer. Jobs with the same name are \
                              counted together. At most 100 characters."
                        value=form.rule("concurrency_key")
                        is_required=false
                    />
                    <TextField
                        state
                        field="rules.concurrency_key_limit"
                        label="At most so many at once of those"
                        hint="1 to 10,000. Left empty with a name beside it, one."
                        value=form.rule("concurrency_key_limit")
                        inputmode="numeric"
                        is_required=false
                    />
                </div>
            </CollapsibleSection>
        </fieldset>
    }
}

/// What happens when a worker falls silent, or the job fails again and again.
#[component]
pub fn FailureSection(
    /// The form it is in.
    state: FormState,
    /// What stands in the fields at first.
    form: JobForm,
) -> impl IntoView {
    let retries = RwSignal::new(retries(&form));
    view! {
        <fieldset class="form-section">
            <legend>"When it fails"</legend>
            <div class="stack" on:input=move |_| {
                if let Some(form) = state.read_job_form() {
                    retries.set(self::retries(&form));
                }
            }>
                <div class="field-row">
                    <TextField
                        state
                        field="rules.max_retries"
                        label="Retries"
                        hint="How often a failed attempt is followed by another: 0 to 100."
                        value=form.rule("max_retries")
                        inputmode="numeric"
                        is_required=false
                    />
                    <TextField
                        state
                        field="rules.base_retry_delay_seconds"
                        label="Pause before the first retry"
                        hint="In seconds, 1 to 86,400; doubled for each further one."
                        value=form.rule("base_retry_delay_seconds")
                        inputmode="numeric"
                        is_required=false
                    />
                </div>
                <TextField
                    state
                    field="rules.retry_jitter_percent"
                    label="Shorten each pause by up to, in percent"
                    hint="0 to 100. How much is taken off is drawn anew for each retry, so that runs that failed together do not come \
                          back together. A pause that the job itself asks for stays as it is."
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
                summary="Lost runs, disabling a job that keeps failing"
            >
                <TextField
                    state
                    field="rules.heartbeat_timeout_seconds"
                    label="Silence that means lost, in seconds"
                    hint="A run whose worker has not been heard of for so long counts as lost: 15 to 86,400. Left empty, the rule of this installation holds."
                    value=form.rule("heartbeat_timeout_seconds")
                    inputmode="numeric"
                    is_required=false
                />
                <RadioField
                    state
                    field="rules.on_lost"
                    label="When a run is lost"
                    hint="The lost run may have done its work, all or in part. Do not run it again if doing it twice does harm."
                    options=LostRunPolicy::ALL.iter().map(|lost| (lost.as_str(), lost.label())).collect()
                    chosen=RwSignal::new(form.rule("on_lost"))
                />
                <TextField
                    state
                    field="rules.auto_disable_threshold"
                    label="Disable it after so many failures in a row"
                    hint="1 to 100. Left empty, the rule of this installation holds."
                    value=form.rule("auto_disable_threshold")
                    inputmode="numeric"
                    is_required=false
                />
                <div class="field-row">
                    <TextField
                        state
                        field="rules.auto_disable_window_seconds"
                        label="All of them within, in seconds"
                        hint="1 to 2,592,000, thirty days. Left empty, 3,600: an hour."
                        value=form.rule("auto_disable_window_seconds")
                        inputmode="numeric"
                        is_required=false
                    />
                    <TextField
                        state
                        field="rules.auto_disable_cool_down_seconds"
                        label="Enable it again after, in seconds"
                        hint="1 to 2,592,000, thirty days. Left empty, only by hand."
                        value=form.rule("auto_disable_cool_down_seconds")
                        inputmode="numeric"
                        is_required=false
                    />
                </div>
            </CollapsibleSection>
        </fieldset>
    }
}

/// What the fields about retries come to, when all are right.
fn retries(form: &JobForm) -> Option<String> {
    let usual = Rules::default();
    let number = |field: &str, usual: u32| match form.rule(field).trim() {
        "" => Some(usual),
        text => text.parse().ok(),
    };
    let max_retries = number("max_retries", usual.max_retries.into())?.try_into().ok()?;
    let base_retry_delay_seconds = number("base_retry_delay_seconds", usual.base_retry_delay_seconds)?;
    let retry_jitter_percent = number("retry_jitter_percent", usual.retry_jitter_percent.into())?.try_into().ok()?;
    let rules = Rules { max_retries, base_retry_delay_seconds, retry_jitter_percent, ..usual };
    rules.check().ok()?;
    Some(describe_retries(max_retries, base_retry_delay_seconds, retry_jitter_percent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_told_as_they_will_be_and_not_while_a_number_is_wrong() {
        let told = |retries: &str, base: &str, jitter: &str| {
            let fields =
                [("max_retries", retries), ("base_retry_delay_seconds", base), ("retry_jitter_percent", jitter)];
            let rules = fields.map(|(field, text)| (field.to_owned(), text.to_owned())).into();
            super::retries(&JobForm { rules, ..JobForm::default() })
        };
        assert_eq!(told("2", "5", "").as_deref(), Some("Tried up to 2 times more: after 5 s and 10 s."));
        assert_eq!(told("1", "", "0").as_deref(), Some("Tried once more: after 5 s."));
        assert_eq!(told("1", "", "20").as_deref(), Some("Tried once more: after 5 s, or up to 20 % sooner."));
        assert_eq!(told("", "", ""), super::retries(&JobForm::default()));
        let wrong = [("101", "5", ""), ("2", "0", ""), ("many", "5", ""), ("-1", "5", ""), ("2", "86401", "")];
        for (retries, base, jitter) in wrong.into_iter().chain([("2", "5", "101"), ("2", "5", "half")]) {
            assert_eq!(told(retries, base, jitter), None, "{retries}, {base}, {jitter}");
        }
    }
}
