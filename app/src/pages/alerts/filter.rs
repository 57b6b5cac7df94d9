//! The filter of the list of alerts and its addresses.
//!
//! A value that cannot be read is an error and never a wider filter, as on the other lists.

use leptos_router::params::ParamsMap;
use milvaion_api::alerts::AlertFilter;

use crate::components::filter_error::FilterError;

/// The value in the address, the label, and the filter of each state. The first is the default.
pub const STATES: [(&str, &str, Option<bool>); 3] =
    [("firing", "Firing", Some(true)), ("resolved", "Resolved", Some(false)), ("all", "All", None)];

/// Parses the parameters `state`, `rule` and `before` of an address.
///
/// # Errors
///
/// Returns one error for each parameter that is repeated or has an invalid value, and the filter of the others.
pub fn parse(query: &ParamsMap) -> Result<AlertFilter, (Vec<FilterError>, AlertFilter)> {
    let mut errors = Vec::new();
    let state = read(query, &mut errors, "state", "Use firing, resolved or all.", |text| {
        STATES.into_iter().find(|(word, ..)| *word == text).map(|(.., state)| state)
    });
    let rule = read(query, &mut errors, "rule", "Use the id of an alert rule.", |text| text.parse().ok());
    let remedy = "Use the address of a pager link, or leave it out for the first page.";
    let before = read(query, &mut errors, "before", remedy, |text| text.parse().ok());
    let filter = AlertFilter { firing: state.unwrap_or(Some(true)), rule, before, limit: 0 };
    if errors.is_empty() { Ok(filter) } else { Err((errors, filter)) }
}

/// Reads a parameter, which is absent if it is empty, because a form sends it. `None` from `parse` is an error.
fn read<T>(
    query: &ParamsMap,
    errors: &mut Vec<FilterError>,
    parameter: &'static str,
    remedy: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Option<T> {
    let mut values = query.get_all(parameter).unwrap_or_default();
    values.retain(|value| !value.trim().is_empty());
    let value = match values.as_slice() {
        [] => return None,
        [value] => parse(value.trim()),
        _ => None,
    };
    if value.is_none() {
        errors.push(FilterError { parameter, value: values.join(", "), remedy: remedy.to_owned() });
    }
    value
}

/// Returns the address of the list with this filter.
#[must_use]
pub fn address(filter: &AlertFilter) -> String {
    let state =
        STATES.into_iter().find(|(.., state)| *state == filter.firing).filter(|(.., state)| *state != Some(true));
    let parts = [
        state.map(|(word, ..)| format!("state={word}")),
        filter.rule.map(|rule| format!("rule={rule}")),
        filter.before.map(|before| format!("before={before}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "/alerts".to_owned() } else { format!("/alerts?{}", parts.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01980000-0000-7000-8000-000000000001";

    fn query(pairs: &[(&'static str, &str)]) -> ParamsMap {
        let mut query = ParamsMap::new();
        for (name, value) in pairs {
            query.insert(*name, (*value).to_owned());
        }
        query
    }

    #[test]
    fn address_round_trips_to_its_filter() {
        let all = parse(&query(&[("state", "all"), ("rule", ID), ("before", ID)])).expect("a valid filter");
        assert_eq!(address(&all), format!("/alerts?state=all&rule={ID}&before={ID}"));
        let firing = parse(&query(&[("state", "firing"), ("rule", "")])).expect("a valid filter");
        assert_eq!((address(&firing).as_str(), firing.firing), ("/alerts", Some(true)));
    }

    #[test]
    fn invalid_values_are_refused_by_name() {
        for part in [("state", "on"), ("rule", "x"), ("before", "1")] {
            let (errors, rest) = parse(&query(&[part, ("state", "resolved")][..])).expect_err("an invalid filter");
            assert_eq!(errors[0].parameter, part.0);
            assert_eq!(rest.firing, if part.0 == "state" { Some(true) } else { Some(false) });
        }
    }
}
