//! The document of a job.
//!
//! It is the definition of the REST API with two differences. Calendars have their names instead of their ids. And a file
//! that does not name `isActive` leaves it as it is: a job that an operator has paused during an incident must not start
//! again because a deployment applies its file.
//!
//! A written document leaves out what has its default, so that an export reads like a file that a user wrote.

use milvaion_protocol::id::JobId;
use milvaion_schedule::rules::Rules;
use serde::{Deserialize, Serialize, de::Error as _};
use serde_json::{Map, Value};

use crate::requests::JobInput;

/// The maximum length of a suggested key, in characters.
const SUGGESTED_KEY_CHARS: usize = 80;
/// The number of characters of the id that make a suggested key unique.
const ID_SUFFIX_CHARS: usize = 8;
/// The fields that a written document always has.
const REQUIRED: [&str; 4] = ["displayName", "workerId", "jobType", "schedule"];

/// A job in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct JobDocument {
    /// The key, by which the job is found again.
    pub key: String,
    /// The id of the job that gets this key, if it has none yet. An export writes it for jobs without a key.
    pub id: Option<JobId>,
    /// True if the job is active, false if it is paused; none leaves it as it is. A new job is active.
    pub is_active: Option<bool>,
    /// The names of the calendars.
    pub calendars: Vec<String>,
    /// The rest of the definition. Its calendars are empty, and its `is_active` is to be ignored.
    pub definition: JobInput,
}

impl TryFrom<Value> for JobDocument {
    type Error = serde_json::Error;

    fn try_from(value: Value) -> Result<Self, serde_json::Error> {
        let Value::Object(mut fields) = value else {
            return Err(serde_json::Error::custom("a document must have fields"));
        };
        let key = fields.remove("key").ok_or_else(|| serde_json::Error::missing_field("key"))?;
        let id = fields.remove("id").unwrap_or_default();
        let is_active = fields.remove("isActive").unwrap_or_default();
        let rules = fields.get_mut("rules").and_then(Value::as_object_mut);
        let calendars = rules.and_then(|rules| rules.remove("calendars"));
        Ok(Self {
            key: serde_json::from_value(key)?,
            id: serde_json::from_value(id)?,
            is_active: serde_json::from_value(is_active)?,
            calendars: calendars.map(serde_json::from_value).transpose()?.unwrap_or_default(),
            definition: serde_json::from_value(Value::Object(fields))?,
        })
    }
}

impl From<JobDocument> for Value {
    fn from(document: JobDocument) -> Self {
        let JobDocument { key, id, is_active, calendars, definition } = document;
        let mut fields = Map::new();
        fields.insert("key".into(), key.into());
        if let Some(id) = id {
            fields.insert("id".into(), id.to_string().into());
        }
        let defaults = JobInput::schedule_only(definition.schedule.clone(), Rules::default());
        fields.extend(without_defaults(&definition, &defaults));
        fields.remove("isActive");
        if let Some(is_active) = is_active {
            fields.insert("isActive".into(), is_active.into());
        }
        let mut rules = without_defaults(&definition.rules, &defaults.rules);
        if !calendars.is_empty() {
            rules.insert("calendars".into(), calendars.into());
        }
        fields.remove("rules");
        if !rules.is_empty() {
            fields.insert("rules".into(), Self::Object(rules));
        }
        Self::Object(fields)
    }
}

/// Returns the fields of a value that differ from the defaults, and those that a document needs.
fn without_defaults<T: Serialize>(value: &T, defaults: &T) -> Map<String, Value> {
    let fields = |value: &T| match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let defaults = fields(defaults);
    let is_needed = |(name, value): &(String, Value)| {
        REQUIRED.contains(&name.as_str()) || defaults.get(name).is_none_or(|default| default != value)
    };
    fields(value).into_iter().filter(is_needed).collect()
}

/// Returns a key for a job that has none, made of its name and, if that key is taken, of its id.
pub fn suggested_key(display_name: &str, id: JobId, is_taken: impl Fn(&str) -> bool) -> String {
    let mut key = String::new();
    for letter in display_name.chars().take(SUGGESTED_KEY_CHARS) {
        let letter = letter.to_ascii_lowercase();
        if letter.is_ascii_alphanumeric() {
            key.push(letter);
        } else if !key.is_empty() && !key.ends_with('-') {
            key.push('-');
        }
    }
    let key = match key.trim_end_matches('-') {
        "" => "job",
        key => key,
    };
    if !is_taken(key) {
        return key.to_owned();
    }
    let id = id.to_string();
    format!("{key}-{}", id.get(id.len() - ID_SUFFIX_CHARS..).unwrap_or(&id))
}

#[cfg(feature = "schema")]
mod schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings};
    use serde_json::{Value, json};

    use super::{JobDocument, JobId, JobInput};

    /// The fields of the document, for their schema.
    #[derive(JsonSchema)]
    #[schemars(rename_all = "camelCase")]
    #[expect(dead_code, reason = "only its schema is used")]
    struct JobFields {
        /// The key, by which the job is found again: 1 to 100 lower-case letters, digits, `.`, `_` and `-`, beginning with
        /// a letter or digit. It never changes.
        #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9._-]{0,99}$"))]
        key: String,
        /// The id of the job that gets this key, if the installation has that job and it has no key yet. An export writes
        /// it for jobs without a key.
        id: Option<JobId>,
        /// The definition.
        #[schemars(flatten)]
        definition: JobInput,
    }

    impl JsonSchema for JobDocument {
        fn schema_name() -> Cow<'static, str> {
            "JobDocument".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            let settings = SchemaSettings::draft2020_12().for_deserialize().with(|settings| {
                settings.inline_subschemas = true;
                settings.meta_schema = None;
            });
            let mut schema = settings.into_generator().into_root_schema_for::<JobFields>().to_value();
            schema["description"] = "A job, identified by its key.".into();
            if let Some(fields) = schema.as_object_mut() {
                fields.remove("title");
            }
            schema["properties"]["isActive"] = json!({
                "type": ["boolean", "null"],
                "description": "True if the schedule is active, false if the job is paused. Without it, a new job is \
                                active, and an existing one stays as it is.",
            });
            schema["properties"]["rules"]["properties"]["calendars"] = json!({
                "type": "array",
                "description": "The names of the blackout calendars, at most 10.",
                "items": { "type": "string", "minLength": 1, "maxLength": 100 },
                "maxItems": 10,
                "default": [],
            });
            if let Value::Object(defaults) = &mut schema["properties"]["rules"]["default"] {
                defaults.remove("calendars");
            }
            Schema::try_from(schema).unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::rest::FileDocument;

    fn parse(value: Value) -> JobDocument {
        match serde_json::from_value(value).expect("a document") {
            FileDocument::Job(job) => *job,
            FileDocument::Calendar(_) | FileDocument::AlertRule(_) => panic!("not a job"),
        }
    }

    #[test]
    fn document_leaves_out_what_has_its_default() {
        let short = json!({
            "kind": "Job", "key": "report", "displayName": "Report", "workerId": "local", "jobType": "demo",
            "schedule": { "kind": "manual" }, "rules": { "maxRetries": 2, "calendars": ["Holidays"] },
        });
        let job = parse(short.clone());
        assert_eq!((job.key.as_str(), job.is_active, job.definition.rules.catch_up_limit), ("report", None, 100));
        assert_eq!(job.calendars, ["Holidays"]);
        assert_eq!(serde_json::to_value(FileDocument::Job(Box::new(job))).ok(), Some(short.clone()));
        let mut paused = short;
        paused["isActive"] = false.into();
        paused["rules"] = json!({ "catchUpLimit": 100 });
        let job = parse(paused);
        assert_eq!(job.is_active, Some(false));
        let written = serde_json::to_value(job).expect("JSON");
        assert_eq!((&written["isActive"], &written["rules"]), (&json!(false), &Value::Null));
    }

    #[test]
    fn key_is_made_of_the_name_and_if_taken_of_the_id() {
        let id: JobId = "01980000-0000-7000-8000-0000deadbeef".parse().expect("an id");
        let key = |name: &str| suggested_key(name, id, |key| key == "taken");
        assert_eq!(key("Nightly Report (EU)"), "nightly-report-eu");
        assert_eq!(key("  Ünïcode: größe "), "n-code-gr-e");
        assert_eq!((key("日本").as_str(), key("Taken!").as_str()), ("job", "taken-deadbeef"));
        assert_eq!(key(&"x".repeat(200)).len(), 80);
    }

    #[test]
    fn wrong_document_is_refused() {
        for wrong in [json!({ "kind": "Job" }), json!({ "kind": "Pod", "key": "a" }), json!([]), json!({ "key": "a" })]
        {
            assert!(serde_json::from_value::<FileDocument>(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
