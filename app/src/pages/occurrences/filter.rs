//! The filter of the occurrences page and its address.
//!
//! A value that cannot be read is an error and never a wider filter: a link with a mistake must not list everything.

use leptos_router::params::ParamsMap;
use milvaion_api::page::{OccurrenceFilter, TimeWindow};
use milvaion_protocol::status::{ALL_STATUSES, OccurrenceStatus};

use crate::components::filter_error::FilterError;

/// Parses the parameters `status`, `delayed`, `job`, `parent`, `window` and `before` of an address.
///
/// # Errors
///
/// Returns one error for each parameter that is repeated or has an invalid value.
pub fn parse(query: &ParamsMap) -> Result<OccurrenceFilter, Vec<FilterError>> {
    let mut errors = Vec::new();
    let statuses = ALL_STATUSES.map(OccurrenceStatus::slug).join(", ");
    let filter = OccurrenceFilter {
        status: read(query, "status", OccurrenceStatus::from_slug, &format!("Use one of {statuses}."), &mut errors),
        delayed: read(query, "delayed", |word| (word == "true").then_some(true), "Use true.", &mut errors)
            .unwrap_or_default(),
        parent_id: read(query, "parent", |id| id.parse().ok(), "Use the id of one occurrence.", &mut errors),
        job_id: read(query, "job", |id| id.parse().ok(), "Use the id of one job.", &mut errors),
        before: read(query, "before", |id| id.parse().ok(), "Use the id of one occurrence.", &mut errors),
        window: read(query, "window", window_or_all, "Use 1h, 24h, 7d or all.", &mut errors).flatten(),
        ..OccurrenceFilter::default()
    };
    if errors.is_empty() { Ok(filter) } else { Err(errors) }
}

/// Reads one parameter. Returns `None` if it is absent, and adds an error if it is repeated or invalid.
pub fn read<T>(
    query: &ParamsMap,
    parameter: &'static str,
    parse: impl Fn(&str) -> Option<T>,
    remedy: &str,
    errors: &mut Vec<FilterError>,
) -> Option<T> {
    let values = query.get_all(parameter)?;
    let value = match values.as_slice() {
        [value] => parse(value),
        _ => None,
    };
    if value.is_none() {
        errors.push(FilterError { parameter, value: values.join(", "), remedy: remedy.to_owned() });
    }
    value
}

fn window_or_all(slug: &str) -> Option<Option<TimeWindow>> {
    if slug == "all" { Some(None) } else { TimeWindow::from_slug(slug).map(Some) }
}

/// Returns the address of the list with this filter.
pub fn address(filter: &OccurrenceFilter) -> String {
    let parts: Vec<String> = [
        filter.status.map(|status| format!("status={}", status.slug())),
        filter.delayed.then(|| "delayed=true".to_owned()),
        filter.job_id.map(|id| format!("job={id}")),
        filter.parent_id.map(|id| format!("parent={id}")),
        filter.window.map(|window| format!("window={}", window.slug())),
        filter.before.map(|id| format!("before={id}")),
    ]
    .into_iter()
    .flatten()
    .collect();
    if parts.is_empty() { "/occurrences".into() } else { format!("/occurrences?{}", parts.join("&")) }
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
            let errors = parse(&query(&[(name, value)])).expect_err("an invalid filter");
            assert_eq!((errors.len(), errors[0].parameter, errors[0].value.as_str()), (1, name, value));
        }
        let errors = parse(&query(&[("status", "foo"), ("window", "x")])).expect_err("an invalid filter");
        assert_eq!(errors.len(), 2);
    }

    #[test]
    fn repeated_parameter_is_an_error() {
        let errors = parse(&query(&[("status", "failed"), ("status", "completed")])).expect_err("an invalid filter");
        assert_eq!(errors[0].value, "failed, completed");
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
