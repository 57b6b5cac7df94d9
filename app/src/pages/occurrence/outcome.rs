//! The input, the result and the exception of an occurrence, and the place of its log among them.

use leptos::prelude::*;
use milvaion_api::{styled_text::shown_text, views::OccurrenceView};

use crate::{
    components::{copy_button::CopyButton, status_explanation::unexplained_exception},
    format,
};

/// The number of lines up to which a result stands above the log.
const MAX_LINES_ABOVE_LOG: usize = 10;

/// Returns true if the log stands above the outcome: if the result is long, or if the run is open, so that the outcome
/// which appears at its end does not move the log while it is read. The page decides it once, from the data it is drawn
/// with.
#[must_use]
pub fn is_log_first(is_open: bool, result: Option<&str>) -> bool {
    is_open || result.is_some_and(|text| shown_result(text).lines().nth(MAX_LINES_ABOVE_LOG).is_some())
}

/// Returns a result as the page shows it.
fn shown_result(text: &str) -> String {
    format::pretty_json(text).unwrap_or_else(|| shown_text(text).into_owned())
}

/// Shows the exception or the result of the occurrence.
#[component]
pub fn OccurrenceOutcome(
    /// The occurrence.
    data: RwSignal<OccurrenceView>,
) -> impl IntoView {
    let outcome = Memo::new(move |_| data.with(|data| (data.result.clone(), unexplained_exception(data))));
    move || {
        let (result, exception) = outcome.get();
        let result = result.map(|text| {
            let shown = shown_result(&text);
            // JSON is copied as it is; its strings hold escape sequences in an escaped form.
            let whole = if format::pretty_json(&text).is_some() { text } else { shown.clone() };
            block("result", "Result", shown, whole)
        });
        let exception = exception.map(|text| {
            let text = shown_text(&text).into_owned();
            block("exception", "Exception", text.clone(), text)
        });
        view! { {exception}{result} }
    }
}

/// Shows the input of the occurrence.
#[component]
pub fn OccurrenceInput(
    /// The occurrence.
    data: RwSignal<OccurrenceView>,
) -> impl IntoView {
    let json = data.with_untracked(|data| serde_json::to_string_pretty(&data.job_data).unwrap_or_default());
    block("input", "Input", json.clone(), json)
}

/// Shows a text under its title, with a button that copies `whole`.
fn block(id: &'static str, title: &'static str, shown: String, whole: String) -> impl IntoView {
    let heading = format!("{id}-title");
    let label = format!("Full {id}");
    view! {
        <section id=id aria-labelledby=heading>
            <div class="cluster">
                <h2 id=heading.clone()>{title}</h2>
                <CopyButton text=whole what=id/>
            </div>
            // A line break directly after `<pre>` would be dropped by the browser, and a text of nothing else could not hydrate.
            <pre class="code wrap" tabindex="0" role="region" aria-label=label><span>{shown}</span></pre>
        </section>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_stands_above_a_long_result_and_an_open_run() {
        let lines = |count: usize| "line\n".repeat(count);
        assert!(!is_log_first(false, None));
        assert!(!is_log_first(false, Some(&lines(10))));
        assert!(is_log_first(false, Some(&lines(11))));
        assert!(is_log_first(true, None));
        // The lines as they are shown count.
        let numbers = |count: usize| serde_json::to_string(&vec![7; count]).expect("JSON");
        assert!(!is_log_first(false, Some(&numbers(8))));
        assert!(is_log_first(false, Some(&numbers(9))));
    }
}
