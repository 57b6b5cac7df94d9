//! The filter of the occurrences page and its address.

use leptos_router::params::ParamsMap;
use milvaion_api::page::{OccurrenceFilter, TimeWindow};
use milvaion_protocol::status::{ALL_STATUSES, OccurrenceStatus};

use crate::components::query_reader::{InvalidFilter, QueryReader, filter_address, parameter};

/// Parses the parameters `status`, `delayed`, `job`, `parent`, `window` and `before` of an address.
pub fn parse(query: &ParamsMap) -> Result<OccurrenceFilter, InvalidFilter> {
    let mut reader = QueryReader::of_links(query);
    let statuses = ALL_STATUSES.map(OccurrenceStatus::slug).join(", ");
    let filter = OccurrenceFilter {
        status: reader.read("status", &format!("Use one of {statuses}."), OccurrenceStatus::from_slug),
        delayed: reader.read("delayed", "Use true.", |word| (word == "true").then_some(true)).unwrap_or_default(),
        job_id: reader.read("job", "Use the id of one job.", |id| id.parse().ok()),
        parent_id: reader.read("parent", "Use the id of one occurrence.", |id| id.parse().ok()),
        window: reader.read("window", "Use 1h, 24h, 7d or all.", window_or_all).flatten(),
        before: reader.read("before", "Use the id of one occurrence.", |id| id.parse().ok()),
        ..OccurrenceFilter::default()
    };
    reader.finish("/occurrences", filter)
}

fn window_or_all(slug: &str) -> Option<Option<TimeWindow>> {
    if slug == "all" { Some(None) } else { TimeWindow::from_slug(slug).map(Some) }
}

/// Returns the address of the list with this filter.
pub fn address(filter: &OccurrenceFilter) -> String {
    let parameters = [
        ("status", parameter(filter.status.map(OccurrenceStatus::slug))),
        ("delayed", parameter(filter.delayed.then_some("true"))),
        ("job", parameter(filter.job_id)),
        ("parent", parameter(filter.parent_id)),
        ("window", parameter(filter.window.map(TimeWindow::slug))),
        ("before", parameter(filter.before)),
    ];
    filter_address("/occurrences", &parameters)
}

/// Returns the filter in words, as the reason why nothing is listed. `job` is the name of the filter's job.
pub fn reason_for_none(filter: &OccurrenceFilter, job: Option<&str>) -> String {
    let job = job.map(|job| format!(" of {job}")).unwrap_or_default();
    let older = if filter.before.is_some() { " older than the previous page" } else { "" };
    let rest = match (filter.status, filter.window) {
        (Some(status), _) if !status.is_final() => format!("is {} now", status.label()),
        (Some(status), Some(window)) => format!("became {} in the {}", status.label(), window.label()),
        (Some(status), None) => format!("is {}", status.label()),
        (None, Some(window)) => format!("is open or ended in the {}", window.label()),
        (None, None) => "exists".to_owned(),
    };
    let rest = if filter.delayed { "is delayed now".to_owned() } else { rest };
    let parent = filter.parent_id.map(|id| format!(" that {id} has enqueued")).unwrap_or_default();
    format!("No occurrence{job}{parent}{older} {rest}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01980000-0000-7000-8000-000000000001";

    fn query(pairs: &[(&str, &str)]) -> ParamsMap {
        let mut query = ParamsMap::new();
        for (name, value) in pairs {
            query.insert((*name).to_owned(), (*value).to_owned());
        }
        query
    }

    #[test]
    fn address_round_trips() {
        let pairs = [
            ("status", "timed-out"),
            ("delayed", "true"),
            ("job", ID),
            ("parent", ID),
            ("window", "24h"),
            ("before", ID),
        ];
        let filter = parse(&query(&pairs)).expect("a valid filter");
        assert_eq!(
            address(&filter),
            format!("/occurrences?status=timed-out&delayed=true&job={ID}&parent={ID}&window=24h&before={ID}")
        );
        assert_eq!(address(&OccurrenceFilter::default()), "/occurrences");
        assert_eq!(parse(&query(&[("window", "all")])), Ok(OccurrenceFilter::default()));
    }

    #[test]
    fn invalid_values_are_errors() {
        for (name, value) in [
            ("status", "foo"),
            ("status", ""),
            ("job", "7"),
            ("delayed", "1"),
            ("parent", "7"),
            ("window", "2h"),
            ("before", "x"),
        ] {
            let errors = parse(&query(&[(name, value)])).expect_err("an invalid filter").errors;
            assert_eq!((errors.len(), errors[0].parameter, errors[0].value.as_str()), (1, name, value));
        }
        let invalid = parse(&query(&[("status", "foo"), ("window", "x"), ("job", ID)])).expect_err("an invalid filter");
        assert_eq!((invalid.errors.len(), invalid.reset), (2, format!("/occurrences?job={ID}")));
    }

    #[test]
    fn reason_names_each_filter() {
        let filter = |status, window| OccurrenceFilter { status, window, ..OccurrenceFilter::default() };
        let day = Some(TimeWindow::Day);
        assert_eq!(
            reason_for_none(&filter(Some(OccurrenceStatus::Failed), day), Some("report")),
            "No occurrence of report became Failed in the last 24 hours."
        );
        assert_eq!(reason_for_none(&filter(Some(OccurrenceStatus::Queued), day), None), "No occurrence is Queued now.");
        let delayed = OccurrenceFilter { delayed: true, ..OccurrenceFilter::default() };
        assert_eq!(reason_for_none(&delayed, None), "No occurrence is delayed now.");
        assert_eq!(reason_for_none(&filter(None, day), None), "No occurrence is open or ended in the last 24 hours.");
    }
}
