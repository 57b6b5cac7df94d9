//! The warning that an attempt was started more than once.

use leptos::prelude::*;
use milvaion_api::{
    duplicates::{self, DuplicateStart},
    views::OccurrenceView,
};

use crate::components::icon::Icon;

/// A line for each attempt that several instances have started; nothing, as a rule.
#[component]
pub fn DuplicateStartWarning(data: RwSignal<OccurrenceView>) -> impl IntoView {
    let found = Memo::new(move |_| data.with(|data| duplicates::find_duplicate_starts(&data.changes)));
    let line = |one: DuplicateStart| {
        view! {
            <p class="notice" data-kind="warn">
                <Icon name="triangle-alert"/>
                <span>{sentence(&one)}</span>
            </p>
        }
    };
    move || found.get().into_iter().map(line).collect_view()
}

fn sentence(one: &DuplicateStart) -> String {
    let DuplicateStart { attempt, first, others } = one;
    format!(
        "Duplicate start: attempt {attempt} was started by {first} and also by {}. What it does may have been done more \
         than once; the end that was reported first counts. A worker that claims what it starts prevents this.",
        others.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_everybody() {
        let one = DuplicateStart { attempt: 2, first: "w-1".into(), others: vec!["w-2".into(), "w-3".into()] };
        assert!(sentence(&one).starts_with("Duplicate start: attempt 2 was started by w-1 and also by w-2, w-3. What"));
    }
}
