//! The schemas in `docs/protocol`, which authors of workers in other languages read: they equal the schemas generated
//! from the types, they accept every golden, and they refuse what a reader refuses.

use std::{fs, path::PathBuf, sync::LazyLock};

use jsonschema::Validator;
use milvaion_protocol::{
    message::{
        CancelMessage, ClaimReply, ClaimRequest, JobMessage, LogMessage, RegistrationMessage, StatusMessage,
        StatusReport,
    },
    schema::{self, DeadLetterCause, DeadLetterHeaders, DeathRecord, JobHeaders},
    topology,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{DUE_TIME, JOB_ID, LATER_TIME, OCCURRENCE_ID, golden, minimal, occurrence};

fn path(name: &str) -> PathBuf {
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

/// Checks that both the reader and the schema refuse a message.
#[track_caller]
fn refused<T: DeserializeOwned>(name: &str, json: Value) {
    assert!(serde_json::from_str::<T>(&json.to_string()).is_err(), "the reader accepts {json}");
    let (_, _, schema) = FILES.iter().find(|(file, ..)| *file == name).expect("a schema with this name");
    assert!(!schema.is_valid(&json), "docs/protocol/{name}.schema.json accepts {json}");
}

#[test]
fn reader_and_schema_refuse_the_same() {
    let report = json!({ "occurrenceId": OCCURRENCE_ID, "instanceId": "w-1", "status": 2, "timestamp": LATER_TIME });
    let job = json!({
        "occurrenceId": OCCURRENCE_ID, "jobId": JOB_ID, "jobType": "send", "correlationId": OCCURRENCE_ID,
        "scheduledFor": DUE_TIME, "timestamp": LATER_TIME,
    });
    let with = |json: &Value, field: &str, value: Value| {
        let mut json = json.clone();
        json[field] = value;
        json
    };
    let without = |json: &Value, field: &str| {
        let mut json = json.clone();
        json.as_object_mut().expect("a JSON object").remove(field);
        json
    };
    for field in ["occurrenceId", "instanceId", "status", "timestamp"] {
        refused::<StatusReport>("status-report", without(&report, field));
        refused::<StatusMessage>("status-message", json!({ "reports": [without(&report, field)] }));
        refused::<StatusMessage>("status-message", without(&report, field));
    }
    for (field, value) in [
        ("status", json!(8)),
        ("status", json!("Completed")),
        ("occurrenceId", json!("7")),
        ("attempt", json!(-1)),
        ("durationMs", json!(1.5)),
        ("progress", json!({ "percent": "7" })),
    ] {
        refused::<StatusReport>("status-report", with(&report, field, value));
    }
    for field in ["occurrenceId", "jobId", "jobType", "correlationId", "scheduledFor", "timestamp"] {
        refused::<JobMessage>("job-message", without(&job, field));
    }
    refused::<JobMessage>("job-message", with(&job, "timeoutSeconds", json!("90")));
    refused::<LogMessage>("log-message", json!({ "occurrenceId": OCCURRENCE_ID }));
    let line = json!({ "seq": 1_000_000, "at": LATER_TIME, "message": "x", "level": "loud" });
    refused::<LogMessage>("log-message", json!({ "occurrenceId": OCCURRENCE_ID, "lines": [line] }));
    refused::<CancelMessage>("cancel-message", json!({ "attempt": 1 }));
    refused::<ClaimRequest>("claim-request", json!({ "occurrenceId": OCCURRENCE_ID, "attempt": 1 }));
    refused::<ClaimReply>("claim-reply", json!({ "occurrenceId": OCCURRENCE_ID, "attempt": 1 }));
    let denied = json!({ "occurrenceId": OCCURRENCE_ID, "attempt": 1, "granted": false, "reason": "later" });
    refused::<ClaimReply>("claim-reply", denied);
    for wrong in
        [json!({ "kind": "hello" }), json!({ "kind": "bye", "instanceId": "w-1" }), json!({ "kind": "goodbye" })]
    {
        refused::<RegistrationMessage>("registration-message", wrong);
    }
}
