//! The checks of a job's definition that need no service. The job form and the API share them.
//!
//! A form and a JSON document name the same field differently: `max_retries` in a form is `rules.maxRetries` in JSON. The
//! errors carry the names of the form; [`json_field`] returns the name in JSON.

use chrono::{DateTime, Utc};

use super::{FieldError, JobInput, is_valid_name};
use milvaion_protocol::{message::MAX_JOB_DATA_BYTES, topology::Topology};
use milvaion_schedule::{printable::check_printable, schedule::Schedule};

/// The maximum length of a name, in characters.
const MAX_NAME_CHARS: usize = 200;
/// The maximum length of a description, in characters.
const MAX_DESCRIPTION_CHARS: usize = 2_000;
/// The maximum number of tags.
const MAX_TAGS: usize = 20;
/// The maximum length of a tag, in characters.
const MAX_TAG_CHARS: usize = 50;
/// The maximum timeout of a run, in seconds.
pub(super) const MAX_TIMEOUT_SECONDS: u32 = 86_400;

/// Checks the name of a job.
pub(super) fn check_display_name(name: &str, errors: &mut Vec<FieldError>) {
    match name.trim().chars().count() {
        0 => errors.push(FieldError::new("display_name", "enter a name for the job")),
        n if n > MAX_NAME_CHARS => {
            errors.push(FieldError::new("display_name", format!("at most 200 characters are allowed: got {n}")));
        }
        _ => errors.extend(check_printable(name.trim()).err().map(|message| FieldError::new("display_name", message))),
    }
}

/// Checks the description of a job.
pub(super) fn check_description(description: &str, errors: &mut Vec<FieldError>) {
    if description.chars().count() > MAX_DESCRIPTION_CHARS {
        errors.push(FieldError::new("description", "at most 2,000 characters are allowed"));
    }
}

/// Checks the tags of a job.
pub(super) fn check_tags(tags: &[String], errors: &mut Vec<FieldError>) {
    if tags.len() > MAX_TAGS {
        errors.push(FieldError::new("tags", "at most 20 tags are allowed"));
    }
    if tags.iter().any(|tag| tag.chars().count() > MAX_TAG_CHARS) {
        errors.push(FieldError::new("tags", "a tag has at most 50 characters"));
    }
    if let Some(message) = tags.iter().find_map(|tag| check_printable(tag.trim()).err()) {
        errors.push(FieldError::new("tags", format!("a tag {message}")));
    }
}

/// Checks that a queue name can be made of the names of a worker and of a job type.
pub(super) fn check_target(worker_id: &str, job_type: &str, errors: &mut Vec<FieldError>) {
    if !Topology::fits(worker_id, job_type) {
        let remedy = "the names of the worker and of the job type are too long together: shorten one of them";
        errors.push(FieldError::new("target", remedy));
    }
}

/// Checks the size of an input, in bytes of JSON.
pub(super) fn check_input_size(bytes: usize, errors: &mut Vec<FieldError>) {
    if bytes > MAX_JOB_DATA_BYTES {
        errors.push(FieldError::new(
            "input_json",
            "the input is larger than 64 KiB: store large data elsewhere and refer to it",
        ));
    }
}

/// Checks that a single instant is in the future, when its job is created.
pub(super) fn check_once(schedule: &Schedule, now: DateTime<Utc>, errors: &mut Vec<FieldError>) {
    if let Schedule::Once { at, .. } = schedule
        && *at <= now
    {
        errors.push(FieldError::new("once", "this time is in the past: enter a future time"));
    }
}

impl JobInput {
    /// Checks everything that needs no service. `now` is given if a single instant must be in the future: for a new job of a
    /// user or a program, but not of a file, because an export has jobs whose instant has passed.
    ///
    /// # Errors
    ///
    /// Returns one error per invalid field, with the names of the form.
    pub fn check(&self, now: Option<DateTime<Utc>>) -> Result<(), Vec<FieldError>> {
        let mut errors = Vec::new();
        check_display_name(&self.display_name, &mut errors);
        check_description(&self.description, &mut errors);
        check_tags(&self.tags, &mut errors);
        if self.tags.iter().any(|tag| tag.trim().is_empty() || tag.contains(',')) {
            errors.push(FieldError::new("tags", "a tag must not be empty or contain a comma"));
        }
        for (field, name) in [("worker_id", &self.worker_id), ("job_type", &self.job_type)] {
            if !is_valid_name(name) {
                errors.push(FieldError::new(field, "must have 1 to 100 letters, digits, '-', '_' and '.'"));
            }
        }
        check_target(&self.worker_id, &self.job_type, &mut errors);
        check_input_size(self.job_data.to_string().len(), &mut errors);
        if let Err((field, message)) = self.schedule.check_new() {
            errors.push(FieldError::new(field, message));
        }
        if let Some(now) = now {
            check_once(&self.schedule, now, &mut errors);
        }
        if let Err(wrong) = self.rules.check() {
            errors.extend(wrong.into_iter().map(|(field, message)| FieldError::new(format!("rules.{field}"), message)));
        }
        if !(1..=5).contains(&self.priority) {
            errors.push(FieldError::new("priority", format!("must be from 1 to 5: got {}", self.priority)));
        }
        if let Some(seconds) = self.timeout_seconds
            && !(1..=MAX_TIMEOUT_SECONDS).contains(&seconds)
        {
            errors.push(FieldError::new("timeout_seconds", format!("must be from 1 to 86,400: got {seconds}")));
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }
}

/// Returns the name in JSON of a field of the form: `rules.max_retries` is `rules.maxRetries`.
#[must_use]
pub fn json_field(field: &str) -> String {
    let fixed = match field {
        "cron" => "schedule.expression",
        "zone" => "schedule.zone",
        "every" => "schedule.seconds",
        "once" => "schedule.at",
        "kind" => "schedule.kind",
        "input_json" => "jobData",
        "target" => "jobType",
        "rules.concurrency_key" => "rules.keyLimit.key",
        "rules.concurrency_key_limit" => "rules.keyLimit.limit",
        "rules.auto_disable_threshold" => "rules.autoDisable.threshold",
        "rules.auto_disable_window_seconds" => "rules.autoDisable.windowSeconds",
        "rules.auto_disable_cool_down_seconds" => "rules.autoDisable.coolDownSeconds",
        _ => return camel_case(field),
    };
    fixed.to_owned()
}

fn camel_case(field: &str) -> String {
    let mut name = String::with_capacity(field.len());
    let mut is_next_upper = false;
    for c in field.chars() {
        if c == '_' {
            is_next_upper = true;
        } else if is_next_upper {
            name.extend(c.to_uppercase());
            is_next_upper = false;
        } else {
            name.push(c);
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use milvaion_schedule::rules::Rules;
    use serde_json::Value;

    use super::*;

    fn job() -> JobInput {
        JobInput {
            display_name: "Backup".into(),
            worker_id: "w".into(),
            job_type: "t".into(),
            ..JobInput::schedule_only(Schedule::every(60), Rules::default())
        }
    }

    fn invalid_fields(job: &JobInput) -> Vec<String> {
        let errors = job.check(Some(DateTime::UNIX_EPOCH)).err().unwrap_or_default();
        errors.iter().map(|error| json_field(&error.field)).collect()
    }

    #[test]
    fn invalid_fields_are_named_as_in_json() {
        assert!(invalid_fields(&job()).is_empty());
        let once = Schedule::once(DateTime::UNIX_EPOCH);
        let rules = Rules { max_retries: 101, ..Rules::default() };
        let wrong = JobInput {
            display_name: " ".into(),
            tags: vec!["a,b".into()],
            worker_id: String::new(),
            job_data: Value::String("x".repeat(70_000)),
            schedule: once,
            priority: 9,
            timeout_seconds: Some(0),
            rules,
            ..job()
        };
        let expected = [
            "displayName",
            "tags",
            "workerId",
            "jobData",
            "schedule.at",
            "rules.maxRetries",
            "priority",
            "timeoutSeconds",
        ];
        assert_eq!(invalid_fields(&wrong), expected);
        let cron = Schedule::Cron { expression: "61 * * * *".into(), zone: "UTC".into() };
        assert_eq!(invalid_fields(&JobInput { schedule: cron, ..job() }), ["schedule.expression"]);
        let names = JobInput { display_name: "safe\u{202e}gpj".into(), tags: vec!["a".into(), "a\nb".into()], ..job() };
        assert_eq!(invalid_fields(&names), ["displayName", "tags"]);
    }

    #[test]
    fn past_instant_of_an_existing_job_is_valid() {
        let job = JobInput { schedule: Schedule::once(DateTime::UNIX_EPOCH), ..job() };
        assert!(job.check(None).is_ok());
    }
}
