//! The addresses of the failure pages: parsing and building, in one place.

use leptos_router::params::ParamsMap;
use milvaion_api::failures::{FailureCause, FailureFilter};
use milvaion_protocol::id::JobId;

use crate::api::session::query_value;

/// The number of rows on one page.
pub(super) const FAILURES_PER_PAGE: u32 = 50;

/// The states a list can be narrowed to: the word in the address, the label, and the value in the filter.
pub(super) const STATE_FILTERS: [(&str, &str, Option<bool>); 3] =
    [("open", "Open", Some(false)), ("resolved", "Resolved", Some(true)), ("all", "All", None)];

/// Parses the `state` of an address. Without one, or with an unknown one, the state is open.
pub(super) fn parse_resolved(query: &ParamsMap) -> Option<bool> {
    let state = query.get_str("state");
    STATE_FILTERS.into_iter().find(|(word, _, _)| state == Some(*word)).map_or(Some(false), |(_, _, resolved)| resolved)
}

/// Parses the filter of an address: `state`, `job`, `cause`, `q` and `after`.
pub(super) fn parse_filter(query: &ParamsMap) -> FailureFilter {
    let part = |name: &str| query.get(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    FailureFilter {
        resolved: parse_resolved(query),
        job_id: part("job").and_then(|id| id.parse::<JobId>().ok()),
        cause: part("cause").and_then(|word| FailureCause::parse(&word)),
        text: part("q"),
        after: part("after"),
        limit: FAILURES_PER_PAGE,
        ..FailureFilter::default()
    }
}

/// Builds the address of the page at `path` with this filter. Default values are left out.
pub(super) fn failures_url(path: &str, filter: &FailureFilter) -> String {
    let state =
        STATE_FILTERS.into_iter().find(|(_, _, resolved)| *resolved == filter.resolved).map(|(word, _, _)| word);
    let parts = [
        ("state", state.filter(|word| *word != "open").map(str::to_owned)),
        ("job", filter.job_id.map(|id| id.to_string())),
        ("cause", filter.cause.map(|cause| cause.as_str().to_owned())),
        ("q", filter.text.clone()),
        ("after", filter.after.clone()),
    ];
    let query: Vec<String> =
        parts.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", query_value(&value?)))).collect();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_round_trips_to_its_filter() {
        let mut query = ParamsMap::new();
        assert_eq!(
            parse_filter(&query),
            FailureFilter { resolved: Some(false), limit: FAILURES_PER_PAGE, ..FailureFilter::default() }
        );
        assert_eq!(failures_url("/failed", &parse_filter(&query)), "/failed");
        for (name, value) in
            [("state", "all"), ("cause", "timed_out"), ("q", "a&b"), ("job", "no id"), ("after", "3~4~f")]
        {
            query.insert(name, value.to_owned());
        }
        let read = parse_filter(&query);
        assert_eq!((read.resolved, read.cause, read.job_id), (None, Some(FailureCause::TimedOut), None));
        assert_eq!(failures_url("/failed", &read), "/failed?state=all&cause=timed_out&q=a%26b&after=3~4~f");
        query.replace("state", "nonsense".to_owned());
        assert_eq!(parse_filter(&query).resolved, Some(false));
    }
}
