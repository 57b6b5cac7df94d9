//! The start, end and jitter of a schedule.

use leptos::prelude::*;
use milvaion_api::requests::JobForm;

use super::{collapsible_section::CollapsibleSection, input_form::FormState, schedule_field::TextField};

/// The form fields of this section.
pub const SCHEDULE_BOUND_FIELDS: [&str; 3] = ["rules.start_at", "rules.end_at", "rules.jitter_seconds"];

/// The collapsible section with a schedule's start, end and jitter.
#[component]
pub fn ScheduleBounds(
    /// The state of the enclosing form.
    state: FormState,
    /// The initial values.
    form: JobForm,
) -> impl IntoView {
    let is_open = form.has_non_default(&SCHEDULE_BOUND_FIELDS);
    let start = form.rule("start_at");
    let end = form.rule("end_at");
    view! {
        <CollapsibleSection state fields=&SCHEDULE_BOUND_FIELDS is_open summary="Start, end, jitter">
            <div class="field-row">
                <TextField
                    state
                    field="rules.start_at"
                    label="Start"
                    hint="No run is due before this local time in the time zone above. Intervals are counted from it."
                    kind=kind_for(&start)
                    value=start
                    is_required=false
                />
                <TextField
                    state
                    field="rules.end_at"
                    label="End"
                    hint="No run is due at or after this local time in the time zone above."
                    kind=kind_for(&end)
                    value=end
                    is_required=false
                />
            </div>
            <TextField
                state
                field="rules.jitter_seconds"
                label="Jitter (seconds)"
                hint="Delays every run of this job by the same amount, at most this many seconds, so that jobs with the same \
                      due time do not start together. 0 to 86,400; default 0."
                value=form.rule("jitter_seconds")
                inputmode="numeric"
                is_required=false
            />
        </CollapsibleSection>
    }
}

/// Returns the input type for a time. A `datetime-local` control discards a value that is not a local time, so such a
/// value gets a text control.
fn kind_for(text: &str) -> &'static str {
    let fits = |(index, byte): (usize, u8)| match index {
        4 | 7 => byte == b'-',
        10 => byte == b'T',
        13 | 16 => byte == b':',
        _ => byte.is_ascii_digit(),
    };
    let is_local = matches!(text.len(), 0 | 16 | 19) && text.bytes().enumerate().all(fits);
    if is_local { "datetime-local" } else { "text" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_times_get_a_time_control() {
        for text in ["", "2026-11-21T09:00", "2026-11-21T09:00:30"] {
            assert_eq!(kind_for(text), "datetime-local", "{text}");
        }
        for text in ["tomorrow", "2026-11-21T09:00:30Z", "2026-11-21 09:00", "2026-10-25T02:30:00+01:00"] {
            assert_eq!(kind_for(text), "text", "{text}");
        }
    }
}
