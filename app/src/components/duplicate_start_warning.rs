//! The warning that an attempt was started more than once, or after its occurrence had ended.

use leptos::prelude::*;
use milvaion_api::{
    duplicates::{self, DuplicateStart, StartAfterEnd},
    views::OccurrenceView,
};

use crate::components::icon::Icon;

/// One warning per attempt that several instances started, and one per start after the end. Usually empty.
#[component]
pub fn DuplicateStartWarning(
    /// The occurrence with its starts.
    data: RwSignal<OccurrenceView>,
) -> impl IntoView {
    let found = Memo::new(move |_| data.with(sentences));
    let line = |sentence: String| {
        view! {
            <p class="notice" data-kind="warn">
                <Icon name="triangle-alert"/>
                <span>{sentence}</span>
            </p>
        }
    };
    move || found.get().into_iter().map(line).collect_view()
}

fn sentences(view: &OccurrenceView) -> Vec<String> {
    let duplicates = duplicates::find_duplicate_starts(&view.changes);
    let late = duplicates::find_starts_after_end(&view.changes);
    let status = view.row.status.label().to_lowercase();
    duplicates.iter().map(duplicate_sentence).chain(late.iter().map(|one| late_sentence(one, &status))).collect()
}

fn late_sentence(one: &StartAfterEnd, status: &str) -> String {
    let StartAfterEnd { attempt, instance, .. } = one;
    format!(
        "Started after the end: {instance} started attempt {attempt} although the occurrence was already {status}. The \
         server asks it to stop, but some of its effects may have happened."
    )
}

fn duplicate_sentence(one: &DuplicateStart) -> String {
    let DuplicateStart { attempt, first, others } = one;
    if others.iter().all(|other| other == first) {
        return format!(
            "Duplicate start: {first} started attempt {attempt} twice. Its effects may have happened more than once; the first \
             reported result counts. A worker that keeps a table of the attempts it runs prevents this."
        );
    }
    format!(
        "Duplicate start: attempt {attempt} was started by {first} and also by {}. Its effects may have happened more than \
         once; the first reported result counts. Workers that claim each attempt before starting it prevent this.",
        others.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentence_names_every_instance() {
        let one = DuplicateStart { attempt: 2, first: "w-1".into(), others: vec!["w-2".into(), "w-3".into()] };
        assert!(
            duplicate_sentence(&one)
                .starts_with("Duplicate start: attempt 2 was started by w-1 and also by w-2, w-3. Its")
        );
        let again = DuplicateStart { attempt: 2, first: "w-1".into(), others: vec!["w-1".into()] };
        assert!(duplicate_sentence(&again).starts_with("Duplicate start: w-1 started attempt 2 twice."));
        let late = StartAfterEnd { attempt: 1, instance: "w-4".into(), at: chrono::DateTime::UNIX_EPOCH };
        let start = "Started after the end: w-4 started attempt 1 although the occurrence was already cancelled.";
        assert!(late_sentence(&late, "cancelled").starts_with(start));
    }
}
