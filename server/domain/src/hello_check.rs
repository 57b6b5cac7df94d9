//! Reads and checks the registration of an instance, part by part.
//!
//! A registration has parts that the author of a job writes: schemas, schedules, rules. A mistake in one of them must not
//! make the whole worker invisible. So the part is left out, the rest is stored, and each problem is returned as a sentence
//! for the worker's log and for the page *Workers*. Only a registration that names no usable worker or instance is refused
//! as a whole.

use std::collections::HashSet;

use chrono::DateTime;
use milvaion_api::requests::is_valid_name;
use milvaion_protocol::{
    id::OccurrenceId,
    message::{
        DeclaredSchedule, DeclaredTiming, HelloProblem, InstanceHeartbeat, InstanceHello, JobDefaults, JobTypeInfo,
        MAX_JOB_DATA_BYTES, PROTOCOL_VERSION, truncate_text,
    },
    topology::{self, Topology},
};
use milvaion_schedule::{
    printable::check_printable,
    rules::{LostRunPolicy, MAX_CONCURRENCY_LIMIT, MisfirePolicy, OverlapPolicy},
    schedule::Schedule,
};
use serde::{Deserialize, de};
use serde_json::{Map, Value, json};

/// The maximum number of job types of a registration.
pub const MAX_JOB_TYPES: usize = 500;
/// The maximum size of the JSON Schema of a job type, in bytes.
pub const MAX_SCHEMA_BYTES: usize = 128 * 1024;
/// The maximum number of features of a registration.
pub const MAX_FEATURES: usize = 100;
/// The maximum number of schedules of a job type.
pub const MAX_SCHEDULES_PER_TYPE: usize = 100;
/// The maximum number of schedules of a registration.
pub const MAX_SCHEDULES: usize = 2_000;
/// The maximum number of problems that are returned and stored.
pub const MAX_PROBLEMS: usize = 100;
/// The maximum size of the text of a problem, in bytes.
const MAX_PROBLEM_BYTES: usize = 500;
/// The maximum timeout of a job type, in seconds: 7 days.
const MAX_TYPE_TIMEOUT_SECONDS: u32 = 7 * 86_400;
/// The maximum timeout of a job, in seconds: one day.
const MAX_JOB_TIMEOUT_SECONDS: u32 = 86_400;
/// The maximum number of retries.
const MAX_RETRIES: u16 = 100;
/// The maximum delay before the second attempt, in seconds: one day.
const MAX_BASE_RETRY_DELAY_SECONDS: u32 = 86_400;
/// The maximum time for which a uniqueness key applies after the creation, in seconds: 30 days.
pub const MAX_UNIQUE_SECONDS: u32 = 30 * 86_400;
/// The maximum number of tags, and the maximum length of one in characters.
const MAX_TAGS: (usize, usize) = (20, 50);

/// A registration after its check.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedHello {
    /// The parts that are stored; none if the registration is refused as a whole.
    pub accepted: Option<InstanceHello>,
    /// The parts that were refused, at most [`MAX_PROBLEMS`].
    pub problems: Vec<HelloProblem>,
}

/// Collects problems.
#[derive(Debug, Default)]
struct Problems(Vec<HelloProblem>);

impl Problems {
    fn add(&mut self, job_type: Option<&str>, schedule: Option<&str>, text: String) {
        // One more than is kept, so that the last one can say that more follow.
        if self.0.len() <= MAX_PROBLEMS {
            let name = |name: &str| truncate_text(printable(name), 200);
            self.0.push(HelloProblem {
                job_type: job_type.map(name),
                schedule: schedule.map(name),
                text: truncate_text(printable(&text), MAX_PROBLEM_BYTES),
            });
        }
    }

    fn into_list(self) -> Vec<HelloProblem> {
        let mut list = self.0;
        if list.len() > MAX_PROBLEMS {
            list.truncate(MAX_PROBLEMS - 1);
            let text =
                "More parts of the registration were refused; remove these problems to see the others".to_owned();
            list.push(HelloProblem { job_type: None, schedule: None, text });
        }
        list
    }
}

/// Replaces control characters, which neither a page nor a log line shows and PostgreSQL may not store.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The fields of a registration that are only shown or have a default.
const OPTIONAL_FIELDS: [&str; 7] = ["host", "pid", "version", "protocol", "features", "capacity", "timestamp"];

/// Reads a registration that cannot be read as a whole: each field, job type and schedule is read by itself, and those that
/// cannot be read are left out.
///
/// # Errors
///
/// Returns the reason if the worker, the instance or the list of job types cannot be read.
pub fn read_in_parts(mut message: Value) -> Result<(InstanceHello, Vec<HelloProblem>), String> {
    let mut problems = Problems::default();
    let job_types = match message.get_mut("jobTypes").map(Value::take) {
        Some(Value::Array(job_types)) => job_types,
        Some(_) => return Err("jobTypes: expected a list".into()),
        None => return Err("jobTypes: the field is missing".into()),
    };
    if let Some(fields) = message.as_object_mut() {
        fields.insert("jobTypes".into(), Value::Array(Vec::new()));
        for field in OPTIONAL_FIELDS {
            if let Err(error) = read_optional(fields, field) {
                problems.add(None, None, format!("{field} cannot be read and is left out: {error}"));
                fields.remove(field);
            }
        }
        fields.entry("timestamp").or_insert_with(|| json!(DateTime::UNIX_EPOCH));
    }
    let mut hello: InstanceHello = serde_json::from_value(message).map_err(|error| error.to_string())?;
    for mut job_type in job_types {
        let name = job_type.get("jobType").and_then(Value::as_str).map(str::to_owned);
        let name = name.as_deref();
        let schedules = job_type.get_mut("schedules").map(Value::take);
        let defaults = job_type.get_mut("defaults").map(Value::take);
        if let Some(fields) = job_type.as_object_mut() {
            fields.remove("schedules");
            fields.remove("defaults");
        }
        let mut info: JobTypeInfo = match serde_json::from_value(job_type) {
            Ok(info) => info,
            Err(error) => {
                problems.add(name, None, format!("the job type cannot be read and is left out: {error}"));
                continue;
            }
        };
        match defaults.filter(|defaults| !defaults.is_null()).map(serde_json::from_value::<JobDefaults>) {
            Some(Ok(defaults)) => info.defaults = defaults,
            Some(Err(error)) => problems.add(name, None, format!("defaults cannot be read and are left out: {error}")),
            None => {}
        }
        let schedules = match schedules {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(schedules)) => schedules,
            Some(_) => {
                problems.add(name, None, "schedules: expected a list; none is used".into());
                Vec::new()
            }
        };
        for schedule in schedules {
            let schedule_name = schedule.get("name").and_then(Value::as_str).map(str::to_owned);
            match serde_json::from_value::<DeclaredSchedule>(schedule) {
                Ok(schedule) => info.schedules.push(schedule),
                Err(error) => problems.add(
                    name,
                    schedule_name.as_deref(),
                    format!("the schedule cannot be read and is left out: {error}"),
                ),
            }
        }
        hello.job_types.push(info);
    }
    Ok((hello, problems.into_list()))
}

/// Tries to read one field of a registration.
fn read_optional(fields: &Map<String, Value>, field: &str) -> Result<(), serde_json::Error> {
    let mut alone = json!({ "workerId": "", "instanceId": "", "jobTypes": [], "timestamp": DateTime::UNIX_EPOCH });
    match fields.get(field) {
        Some(value) => alone[field] = value.clone(),
        // Only the time has no default. It is the worker's, and nothing depends on it.
        None if field == "timestamp" => return Err(de::Error::missing_field("timestamp")),
        None => {}
    }
    InstanceHello::deserialize(alone).map(drop)
}

/// Reads a heartbeat that cannot be read as a whole, if it names its instance: an instance that sends heartbeats is alive,
/// and so are the runs whose ids can be read. Returns the field that could not be read beside it.
#[must_use]
pub fn read_heartbeat_in_parts(message: &Value) -> Option<(InstanceHeartbeat, String)> {
    let instance_id = message.get("instanceId").and_then(Value::as_str)?.to_owned();
    let mut problem = None;
    let running = match message.get("running") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(listed)) => {
            let read = listed.iter().map(OccurrenceId::deserialize);
            let read: Vec<_> = read.filter_map(|id| id.map_err(|error| problem = Some(error)).ok()).collect();
            read
        }
        Some(_) => Vec::new(),
    };
    let problem = match problem {
        Some(error) => format!("running: {error}"),
        None => InstanceHeartbeat::deserialize(message).err().map_or_else(String::new, |error| error.to_string()),
    };
    let beat = InstanceHeartbeat {
        worker_id: message.get("workerId").and_then(Value::as_str).unwrap_or_default().to_owned(),
        instance_id,
        running,
        notice: message.get("notice").and_then(Value::as_str).map(str::to_owned),
        stopping: message.get("stopping").and_then(Value::as_bool).unwrap_or_default(),
        timestamp: DateTime::UNIX_EPOCH,
    };
    Some((beat, problem))
}

/// Checks the limits of a registration. `problems` are those that were found while it was read.
#[must_use]
pub fn check(mut hello: InstanceHello, problems: Vec<HelloProblem>) -> CheckedHello {
    let mut found = Problems(problems);
    if let Err(reason) = check_identity(&hello) {
        found.add(None, None, reason.into());
        return CheckedHello { accepted: None, problems: found.into_list() };
    }
    if hello.protocol > PROTOCOL_VERSION {
        let text = format!(
            "the worker implements version {} of the protocol and the server version {PROTOCOL_VERSION}: upgrade the server",
            hello.protocol
        );
        found.add(None, None, text);
    }
    check_features(&mut hello.features, &mut found);
    let job_types = std::mem::take(&mut hello.job_types);
    let count = job_types.len();
    if count > MAX_JOB_TYPES {
        let text =
            format!("it registers {count} job types and the maximum is {MAX_JOB_TYPES}: the others are left out");
        found.add(None, None, text);
    }
    let (mut words, mut schedule_count) = (HashSet::new(), 0);
    for mut info in job_types.into_iter().take(MAX_JOB_TYPES) {
        if let Err(reason) = check_job_type(&hello.worker_id, &info) {
            let text = format!("the job type {} is left out: {reason}", info.job_type);
            found.add(Some(&info.job_type), None, text);
            continue;
        }
        // Two job types that differ in case only have one queue.
        if !words.insert(info.job_type.to_lowercase()) {
            let text = "the job type is left out: another one has the same name, or differs in case only; rename one";
            found.add(Some(&info.job_type), None, text.into());
            continue;
        }
        check_declarations(&mut info, &mut schedule_count, &mut found);
        hello.job_types.push(info);
    }
    CheckedHello { accepted: Some(hello), problems: found.into_list() }
}

fn check_identity(hello: &InstanceHello) -> Result<(), &'static str> {
    if !is_valid_name(&hello.worker_id) {
        return Err("workerId: use 1 to 100 letters, digits, -, _ or .");
    }
    if hello.instance_id.is_empty()
        || hello.instance_id.chars().count() > 200
        || check_printable(&hello.instance_id).is_err()
    {
        return Err("instanceId: use 1 to 200 printable characters");
    }
    Ok(())
}

fn check_features(features: &mut Vec<String>, found: &mut Problems) {
    let count = features.len();
    features.retain(|feature| is_valid_name(feature));
    if features.len() < count {
        let text = "features: a name of other than 1 to 100 letters, digits, -, _ or . is left out";
        found.add(None, None, text.into());
    }
    if features.len() > MAX_FEATURES {
        features.truncate(MAX_FEATURES);
        found.add(None, None, format!("features: the maximum is {MAX_FEATURES}, and the others are left out"));
    }
}

fn check_job_type(worker_id: &str, info: &JobTypeInfo) -> Result<(), String> {
    if !is_valid_name(&info.job_type) {
        return Err("use 1 to 100 letters, digits, -, _ or . for its name".into());
    }
    if !Topology::fits(worker_id, &info.job_type) {
        let max = topology::MAX_TARGET_BYTES;
        return Err(format!("its name and the worker id are too long together (more than {max} bytes): shorten one"));
    }
    let schema = info.schema.to_string();
    if schema.len() > MAX_SCHEMA_BYTES {
        return Err(format!(
            "its schema has {} bytes and the maximum is {MAX_SCHEMA_BYTES}: remove descriptions or nested types",
            schema.len()
        ));
    }
    if schema.contains("\\u0000") {
        return Err("its schema contains the character NUL, which cannot be stored: remove it".into());
    }
    Ok(())
}

/// Checks what the code of a job type declares beside its schema. `schedule_count` counts over the whole registration.
fn check_declarations(info: &mut JobTypeInfo, schedule_count: &mut usize, found: &mut Problems) {
    let job_type = info.job_type.clone();
    let mut add = |text| found.add(Some(&job_type), None, text);
    keep_in(&mut info.timeout_seconds, 1..=MAX_TYPE_TIMEOUT_SECONDS, "timeoutSeconds", &mut add);
    check_rules(&mut info.defaults, &mut add);
    let schedules = std::mem::take(&mut info.schedules);
    if schedules.len() > MAX_SCHEDULES_PER_TYPE {
        let text = format!(
            "it declares {} schedules and the maximum is {MAX_SCHEDULES_PER_TYPE}: the others are left out",
            schedules.len()
        );
        found.add(Some(&job_type), None, text);
    }
    let mut names = HashSet::new();
    for mut schedule in schedules.into_iter().take(MAX_SCHEDULES_PER_TYPE) {
        let name = schedule.name.clone();
        let reason = if *schedule_count >= MAX_SCHEDULES {
            Err(format!("the registration declares more than {MAX_SCHEDULES} schedules"))
        } else if !names.insert(name.clone()) {
            Err("another schedule of the job type has the same name: rename one".into())
        } else {
            check_schedule(&schedule)
        };
        if let Err(reason) = reason {
            found.add(Some(&job_type), Some(&name), format!("the schedule is left out: {reason}"));
            continue;
        }
        *schedule_count += 1;
        let mut add = |text| found.add(Some(&job_type), Some(&name), text);
        keep_in(&mut schedule.timeout_seconds, 1..=MAX_JOB_TIMEOUT_SECONDS, "timeoutSeconds", &mut add);
        check_rules(&mut schedule.rules, &mut add);
        info.schedules.push(schedule);
    }
}

fn check_schedule(schedule: &DeclaredSchedule) -> Result<(), String> {
    if !is_valid_name(&schedule.name) {
        return Err("use 1 to 100 letters, digits, -, _ or . for its name".into());
    }
    let timing = match &schedule.timing {
        DeclaredTiming::Cron { expression, zone } => {
            Schedule::Cron { expression: expression.clone(), zone: zone.clone() }
        }
        DeclaredTiming::Every { seconds } => Schedule::every(*seconds),
    };
    timing.check().map_err(|(field, message)| format!("{field}: {message}"))?;
    let size = schedule.input.to_string().len();
    if size > MAX_JOB_DATA_BYTES {
        return Err(format!("its input has {size} bytes and the maximum is {MAX_JOB_DATA_BYTES}"));
    }
    let display_name = schedule.display_name.as_deref().unwrap_or_default();
    if display_name.chars().count() > 200 {
        return Err("displayName: use at most 200 characters".into());
    }
    let text = serde_json::to_string(schedule).map_err(|error| error.to_string())?;
    if text.contains("\\u0000") {
        return Err("it contains the character NUL, which cannot be stored: remove it".into());
    }
    Ok(())
}

/// Removes the rules that are out of bounds; the server's default then applies.
fn check_rules(rules: &mut JobDefaults, add: &mut impl FnMut(String)) {
    keep_in(&mut rules.max_retries, 0..=MAX_RETRIES, "maxRetries", add);
    keep_in(&mut rules.base_retry_delay_seconds, 1..=MAX_BASE_RETRY_DELAY_SECONDS, "baseRetryDelaySeconds", add);
    keep_in(&mut rules.retry_jitter_percent, 0..=100, "retryJitterPercent", add);
    keep_in(&mut rules.priority, 1..=topology::MAX_PRIORITY, "priority", add);
    keep_in(&mut rules.max_concurrent, 1..=MAX_CONCURRENCY_LIMIT, "maxConcurrent", add);
    keep_word(&mut rules.overlap, |word| OverlapPolicy::parse(word).is_some(), "overlap", add);
    keep_word(&mut rules.misfire, |word| MisfirePolicy::parse(word).is_some(), "misfire", add);
    keep_word(&mut rules.on_lost, |word| LostRunPolicy::parse(word).is_some(), "onLost", add);
    if let Some(unique) = &mut rules.unique {
        keep_in(&mut unique.for_seconds, 1..=MAX_UNIQUE_SECONDS, "unique.forSeconds", add);
    }
    let (max_tags, max_chars) = MAX_TAGS;
    let count = rules.tags.len();
    rules.tags.retain(|tag| {
        let length = tag.trim().chars().count();
        (1..=max_chars).contains(&length) && !tag.contains(',') && check_printable(tag.trim()).is_ok()
    });
    if rules.tags.len() < count {
        add(format!("tags: a tag of other than 1 to {max_chars} printable characters without a comma is left out"));
    }
    if rules.tags.len() > max_tags {
        rules.tags.truncate(max_tags);
        add(format!("tags: the maximum is {max_tags}, and the others are left out"));
    }
}

fn keep_in<T: PartialOrd + std::fmt::Display + Copy>(
    value: &mut Option<T>,
    bounds: std::ops::RangeInclusive<T>,
    field: &str,
    add: &mut impl FnMut(String),
) {
    if let Some(given) = value.filter(|given| !bounds.contains(given)) {
        *value = None;
        add(format!("{field}: {given} is not within {} to {}, and is left out", bounds.start(), bounds.end()));
    }
}

fn keep_word(value: &mut Option<String>, is_known: fn(&str) -> bool, field: &str, add: &mut impl FnMut(String)) {
    if let Some(word) = value.take_if(|word| !is_known(word)) {
        add(format!("{field}: the word {word:?} is unknown, and is left out"));
    }
}

#[cfg(test)]
mod tests;
