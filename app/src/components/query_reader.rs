//! The strict reader of a filter in the address of a page, and the builder of such addresses.
//!
//! A value that cannot be read is an error and never a wider filter: a page that ignored it would show, and offer
//! actions on, more than its address asks for.

use std::fmt::Display;

use leptos_router::params::ParamsMap;

use super::filter_controls::FilterValues;
use crate::{api::session::query_value, format::clip};

/// The remedy for a cursor that is not one.
pub const PAGER_REMEDY: &str = "Use the address of a pager link, or leave it out for the first page.";
/// The maximum length of a value in an error, in characters.
const VALUE_MAX_CHARS: usize = 80;

/// One parameter of an address that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    /// The name in the address: `state`.
    pub parameter: &'static str,
    /// The value in the address.
    pub value: String,
    /// The accepted values, as a sentence: "Use open, resolved or all."
    pub remedy: String,
}

impl FilterError {
    /// Returns the error as a sentence: `The filter state has the value "foo", which is not valid.`
    #[must_use]
    pub fn sentence(&self) -> String {
        let value = clip(&self.value, VALUE_MAX_CHARS);
        format!("The filter {} has the value \"{value}\", which is not valid. {}", self.parameter, self.remedy)
    }
}

/// The parameters of an address that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidFilter {
    /// The parameters; at least one.
    pub errors: Vec<FilterError>,
    /// The address of the same page without them.
    pub reset: String,
}

/// Reads the parameters of one address. A repeated parameter is an error.
pub struct QueryReader<'a> {
    query: &'a ParamsMap,
    has_form: bool,
    valid: FilterValues,
    errors: Vec<FilterError>,
}

impl<'a> QueryReader<'a> {
    /// Reads the address of a page with a filter form. The form sends empty values for unused controls, so an empty
    /// value counts as absent.
    #[must_use]
    pub fn of_form(query: &'a ParamsMap) -> Self {
        Self { query, has_form: true, valid: Vec::new(), errors: Vec::new() }
    }

    /// Reads the address of a page whose filter changes by links only. An empty value is read as every other one.
    #[must_use]
    pub fn of_links(query: &'a ParamsMap) -> Self {
        Self { has_form: false, ..Self::of_form(query) }
    }

    /// Reads a parameter; `None` from `parse` is an error.
    pub fn read<T>(
        &mut self,
        parameter: &'static str,
        remedy: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let values = self.values(parameter);
        let read = match values.as_slice() {
            [] => return None,
            [value] => parse(value),
            _ => None,
        };
        self.record(parameter, values.join(", "), read.is_none().then_some(remedy));
        read
    }

    /// Reads a parameter that may have every value.
    pub fn text(&mut self, parameter: &'static str) -> Option<String> {
        self.read(parameter, "Use one text.", |text| Some(text.to_owned()))
    }

    /// Refuses a parameter that was read, because it contradicts another one.
    pub fn refuse(&mut self, parameter: &'static str, remedy: &str) {
        if let Some(index) = self.valid.iter().position(|(name, _)| *name == parameter) {
            let (_, value) = self.valid.remove(index);
            self.record(parameter, value, Some(remedy));
        }
    }

    /// Returns `filter` if every parameter was read.
    ///
    /// # Errors
    ///
    /// Returns the invalid parameters with the address of the page at `path` without them.
    pub fn finish<T>(self, path: &str, filter: T) -> Result<T, InvalidFilter> {
        if self.errors.is_empty() {
            return Ok(filter);
        }
        Err(InvalidFilter { errors: self.errors, reset: filter_address(path, &self.valid) })
    }

    fn values(&self, parameter: &str) -> Vec<String> {
        let values = self.query.get_all(parameter).unwrap_or_default();
        let values = values.into_iter().map(|value| value.trim().to_owned());
        values.filter(|value| !(self.has_form && value.is_empty())).collect()
    }

    fn record(&mut self, parameter: &'static str, value: String, remedy: Option<&str>) {
        match remedy {
            None => self.valid.push((parameter, value)),
            Some(remedy) => self.errors.push(FilterError { parameter, value, remedy: remedy.to_owned() }),
        }
    }
}

/// Returns the value of a parameter, which is empty if the filter does not have it.
pub fn parameter(value: Option<impl Display>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Returns the address of the page at `path` with these parameters. Empty ones are left out.
#[must_use]
pub fn filter_address(path: &str, parameters: &[(&'static str, String)]) -> String {
    let set = parameters.iter().filter(|(_, value)| !value.trim().is_empty());
    let parts: Vec<String> = set.map(|(name, value)| format!("{name}={}", query_value(value.trim()))).collect();
    if parts.is_empty() { path.to_owned() } else { format!("{path}?{}", parts.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(pairs: &[(&'static str, &'static str)]) -> ParamsMap {
        pairs.iter().copied().collect()
    }

    #[test]
    fn sentence_names_parameter_value_and_remedy() {
        let error =
            FilterError { parameter: "state", value: "x".repeat(500), remedy: "Use open, resolved or all.".into() };
        let sentence = error.sentence();
        assert!(sentence.starts_with("The filter state has the value \"xxx"), "{sentence}");
        assert!(sentence.ends_with("…\", which is not valid. Use open, resolved or all."), "{sentence}");
        assert!(sentence.len() < 200, "a long value is clipped");
    }

    #[test]
    fn unreadable_value_is_named_and_left_out_of_the_reset_address() {
        let query = query(&[("q", " a&b "), ("page", "x"), ("state", "on"), ("state", "off"), ("until", "1")]);
        let mut reader = QueryReader::of_form(&query);
        assert_eq!(reader.text("q").as_deref(), Some("a&b"));
        assert_eq!(reader.read("page", "Use a number.", |text| text.parse::<u8>().ok()), None);
        assert_eq!((reader.text("state"), reader.text("until").as_deref()), (None, Some("1")));
        reader.refuse("until", "Use a later day.");
        let invalid = reader.finish("/list", ()).expect_err("three parameters are invalid");
        let errors: Vec<_> = invalid.errors.iter().map(|error| (error.parameter, error.value.as_str())).collect();
        assert_eq!(errors, [("page", "x"), ("state", "on, off"), ("until", "1")]);
        assert_eq!(invalid.reset, "/list?q=a%26b");
    }

    #[test]
    fn empty_value_is_absent_only_on_a_page_with_a_form() {
        let query = query(&[("state", " ")]);
        let read = |mut reader: QueryReader<'_>| {
            let state = reader.read("state", "Use a number.", |text| text.parse::<u8>().ok());
            reader.finish("/list", state)
        };
        assert_eq!(read(QueryReader::of_form(&query)), Ok(None));
        assert_eq!(read(QueryReader::of_links(&query)).expect_err("an empty value").reset, "/list");
    }
}
