//! Reads the messages of workers part by part.
//!
//! A report settles a run. If a detail of it cannot be read, such as a duration that is a text, the status must be settled
//! all the same: otherwise a successful run counts as lost and is started again. So a report is read strictly only in the
//! fields that say what happened to which attempt: occurrence, attempt, instance and status. A time that cannot be read is
//! that of the arrival, and an instance that is not named is the sender of the message. Any other field that cannot be read
//! is left out. Each is named, so that the author of the worker learns of it. A log message is read line by line.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{
    id::OccurrenceId,
    mend,
    message::{LogLine, LogMessage, RunProgress, StatusReport},
    status::OccurrenceStatus,
};

/// The maximum length of the reason in a problem, in characters.
const MAX_REASON_CHARS: usize = 200;

/// A field that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadProblem {
    /// The path of the field, such as `durationMs` or `lines[3].seq`. Empty if the message is not a JSON object.
    pub field: String,
    /// The reason.
    pub reason: String,
}

impl ReadProblem {
    pub(crate) fn new(field: impl Into<String>, reason: impl fmt::Display) -> Self {
        let mut reason = reason.to_string();
        if let Some((end, _)) = reason.char_indices().nth(MAX_REASON_CHARS) {
            reason.truncate(end);
            reason.push('…');
        }
        Self { field: field.into(), reason }
    }
}

impl fmt::Display for ReadProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() { f.write_str(&self.reason) } else { write!(f, "{}: {}", self.field, self.reason) }
    }
}

/// A report of which no status could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableReport {
    /// The occurrence that it names, if that could be read.
    pub occurrence_id: Option<OccurrenceId>,
    /// The attempt that it names, if that could be read.
    pub attempt: Option<u32>,
    /// The instance that it names, if that could be read.
    pub instance_id: Option<String>,
    /// The field and the reason.
    pub problem: ReadProblem,
}

impl UnreadableReport {
    fn of_body(error: impl fmt::Display) -> Self {
        let problem = ReadProblem::new("", error);
        Self { occurrence_id: None, attempt: None, instance_id: None, problem }
    }
}

/// The reports in a body of the status queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusReading {
    /// The reports that settle a status, in their order, each with the fields that were left out.
    pub reports: Vec<(StatusReport, Vec<ReadProblem>)>,
    /// The reports that could not be read.
    pub unreadable: Vec<UnreadableReport>,
}

impl StatusReading {
    /// Reads a body: a list of reports, or a single one. It arrived at `now`, from the instance `sender` if its properties
    /// name one.
    #[must_use]
    pub fn of(body: &[u8], sender: Option<&str>, now: DateTime<Utc>) -> Self {
        #[derive(Deserialize)]
        struct ReportBatch {
            reports: Vec<StatusReport>,
        }
        let mut reading = Self::default();
        // The form of nearly every body.
        if mend::check_size(body).is_ok()
            && let Ok(ReportBatch { reports }) = serde_json::from_slice(body)
        {
            reading.reports = reports.into_iter().map(|report| (report, Vec::new())).collect();
            return reading;
        }
        let (mut message, mut mended) = match mend::parse(body) {
            Ok(parsed) => parsed,
            Err(problem) => {
                reading.unreadable.push(UnreadableReport { problem, ..UnreadableReport::of_body("") });
                return reading;
            }
        };
        let reports = match message.get_mut("reports").map(Value::take) {
            None => vec![message],
            Some(Value::Array(reports)) => reports,
            Some(_) => {
                reading.unreadable.push(UnreadableReport::of_body("reports: expected a list"));
                return reading;
            }
        };
        // The parser does not say which reports have the characters that were replaced. One that shows them has.
        let is_mended = |report: &Value| report.to_string().contains(char::REPLACEMENT_CHARACTER);
        let blamed = mended.is_some().then(|| reports.iter().position(is_mended).unwrap_or(0));
        for (index, report) in reports.into_iter().enumerate() {
            match StatusReport::read_in_parts(report, sender, now) {
                Ok((report, mut problems)) => {
                    problems.extend(mended.take_if(|_| blamed == Some(index)));
                    reading.reports.push((report, problems));
                }
                Err(unreadable) => reading.unreadable.push(unreadable),
            }
        }
        reading
    }
}

impl StatusReport {
    /// Reads a report that arrived at `now` from the instance `sender`, and leaves out the details that cannot be read.
    ///
    /// # Errors
    ///
    /// Returns the first of the fields occurrence, attempt, instance and status that cannot be read.
    pub fn read_in_parts(
        report: Value,
        sender: Option<&str>,
        now: DateTime<Utc>,
    ) -> Result<(Self, Vec<ReadProblem>), UnreadableReport> {
        #[derive(Deserialize)]
        struct Attempt(#[serde(deserialize_with = "crate::lenient::attempt")] u32);

        let Value::Object(fields) = report else {
            return Err(UnreadableReport::of_body("a report is a JSON object"));
        };
        let mut reader = FieldReader { fields, problems: Vec::new() };
        let occurrence_id = reader.required::<OccurrenceId>("occurrenceId");
        let attempt = match reader.fields.contains_key("attempt") {
            true => reader.required::<Attempt>("attempt").map(|attempt| attempt.0),
            false => Some(1),
        };
        let status = reader.required::<OccurrenceStatus>("status");
        let instance_id = reader.required::<String>("instanceId").or_else(|| sender.map(str::to_owned));
        let timestamp = reader.required::<DateTime<Utc>>("timestamp").unwrap_or(now);
        let (Some(id), Some(number), Some(instance), Some(status)) = (occurrence_id, attempt, &instance_id, status)
        else {
            let problem = reader.problems.into_iter().next();
            let problem = problem.unwrap_or_else(|| ReadProblem::new("", "the report cannot be read"));
            return Err(UnreadableReport { occurrence_id, attempt, instance_id, problem });
        };
        let mut read = Self::new(id, number, instance.clone(), status, timestamp);
        read.result = reader.text("result");
        read.exception = reader.text("exception");
        read.duration_ms = reader.optional::<Milliseconds>("durationMs").map(|ms| ms.0);
        read.progress = reader.optional::<RunProgress>("progress");
        read.permanent = reader.optional::<bool>("permanent").unwrap_or_default();
        read.retry_after_ms = reader.optional::<Milliseconds>("retryAfterMs").map(|ms| ms.0);
        read.traceparent = reader.optional::<String>("traceparent");
        read.checkpoint = reader.optional::<Value>("checkpoint");
        read.is_incomplete = reader.problems.iter().any(|problem| matches!(&*problem.field, "timestamp" | "progress"));
        Ok((read, reader.problems))
    }
}

/// A measured time, rounded.
struct Milliseconds(u64);

impl<'de> Deserialize<'de> for Milliseconds {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::lenient::rounded(deserializer).map(|ms| Self(ms.unwrap_or_default()))
    }
}

/// Reads the fields of an object one by one.
struct FieldReader {
    fields: Map<String, Value>,
    problems: Vec<ReadProblem>,
}

impl FieldReader {
    /// Reads a field that must be there.
    fn required<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        let Some(value) = self.fields.remove(name) else {
            self.problems.push(ReadProblem::new(name, "the field is missing"));
            return None;
        };
        self.read(name, value)
    }

    /// Reads a field; one that is missing or null has no value.
    fn optional<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        let value = self.fields.remove(name).filter(|value| !value.is_null())?;
        self.read(name, value)
    }

    /// Reads a text. Any other value is taken as its JSON, and named all the same.
    fn text(&mut self, name: &str) -> Option<String> {
        match self.fields.remove(name)? {
            Value::Null => None,
            Value::String(text) => Some(text),
            other => {
                self.problems.push(ReadProblem::new(name, "expected a text, and took the JSON of the value"));
                Some(other.to_string())
            }
        }
    }

    fn read<T: DeserializeOwned>(&mut self, name: &str, value: Value) -> Option<T> {
        match serde_json::from_value(value) {
            Ok(value) => Some(value),
            Err(error) => {
                self.problems.push(ReadProblem::new(name, error));
                None
            }
        }
    }
}

/// The lines in a body of the log queue.
#[derive(Clone, Debug, PartialEq)]
pub struct LogReading {
    /// The occurrence with the lines that could be read.
    pub message: LogMessage,
    /// The lines that were left out, as `lines[3].seq`; without a field if characters in the message were replaced.
    pub problems: Vec<ReadProblem>,
}

impl LogReading {
    /// Reads a body. A line needs only its number: a message that is no text becomes its JSON, and a time that is missing or
    /// unreadable is that of the arrival, `now`.
    ///
    /// # Errors
    ///
    /// Returns the problem if the occurrence or the list of lines cannot be read.
    pub fn of(body: &[u8], now: DateTime<Utc>) -> Result<Self, ReadProblem> {
        mend::check_size(body)?;
        if let Ok(message) = serde_json::from_slice(body) {
            return Ok(Self { message, problems: Vec::new() });
        }
        let (message, mended) = mend::parse(body)?;
        let Value::Object(fields) = message else {
            return Err(ReadProblem::new("", "a log message is a JSON object"));
        };
        let mut reader = FieldReader { fields, problems: Vec::new() };
        let occurrence_id = reader.required::<OccurrenceId>("occurrenceId");
        let lines = reader.required::<Vec<Value>>("lines");
        let (Some(occurrence_id), Some(lines)) = (occurrence_id, lines) else {
            let problem = reader.problems.into_iter().next();
            return Err(problem.unwrap_or_else(|| ReadProblem::new("", "the log message cannot be read")));
        };
        let (mut read, mut problems) = (Vec::with_capacity(lines.len()), Vec::from_iter(mended));
        for (index, line) in lines.into_iter().enumerate() {
            match read_line(line, now) {
                Ok(line) => read.push(line),
                Err(problem) => {
                    let dot = if problem.field.is_empty() { "" } else { "." };
                    let field = format!("lines[{index}]{dot}{}", problem.field);
                    problems.push(ReadProblem { field, ..problem });
                }
            }
        }
        Ok(Self { message: LogMessage { occurrence_id, lines: read }, problems })
    }
}

fn read_line(line: Value, now: DateTime<Utc>) -> Result<LogLine, ReadProblem> {
    let Value::Object(mut fields) = line else {
        return Err(ReadProblem::new("", "a line is a JSON object"));
    };
    if fields.get("at").is_none_or(|at| DateTime::<Utc>::deserialize(at).is_err()) {
        fields.insert("at".into(), Value::String(now.to_rfc3339()));
    }
    let message = match fields.remove("message") {
        Some(Value::String(text)) => text,
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    };
    fields.insert("message".into(), Value::String(message));
    // Everything but the number is readable by now.
    if !fields.contains_key("seq") {
        return Err(ReadProblem::new("seq", "the field is missing"));
    }
    serde_json::from_value(Value::Object(fields)).map_err(|error| ReadProblem::new("seq", error))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ID: &str = "019a9b3f-7c00-7abc-8def-0123456789ab";

    fn report(field: &str, value: Value) -> Value {
        let mut report = json!({
            "occurrenceId": ID, "attempt": 2, "instanceId": "w-1", "status": 2, "timestamp": "2026-11-21T09:00:00Z",
        });
        report[field] = value;
        report
    }

    fn read(body: &Value) -> StatusReading {
        StatusReading::of(body.to_string().as_bytes(), None, now())
    }

    fn now() -> DateTime<Utc> {
        "2026-11-21T10:00:00Z".parse().expect("an instant")
    }

    #[test]
    fn unreadable_detail_does_not_cost_the_status() {
        for (field, value) in [
            ("durationMs", json!("12 s")),
            ("durationMs", json!(-5)),
            ("progress", json!({ "percent": "7" })),
            ("permanent", json!("no")),
            ("retryAfterMs", json!([1])),
            ("traceparent", json!(7)),
        ] {
            let reading = read(&report(field, value.clone()));
            let (read, problems) = &reading.reports[0];
            assert_eq!((read.status, read.attempt), (OccurrenceStatus::Completed, 2), "{field} {value}");
            assert_eq!(problems.len(), 1, "{field} {value}");
            assert_eq!(problems[0].field, field);
        }
        let reading = read(&report("result", json!({ "sent": 3 })));
        assert_eq!(reading.reports[0].0.result.as_deref(), Some("{\"sent\":3}"));
        assert_eq!(reading.reports[0].1.len(), 1, "it is named all the same");
    }

    #[test]
    fn time_and_instance_come_from_the_delivery_if_the_report_has_none() {
        for value in [json!("2026-11-21T09:00:00"), json!(1_795_251_600), Value::Null] {
            let reading = read(&report("timestamp", value));
            let (read, problems) = &reading.reports[0];
            assert_eq!((read.status, read.timestamp), (OccurrenceStatus::Completed, now()));
            assert_eq!(problems.iter().map(|problem| problem.field.as_str()).collect::<Vec<_>>(), ["timestamp"]);
        }
        let body = report("instanceId", Value::Null).to_string();
        let reading = StatusReading::of(body.as_bytes(), Some("w-2"), now());
        assert_eq!((reading.reports[0].0.instance_id.as_str(), reading.reports[0].1.len()), ("w-2", 1));
        let reading = StatusReading::of(body.as_bytes(), None, now());
        assert_eq!(reading.unreadable[0].problem.field, "instanceId", "no instance is known");
    }

    #[test]
    fn unreadable_report_names_its_field_and_its_run() {
        for (field, value) in [("status", json!("Completed")), ("attempt", json!("2"))] {
            let reading = read(&json!({ "reports": [report(field, value), report("attempt", json!(2.0))] }));
            assert_eq!(reading.reports.len(), 1, "the other report is read");
            let unreadable = &reading.unreadable[0];
            assert_eq!(unreadable.problem.field, field);
            assert_eq!(unreadable.attempt, (field == "status").then_some(2));
            assert_eq!(unreadable.instance_id.as_deref(), Some("w-1"));
            assert_eq!(unreadable.occurrence_id.map(|id| id.to_string()).as_deref(), Some(ID));
        }
        let lone = read(&report("attempt", json!(0)));
        assert_eq!(lone.unreadable[0].problem.to_string(), "attempt: invalid value: attempts are counted from 1");
        for body in ["", "7", "{\"reports\": 7}"] {
            let reading = StatusReading::of(body.as_bytes(), None, now());
            assert_eq!((reading.reports.len(), reading.unreadable.len()), (0, 1), "{body}");
        }
    }

    #[test]
    fn half_of_a_character_does_not_cost_the_message() {
        let bodies = [report("result", json!("fine")), report("result", json!("cut CUT"))];
        let body = json!({ "reports": bodies }).to_string().replace("CUT", "\\ud83d");
        let StatusReading { reports, unreadable } = StatusReading::of(body.as_bytes(), None, now());
        assert_eq!((reports.len(), unreadable.len()), (2, 0));
        assert_eq!(reports[0].1, [], "the problem is named at the report that has it");
        assert_eq!((reports[1].0.result.as_deref(), reports[1].1.len()), (Some("cut \u{fffd}"), 1));
        let body = report("checkpoint", json!({ "rate": "CUT" })).to_string().replace("\"CUT\"", "NaN");
        let reading = StatusReading::of(body.as_bytes(), None, now());
        assert_eq!(reading.reports[0].0.checkpoint, Some(json!({ "rate": null })));
        assert_eq!(reading.reports[0].1.len(), 1);
        let line = format!("{{\"occurrenceId\":\"{ID}\",\"lines\":[{{\"seq\":1,\"message\":\"\\ud83d\"}}]}}");
        let LogReading { message, problems } = LogReading::of(line.as_bytes(), now()).expect("readable");
        assert_eq!((&*message.lines[0].message, problems.len()), ("\u{fffd}", 1));
    }

    #[test]
    fn message_above_the_maximum_is_dropped() {
        let mut body = report("result", json!("fine")).to_string().into_bytes();
        body.resize(crate::message::MAX_MESSAGE_BYTES + 1, b' ');
        let reading = StatusReading::of(&body, None, now());
        assert_eq!((reading.reports.len(), reading.unreadable.len()), (0, 1));
        assert!(LogReading::of(&body, now()).is_err());
    }

    #[test]
    fn bad_line_costs_only_itself() {
        let now = now();
        let body = json!({ "occurrenceId": ID, "lines": [
            { "seq": 1_000_000, "at": "2026-11-21T09:00:00Z", "message": "good" },
            { "seq": 1_000_001.0, "at": "2026-11-21T09:00:00", "level": "FATAL", "message": { "code": 7 } },
            { "at": "2026-11-21T09:00:00Z", "message": "it has no number" },
            { "seq": "5", "message": "a text for a number" },
            "no object",
            { "seq": 1_000_002, "level": 40 },
        ]});
        let LogReading { message, problems } = LogReading::of(body.to_string().as_bytes(), now).expect("readable");
        let lines: Vec<_> = message.lines.iter().map(|line| (line.seq, line.level.as_str(), &*line.message)).collect();
        assert_eq!(lines, [(1_000_000, "info", "good"), (1_000_001, "error", "{\"code\":7}"), (1_000_002, "warn", "")]);
        assert_eq!([message.lines[1].at, message.lines[2].at], [now, now], "the time of arrival");
        let fields: Vec<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, ["lines[2].seq", "lines[3].seq", "lines[4]"]);
        let lost = LogReading::of(json!({ "lines": [] }).to_string().as_bytes(), now).expect_err("no occurrence");
        assert_eq!(lost.to_string(), "occurrenceId: the field is missing");
    }
}
