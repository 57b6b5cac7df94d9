//! Reads the messages of a worker strictly: against the JSON Schema first, because its complaints name the field, and then
//! as the type that the server reads.
//!
//! A whole number with a fraction of zero, such as `12.0`, is a whole number for JSON Schema and for the server, and is read
//! as one.

use jsonschema::Validator;
use milvaion_protocol::{
    message::{ClaimRequest, LogMessage, RegistrationMessage, StatusMessage, StatusReport},
    schema,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// The largest integer below which a double represents every whole number.
const EXACT_INTEGERS: f64 = 9_007_199_254_740_992.0;

/// The validators of the messages that a worker sends.
pub(crate) struct MessageReader {
    report: Validator,
    lines: Validator,
    claim: Validator,
    registrations: Vec<(String, Validator)>,
}

impl MessageReader {
    /// Compiles the schemas.
    ///
    /// # Errors
    /// Returns a sentence if a schema is missing or invalid, which is a defect of this program.
    pub(crate) fn new() -> Result<Self, String> {
        let all = schema::all();
        let named = |name: &str| {
            let found = all.iter().find(|(one, _)| *one == name).map(|(_, schema)| schema.clone());
            found.ok_or_else(|| format!("The schema {name} is missing."))
        };
        Ok(Self {
            report: compile(&named("status-report")?)?,
            lines: compile(&named("log-message")?)?,
            claim: compile(&named("claim-request")?)?,
            registrations: variants(&named("registration-message")?)?,
        })
    }

    /// Reads a message of the status queue.
    pub(crate) fn reports(&self, body: &[u8]) -> Result<Vec<StatusReport>, String> {
        let body = parse(body)?;
        let reports: Vec<&Value> = match body.get("reports") {
            Some(Value::Array(reports)) => reports.iter().collect(),
            Some(_) => return Err("reports is no list".to_owned()),
            None => vec![&body],
        };
        for report in reports {
            check(&self.report, report)?;
        }
        read::<StatusMessage>(body).map(StatusMessage::into_reports)
    }

    /// Reads a message of the log queue.
    pub(crate) fn lines(&self, body: &[u8]) -> Result<LogMessage, String> {
        let body = parse(body)?;
        check(&self.lines, &body)?;
        read(body)
    }

    /// Reads a claim check.
    pub(crate) fn claim(&self, body: &[u8]) -> Result<ClaimRequest, String> {
        let body = parse(body)?;
        check(&self.claim, &body)?;
        read(body)
    }

    /// Reads a message of the registration queue.
    pub(crate) fn registration(&self, body: &[u8]) -> Result<RegistrationMessage, String> {
        let body = parse(body)?;
        let kind = body.get("kind").and_then(Value::as_str).unwrap_or_default();
        let known = self.registrations.iter().find(|(name, _)| name == kind);
        let (_, validator) = known.ok_or_else(|| format!("kind is {kind:?}, not hello, heartbeat or goodbye"))?;
        check(validator, &body)?;
        read(body)
    }
}

/// Returns a validator for each kind of a message with alternatives, because the complaint about a message that fits none of
/// them would not name its field.
fn variants(schema: &Value) -> Result<Vec<(String, Validator)>, String> {
    let alternatives = schema.get("oneOf").and_then(Value::as_array).ok_or("The schema has no alternatives.")?;
    let mut kinds = Vec::new();
    for alternative in alternatives {
        let kind = alternative.pointer("/properties/kind/const").and_then(Value::as_str);
        let mut whole: Map<String, Value> = alternative.as_object().cloned().unwrap_or_default();
        if let Some(shared) = schema.get("$defs") {
            whole.insert("$defs".to_owned(), shared.clone());
        }
        kinds.push((kind.unwrap_or_default().to_owned(), compile(&Value::Object(whole))?));
    }
    Ok(kinds)
}

fn compile(schema: &Value) -> Result<Validator, String> {
    jsonschema::validator_for(schema).map_err(|error| format!("A schema is invalid: {error}."))
}

fn parse(body: &[u8]) -> Result<Value, String> {
    let mut value = serde_json::from_slice(body).map_err(|error| format!("it is not JSON: {error}"))?;
    make_whole(&mut value);
    Ok(value)
}

fn check(validator: &Validator, value: &Value) -> Result<(), String> {
    let Some(error) = validator.iter_errors(value).next() else { return Ok(()) };
    let path = error.instance_path().to_string();
    let field = if path.is_empty() { "the message".to_owned() } else { path.trim_start_matches('/').replace('/', ".") };
    let mut reason = error.to_string();
    if reason.len() > 300 {
        reason.truncate(reason.floor_char_boundary(300));
        reason.push('…');
    }
    Err(format!("{field}: {reason}"))
}

fn read<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}

/// Replaces whole numbers that are written with a fraction of zero.
fn make_whole(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let float = number.as_f64().filter(|_| number.is_f64());
            if let Some(float) = float.filter(|float| float.fract() == 0.0 && float.abs() < EXACT_INTEGERS) {
                #[expect(clippy::cast_possible_truncation, reason = "it is a whole number within the range")]
                let whole = float as i64;
                *value = json!(whole);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_whole),
        Value::Object(fields) => fields.values_mut().for_each(make_whole),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(duration: &str) -> Vec<u8> {
        format!(
            r#"{{"reports":[{{"occurrenceId":"019a9b3f-7c00-7abc-8def-0123456789ab","attempt":1,"instanceId":"w-1","status":2,
            "timestamp":"2026-11-21T09:00:00Z","durationMs":{duration}}}]}}"#
        )
        .into_bytes()
    }

    #[test]
    fn whole_number_with_a_fraction_of_zero_is_read() {
        let reader = MessageReader::new().expect("the schemas are valid");
        assert_eq!(reader.reports(&report("12.0")).expect("readable")[0].duration_ms, Some(12));
    }

    #[test]
    fn complaint_names_the_field() {
        let reader = MessageReader::new().expect("the schemas are valid");
        let complaint = reader.reports(&report("\"12 ms\"")).expect_err("a text is no number");
        assert!(complaint.starts_with("durationMs: "), "{complaint}");
        let heartbeat =
            br#"{"kind":"heartbeat","workerId":"a b","instanceId":"w-1","timestamp":"2026-11-21T09:00:00Z"}"#;
        let complaint = reader.registration(heartbeat).expect_err("a worker id has no blank");
        assert!(complaint.starts_with("workerId: "), "{complaint}");
    }
}
