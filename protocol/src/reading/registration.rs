//! Reads the messages of the registration queue part by part.
//!
//! A registration has parts that the author of a job writes: schemas, schedules, rules. A mistake in one of them must not
//! make the whole worker invisible, so that part is left out and named. So is a schedule whose input has a number with more
//! digits than can be stored: the job would receive another id or amount than its code declares.
//!
//! A heartbeat counts if it names its instance: the instance is alive, and so are the runs whose ids can be read.

use std::collections::HashMap;

use chrono::DateTime;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{ReadProblem, in_parts, take_list};
use crate::{
    exact_json::{JsonStep, path, visit_rounded_numbers},
    id::OccurrenceId,
    mend,
    message::{
        DeclaredSchedule, HelloProblem, InstanceHeartbeat, InstanceHello, JobDefaults, JobTypeInfo,
        RegistrationMessage, truncate_text,
    },
};

/// The maximum number of problems of a registration that are returned and stored.
pub const MAX_HELLO_PROBLEMS: usize = 100;
/// The maximum size of the text of a problem, in bytes.
const MAX_PROBLEM_BYTES: usize = 500;

/// The parts of a message that were left out or refused, at most [`MAX_HELLO_PROBLEMS`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HelloProblems(pub Vec<HelloProblem>);

impl HelloProblems {
    /// Adds a problem of a job type, of a schedule, or of the whole registration. The last one says if more follow.
    pub fn add(&mut self, job_type: Option<&str>, schedule: Option<&str>, text: String) {
        let name = |name: &str| truncate_text(printable(name), 200);
        match self.0.get_mut(MAX_HELLO_PROBLEMS - 1) {
            None => self.0.push(HelloProblem {
                job_type: job_type.map(name),
                schedule: schedule.map(name),
                text: truncate_text(printable(&text), MAX_PROBLEM_BYTES),
            }),
            Some(last) => {
                let text =
                    "More parts of the registration were refused; remove these problems to see the others".into();
                *last = HelloProblem { job_type: None, schedule: None, text };
            }
        }
    }
}

/// Replaces control characters, which neither a page nor a log line shows and PostgreSQL may not store.
fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// A message of the registration queue.
#[derive(Clone, Debug, PartialEq)]
pub struct RegistrationReading {
    /// The parts that could be read.
    pub message: RegistrationMessage,
    /// The parts that were left out, and a note if characters were replaced.
    pub problems: HelloProblems,
}

/// A message of the registration queue of which no part counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRegistration {
    /// True if its sender may expect the reply to a registration.
    pub is_hello: bool,
    /// The instance that it names, if that could be read.
    pub instance_id: Option<String>,
    /// The reason.
    pub reason: String,
}

impl RegistrationReading {
    /// Reads a body.
    ///
    /// # Errors
    ///
    /// Returns the reason if the kind, the worker, the instance or the list of job types cannot be read.
    pub fn of(body: &[u8]) -> Result<Self, UnreadableRegistration> {
        mend::check_size(body).map_err(|problem| UnreadableRegistration {
            is_hello: true,
            instance_id: None,
            reason: problem.reason,
        })?;
        let rounded = rounded_inputs(&String::from_utf8_lossy(body));
        let error = match serde_json::from_slice(body) {
            Ok(RegistrationMessage::Hello(_)) if !rounded.is_empty() => String::new(),
            Ok(message) => return Ok(Self { message, problems: HelloProblems::default() }),
            Err(error) => error.to_string(),
        };
        let (message, mended) = mend::parse(body).unwrap_or_default();
        let is_hello = message["kind"] == "hello";
        let instance_id = message["instanceId"].as_str().map(str::to_owned);
        let read = match message["kind"].as_str() {
            // The numbers of a text that is not JSON cannot be found in it.
            Some("hello") => read_hello(message, &if mended.is_some() { HashMap::new() } else { rounded }),
            Some("heartbeat") => read_heartbeat(message),
            _ => Err(ReadProblem::new("", error)),
        };
        let mut reading =
            read.map_err(|problem| UnreadableRegistration { is_hello, instance_id, reason: problem.to_string() })?;
        if let Some(mended) = mended {
            reading.problems.add(None, None, mended.reason);
        }
        Ok(reading)
    }
}

/// The position of a schedule: the index of its job type, and its own.
type SchedulePosition = (usize, usize);

/// Returns the schedules whose input has a number that would be rounded, with the reason.
fn rounded_inputs(json: &str) -> HashMap<SchedulePosition, String> {
    use JsonStep::{Index, Name};
    let mut found = HashMap::new();
    visit_rounded_numbers(json, |steps, message| {
        if let [Name("jobTypes"), Index(job_type), Name("schedules"), Index(schedule), Name("input"), rest @ ..] = steps
        {
            let reason = || ReadProblem::new(path(rest), message).to_string();
            found.entry((*job_type, *schedule)).or_insert_with(reason);
        }
    });
    found
}

fn read_hello(
    mut message: Value,
    rounded: &HashMap<SchedulePosition, String>,
) -> Result<RegistrationReading, ReadProblem> {
    let mut problems = HelloProblems::default();
    let job_types = take_list(&mut message, "jobTypes");
    let defaults = json!({ "workerId": "", "instanceId": "", "jobTypes": [], "timestamp": DateTime::UNIX_EPOCH });
    let (mut hello, left_out) = in_parts::<InstanceHello>("a registration", message, defaults)?;
    for problem in left_out {
        if matches!(&*problem.field, "workerId" | "instanceId" | "jobTypes") {
            return Err(problem);
        }
        problems.add(None, None, format!("{} cannot be read and is left out: {}", problem.field, problem.reason));
    }
    for (index, mut job_type) in job_types.into_iter().enumerate() {
        let name = job_type.get("jobType").and_then(Value::as_str).map(str::to_owned);
        let mut add = |schedule: Option<&str>, text: String| problems.add(name.as_deref(), schedule, text);
        let mut take = |field: &str| job_type.get_mut(field).map(Value::take).unwrap_or_default();
        let (schedules, defaults) = (take("schedules"), take("defaults"));
        let mut info = match JobTypeInfo::deserialize(job_type) {
            Ok(info) => info,
            Err(error) => {
                add(None, format!("the job type cannot be read and is left out: {error}"));
                continue;
            }
        };
        match Option::<JobDefaults>::deserialize(defaults) {
            Ok(defaults) => info.defaults = defaults.unwrap_or_default(),
            Err(error) => add(None, format!("defaults cannot be read and are left out: {error}")),
        }
        let schedules = match schedules {
            Value::Array(schedules) => schedules,
            Value::Null => Vec::new(),
            _ => {
                add(None, "schedules: expected a list; none is used".into());
                Vec::new()
            }
        };
        for (number, schedule) in schedules.into_iter().enumerate() {
            let name = schedule.get("name").and_then(Value::as_str).map(str::to_owned);
            let read = match rounded.get(&(index, number)) {
                Some(reason) => Err(format!("is left out: its input {reason}")),
                None => DeclaredSchedule::deserialize(schedule)
                    .map_err(|error| format!("cannot be read and is left out: {error}")),
            };
            match read {
                Ok(schedule) => info.schedules.push(schedule),
                Err(reason) => add(name.as_deref(), format!("the schedule {reason}")),
            }
        }
        hello.job_types.push(info);
    }
    Ok(RegistrationReading { message: RegistrationMessage::Hello(hello), problems })
}

fn read_heartbeat(mut message: Value) -> Result<RegistrationReading, ReadProblem> {
    let running = take_list(&mut message, "running");
    let defaults = json!({ "workerId": "", "instanceId": "", "timestamp": DateTime::UNIX_EPOCH });
    let (mut beat, left_out) = in_parts::<InstanceHeartbeat>("a heartbeat", message, defaults)?;
    let mut problems = HelloProblems::default();
    for problem in left_out {
        if problem.field == "instanceId" {
            return Err(problem);
        }
        problems.add(None, None, problem.to_string());
    }
    for id in running {
        match OccurrenceId::deserialize(id) {
            Ok(id) => beat.running.push(id),
            Err(error) => problems.add(None, None, format!("running: {error}")),
        }
    }
    Ok(RegistrationReading { message: RegistrationMessage::Heartbeat(beat), problems })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedule_with_a_rounded_number_is_left_out() {
        let schedule = |name: &str, input: &str| {
            format!(r#"{{"name":"{name}","timing":{{"kind":"every","seconds":60}},"input":{input}}}"#)
        };
        let left_out = |first: &str, second: &str| {
            // A number of the schema that would be rounded changes no input.
            let body = format!(
                r#"{{"kind":"hello","workerId":"w","instanceId":"i","timestamp":"2026-01-01T00:00:00Z","jobTypes":[{{
                    "jobType":"mail","schema":{{"maximum":18446744073709551617}},"schedules":[{},{}]}}]}}"#,
                schedule("first", first),
                schedule("second", second)
            );
            let RegistrationReading { message, problems } = RegistrationReading::of(body.as_bytes()).expect("readable");
            let RegistrationMessage::Hello(mut hello) = message else { panic!("{body}") };
            let names: Vec<String> = hello.job_types.remove(0).schedules.into_iter().map(|one| one.name).collect();
            (names, problems.0)
        };
        let (names, problems) = left_out(r#"{"n":3.10}"#, r#"{"id":9007199254740993}"#);
        assert_eq!((names.len(), problems.len()), (2, 0), "{problems:?}");
        let (names, problems) = left_out(r#"{"id":18446744073709551617}"#, "{}");
        assert_eq!(names, ["second"]);
        assert_eq!(problems.len(), 1);
        assert_eq!((problems[0].job_type.as_deref(), problems[0].schedule.as_deref()), (Some("mail"), Some("first")));
        assert!(problems[0].text.contains("input /id: 18446744073709551617 would be rounded"), "{}", problems[0].text);
    }
}
