//! The job form: the entered strings, and the definition that they describe.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    FieldError, JobInput,
    definition::{
        MAX_TIMEOUT_SECONDS, check_description, check_display_name, check_input_size, check_once, check_tags,
        check_target,
    },
    is_valid_name,
};
use crate::{
    rules_form,
    schema_form::{self, BuiltInput},
};
use milvaion_protocol::{
    exact_json::parse_exact,
    id::{CalendarId, JobId},
    message::MAX_JOB_DATA_BYTES,
};
use milvaion_schedule::{rules::Rules, schedule::Schedule};

mod schedule;

/// The job form as entered. Every field is text; absent fields are empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobForm {
    /// The id of the job to change; empty for a new one.
    pub id: String,
    /// The version that the form shows; empty for a new job.
    pub version: String,
    /// See [`JobInput::display_name`].
    pub display_name: String,
    /// See [`JobInput::description`].
    pub description: String,
    /// The tags, separated by commas.
    pub tags: String,
    /// The worker and the job type: `worker/type`.
    pub target: String,
    /// The source of the input: `form` or `json`.
    pub input_mode: String,
    /// The generated input fields by path; see [`schema_form::path`].
    pub input: BTreeMap<String, String>,
    /// The input as JSON.
    pub input_json: String,
    /// The schedule type: `cron`, `every`, `once` or `manual`.
    pub kind: String,
    /// The cron expression.
    pub cron: String,
    /// The time zone of `cron` and `once`.
    pub zone: String,
    /// The interval, a whole number.
    pub every: String,
    /// The unit of the interval: `seconds`, `minutes`, `hours` or `days`.
    pub every_unit: String,
    /// The start of the interval: `fire` (also if empty) or `end`.
    pub every_from: String,
    /// The local date and time in `zone`, in the format of browsers: `2026-11-21T09:00`.
    pub once: String,
    /// `on` if the job is active. Absent means paused, because browsers do not send an unchecked checkbox.
    pub is_active: String,
    /// The priority, 1 to 5; empty means 3.
    pub priority: String,
    /// The timeout, in seconds; empty means the worker's default.
    pub timeout_seconds: String,
    /// The rules by field name; see [`rules_form`].
    pub rules: BTreeMap<String, String>,
}

impl JobForm {
    /// Builds the form that edits `job`, with its input as JSON.
    #[must_use]
    pub fn from_job(id: JobId, version: i32, job: &JobInput) -> Self {
        let mut form = Self {
            id: id.to_string(),
            version: version.to_string(),
            display_name: job.display_name.clone(),
            description: job.description.clone(),
            tags: job.tags.join(", "),
            target: format!("{}/{}", job.worker_id, job.job_type),
            // The page shows the input as fields if it has the schema.
            input_mode: "json".into(),
            input_json: serde_json::to_string_pretty(&job.job_data).unwrap_or_default(),
            zone: "UTC".into(),
            every_unit: "seconds".into(),
            is_active: if job.is_active { "on".into() } else { String::new() },
            priority: job.priority.to_string(),
            timeout_seconds: job.timeout_seconds.map(|s| s.to_string()).unwrap_or_default(),
            ..Self::default()
        };
        form.show_schedule(&job.schedule);
        form.rules = rules_form::write(&job.rules, &form.zone);
        form
    }

    /// Changes the form of an existing job to one that creates a copy of it.
    #[must_use]
    pub fn into_copy(mut self) -> Self {
        let name = format!("Copy of {}", self.display_name);
        self.display_name = name.chars().take(200).collect();
        self.id = String::new();
        self.version = String::new();
        self
    }

    /// Parses and checks the rules alone.
    ///
    /// # Errors
    ///
    /// Returns the invalid fields, named `rules.NAME`.
    pub fn rules(&self) -> Result<Rules, Vec<FieldError>> {
        rules_form::read(&self.rules, &self.zone_or_utc())
    }

    /// Returns the value of a rule's field, named without `rules.`. An absent field has its default.
    #[must_use]
    pub fn rule(&self, field: &str) -> String {
        self.rules.get(field).cloned().unwrap_or_else(|| rules_form::default_fields().remove(field).unwrap_or_default())
    }

    /// Returns true if the checkbox of the calendar `id` is checked.
    #[must_use]
    pub fn has_calendar(&self, id: CalendarId) -> bool {
        self.rules.get(&rules_form::calendar_field(id)).is_some_and(|value| !value.trim().is_empty())
    }

    /// Returns true if one of these fields, named with `rules.`, differs from its default.
    #[must_use]
    pub fn has_non_default(&self, fields: &[&str]) -> bool {
        let mut defaults = rules_form::default_fields();
        let names = fields.iter().filter_map(|field| field.strip_prefix("rules."));
        names.into_iter().any(|name| {
            self.rules.get(name).is_some_and(|text| {
                let text = text.trim();
                !text.is_empty() && Some(text) != defaults.remove(name).as_deref()
            })
        })
    }

    fn zone_or_utc(&self) -> String {
        let zone = self.zone.trim();
        if zone.is_empty() { "UTC".into() } else { zone.to_owned() }
    }

    /// Checks everything that needs no service. `schema` is the input's JSON Schema, if it is known. `now` rejects a
    /// `once` in the past.
    ///
    /// # Errors
    ///
    /// Returns one error per invalid field, in the order of the form.
    pub fn check(&self, schema: Option<&Value>, now: DateTime<Utc>) -> Result<JobInput, Vec<FieldError>> {
        self.check_with(schema, now, &|_| Vec::new())
    }

    /// Checks everything that needs no service, like [`check`](Self::check). `validate` returns the errors of the
    /// input's valid parts, so that one check reports all errors.
    ///
    /// # Errors
    ///
    /// Returns the errors in the order of the form.
    pub fn check_with(
        &self,
        schema: Option<&Value>,
        now: DateTime<Utc>,
        validate: &dyn Fn(&BuiltInput) -> Vec<FieldError>,
    ) -> Result<JobInput, Vec<FieldError>> {
        let mut errors = Vec::new();
        let display_name = self.display_name.trim().to_owned();
        check_display_name(&display_name, &mut errors);
        // A form that is sent without a script has the line breaks of HTTP.
        let description = self.description.trim().replace("\r\n", "\n");
        check_description(&description, &mut errors);
        let tags = self.tags(&mut errors);
        let (worker_id, job_type) = self.target(&mut errors);
        let mut input = self.built_input(schema);
        let is_wrong = |field: &str, errors: &[FieldError]| errors.iter().any(|error| error.field == field);
        if !is_wrong("input_json", &input.errors) {
            let own = std::mem::take(&mut input.errors);
            // An invalid field has no value, so the schema may report the same field as missing.
            let more = validate(&input).into_iter().filter(|error| !is_wrong(&error.field, &own)).collect::<Vec<_>>();
            input.errors = own.into_iter().chain(more).collect();
        }
        errors.append(&mut input.errors);
        let job_data = input.data;
        let schedule = self.schedule().unwrap_or_else(|wrong| {
            errors.extend(wrong);
            Schedule::Manual
        });
        if self.id.is_empty() {
            check_once(&schedule, now, &mut errors);
        }
        let rules = self.rules().unwrap_or_else(|wrong| {
            // The schedule may have reported the same error of the zone.
            let new: Vec<_> = wrong.into_iter().filter(|error| !errors.contains(error)).collect();
            errors.extend(new);
            Rules::default()
        });
        let priority = self.number("priority", &self.priority, 3, 1..=5, &mut errors);
        let timeout_seconds = if self.timeout_seconds.trim().is_empty() {
            None
        } else {
            Some(self.number("timeout_seconds", &self.timeout_seconds, 0, 1..=MAX_TIMEOUT_SECONDS, &mut errors))
        };
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(JobInput {
            display_name,
            description,
            tags,
            worker_id,
            job_type,
            job_data,
            schedule,
            is_active: !self.is_active.is_empty(),
            priority: u8::try_from(priority).unwrap_or(3),
            timeout_seconds,
            rules,
        })
    }

    fn tags(&self, errors: &mut Vec<FieldError>) -> Vec<String> {
        let mut tags: Vec<String> = Vec::new();
        for tag in self.tags.split(',').map(str::trim).filter(|tag| !tag.is_empty()) {
            if !tags.iter().any(|known| known == tag) {
                tags.push(tag.to_owned());
            }
        }
        check_tags(&tags, errors);
        tags
    }

    fn target(&self, errors: &mut Vec<FieldError>) -> (String, String) {
        match self.target.split_once('/') {
            Some((worker, job_type)) if is_valid_name(worker) && is_valid_name(job_type) => {
                check_target(worker, job_type, errors);
                (worker.to_owned(), job_type.to_owned())
            }
            _ => {
                errors.push(FieldError::new("target", "choose a job type"));
                (String::new(), String::new())
            }
        }
    }

    /// Returns true if the input is entered as JSON: it was chosen, or no fields can be made from the schema.
    #[must_use]
    pub fn is_json_input(&self, schema: Option<&Value>) -> bool {
        self.input_mode == "json" || schema.is_none_or(|schema| schema_form::form_fields(schema).is_empty())
    }

    /// Returns the input from the active source with its invalid fields: `input.PATH` or `input_json`.
    #[must_use]
    pub fn built_input(&self, schema: Option<&Value>) -> BuiltInput {
        let mut input = match schema {
            Some(schema) if !self.is_json_input(Some(schema)) => schema_form::build_partial(schema, &self.input),
            _ => match parse_input_json(&self.input_json) {
                Ok(data) => BuiltInput::without_fields(data, Vec::new()),
                Err(message) => BuiltInput::without_fields(Value::Null, vec![FieldError::new("input_json", message)]),
            },
        };
        check_input_size(input.data.to_string().len(), &mut input.errors);
        input
    }

    fn number(
        &self,
        field: &str,
        text: &str,
        default: u32,
        range: std::ops::RangeInclusive<u32>,
        errors: &mut Vec<FieldError>,
    ) -> u32 {
        let text = text.trim();
        if text.is_empty() {
            return default;
        }
        match text.parse::<u32>() {
            Ok(n) if range.contains(&n) => n,
            _ => {
                errors.push(FieldError::new(
                    field,
                    format!("enter a whole number from {} to {}: got {text}", range.start(), range.end()),
                ));
                default
            }
        }
    }
}

/// Parses an input entered as JSON. Empty text means an empty object.
///
/// # Errors
///
/// Returns a message with the position of the error, or with the path of a number that would be rounded.
pub fn parse_input_json(text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    if text.len() > 2 * MAX_JOB_DATA_BYTES {
        return Err("the input is larger than 64 KiB: store large data elsewhere and refer to it".into());
    }
    let value = parse_exact("the input", text)?;
    if value.is_object() {
        Ok(value)
    } else {
        Err("the input must be a JSON object, for example {\"key\": \"value\"}".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form() -> JobForm {
        JobForm {
            display_name: "Nightly".into(),
            target: "local/http-request".into(),
            input_mode: "json".into(),
            input_json: "{\"url\": \"http://localhost\"}".into(),
            kind: "cron".into(),
            cron: "0 3 * * *".into(),
            zone: "Europe/Warsaw".into(),
            is_active: "on".into(),
            ..JobForm::default()
        }
    }

    fn invalid_fields(form: &JobForm) -> Vec<String> {
        let now = "2026-01-01T00:00:00Z".parse().expect("a valid instant");
        form.check(None, now).expect_err("invalid").into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn all_invalid_fields_are_named() {
        let form = JobForm {
            display_name: " ".into(),
            target: "nothing".into(),
            input_json: "{".into(),
            cron: "61 * * * *".into(),
            priority: "9".into(),
            timeout_seconds: "-1".into(),
            ..form()
        };
        assert_eq!(
            invalid_fields(&form),
            ["display_name", "target", "input_json", "cron", "priority", "timeout_seconds"]
        );
    }

    #[test]
    fn names_that_the_broker_cannot_hold_are_refused() {
        let (worker, job_type) = ("w".repeat(100), "_".repeat(100));
        assert_eq!(invalid_fields(&JobForm { target: format!("{worker}/{job_type}"), ..form() }), ["target"]);
    }

    #[test]
    fn job_round_trips_through_its_form() {
        let now = "2026-01-01T00:00:00Z".parse().expect("a valid instant");
        let schema = serde_json::json!({"properties": {"url": {"type": "string"}}, "required": ["url"]});
        for schedule in [
            Schedule::Cron { expression: "0 3 * * *".into(), zone: "Europe/Warsaw".into() },
            Schedule::every(7_200),
            Schedule::once("2026-06-01T09:00:05Z".parse().expect("a valid instant")),
            Schedule::Once {
                at: "2026-06-01T09:00:05Z".parse().expect("a valid instant"),
                zone: "Asia/Kolkata".into(),
            },
            Schedule::Manual,
        ] {
            let job = JobInput { schedule, ..form().check(None, now).expect("a valid form") };
            let id = JobId::from_parts(now, [1; 10]);
            let back = JobForm::from_job(id, 3, &job).check(Some(&schema), now).expect("a valid form");
            assert_eq!(back, job);
        }
    }

    #[test]
    fn once_is_local_and_must_be_in_the_future() {
        let form = JobForm { kind: "once".into(), once: "2026-07-01T09:00".into(), ..form() };
        let now = "2026-01-01T00:00:00Z".parse().expect("a valid instant");
        let job = form.check(None, now).expect("a valid form");
        let at = "2026-07-01T07:00:00Z".parse().expect("a valid instant");
        assert_eq!(job.schedule, Schedule::Once { at, zone: "Europe/Warsaw".into() });
        let past = JobForm { once: "2025-07-01T09:00".into(), ..form };
        assert_eq!(invalid_fields(&past), ["once"]);
    }

    #[test]
    fn copy_is_a_new_job_with_another_name() {
        let now = "2026-01-01T00:00:00Z".parse().expect("a valid instant");
        let job = form().check(None, now).expect("a valid form");
        let copy = JobForm::from_job(JobId::from_parts(now, [1; 10]), 3, &job).into_copy();
        assert_eq!((copy.id.as_str(), copy.version.as_str()), ("", ""));
        let expected = JobInput { display_name: "Copy of Nightly".into(), ..job };
        assert_eq!(copy.check(None, now), Ok(expected));
    }

    #[test]
    fn json_number_that_would_be_rounded_is_refused() {
        let entered = |id: &str| JobForm { input_json: format!("{{\"order\": {{\"id\": {id}}}}}"), ..form() };
        let errors = entered("12345678901234567890123").built_input(None).errors;
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].field, "input_json");
        assert!(errors[0].message.starts_with("/order/id: 12345678901234567890123 would be"), "{}", errors[0].message);
        assert!(errors[0].message.ends_with("or write it as text"), "{}", errors[0].message);
        assert!(entered("\"12345678901234567890123\"").built_input(None).errors.is_empty());
    }

    #[test]
    fn too_long_interval_is_refused() {
        let form = JobForm { kind: "every".into(), every: "99999999999999999999".into(), ..form() };
        assert_eq!(invalid_fields(&form), ["every"]);
        let form = JobForm { every: "9999999999999".into(), every_unit: "days".into(), ..form };
        assert_eq!(invalid_fields(&form), ["every"]);
    }
}
