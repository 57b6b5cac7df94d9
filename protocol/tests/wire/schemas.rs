//! The schemas in `docs/protocol`, which authors of workers in other languages read: they equal the schemas generated
//! from the types, and they accept every golden. What a reader and its schema refuse is in the vectors.

use std::{fs, path::PathBuf, sync::LazyLock};

use jsonschema::Validator;
use milvaion_protocol::{
    schema::{self, DeadLetterCause, DeadLetterHeaders, DeathRecord, JobHeaders},
    topology,
};
use serde_json::{Value, json};

use crate::{OCCURRENCE_ID, golden, minimal, occurrence};

pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/protocol/{name}.schema.json"))
}

/// The checked-in schemas, each with the name of its file and the title of its type.
static FILES: LazyLock<Vec<(&str, String, Validator)>> = LazyLock::new(|| {
    let files = schema::all().into_iter().map(|(name, generated)| {
        let title = generated["title"].as_str().expect("a schema has a title").to_owned();
        let text = fs::read_to_string(path(name)).unwrap_or_else(|_| generated.to_string());
        let file = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, title, jsonschema::validator_for(&file).unwrap_or_else(|error| panic!("{name}: {error}")))
    });
    files.collect()
});

/// Returns true if the schema of a file accepts a message.
pub(crate) fn is_valid(name: &str, json: &Value) -> bool {
    FILES.iter().any(|(file, _, schema)| *file == name && schema.is_valid(json))
}

/// Checks a golden against the schema of its type, if the type has one.
#[track_caller]
pub(crate) fn assert_valid<T>(json: &Value) {
    let name = std::any::type_name::<T>();
    let name = name.rsplit("::").next().unwrap_or(name);
    if let Some((file, _, schema)) = FILES.iter().find(|(_, title, _)| title == name) {
        let errors: Vec<String> = schema.iter_errors(json).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "docs/protocol/{file}.schema.json refuses {json:#}: {errors:?}");
    }
}

#[test]
fn checked_in_schemas_match_the_types() {
    let update = std::env::var_os("UPDATE_SCHEMAS").is_some();
    for (name, generated) in schema::all() {
        if update {
            // In the order of names, whatever order the features of serde_json keep.
            let mut sorted = generated.clone();
            sorted.sort_all_objects();
            fs::write(path(name), format!("{sorted:#}\n")).expect("docs/protocol is writable");
        }
        let file = fs::read_to_string(path(name)).unwrap_or_default();
        assert!(
            serde_json::from_str::<Value>(&file).is_ok_and(|file| file == generated),
            "docs/protocol/{name}.schema.json differs from its type: run UPDATE_SCHEMAS=1 cargo test \
             -p milvaion-protocol --test wire and review the difference, because the schema is a contract"
        );
    }
    let files = fs::read_dir(path("x").parent().expect("a folder")).expect("docs/protocol is readable");
    let schemas = files
        .filter(|file| file.as_ref().is_ok_and(|file| file.file_name().to_string_lossy().ends_with(".schema.json")));
    assert_eq!(schemas.count(), schema::all().len(), "docs/protocol has a schema that no type generates");
}

#[test]
fn manual_links_schemas_and_its_examples_are_valid() {
    let manual = fs::read_to_string(path("x").with_file_name("README.md")).expect("README.md is readable");
    let mut shown = 0;
    for (name, _, schema) in FILES.iter() {
        let link = format!("({name}.schema.json)");
        assert!(manual.contains(&link), "docs/protocol/README.md does not link to {name}.schema.json");
        // An example is a JSON block directly below a comment with the name of its schema.
        for example in manual.split(&format!("<!-- {name} -->\n```json\n")).skip(1) {
            let text = example.split("```").next().unwrap_or_default();
            let json = serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error} in {text}"));
            let errors: Vec<String> = schema.iter_errors(&json).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "an example of {name} is invalid: {errors:?}\n{text}");
            shown += 1;
        }
        assert!(manual.contains(&format!("<!-- {name} -->\n```json\n")), "{name} has no example in docs/protocol");
    }
    assert_eq!(shown, manual.matches("```json").count(), "every example names its schema");
}

#[test]
fn headers() {
    let headers = JobHeaders { retry_count: 1, max_retries: 3, correlation_id: occurrence(), republish: Some(1) };
    let json = json!({
        "x-retry-count": 1, "x-max-retries": 3, "x-original-correlation-id": OCCURRENCE_ID, "x-republish": 1,
    });
    golden(&headers, json);
    golden(
        &JobHeaders { republish: None, ..headers },
        json!({ "x-retry-count": 1, "x-max-retries": 3, "x-original-correlation-id": OCCURRENCE_ID }),
    );
    let death = DeathRecord { reason: "rejected".into(), queue: "milvaion.jobs.mail.send".into() };
    golden(
        &DeadLetterHeaders { cause: Some(DeadLetterCause::Poison), deaths: vec![death] },
        json!({
            "x-milvaion-cause": "poison", "x-death": [{ "reason": "rejected", "queue": "milvaion.jobs.mail.send" }],
        }),
    );
    minimal(json!({}), &DeadLetterHeaders { cause: None, deaths: Vec::new() });
    // The header names are written twice, because a serde attribute cannot use a constant.
    let all = serde_json::to_string(&schema::all()).expect("the schemas serialize");
    for name in [
        topology::HEADER_RETRY_COUNT,
        topology::HEADER_MAX_RETRIES,
        topology::HEADER_CORRELATION_ID,
        topology::HEADER_REPUBLISH,
        topology::HEADER_CAUSE,
    ] {
        assert!(all.contains(&format!("\"{name}\":{{")), "no schema has the header {name}");
    }
}
