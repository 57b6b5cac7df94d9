//! The addresses of the failure pages: parsing and building, in one place.
//!
//! Parsing is strict. A parameter that is unknown to a page, or whose value cannot be read, is an error and never "no
//! filter": the page would otherwise list more than its address asks for, and offer to change all of it.

use leptos_router::params::ParamsMap;
use milvaion_api::failures::{DeadLetterFilter, FailureCause, FailureFilter};

use crate::{api::session::query_value, components::filter_error::FilterError};

/// The number of rows on one page.
pub(super) const FAILURES_PER_PAGE: u32 = 50;

/// The states a list can be narrowed to: the word in the address, the label, and the value in the filter.
pub(super) const STATE_FILTERS: [(&str, &str, Option<bool>); 3] =
    [("open", "Open", Some(false)), ("resolved", "Resolved", Some(true)), ("all", "All", None)];

/// The parameters of all failure pages, in the order of an address.
const PARAMETERS: [&str; 7] = ["tab", "state", "job", "cause", "q", "after", "before"];

/// The filter of a page, or the parameters of its address that cannot be read.
pub(super) type ParsedFilter<T> = Result<T, Vec<FilterError>>;

/// The parameters of one address, with the errors found so far.
struct FilterReader<'a> {
    query: &'a ParamsMap,
    errors: Vec<FilterError>,
}

impl<'a> FilterReader<'a> {
    /// Starts to read an address of a page that accepts only the parameters in `accepted`.
    fn new(query: &'a ParamsMap, accepted: &[&str]) -> Self {
        let mut reader = Self { query, errors: Vec::new() };
        for parameter in PARAMETERS.into_iter().filter(|name| !accepted.contains(name)) {
            if reader.text(parameter).is_some() {
                reader.refuse(parameter, "This list has no such filter; leave it out.");
            }
        }
        reader
    }

    /// Returns the trimmed value of a parameter, if it is not empty. Forms send empty values for unused fields.
    fn text(&self, parameter: &str) -> Option<String> {
        self.query.get_str(parameter).map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    fn refuse(&mut self, parameter: &'static str, remedy: &str) {
        let value = self.text(parameter).unwrap_or_default();
        self.errors.push(FilterError { parameter, value, remedy: remedy.to_owned() });
    }

    /// Reads a parameter; `None` from `parse` is an error.
    fn read<T>(&mut self, parameter: &'static str, remedy: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.text(parameter)?;
        let value = parse(&text);
        if value.is_none() {
            self.refuse(parameter, remedy);
        }
        value
    }

    /// Reads `state`. Without one, the state is open.
    fn resolved(&mut self) -> Option<bool> {
        let parse =
            |text: &str| STATE_FILTERS.into_iter().find(|(word, _, _)| *word == text).map(|(_, _, state)| state);
        self.read("state", "Use open, resolved or all.", parse).unwrap_or(Some(false))
    }

    /// Reads the parameters that both lists of failures have. `is_cursor` decides whether `after` is valid.
    fn failures(&mut self, is_cursor: impl FnOnce(&FailureFilter) -> bool) -> FailureFilter {
        let mut filter = FailureFilter {
            resolved: self.resolved(),
            job_id: self.read("job", "Use the id of a job.", |text| text.parse().ok()),
            after: self.text("after"),
            limit: FAILURES_PER_PAGE,
            ..FailureFilter::default()
        };
        if filter.after.is_some() && !is_cursor(&filter) {
            self.refuse("after", "Use the address of a pager link, or leave it out for the first page.");
            filter.after = None;
        }
        filter
    }

    fn finish<T>(self, filter: T) -> ParsedFilter<T> {
        if self.errors.is_empty() { Ok(filter) } else { Err(self.errors) }
    }
}

/// Returns true if the address is that of the dead letters.
pub(super) fn is_dead_letters(query: &ParamsMap) -> bool {
    query.get_str("tab").map(str::trim) == Some("dead-letters")
}

/// Parses the filter of the list of causes.
pub(super) fn parse_groups(query: &ParamsMap) -> ParsedFilter<FailureFilter> {
    let mut reader = FilterReader::new(query, &["tab", "state", "job", "cause", "q", "after"]);
    if reader.text("tab").is_some() {
        reader.refuse("tab", "Use dead-letters, or leave it out for the failures.");
    }
    let mut filter = reader.failures(|filter| filter.group_cursor().is_some());
    let words: Vec<&str> = FailureCause::ALL.into_iter().map(FailureCause::as_str).collect();
    filter.cause = reader.read("cause", &format!("Use one of: {}.", words.join(", ")), FailureCause::parse);
    filter.text = reader.text("q");
    if !filter.has_valid_text() {
        reader.refuse("q", "Use at most 200 characters and 8 words.");
    }
    reader.finish(filter)
}

/// Parses the filter of the failures of one cause.
pub(super) fn parse_group(query: &ParamsMap, fingerprint: String) -> ParsedFilter<FailureFilter> {
    let mut reader = FilterReader::new(query, &["state", "job", "after"]);
    let mut filter = reader.failures(|filter| filter.cursor().is_some());
    filter.fingerprint = Some(fingerprint);
    reader.finish(filter)
}

/// Parses the filter of the dead letters, for pages of `limit` rows.
pub(super) fn parse_dead_letters(query: &ParamsMap, limit: u32) -> ParsedFilter<DeadLetterFilter> {
    let mut reader = FilterReader::new(query, &["tab", "state", "before"]);
    let filter = DeadLetterFilter {
        resolved: reader.resolved(),
        before: reader.read("before", "Use the address of a pager link, or leave it out for the first page.", |text| {
            text.parse().ok()
        }),
        limit,
    };
    reader.finish(filter)
}

/// Builds the address of the page at `path` without the parameters that cannot be read.
pub(super) fn url_without(path: &str, query: &ParamsMap, errors: &[FilterError]) -> String {
    let is_valid = |name: &str| errors.iter().all(|error| error.parameter != name);
    let kept = PARAMETERS.into_iter().filter(|name| is_valid(name));
    join(path, kept.map(|name| (name, query.get(name).filter(|value| !value.trim().is_empty()))))
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
    join(path, parts.into_iter())
}

fn join<'a>(path: &str, parts: impl Iterator<Item = (&'a str, Option<String>)>) -> String {
    let query: Vec<String> =
        parts.filter_map(|(name, value)| Some(format!("{name}={}", query_value(&value?)))).collect();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) }
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

    fn refused<T: std::fmt::Debug>(parsed: ParsedFilter<T>) -> Vec<&'static str> {
        parsed.expect_err("the address is refused").into_iter().map(|error| error.parameter).collect()
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
        let errors = parse_groups(&query).expect_err("the job is invalid");
        assert_eq!(url_without("/failed", &query, &errors), "/failed?state=all&q=a%20b");
    }
}
