//! Reads the messages of workers part by part.
//!
//! A report settles a run. If a detail of it cannot be read, such as a duration that is a text, the status must be settled
//! all the same: otherwise a successful run counts as lost and is started again. So a report is read strictly only in the
//! fields that say what happened to which attempt: occurrence, attempt, instance and status. A time that cannot be read is
//! that of the arrival, and an instance that is not named is the sender of the message. Any other field that cannot be read
//! is left out. Each is named, so that the author of the worker learns of it. A log message is read line by line, and a
//! registration by job types and schedules.

use chrono::{DateTime, Utc};
use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeOwned},
};
use serde_json::{Map, Value, json};

pub use crate::mend::ReadProblem;
use crate::{
    id::OccurrenceId,
    mend,
    message::{LogLine, LogMessage, StatusMessage, StatusReport},
    status::OccurrenceStatus,
};

mod registration;

pub use registration::{HelloProblems, MAX_HELLO_PROBLEMS, RegistrationReading, UnreadableRegistration};

/// Reads an object, which a problem calls `noun`. If it cannot be read as a whole, it is read field by field: one that cannot
/// be read, or that `defaults` has and the object has not, is named and has its value in `defaults`.
fn in_parts<T: DeserializeOwned>(
    noun: &str,
    object: Value,
    defaults: Value,
) -> Result<(T, Vec<ReadProblem>), ReadProblem> {
    let Value::Object(fields) = object else {
        return Err(ReadProblem::new("", format!("{noun} is a JSON object")));
    };
    if let Ok(whole) = T::deserialize(&fields) {
        return Ok((whole, Vec::new()));
    }
    let needed = defaults.as_object().into_iter().flat_map(Map::keys);
    let missing = needed.filter(|name| !fields.contains_key(*name));
    let mut problems: Vec<_> = missing.map(|name| ReadProblem::new(name, "the field is missing")).collect();
    let mut readable = defaults.clone();
    for (name, value) in fields {
        let mut alone = defaults.clone();
        alone[&name] = value;
        match T::deserialize(&alone) {
            Ok(_) => readable[&name] = alone[&name].take(),
            Err(error) => problems.push(ReadProblem::new(name, error)),
        }
    }
    let read = T::deserialize(readable).map_err(|error| ReadProblem::new("", error))?;
    Ok((read, problems))
}

/// Takes the elements of a list, which are read one by one, out of an object.
fn take_list(object: &mut Value, field: &str) -> Vec<Value> {
    match object.get_mut(field) {
        Some(Value::Array(elements)) => std::mem::take(elements),
        _ => Vec::new(),
    }
}

/// Replaces a field that is no text by its JSON. Returns true if there was one.
fn make_text(object: &mut Value, field: &str) -> bool {
    match object.get_mut(field) {
        Some(value) if !value.is_string() && !value.is_null() => {
            *value = Value::String(value.to_string());
            true
        }
        _ => false,
    }
}

/// A report of which no status could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableReport {
    /// The occurrence that it names, if that could be read.
    pub occurrence_id: Option<OccurrenceId>,
    /// The attempt that it names, if that could be read.
    pub attempt: Option<u32>,
    /// The instance that it names, or else the sender of the message, if it is known.
    pub instance_id: Option<String>,
    /// The field and the reason.
    pub problem: ReadProblem,
}

impl UnreadableReport {
    fn of_body(problem: ReadProblem, sender: Option<&str>) -> Self {
        Self { occurrence_id: None, attempt: None, instance_id: sender.map(str::to_owned), problem }
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
        // The form of nearly every body.
        if mend::check_size(body).is_ok()
            && let Ok(ReportBatch { reports }) = serde_json::from_slice(body)
        {
            return Self {
                reports: reports.into_iter().map(|report| (report, Vec::new())).collect(),
                ..Self::default()
            };
        }
        match mend::parse(body) {
            Ok((message, mended)) => Self::of_message(message, mended, sender, now),
            Err(problem) => Self { unreadable: vec![UnreadableReport::of_body(problem, sender)], ..Self::default() },
        }
    }

    /// Reads a message. `mended` is the problem if characters in it were replaced.
    fn of_message(
        mut message: Value,
        mut mended: Option<ReadProblem>,
        sender: Option<&str>,
        now: DateTime<Utc>,
    ) -> Self {
        let mut reading = Self::default();
        let reports = match message.get_mut("reports").map(Value::take) {
            None => vec![message],
            Some(Value::Array(reports)) => reports,
            Some(_) => {
                let problem = ReadProblem::new("reports", "expected a list");
                reading.unreadable.push(UnreadableReport::of_body(problem, sender));
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

/// By hand: an untagged enum tries both forms and then names neither the field nor the reason.
impl<'de> Deserialize<'de> for StatusMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let message = Value::deserialize(deserializer)?;
        let is_batch = message.get("reports").is_some();
        let StatusReading { reports, unreadable } =
            StatusReading::of_message(message, None, None, DateTime::UNIX_EPOCH);
        let left_out = reports.iter().flat_map(|(_, problems)| problems);
        if let Some(problem) = unreadable.iter().map(|report| &report.problem).chain(left_out).next() {
            return Err(de::Error::custom(problem));
        }
        let mut reports: Vec<StatusReport> = reports.into_iter().map(|(report, _)| report).collect();
        match reports.pop() {
            Some(report) if !is_batch => Ok(Self::One(Box::new(report))),
            last => Ok(Self::Batch { reports: reports.into_iter().chain(last).collect() }),
        }
    }
}

impl StatusReport {
    /// Reads a report that arrived at `now` from the instance `sender`, and leaves out the details that cannot be read.
    ///
    /// # Errors
    ///
    /// Returns the first of the fields occurrence, attempt, status and instance that cannot be read.
    pub fn read_in_parts(
        mut report: Value,
        sender: Option<&str>,
        now: DateTime<Utc>,
    ) -> Result<(Self, Vec<ReadProblem>), UnreadableReport> {
        let texts = ["result", "exception"].into_iter().filter(|name| make_text(&mut report, name));
        let mut left_out: Vec<_> =
            texts.map(|name| ReadProblem::new(name, "expected a text, and took the JSON of the value")).collect();
        let defaults = json!({
            "occurrenceId": OccurrenceId::default(),
            "instanceId": sender.unwrap_or_default(),
            "status": OccurrenceStatus::Queued,
            "timestamp": now,
        });
        let (mut read, problems) = in_parts::<Self>("a report", report, defaults)
            .map_err(|problem| UnreadableReport::of_body(problem, sender))?;
        let found = |name: &str| problems.iter().find(|problem| problem.field == name);
        let instance = sender.is_none().then_some("instanceId");
        if let Some(problem) = ["occurrenceId", "attempt", "status"].into_iter().chain(instance).find_map(found) {
            return Err(UnreadableReport {
                occurrence_id: found("occurrenceId").is_none().then_some(read.occurrence_id),
                attempt: found("attempt").is_none().then_some(read.attempt),
                instance_id: Some(read.instance_id).filter(|id| !id.is_empty()),
                problem: problem.clone(),
            });
        }
        read.is_incomplete = found("timestamp").or(found("progress")).is_some();
        left_out.extend(problems);
        Ok((read, left_out))
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
        let (mut message, mended) = mend::parse(body)?;
        let lines = take_list(&mut message, "lines");
        let defaults = json!({ "occurrenceId": OccurrenceId::default(), "lines": [] });
        let (mut message, unreadable) = in_parts::<LogMessage>("a log message", message, defaults)?;
        if let Some(problem) = unreadable.into_iter().next() {
            return Err(problem);
        }
        let mut problems = Vec::from_iter(mended);
        for (index, line) in lines.into_iter().enumerate() {
            match read_line(line, now) {
                Ok(line) => message.lines.push(line),
                Err(problem) => {
                    let dot = if problem.field.is_empty() { "" } else { "." };
                    let field = format!("lines[{index}]{dot}{}", problem.field);
                    problems.push(ReadProblem { field, ..problem });
                }
            }
        }
        Ok(Self { message, problems })
    }
}

fn read_line(mut line: Value, now: DateTime<Utc>) -> Result<LogLine, ReadProblem> {
    make_text(&mut line, "message");
    let (read, problems) = in_parts("a line", line, json!({ "seq": 0, "at": now, "message": "" }))?;
    // Every other field has a default.
    problems.into_iter().find(|problem| problem.field == "seq").map_or(Ok(read), Err)
}

#[cfg(test)]
mod tests {
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
        for (field, value) in
            [("durationMs", json!(-5)), ("progress", json!({ "percent": "7" })), ("permanent", json!("no"))]
        {
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
        let mut large = body.to_string().into_bytes();
        large.resize(crate::message::MAX_MESSAGE_BYTES + 1, b' ');
        assert!(LogReading::of(&large, now).is_err());
        let lost = LogReading::of(json!({ "lines": [] }).to_string().as_bytes(), now).expect_err("no occurrence");
        assert_eq!(lost.to_string(), "occurrenceId: the field is missing");
    }
}
