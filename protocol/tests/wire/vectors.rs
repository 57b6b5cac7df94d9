//! The vectors in `docs/protocol/vectors`: messages with the verdict of their reader. Authors of other implementations run
//! them against theirs; this test runs them against the readers of this crate and against the schemas.
//!
//! *accept*: the message is read whole. *partly*: what is listed in `leftOut` is left out, and the rest counts. *reject*:
//! nothing of the message counts. A body with `padTo` has blanks after it up to that many bytes. A message with
//! `schemaAccepts` that is not accepted breaks a rule that the schema does not express.

use std::fs;

use milvaion_protocol::{
    mend,
    message::{
        CancelMessage, ClaimReply, ClaimRequest, HelloReply, IngestMessage, IngestReply, JobBundle, JobMessage,
        RegistrationMessage, StatusReport,
    },
    reading::{LogReading, StatusReading},
    schema::{self, DeadLetterHeaders, JobHeaders},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{LATER_TIME, at, schemas};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VectorFile {
    message: String,
    accept: Vec<Vector>,
    #[serde(default)]
    partly: Vec<Vector>,
    reject: Vec<Vector>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Vector {
    name: String,
    /// The message as JSON.
    body: Option<Value>,
    /// The message as text, if it is no JSON.
    text: Option<String>,
    #[serde(default)]
    pad_to: usize,
    /// The field that the reader names in its reason.
    field: Option<String>,
    #[serde(default)]
    left_out: Vec<String>,
    #[serde(default)]
    schema_accepts: bool,
    /// The level that the reader takes from a log line.
    level: Option<String>,
}

impl Vector {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = match (&self.body, &self.text) {
            (Some(body), None) => body.to_string().into_bytes(),
            (None, Some(text)) => text.clone().into_bytes(),
            _ => panic!("{}: a vector has a body or a text", self.name),
        };
        bytes.resize(bytes.len().max(self.pad_to), b' ');
        bytes
    }
}

/// The verdict of a reader.
enum Verdict {
    Accepted { level: Option<String> },
    LeftOut(Vec<String>),
    Rejected(String),
}

fn verdict(message: &str, bytes: &[u8]) -> Verdict {
    fn plain<T: DeserializeOwned>(bytes: &[u8]) -> Verdict {
        let parsed = mend::check_size(bytes).map_err(|problem| problem.to_string());
        match parsed.and_then(|()| serde_json::from_slice::<T>(bytes).map_err(|error| error.to_string())) {
            Ok(_) => Verdict::Accepted { level: None },
            Err(reason) => Verdict::Rejected(reason),
        }
    }
    match message {
        "job-message" => plain::<JobMessage>(bytes),
        "job-bundle" => plain::<JobBundle>(bytes),
        "job-headers" => plain::<JobHeaders>(bytes),
        "registration-message" => plain::<RegistrationMessage>(bytes),
        "cancel-message" => plain::<CancelMessage>(bytes),
        "claim-request" => plain::<ClaimRequest>(bytes),
        "claim-reply" => plain::<ClaimReply>(bytes),
        "hello-reply" => plain::<HelloReply>(bytes),
        "ingest-message" => plain::<IngestMessage>(bytes),
        "ingest-reply" => plain::<IngestReply>(bytes),
        "dead-letter-headers" => plain::<DeadLetterHeaders>(bytes),
        "status-message" | "status-report" => {
            let StatusReading { reports, unreadable } = StatusReading::of(bytes, None, at(LATER_TIME));
            if let Some(first) = unreadable.first()
                && reports.is_empty()
            {
                return Verdict::Rejected(first.problem.to_string());
            }
            let lost = unreadable.into_iter().map(|unreadable| unreadable.problem.field);
            let left_out = reports.into_iter().flat_map(|(_, problems)| problems).map(|problem| problem.field);
            let left_out: Vec<String> = lost.chain(left_out).collect();
            if left_out.is_empty() { Verdict::Accepted { level: None } } else { Verdict::LeftOut(left_out) }
        }
        "log-message" => match LogReading::of(bytes, at(LATER_TIME)) {
            Err(problem) => Verdict::Rejected(problem.to_string()),
            Ok(reading) if reading.problems.is_empty() => {
                let level = reading.message.lines.first().map(|line| line.level.as_str().to_owned());
                Verdict::Accepted { level }
            }
            Ok(reading) => Verdict::LeftOut(reading.problems.into_iter().map(|problem| problem.field).collect()),
        },
        other => panic!("{other} has vectors and no reader in this test"),
    }
}

fn check(file: &VectorFile) -> Vec<String> {
    let mut wrong = Vec::new();
    let message = file.message.as_str();
    let is_valid = |vector: &Vector| vector.body.as_ref().is_some_and(|body| schemas::is_valid(message, body));
    for vector in &file.accept {
        match verdict(message, &vector.bytes()) {
            Verdict::Accepted { level } if vector.level.is_none() || vector.level == level => {}
            Verdict::Accepted { level } => wrong.push(format!("{}: the level is {level:?}", vector.name)),
            Verdict::LeftOut(fields) => wrong.push(format!("{}: left out {fields:?}", vector.name)),
            Verdict::Rejected(reason) => wrong.push(format!("{}: rejected: {reason}", vector.name)),
        }
        if !is_valid(vector) {
            wrong.push(format!("{}: the schema refuses it", vector.name));
        }
    }
    for vector in &file.partly {
        match verdict(message, &vector.bytes()) {
            // The server reads these in parts, and runs the same vectors.
            _ if matches!(message, "registration-message" | "ingest-message") => {}
            Verdict::LeftOut(fields) if fields == vector.left_out => {}
            Verdict::LeftOut(fields) => wrong.push(format!("{}: left out {fields:?}", vector.name)),
            Verdict::Accepted { .. } => wrong.push(format!("{}: accepted", vector.name)),
            Verdict::Rejected(reason) => wrong.push(format!("{}: rejected: {reason}", vector.name)),
        }
        if is_valid(vector) != vector.schema_accepts {
            wrong.push(format!("{}: the schema accepts it: {}", vector.name, is_valid(vector)));
        }
    }
    for vector in &file.reject {
        if !matches!(verdict(message, &vector.bytes()), Verdict::Rejected(_)) {
            wrong.push(format!("{}: not rejected", vector.name));
        }
        if is_valid(vector) != vector.schema_accepts {
            wrong.push(format!("{}: the schema accepts it: {}", vector.name, is_valid(vector)));
        }
        if vector.field.is_none() {
            wrong.push(format!("{}: a rejected message names its field", vector.name));
        }
    }
    wrong
}

#[test]
fn readers_and_schemas_agree_with_the_vectors() {
    let folder = schemas::path("x").with_file_name("vectors");
    for (name, _) in schema::all() {
        let text = fs::read_to_string(folder.join(format!("{name}.json"))).expect("each message has vectors");
        let file: VectorFile = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(file.message, name);
        assert_eq!(check(&file), Vec::<String>::new(), "docs/protocol/vectors/{name}.json");
    }
    assert_eq!(fs::read_dir(folder).expect("readable").count(), schema::all().len(), "a file has no message");
}

#[test]
fn unreadable_report_names_the_field_of_the_vector() {
    let folder = schemas::path("x").with_file_name("vectors");
    let text = fs::read_to_string(folder.join("status-report.json")).expect("readable");
    let file: VectorFile = serde_json::from_str(&text).expect("valid");
    for vector in &file.reject {
        let body = vector.body.clone().expect("a report is JSON");
        let unreadable = StatusReport::read_in_parts(body, None, at(LATER_TIME)).expect_err("rejected");
        assert_eq!(Some(unreadable.problem.field), vector.field, "{}", vector.name);
    }
}
