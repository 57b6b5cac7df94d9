//! The warning that an attempt was started more than once.

use leptos::prelude::*;
use milvaion_api::{
    duplicates::{self, DuplicateStart},
    views::OccurrenceView,
};

use crate::components::icon::Icon;

/// One warning per attempt that several instances started. Usually empty.
#[component]
pub fn DuplicateStartWarning(
    /// The occurrence with its starts.
    data: RwSignal<OccurrenceView>,
) -> impl IntoView {
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
        assert!(sentence(&one).starts_with("Duplicate start: attempt 2 was started by w-1 and also by w-2, w-3. Its"));
    }
}
