//! The filter of the audit page and its addresses.

use chrono::NaiveDate;
use leptos_router::params::ParamsMap;
use milvaion_api::audit::{AuditFilter, AuditResult};

use crate::components::query_reader::{InvalidFilter, PAGER_REMEDY, QueryReader, filter_address, parameter};

/// The maximum length of `who`, in characters: that of an e-mail address.
pub const WHO_MAX_CHARS: usize = 254;
/// The maximum length of `action`, in characters.
const ACTION_MAX_CHARS: usize = 60;
/// The maximum length of `object`, in characters.
pub const OBJECT_MAX_CHARS: usize = 100;
/// The length of a day: `2026-11-21`.
const DAY_CHARS: usize = 10;

/// The parameters that the form has a control for.
pub const NAMES: [&str; 6] = ["who", "action", "object", "result", "since", "until"];

/// Parses the parameters `who`, `action`, `object`, `result`, `since`, `until` and `before` of an address.
pub fn parse(query: &ParamsMap) -> Result<AuditFilter, InvalidFilter> {
    let mut reader = QueryReader::of_form(query);
    let who = reader.read("who", "Use an e-mail address, system or unknown.", |text| plain(text, WHO_MAX_CHARS));
    let action = reader.read("action", "Use an action, as in job.pause, or all of a kind, as in job.", action);
    let object = reader.read("object", "Use a kind and an id, as in job:01980000-0000-7000-8000-000000000001.", object);
    let result = reader.read("result", "Use done or refused.", AuditResult::from_slug);
    let since = reader.read("since", "Use a day, as in 2026-11-21.", day);
    let until = reader.read("until", "Use a day, as in 2026-11-21.", day);
    let before = reader.read("before", PAGER_REMEDY, |text| text.parse().ok());
    if since.zip(until).is_some_and(|(since, until)| until < since) {
        reader.refuse("until", "Use a day that is not before the first day.");
    }
    let (who, action, object) = (who.unwrap_or_default(), action.unwrap_or_default(), object.unwrap_or_default());
    reader.finish("/audit", AuditFilter { who, action, object, result, since, until, before })
}

fn plain(text: &str, max_chars: usize) -> Option<String> {
    (text.chars().count() <= max_chars && !text.chars().any(char::is_control)).then(|| text.to_owned())
}

fn action(text: &str) -> Option<String> {
    let is_valid = |letter: char| letter.is_ascii_lowercase() || matches!(letter, '.' | '-' | '_');
    (text.len() <= ACTION_MAX_CHARS && text.chars().all(is_valid)).then(|| text.to_owned())
}

fn object(text: &str) -> Option<String> {
    let (kind, id) = text.split_once(':')?;
    if kind.is_empty() || id.is_empty() { None } else { plain(text, OBJECT_MAX_CHARS) }
}

fn day(text: &str) -> Option<NaiveDate> {
    // The parser also accepts shorter and longer numbers.
    if text.len() == DAY_CHARS { NaiveDate::parse_from_str(text, "%Y-%m-%d").ok() } else { None }
}

/// Returns true if the filter selects less than everything, apart from its page.
#[must_use]
pub fn is_narrowed(filter: &AuditFilter) -> bool {
    *filter != AuditFilter { before: filter.before, ..AuditFilter::default() }
}

/// Returns the address of the page with this filter.
#[must_use]
pub fn address(filter: &AuditFilter) -> String {
    let mut all = parameters(filter).to_vec();
    all.push(("before", parameter(filter.before)));
    filter_address("/audit", &all)
}

/// Returns the address of the whole list with this filter as a file. `format` is `csv` or `ndjson`.
#[must_use]
pub fn export_address(filter: &AuditFilter, format: &str) -> String {
    filter_address(&format!("/export/audit.{format}"), &parameters(filter))
}

/// Returns the values of the form's controls by the names of their parameters, without the page.
#[must_use]
pub fn parameters(filter: &AuditFilter) -> [(&'static str, String); NAMES.len()] {
    [
        ("who", filter.who.clone()),
        ("action", filter.action.clone()),
        ("object", filter.object.clone()),
        ("result", parameter(filter.result.map(AuditResult::slug))),
        ("since", parameter(filter.since)),
        ("until", parameter(filter.until)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: &str = "job:01980000-0000-7000-8000-000000000001";

    fn query(pairs: &[(&'static str, &str)]) -> ParamsMap {
        let mut query = ParamsMap::new();
        for (name, value) in pairs {
            query.insert(*name, (*value).to_owned());
        }
        query
    }

    fn refused(pairs: &[(&'static str, &str)]) -> Vec<&'static str> {
        let invalid = parse(&query(pairs)).expect_err("the address is refused");
        invalid.errors.into_iter().map(|error| error.parameter).collect()
    }

    #[test]
    fn address_round_trips_to_its_filter() {
        let pairs = [
            ("who", "a+b@example.org"),
            ("action", "job."),
            ("object", OBJECT),
            ("result", "refused"),
            ("since", "2026-11-01"),
            ("until", "2026-11-21"),
            ("before", "1795000123456789-42"),
        ];
        let filter = parse(&query(&pairs)).expect("a valid filter");
        let common = format!(
            "who=a%2Bb%40example.org&action=job.&object={}&result=refused&since=2026-11-01&until=2026-11-21",
            OBJECT.replace(':', "%3A")
        );
        assert_eq!(address(&filter), format!("/audit?{common}&before=1795000123456789-42"));
        assert_eq!(export_address(&filter, "csv"), format!("/export/audit.csv?{common}"));
        assert!(is_narrowed(&filter));
    }

    #[test]
    fn empty_values_are_no_filter() {
        let all = ["who", "action", "object", "result", "since", "until", "before"].map(|name| (name, " "));
        let filter = parse(&query(&all)).expect("empty values are valid");
        assert_eq!(filter, AuditFilter::default());
        assert_eq!(address(&filter), "/audit");
        assert_eq!(export_address(&filter, "ndjson"), "/export/audit.ndjson");
        let later = parse(&query(&[("before", "1795000123456789-42")])).expect("a valid page");
        assert!(!is_narrowed(&later));
    }

    #[test]
    fn invalid_values_are_refused_by_name() {
        let long = "x".repeat(300);
        for part in [
            ("who", long.as_str()),
            ("who", "a\nb"),
            ("action", "Job pause"),
            ("action", long.as_str()),
            ("object", "job"),
            ("object", "job:"),
            ("object", ":7"),
            ("result", "maybe"),
            ("since", "yesterday"),
            ("since", "2026-02-30"),
            ("until", "2026-1-2"),
            ("until", "+12026-01-02"),
            ("before", "x"),
        ] {
            assert_eq!(refused(&[part]), [part.0], "{part:?}");
        }
        assert_eq!(refused(&[("since", "2026-11-21"), ("until", "2026-11-20")]), ["until"]);
        assert_eq!(refused(&[("who", "a"), ("who", "b")]), ["who"]);
    }

    #[test]
    fn reset_address_keeps_the_valid_filters() {
        let invalid = parse(&query(&[("who", "ada@example.org"), ("since", "x"), ("result", "done")]));
        let invalid = invalid.expect_err("the day is invalid");
        assert_eq!(invalid.reset, "/audit?who=ada%40example.org&result=done");
        let reversed = parse(&query(&[("since", "2026-11-21"), ("until", "2026-11-20")])).expect_err("reversed days");
        assert_eq!(reversed.reset, "/audit?since=2026-11-21");
    }
}
