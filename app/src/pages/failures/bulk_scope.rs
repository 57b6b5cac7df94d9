//! The failures that a bulk action affects.
//!
//! The scope is captured when the dialog opens: either the ids that were selected then, or explicitly all failures of a
//! filter with the number that the dialog shows. An empty selection is never widened to all.

use leptos::prelude::*;
use milvaion_api::failures::{FailureFilter, FailureScopePreview, MAX_COUNTED_FAILURES, MAX_FAILURE_SELECTION};
use milvaion_protocol::id::OccurrenceId;

use crate::{
    components::time::Time,
    format::{clip, count, plural},
};

/// The maximum length of an exception's first line among the samples, in characters.
const SAMPLE_MAX_CHARS: usize = 100;

/// The failures that an open dialog acts on, as they were when it opened.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum BulkScope {
    /// The selected failures.
    Chosen(Vec<OccurrenceId>),
    /// All open failures that match a filter.
    All {
        /// The filter.
        filter: FailureFilter,
        /// The filter in words.
        words: String,
        /// The number of failures and samples of them, as the dialog shows them.
        preview: FailureScopePreview,
    },
}

/// The parameters of a request that changes failures.
pub(super) struct BulkRequest {
    /// The selected failures.
    pub(super) ids: Vec<OccurrenceId>,
    /// True to change all failures of the filter.
    pub(super) all: bool,
    /// The filter.
    pub(super) filter: FailureFilter,
    /// The number of failures that the user saw.
    pub(super) seen: usize,
}

impl BulkScope {
    /// Returns the parameters of the request.
    pub(super) fn request(self) -> BulkRequest {
        match self {
            Self::Chosen(ids) => BulkRequest { seen: ids.len(), ids, all: false, filter: FailureFilter::default() },
            Self::All { filter, preview, .. } => {
                let seen = usize::try_from(preview.count).unwrap_or_default();
                BulkRequest { ids: Vec::new(), all: true, filter, seen }
            }
        }
    }

    /// Returns the question of the dialog: `Retry all 3 failures?`.
    fn title(&self, verb: &str) -> String {
        match self {
            Self::Chosen(ids) => format!("{verb} {}?", plural(i64::try_from(ids.len()).unwrap_or(i64::MAX), "failure")),
            Self::All { preview, .. } => match preview.count {
                1 => format!("{verb} the only open failure?"),
                n if n > max_selection() => {
                    format!("{verb} the newest {} of {}?", count(max_selection()), counted_failures(n))
                }
                n => format!("{verb} all {}?", counted_failures(n)),
            },
        }
    }
}

/// Returns the question of the dialog that retries.
pub(super) fn retry_title(scope: &BulkScope) -> String {
    scope.title("Retry")
}

/// Returns the question of the dialog that resolves.
pub(super) fn resolve_title(scope: &BulkScope) -> String {
    scope.title("Resolve")
}

/// Returns the maximum number of failures that one request changes.
pub(super) fn max_selection() -> i64 {
    i64::try_from(MAX_FAILURE_SELECTION).unwrap_or(i64::MAX)
}

/// Formats a number of failures that was counted up to [`MAX_COUNTED_FAILURES`].
fn counted_failures(number: i64) -> String {
    if number >= MAX_COUNTED_FAILURES {
        format!("{}+ failures", count(MAX_COUNTED_FAILURES))
    } else {
        plural(number, "failure")
    }
}

/// Draws the filter of an action on all failures in words, with samples. Draws nothing for selected failures, which are
/// marked in the list.
pub(super) fn scope_details(scope: Option<BulkScope>) -> AnyView {
    let Some(BulkScope::All { words, preview, .. }) = scope else { return ().into_any() };
    let shown = i64::try_from(preview.samples.len()).unwrap_or(i64::MAX);
    let heading = if shown < preview.count { "The newest of them:" } else { "These are:" };
    let samples: Vec<_> = preview
        .samples
        .into_iter()
        .map(|row| {
            let note = row.exception.as_deref().map(|text| clip(text, SAMPLE_MAX_CHARS));
            view! {
                <li>
                    <strong>{row.job_name}</strong>
                    ", "
                    <Time at=row.failed_at/>
                    <div class="row-note">{note}</div>
                </li>
            }
        })
        .collect();
    view! {
        <div class="stack" data-scope="all">
            <p>{words}</p>
            <p class="muted">{heading}</p>
            <ul class="stack">{samples}</ul>
        </div>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(count: i64) -> BulkScope {
        let filter = FailureFilter { fingerprint: Some("f".into()), ..FailureFilter::default() };
        BulkScope::All { filter, words: String::new(), preview: FailureScopePreview { count, samples: Vec::new() } }
    }

    #[test]
    fn empty_selection_requests_nothing() {
        let request = BulkScope::Chosen(Vec::new()).request();
        assert!(request.ids.is_empty() && !request.all);
        let request = all(12).request();
        assert_eq!((request.all, request.seen, request.filter.fingerprint.as_deref()), (true, 12, Some("f")));
    }

    #[test]
    fn titles_state_the_scope() {
        let chosen = BulkScope::Chosen(vec![OccurrenceId::default(); 2]);
        assert_eq!(retry_title(&chosen), "Retry 2 failures?");
        assert_eq!(resolve_title(&all(3)), "Resolve all 3 failures?");
        assert_eq!(retry_title(&all(1)), "Retry the only open failure?");
        assert_eq!(retry_title(&all(5_000)), "Retry the newest 1,000 of 5,000 failures?");
        assert_eq!(retry_title(&all(10_000)), "Retry the newest 1,000 of 10,000+ failures?");
    }
}
