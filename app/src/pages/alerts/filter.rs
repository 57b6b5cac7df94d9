//! The filter of the list of alerts and its addresses.

use leptos_router::params::ParamsMap;
use milvaion_api::alerts::AlertFilter;

use crate::components::query_reader::{InvalidFilter, PAGER_REMEDY, QueryReader, filter_address, parameter};

/// The value in the address, the label, and the filter of each state. The first is the default.
pub const STATES: [(&str, &str, Option<bool>); 3] =
    [("firing", "Firing", Some(true)), ("resolved", "Resolved", Some(false)), ("all", "All", None)];

/// Parses the parameters `state`, `rule` and `before` of an address.
pub fn parse(query: &ParamsMap) -> Result<AlertFilter, InvalidFilter> {
    let mut reader = QueryReader::of_form(query);
    let state = reader.read("state", "Use firing, resolved or all.", |text| {
        STATES.into_iter().find(|(word, ..)| *word == text).map(|(.., state)| state)
    });
    let rule = reader.read("rule", "Use the id of an alert rule.", |text| text.parse().ok());
    let before = reader.read("before", PAGER_REMEDY, |text| text.parse().ok());
    reader.finish("/alerts", AlertFilter { firing: state.unwrap_or(Some(true)), rule, before, limit: 0 })
}

/// Returns the address of the list with this filter.
#[must_use]
pub fn address(filter: &AlertFilter) -> String {
    let state =
        STATES.into_iter().find(|(.., state)| *state == filter.firing).filter(|(.., state)| *state != Some(true));
    let parameters = [
        ("state", parameter(state.map(|(word, ..)| word))),
        ("rule", parameter(filter.rule)),
        ("before", parameter(filter.before)),
    ];
    filter_address("/alerts", &parameters)
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
            let invalid = parse(&query(&[part, ("state", "resolved")][..])).expect_err("an invalid filter");
            assert_eq!(invalid.errors[0].parameter, part.0);
            assert_eq!(invalid.reset, if part.0 == "state" { "/alerts" } else { "/alerts?state=resolved" });
        }
    }
}
