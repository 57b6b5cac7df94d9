//! The plan of files: their order, and the changes of a document in a bounded form.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use milvaion_api::{requests::JobInput, versions::VersionDiff};
use milvaion_protocol::id::CalendarId;
use milvaion_schedule::schedule::Schedule;
use serde_json::Value;

use super::diff::diff;

/// The maximum length of a value in a plan, in characters of JSON.
const MAX_VALUE_CHARS: usize = 500;
/// The maximum size of all changes of a plan, in bytes: an answer with an idempotency key is stored.
pub const MAX_CHANGES_BYTES: usize = 256 * 1024;

/// The calendars that a file defines, and those that its jobs name.
#[derive(Clone, Debug, Default)]
pub struct FileCalendars<'a> {
    /// The names of the calendars in the file.
    pub defined: HashSet<&'a str>,
    /// The names of the calendars of its jobs.
    pub named: HashSet<&'a str>,
}

/// Returns the order in which files are carried out: a file that defines a calendar before the files whose jobs name it,
/// and otherwise as given.
///
/// # Errors
///
/// Returns the number of a file that must come both before and after another one.
pub fn file_order(files: &[FileCalendars<'_>]) -> Result<Vec<usize>, usize> {
    let mut order: Vec<usize> = Vec::with_capacity(files.len());
    let mut left: Vec<usize> = (0..files.len()).collect();
    while let Some(first) = left.first() {
        let is_ready = |index: &usize| {
            let mut others = left.iter().filter(|other| *other != index);
            others.all(|other| files[*index].named.is_disjoint(&files[*other].defined))
        };
        let Some(at) = left.iter().position(is_ready) else { return Err(*first) };
        order.push(left.remove(at));
    }
    Ok(order)
}

/// Returns a definition as JSON, with the names of its calendars instead of their ids.
pub fn with_calendar_names(job: &JobInput, name_of: impl Fn(CalendarId) -> String) -> Value {
    let mut value = serde_json::to_value(job).unwrap_or_default();
    let names: Vec<String> = job.rules.calendars.iter().map(|id| name_of(*id)).collect();
    if let Some(rules) = value.get_mut("rules").and_then(Value::as_object_mut) {
        rules.remove("calendars");
        if !names.is_empty() {
            rules.insert("calendars".into(), names.into());
        }
    }
    value
}

/// Returns the warnings about a job of a file, which is stored as `before` says; none for a new one. A single due time that
/// has passed is a warning and no error: an export has such jobs, and is applied to other installations.
pub fn job_warnings(before: Option<&JobInput>, job: &JobInput, now: DateTime<Utc>) -> Vec<String> {
    match &job.schedule {
        Schedule::Once { at, .. } if *at <= now && before.is_none_or(|before| before.schedule != job.schedule) => {
            vec!["schedule.at has passed, so the schedule does not run this job".into()]
        }
        _ => Vec::new(),
    }
}

/// Returns the changed fields of a document, with long values cut. `budget` is the number of bytes that are left for
/// changes; without any, the fields are left out.
pub fn bounded_diff(before: &Value, after: &Value, budget: &mut usize) -> VersionDiff {
    let VersionDiff { changes, mut more } = diff(before, after);
    let mut kept = Vec::with_capacity(changes.len());
    for mut change in changes {
        change.before = change.before.map(shortened);
        change.after = change.after.map(shortened);
        let size = serde_json::to_string(&change).map_or(0, |text| text.len());
        if size > *budget {
            more = true;
            break;
        }
        *budget -= size;
        kept.push(change);
    }
    VersionDiff { changes: kept, more }
}

/// Returns a value, or the start of its JSON if it is long.
fn shortened(value: Value) -> Value {
    let text = match &value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.char_indices().nth(MAX_VALUE_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => value,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn file<'a>(defined: &[&'a str], named: &[&'a str]) -> FileCalendars<'a> {
        FileCalendars { defined: defined.iter().copied().collect(), named: named.iter().copied().collect() }
    }

    #[test]
    fn calendar_comes_before_the_jobs_that_name_it() {
        let files = [file(&[], &["a", "b"]), file(&["b"], &["a"]), file(&[], &[]), file(&["a"], &["a", "stored"])];
        assert_eq!(file_order(&files), Ok(vec![2, 3, 1, 0]));
        assert_eq!(file_order(&[file(&[], &[]), file(&[], &[])]), Ok(vec![0, 1]));
        assert_eq!(file_order(&[file(&["a"], &["b"]), file(&["b"], &["a"])]), Err(0));
    }

    #[test]
    fn passed_due_time_of_a_new_schedule_is_a_warning() {
        let now = DateTime::UNIX_EPOCH;
        let once = |seconds| {
            let schedule = Schedule::once(now + chrono::Duration::seconds(seconds));
            JobInput::schedule_only(schedule, milvaion_schedule::rules::Rules::default())
        };
        assert_eq!(job_warnings(None, &once(0), now).len(), 1);
        assert_eq!(job_warnings(Some(&once(1)), &once(0), now).len(), 1);
        assert!(job_warnings(Some(&once(0)), &once(0), now).is_empty(), "the job has run, or was warned of before");
        assert!(job_warnings(None, &once(1), now).is_empty());
    }

    #[test]
    fn changes_are_cut_and_bounded() {
        let (before, after) = (json!({ "a": "x", "b": 1 }), json!({ "a": "y".repeat(1_000), "b": 2 }));
        let mut budget = 10_000;
        let whole = bounded_diff(&before, &after, &mut budget);
        assert_eq!((whole.changes.len(), whole.more), (2, false));
        assert_eq!(whole.changes[0].after.as_ref().and_then(Value::as_str).map(|text| text.chars().count()), Some(501));
        assert!(budget < 10_000);
        let mut spent = 20;
        let cut = bounded_diff(&before, &after, &mut spent);
        assert_eq!((cut.changes.len(), cut.more), (0, true));
    }
}
