//! Checks the registration of an instance, part by part.
//!
//! A part out of bounds is left out, like one that cannot be read ([`RegistrationReading`]): the rest is stored, and each
//! problem is returned as a sentence for the worker's log and for the page *Workers*. Only a registration that names no
//! usable worker or instance is refused as a whole.
//!
//! [`RegistrationReading`]: milvaion_protocol::reading::RegistrationReading

use std::collections::HashSet;

use milvaion_api::requests::is_valid_name;
use milvaion_protocol::{
    message::{
        DeclaredSchedule, DeclaredTiming, HelloProblem, InstanceHello, JobDefaults, JobTypeInfo, MAX_JOB_DATA_BYTES,
        PROTOCOL_VERSION,
    },
    reading::HelloProblems,
    storable::is_storable,
    topology::{self, Topology},
};
use milvaion_schedule::{
    printable::check_printable,
    rules::{LostRunPolicy, MAX_CONCURRENCY_LIMIT, MAX_START_WITHIN_SECONDS, MisfirePolicy, OverlapPolicy},
    schedule::Schedule,
};

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
    /// The parts that were refused.
    pub problems: Vec<HelloProblem>,
}

/// Checks the limits of a registration. `found` has the problems that were found while it was read.
#[must_use]
pub fn check(mut hello: InstanceHello, mut found: HelloProblems) -> CheckedHello {
    if let Err(reason) = check_identity(&hello) {
        found.add(None, None, reason.into());
        return CheckedHello { accepted: None, problems: found.0 };
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
    CheckedHello { accepted: Some(hello), problems: found.0 }
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

fn check_features(features: &mut Vec<String>, found: &mut HelloProblems) {
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
    if !is_storable(&info.schema) {
        return Err("its schema contains the character NUL, which cannot be stored: remove it".into());
    }
    Ok(())
}

/// Checks what the code of a job type declares beside its schema. `schedule_count` counts over the whole registration.
fn check_declarations(info: &mut JobTypeInfo, schedule_count: &mut usize, found: &mut HelloProblems) {
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
    let value = serde_json::to_value(schedule).map_err(|error| error.to_string())?;
    if !is_storable(&value) {
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
    keep_in(&mut rules.start_within_seconds, 1..=MAX_START_WITHIN_SECONDS, "startWithinSeconds", add);
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
