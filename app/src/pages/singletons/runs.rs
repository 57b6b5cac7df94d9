//! The last runs of a loop as a strip of marks.

use leptos::prelude::*;
use milvaion_api::singletons::{EndedLoopRun, SingletonLoop};
use milvaion_protocol::singleton::LoopOutcome;

use super::display::{millis, outcome_of};
use crate::{
    components::{icon::Icon, time::use_page_clock},
    format,
};

/// Returns the numbers of the last runs by their ends, for readers who do not see the marks.
fn summary(runs: &[EndedLoopRun]) -> String {
    let count = |outcome: LoopOutcome| runs.iter().filter(|run| run.outcome == outcome).count();
    let ends = [LoopOutcome::Ok, LoopOutcome::Error, LoopOutcome::Cancelled].map(|end| (outcome_of(end).2, count(end)));
    let parts: Vec<String> =
        ends.into_iter().filter(|(_, count)| *count > 0).map(|(word, count)| format!("{count} {word}")).collect();
    let total = format::plural(i64::try_from(runs.len()).unwrap_or(i64::MAX), "run");
    format!("Last {total}, oldest first: {}", parts.join(", "))
}

/// The last runs, the oldest first.
#[component]
pub fn LoopRunStrip(
    /// The loop.
    row: RwSignal<SingletonLoop>,
) -> impl IntoView {
    let clock = use_page_clock();
    let recent = Memo::new(move |_| row.with(|row| row.recent.clone()));
    let is_empty = Memo::new(move |_| recent.with(Vec::is_empty));
    let label = move || recent.with(|recent| summary(recent));
    let marks = move || {
        let mark = move |run: EndedLoopRun| {
            let (status, icon, word) = outcome_of(run.outcome);
            let title = move || {
                let start = clock.text(run.started_at);
                format!("{start}: {word} after {}, {} late", millis(run.duration_ms), millis(run.late_ms))
            };
            view! { <span data-status=status title=title><Icon name=icon/></span> }
        };
        recent.get().into_iter().map(mark).collect::<Vec<_>>()
    };
    view! {
        <span class="muted" hidden=move || !is_empty.get()>"No runs yet"</span>
        <span class="strip loop-strip" role="img" aria-label=label hidden=move || is_empty.get()>{marks}</span>
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    #[test]
    fn summary_counts_the_ends() {
        let run = |outcome| EndedLoopRun { started_at: DateTime::UNIX_EPOCH, duration_ms: 1.0, late_ms: 0.0, outcome };
        let runs = [run(LoopOutcome::Ok), run(LoopOutcome::Error), run(LoopOutcome::Ok)];
        assert_eq!(summary(&runs), "Last 3 runs, oldest first: 2 succeeded, 1 failed");
        assert_eq!(summary(&runs[..1]), "Last 1 run, oldest first: 1 succeeded");
    }
}
