//! Decodes the input of a job into the type that the job declares, and names the field that does not fit.
//!
//! serde reports the position of an error as a column of the text. Users look for a field, so the column is converted
//! into the path of the value at this position: `headers.accept`, `argv[2]`. An unknown field of a tagged enum has no
//! position, because serde reads the enum as a whole before it decodes the variant; its path is searched.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::outcome::JobError;

/// The maximum number of fields of one name that are tried as the unknown field. Each trial decodes the input again.
const MAX_UNKNOWN_FIELD_TRIALS: usize = 100;

/// Decodes `data` as a `T`.
///
/// # Errors
/// Returns a permanent failure that names the field, because another attempt would have the same input.
pub(crate) fn read<T: DeserializeOwned>(data: &Value) -> Result<T, JobError> {
    // Data that fits is decoded directly. The JSON text is needed only to locate an error.
    if !data.is_null()
        && let Ok(input) = T::deserialize(data)
    {
        return Ok(input);
    }
    // A job without input is often stored as null. An empty object fits every struct whose fields are optional.
    let text = if data.is_null() { "{}".to_owned() } else { data.to_string() };
    serde_json::from_str(&text).or_else(|error| {
        if data.is_null()
            && let Ok(input) = serde_json::from_str("null")
        {
            return Ok(input);
        }
        let reason = error.to_string();
        // The text is a single line that the user has never seen, so its line and column would only confuse.
        let reason = reason.split(" at line ").next().unwrap_or_default();
        let position = path_at(&text, error.column());
        let path = unknown_field_path::<T>(data, reason, &position).unwrap_or(position);
        let location = if path.is_empty() { "the input".to_owned() } else { format!("the input's field `{path}`") };
        Err(JobError::permanent(format!(
            "{location} does not fit the job type: {reason}; correct it in the job and run it again"
        )))
    })
}

/// Returns the path of the unknown field that `reason` names, unless `position` ends with it.
///
/// Several objects may have a field of this name. The unknown one is the field without which the error differs.
fn unknown_field_path<T: DeserializeOwned>(data: &Value, reason: &str, position: &str) -> Option<String> {
    let name = reason.strip_prefix("unknown field `")?.split('`').next()?;
    if position.rsplit('.').next() == Some(name) {
        return None;
    }
    let error = T::deserialize(data).err()?.to_string();
    let mut found = Vec::new();
    collect_fields(data, name, &FieldOwner::default(), &mut found);
    let is_unknown = |owner: &FieldOwner| {
        let mut rest = data.clone();
        let fields = rest.pointer_mut(&owner.pointer).and_then(Value::as_object_mut);
        let is_removed = fields.is_some_and(|fields| fields.remove(name).is_some());
        is_removed && T::deserialize(&rest).err().is_none_or(|other| other.to_string() != error)
    };
    found.into_iter().take(MAX_UNKNOWN_FIELD_TRIALS).find(is_unknown).map(|owner| owner.field(name).path)
}

/// A value inside the input, as the JSON pointer that finds it and the path that the user reads.
#[derive(Default)]
struct FieldOwner {
    pointer: String,
    path: String,
}

impl FieldOwner {
    fn field(&self, name: &str) -> Self {
        let step = name.replace('~', "~0").replace('/', "~1");
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Self { pointer: format!("{}/{step}", self.pointer), path }
    }

    fn item(&self, index: usize) -> Self {
        Self { pointer: format!("{}/{index}", self.pointer), path: format!("{}[{index}]", self.path) }
    }
}

/// Adds every object in `value` that has a field of this name.
fn collect_fields(value: &Value, name: &str, owner: &FieldOwner, found: &mut Vec<FieldOwner>) {
    match value {
        Value::Object(fields) => {
            if fields.contains_key(name) {
                found.push(FieldOwner { pointer: owner.pointer.clone(), path: owner.path.clone() });
            }
            fields.iter().for_each(|(key, inner)| collect_fields(inner, name, &owner.field(key), found));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(n, inner)| collect_fields(inner, name, &owner.item(n), found));
        }
        _ => {}
    }
}

/// A step of a path into a JSON text.
enum PathStep {
    /// Inside an object, at the field of this name. `None` until the name has been read.
    Field(Option<String>),
    /// Inside a list, at this index.
    Item(usize),
}

/// Returns the path of the value in which the first `column` bytes of `text` end. The text is JSON without whitespace
/// between its tokens, as `Value` prints it.
fn path_at(text: &str, column: usize) -> String {
    let read = &text.as_bytes()[..column.min(text.len())];
    let mut steps: Vec<PathStep> = Vec::new();
    let mut at = 0;
    while at < read.len() {
        match read[at] {
            b'{' => steps.push(PathStep::Field(None)),
            b'[' => steps.push(PathStep::Item(0)),
            // A missing field is detected only at the end of the object, so the error belongs to the object.
            b'}' | b']' if at + 1 == read.len() => {
                if let Some(PathStep::Field(name)) = steps.last_mut() {
                    *name = None;
                }
            }
            b'}' | b']' => drop(steps.pop()),
            b',' => match steps.last_mut() {
                Some(PathStep::Field(name)) => *name = None,
                Some(PathStep::Item(index)) => *index += 1,
                None => {}
            },
            b'"' => {
                let start = at;
                at += 1;
                while at < read.len() && read[at] != b'"' {
                    at += if read[at] == b'\\' { 2 } else { 1 };
                }
                let name = text.get(start..=at).and_then(|quoted| serde_json::from_str::<String>(quoted).ok());
                if let Some(PathStep::Field(field @ None)) = steps.last_mut() {
                    *field = name;
                }
            }
            _ => {}
        }
        at += 1;
    }
    let mut path = String::new();
    for step in steps {
        match step {
            PathStep::Field(Some(name)) if path.is_empty() => path = name,
            PathStep::Field(Some(name)) => path = format!("{path}.{name}"),
            PathStep::Field(None) => {}
            PathStep::Item(index) => path = format!("{path}[{index}]"),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct TestInput {
        #[serde(default, rename = "to")]
        _to: Vec<u8>,
        #[serde(default, rename = "deep")]
        _deep: BTreeMap<String, TestInnerInput>,
    }

    #[derive(Debug, Deserialize)]
    struct TestInnerInput {
        #[serde(rename = "size")]
        _size: u8,
    }

    #[test]
    fn errors_name_the_field_that_does_not_fit() {
        for (data, location) in [
            (json!({"to": [1, "two"]}), "`to[1]`"),
            (json!({"to": 5}), "`to`"),
            (json!({"deep": {"a\"b": {"size": 1}, "c": {"size": 700}}}), "`deep.c.size`"),
            (json!({"deep": {"a": {}}}), "`deep.a`"),
            (json!({"other": 1}), "`other`"),
            (json!([1]), "the input"),
        ] {
            let error = read::<TestInput>(&data).expect_err("does not fit");
            assert!(error.is_permanent());
            assert!(error.to_string().contains(location), "{data}: {error}");
            assert!(!error.to_string().contains("column"), "{error}");
        }
    }

    #[derive(Debug, Deserialize)]
    #[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
    enum TestTaggedInput {
        Bearer {
            #[serde(rename = "token")]
            _token: String,
        },
    }

    #[derive(Debug, Deserialize)]
    struct TestOuterInput {
        #[serde(default, rename = "headers")]
        _headers: BTreeMap<String, String>,
        #[serde(default, rename = "auth")]
        _auth: Vec<TestTaggedInput>,
        #[serde(default, rename = "last")]
        _last: Option<TestTaggedInput>,
    }

    #[test]
    fn unknown_field_of_a_tagged_enum_has_its_path() {
        let headers = json!({"tokens": "a header of the same name"});
        let wrong = json!({"type": "bearer", "tokens": "a"});
        for (data, location) in [
            (json!({"headers": headers, "last": wrong}), "`last.tokens`"),
            (json!({"last": wrong, "headers": headers}), "`last.tokens`"),
            (json!({"auth": [{"type": "bearer", "token": "b"}, wrong]}), "`auth[1].tokens`"),
        ] {
            let error = read::<TestOuterInput>(&data).expect_err("does not fit");
            assert!(error.to_string().contains(location), "{data}: {error}");
        }
    }

    #[test]
    fn null_fits_a_job_without_required_input() {
        read::<TestInput>(&Value::Null).expect("every field has a default");
        read::<()>(&Value::Null).expect("null fits the unit type");
        read::<Option<TestInput>>(&Value::Null).expect("null fits an option");
    }
}
