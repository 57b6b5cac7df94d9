//! The schemas in `docs/protocol`, from which workers in other languages are written: they are what the types make of
//! themselves, they take every golden, and they refuse what a reader refuses.

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

use crate::{DUE_TIME, JOB_ID, LATER_TIME, OCCURRENCE_ID, golden, least, occurrence};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/protocol/{name}.schema.json"))
}

/// Each schema as it is checked in, by its name and by that of its type.
static FILES: LazyLock<Vec<(&str, String, Validator)>> = LazyLock::new(|| {
    let files = schema::all().into_iter().map(|(name, made)| {
        let title = made["title"].as_str().expect("a schema has its type's name").to_owned();
        let text = fs::read_to_string(path(name)).unwrap_or_else(|_| made.to_string());
        let file = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, title, jsonschema::validator_for(&file).unwrap_or_else(|error| panic!("{name}: {error}")))
    });
    files.collect()
});

/// Checks a golden against the schema of its type, if it has one of its own.
#[track_caller]
pub(crate) fn take<T>(json: &Value) {
    let name = std::any::type_name::<T>();
    let name = name.rsplit("::").next().unwrap_or(name);
    if let Some((file, _, schema)) = FILES.iter().find(|(_, title, _)| title == name) {
        let wrong: Vec<String> = schema.iter_errors(json).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "docs/protocol/{file}.schema.json refuses {json:#}: {wrong:?}");
    }
}

#[test]
fn the_checked_in_schemas_are_what_the_types_say() {
    let update = std::env::var_os("UPDATE_SCHEMAS").is_some();
    for (name, made) in schema::all() {
        if update {
            fs::write(path(name), format!("{made:#}\n")).expect("the file can be written");
        }
        let file = fs::read_to_string(path(name)).unwrap_or_default();
        assert!(
            serde_json::from_str::<Value>(&file).is_ok_and(|file| file == made),
            "docs/protocol/{name}.schema.json is not what the type says: run UPDATE_SCHEMAS=1 cargo test -p protocol \
             --test wire, and read what changed: it is a contract"
        );
    }
    let there = fs::read_dir(path("x").parent().expect("a folder")).expect("it can be read");
    let there = there
        .filter(|file| file.as_ref().is_ok_and(|file| file.file_name().to_string_lossy().ends_with(".schema.json")));
    assert_eq!(there.count(), schema::all().len(), "a schema that nothing makes is in docs/protocol");
}

#[test]
fn the_manual_names_every_schema_and_its_examples_hold() {
    let manual = fs::read_to_string(path("x").with_file_name("README.md")).expect("the manual can be read");
    let mut shown = 0;
    for (name, _, schema) in FILES.iter() {
        let link = format!("({name}.schema.json)");
        assert!(manual.contains(&link), "docs/protocol/README.md does not link to {name}.schema.json");
        // An example stands in a block of its own, right below a comment that names its schema.
        for example in manual.split(&format!("<!-- {name} -->\n```json\n")).skip(1) {
            let text = example.split("```").next().unwrap_or_default();
            let json = serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error} in {text}"));
            let wrong: Vec<String> = schema.iter_errors(&json).map(|error| error.to_string()).collect();
            assert!(wrong.is_empty(), "the example of {name} is none: {wrong:?}\n{text}");
            shown += 1;
        }
        assert!(manual.contains(&format!("<!-- {name} -->\n```json\n")), "{name} has no example in docs/protocol");
    }
    assert_eq!(shown, manual.matches("```json").count(), "every example is checked against a schema");
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
    least(json!({}), &DeadLetterHeaders { cause: None, deaths: Vec::new() });
    // The names are written twice, for an attribute cannot hold a constant.
    let told = serde_json::to_string(&schema::all()).expect("it can be written");
    for name in [
        topology::HEADER_RETRY_COUNT,
        topology::HEADER_MAX_RETRIES,
        topology::HEADER_CORRELATION_ID,
        topology::HEADER_REPUBLISH,
        topology::HEADER_CAUSE,
    ] {
        assert!(told.contains(&format!("\"{name}\":{{")), "no schema tells of the header {name}");
    }
}

/// Checks that both the reader and the schema refuse something.
#[track_caller]
fn refused<T: DeserializeOwned>(name: &str, json: Value) {
    assert!(serde_json::from_str::<T>(&json.to_string()).is_err(), "the reader takes {json}");
    let (_, _, schema) = FILES.iter().find(|(file, ..)| *file == name).expect("there is such a schema");
    assert!(!schema.is_valid(&json), "docs/protocol/{name}.schema.json takes {json}");
}

#[test]
fn what_a_reader_refuses_its_schema_refuses() {
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
        json.as_object_mut().expect("an object").remove(field);
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
