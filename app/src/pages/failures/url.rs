//! The addresses of the failure pages: parsing and building, in one place.
//!
//! A parameter that is unknown to a page is an error too: the page would otherwise list more than its address asks for,
//! and offer to change all of it.

use leptos_router::params::ParamsMap;
use milvaion_api::failures::{DeadLetterFilter, FailureCause, FailureFilter};

use crate::{
    api::session::query_value,
    components::query_reader::{InvalidFilter, PAGER_REMEDY, QueryReader, filter_address, parameter},
};

/// The number of rows on one page.
pub(super) const FAILURES_PER_PAGE: u32 = 50;

/// The states a list can be narrowed to: the word in the address, the label, and the value in the filter.
pub(super) const STATE_FILTERS: [(&str, &str, Option<bool>); 3] =
    [("open", "Open", Some(false)), ("resolved", "Resolved", Some(true)), ("all", "All", None)];

/// The parameters of all failure pages, in the order of an address.
const PARAMETERS: [&str; 7] = ["tab", "state", "job", "cause", "q", "after", "before"];

/// Starts to read the address of a page that accepts only the parameters in `accepted`.
fn reader<'a>(query: &'a ParamsMap, accepted: &[&str]) -> QueryReader<'a> {
    let mut reader = QueryReader::of_form(query);
    for parameter in PARAMETERS.into_iter().filter(|name| !accepted.contains(name)) {
        reader.read::<()>(parameter, "This list has no such filter; leave it out.", |_| None);
    }
    reader
}

/// Reads `state`. Without one, the state is open.
fn read_resolved(reader: &mut QueryReader<'_>) -> Option<bool> {
    let parse = |text: &str| STATE_FILTERS.into_iter().find(|(word, ..)| *word == text).map(|(.., state)| state);
    reader.read("state", "Use open, resolved or all.", parse).unwrap_or(Some(false))
}

/// Reads the parameters that both lists of failures have. `is_cursor` decides whether `after` is valid.
fn read_failures(reader: &mut QueryReader<'_>, is_cursor: impl FnOnce(&FailureFilter) -> bool) -> FailureFilter {
    let filter = FailureFilter {
        resolved: read_resolved(reader),
        job_id: reader.read("job", "Use the id of a job.", |text| text.parse().ok()),
        limit: FAILURES_PER_PAGE,
        ..FailureFilter::default()
    };
    let after = |text: &str| Some(FailureFilter { after: Some(text.to_owned()), ..filter.clone() }).filter(is_cursor);
    reader.read("after", PAGER_REMEDY, after).unwrap_or(filter)
}

/// Returns true if the address is that of the dead letters.
pub(super) fn is_dead_letters(query: &ParamsMap) -> bool {
    query.get_str("tab").map(str::trim) == Some("dead-letters")
}

/// Parses the filter of the list of causes.
pub(super) fn parse_groups(query: &ParamsMap) -> Result<FailureFilter, InvalidFilter> {
    let mut reader = reader(query, &["tab", "state", "job", "cause", "q", "after"]);
    reader.read::<()>("tab", "Use dead-letters, or leave it out for the failures.", |_| None);
    let filter = read_failures(&mut reader, |filter| filter.group_cursor().is_some());
    let words: Vec<&str> = FailureCause::ALL.into_iter().map(FailureCause::as_str).collect();
    let cause = reader.read("cause", &format!("Use one of: {}.", words.join(", ")), FailureCause::parse);
    let filter = FailureFilter { cause, text: reader.text("q"), ..filter };
    if !filter.has_valid_text() {
        reader.refuse("q", "Use at most 200 characters and 8 words.");
    }
    reader.finish("/failed", filter)
}

/// Parses the filter of the failures of one cause.
pub(super) fn parse_group(query: &ParamsMap, fingerprint: String) -> Result<FailureFilter, InvalidFilter> {
    let mut reader = reader(query, &["state", "job", "after"]);
    let filter = read_failures(&mut reader, |filter| filter.cursor().is_some());
    let path = format!("/failed/{}", query_value(&fingerprint));
    reader.finish(&path, FailureFilter { fingerprint: Some(fingerprint), ..filter })
}

/// Parses the filter of the dead letters, for pages of `limit` rows.
pub(super) fn parse_dead_letters(query: &ParamsMap, limit: u32) -> Result<DeadLetterFilter, InvalidFilter> {
    let mut reader = reader(query, &["tab", "state", "before"]);
    reader.text("tab");
    let resolved = read_resolved(&mut reader);
    let before = reader.read("before", PAGER_REMEDY, |text| text.parse().ok());
    reader.finish("/failed", DeadLetterFilter { resolved, before, limit })
}

/// Builds the address of the page at `path` with this filter. Default values are left out.
pub(super) fn failures_url(path: &str, filter: &FailureFilter) -> String {
    let state =
        STATE_FILTERS.into_iter().find(|(_, _, resolved)| *resolved == filter.resolved).map(|(word, _, _)| word);
    let parameters = [
        ("state", parameter(state.filter(|word| *word != "open"))),
        ("job", parameter(filter.job_id)),
        ("cause", parameter(filter.cause.map(FailureCause::as_str))),
        ("q", parameter(filter.text.as_ref())),
        ("after", parameter(filter.after.as_ref())),
    ];
    filter_address(path, &parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(parts: &[(&'static str, &str)]) -> ParamsMap {
        let mut query = ParamsMap::new();
        for (name, value) in parts {
            query.insert(*name, (*value).to_owned());
        }
        query
    }

    fn refused<T: std::fmt::Debug>(parsed: Result<T, InvalidFilter>) -> Vec<&'static str> {
        parsed.expect_err("the address is refused").errors.into_iter().map(|error| error.parameter).collect()
    }

    #[test]
    fn address_round_trips_to_its_filter() {
        let first = parse_groups(&query(&[("cause", ""), ("q", " ")])).expect("empty values are no filter");
        let default = FailureFilter { resolved: Some(false), limit: FAILURES_PER_PAGE, ..FailureFilter::default() };
        assert_eq!((&first, failures_url("/failed", &first).as_str()), (&default, "/failed"));
        let read = parse_groups(&query(&[("state", "all"), ("cause", "timed_out"), ("q", "a&b"), ("after", "3~4~f")]))
            .expect("the address is valid");
        assert_eq!((read.resolved, read.cause), (None, Some(FailureCause::TimedOut)));
        assert_eq!(failures_url("/failed", &read), "/failed?state=all&cause=timed_out&q=a%26b&after=3~4~f");
    }

    #[test]
    fn unreadable_values_are_refused() {
        let long = "x".repeat(201);
        let parts = [
            ("tab", "dead"),
            ("state", "nonsense"),
            ("job", "no id"),
            ("cause", "none"),
            ("q", long.as_str()),
            ("after", "3~4"),
        ];
        for part in parts {
            assert_eq!(refused(parse_groups(&query(&[part]))), [part.0]);
        }
        assert_eq!(refused(parse_groups(&query(&parts))).len(), parts.len());
        assert_eq!(refused(parse_dead_letters(&query(&[("state", "x"), ("before", "x")]), 5)), ["state", "before"]);
    }

    #[test]
    fn filters_of_another_list_are_refused() {
        let group = |parts| parse_group(&query(parts), "f".into());
        assert_eq!(refused(group(&[("cause", "lost")])), ["cause"]);
        assert_eq!(refused(group(&[("q", "shop")])), ["q"]);
        assert_eq!(refused(group(&[("after", "3~4~f")])), ["after"], "the cursor of a cause is none of a failure");
        assert_eq!(refused(parse_groups(&query(&[("before", "x")]))), ["before"]);
        assert_eq!(refused(parse_dead_letters(&query(&[("tab", "dead-letters"), ("job", "x")]), 5)), ["job"]);
    }

    #[test]
    fn reset_address_keeps_the_valid_filters() {
        let query = query(&[("state", "all"), ("job", "no id"), ("q", "a b")]);
        let invalid = parse_groups(&query).expect_err("the job is invalid");
        assert_eq!(invalid.reset, "/failed?state=all&q=a%20b");
    }
}
