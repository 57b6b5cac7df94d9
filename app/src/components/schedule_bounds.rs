//! From when and until when a schedule holds, and how far its fires are spread.

use leptos::prelude::*;
use milvaion_api::requests::JobForm;

use super::{collapsible_section::CollapsibleSection, input_form::FormState, schedule_field::TextField};

/// The fields of this part, by their names in the form.
pub const SCHEDULE_BOUND_FIELDS: [&str; 3] = ["rules.start_at", "rules.end_at", "rules.jitter_seconds"];

/// The folded part of the section that says when.
#[component]
pub fn ScheduleBounds(
    /// The form it is in.
    state: FormState,
    /// What stands in the fields at first.
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
                    hint="Not due before this moment, on the clock of the zone above. A rhythm is counted from it."
                    kind=kind_for(&start)
                    value=start
                    is_required=false
                />
                <TextField
                    state
                    field="rules.end_at"
                    label="End"
                    hint="Not due from this moment on."
                    kind=kind_for(&end)
                    value=end
                    is_required=false
                />
            </div>
            <TextField
                state
                field="rules.jitter_seconds"
                label="Jitter in seconds"
                hint="Each fire comes up to so many seconds later, the same for this job every time. It keeps jobs that are due \
                      at the same moment apart. 0 to 86,400; 0 means none."
                value=form.rule("jitter_seconds")
                inputmode="numeric"
                is_required=false
            />
        </CollapsibleSection>
    }
}

/// The control for a moment. One for local times would show nothing of a text that is none, and so lose it.
fn kind_for(text: &str) -> &'static str {
    let fits = |(place, byte): (usize, u8)| match place {
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
    fn what_is_no_local_time_stays_text() {
        for text in ["", "2026-11-21T09:00", "2026-11-21T09:00:30"] {
            assert_eq!(kind_for(text), "datetime-local", "{text}");
        }
        for text in ["tomorrow", "2026-11-21T09:00:30Z", "2026-11-21 09:00", "2026-10-25T02:30:00+01:00"] {
            assert_eq!(kind_for(text), "text", "{text}");
        }
    }
}
