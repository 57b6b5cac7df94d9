//! Leaves out declared schedules whose input would be stored with other numbers.
//!
//! A number of an input is stored as an integer of 64 bits or as a double. One with more digits would be rounded, and the job
//! would receive another id or amount than its code declares. Its schedule is left out, like one that cannot be read.

use milvaion_api::requests::{check_exact_json, is_valid_name};
use milvaion_protocol::message::{HelloProblem, InstanceHello};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A registration of which only the job types are read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawHello<'a> {
    #[serde(borrow)]
    job_types: Vec<&'a RawValue>,
}

/// A job type of which only the schedules are read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawJobType<'a> {
    job_type: String,
    #[serde(borrow)]
    schedules: Vec<&'a RawValue>,
}

/// A schedule whose input is text.
#[derive(Deserialize)]
struct RawSchedule<'a> {
    name: String,
    #[serde(borrow)]
    input: &'a RawValue,
}

/// Removes the schedules of a registration that was read from `body` and whose input has a number that would be rounded.
/// Returns a problem for each. A body that is not JSON was mended when it was read, and nothing is removed.
pub(super) fn leave_out(hello: &mut InstanceHello, body: &[u8]) -> Vec<HelloProblem> {
    let Ok(text) = std::str::from_utf8(body) else { return Vec::new() };
    // Nearly every registration ends here.
    if check_exact_json(text).is_ok() {
        return Vec::new();
    }
    let Ok(raw) = serde_json::from_str::<RawHello>(text) else { return Vec::new() };
    let mut problems = Vec::new();
    for job_type in raw.job_types.iter().filter_map(|raw| serde_json::from_str::<RawJobType>(raw.get()).ok()) {
        for schedule in job_type.schedules.iter().filter_map(|raw| serde_json::from_str::<RawSchedule>(raw.get()).ok())
        {
            let Err(reason) = check_exact_json(schedule.input.get()) else { continue };
            // One with an invalid name is left out anyway.
            if !is_valid_name(&job_type.job_type) || !is_valid_name(&schedule.name) {
                continue;
            }
            for info in hello.job_types.iter_mut().filter(|info| info.job_type == job_type.job_type) {
                info.schedules.retain(|declared| declared.name != schedule.name);
            }
            problems.push(HelloProblem {
                job_type: Some(job_type.job_type.clone()),
                schedule: Some(schedule.name),
                text: format!("the schedule is left out: its input {}", reason.chars().take(400).collect::<String>()),
            });
        }
    }
    problems
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
                r#"{{"workerId":"w","instanceId":"i","timestamp":"2026-01-01T00:00:00Z","jobTypes":[{{"jobType":"mail",
                    "schema":{{"maximum":18446744073709551617}},"schedules":[{},{}]}}]}}"#,
                schedule("first", first),
                schedule("second", second)
            );
            let mut hello: InstanceHello = serde_json::from_str(&body).expect("a registration");
            let problems = leave_out(&mut hello, body.as_bytes());
            let names: Vec<String> = hello.job_types.remove(0).schedules.into_iter().map(|one| one.name).collect();
            (names, problems)
        };
        let (names, problems) = left_out(r#"{"n":3.10}"#, r#"{"id":9007199254740993}"#);
        assert_eq!((names.len(), problems.len()), (2, 0), "{problems:?}");
        let (names, problems) = left_out(r#"{"id":18446744073709551617}"#, "{}");
        assert_eq!(names, ["second"]);
        assert_eq!(problems.len(), 1);
        assert_eq!((problems[0].job_type.as_deref(), problems[0].schedule.as_deref()), (Some("mail"), Some("first")));
        assert!(problems[0].text.contains("/id: 18446744073709551617 would be rounded"), "{}", problems[0].text);
    }
}
