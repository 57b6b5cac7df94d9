//! The plan of files: their order, the changes of a document in a bounded form, and warnings.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use milvaion_api::{
    requests::JobInput,
    rest::{DocumentKind, DocumentPlan, FileDocument, PlannedOutcome},
    versions::VersionDiff,
};
use milvaion_protocol::id::CalendarId;
use milvaion_schedule::{cron::CronExpression, schedule::Schedule};
use serde::Serialize;
use serde_json::Value;

use super::diff::diff;

/// The maximum number of jobs that a warning names.
const MAX_NAMED_JOBS: usize = 10;
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

impl<'a> FileCalendars<'a> {
    /// Returns the calendars of the documents of a file.
    pub fn of(documents: &'a [FileDocument]) -> Self {
        let mut calendars = Self::default();
        for document in documents {
            match document {
                FileDocument::Job(job) => calendars.named.extend(job.calendars.iter().map(|name| name.trim())),
                FileDocument::Calendar(calendar) => drop(calendars.defined.insert(calendar.name.trim())),
                FileDocument::AlertRule(_) => {}
            }
        }
        calendars
    }
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

/// What the warnings about a job of a file depend on, beside the job.
#[derive(Clone, Copy, Debug)]
pub struct JobSurroundings<'a> {
    /// The job as it is stored; none for a new one.
    pub before: Option<&'a JobInput>,
    /// The tag of the jobs that belong to the files, if the request names one.
    pub tag: Option<&'a str>,
    /// True if a live instance offers the job type.
    pub is_offered: bool,
    /// Now.
    pub now: DateTime<Utc>,
}

/// Returns the warnings about a job of a file. An unchanged job has none, so that a plan names what is new. A single due
/// time that has passed is a warning and no error: an export has such jobs, and is applied to other installations.
pub fn job_warnings(job: &JobInput, surroundings: JobSurroundings<'_>) -> Vec<String> {
    let JobSurroundings { before, tag, is_offered, now } = surroundings;
    if before == Some(job) {
        return Vec::new();
    }
    let mut warnings = Vec::new();
    if before.is_none_or(|before| before.schedule != job.schedule) {
        match &job.schedule {
            Schedule::Once { at, .. } if *at <= now => {
                warnings.push("schedule.at has passed, so the schedule does not run this job".into());
            }
            Schedule::Cron { expression, .. } => {
                warnings.extend(CronExpression::parse(expression).into_iter().flat_map(|cron| cron.warnings()));
            }
            _ => {}
        }
    }
    if !is_offered {
        warnings.push(format!(
            "no live instance of the worker {} offers the job type {}, so runs wait until one does",
            job.worker_id, job.job_type
        ));
    }
    if let Some(tag) = tag.filter(|tag| !has_tag(job, tag)) {
        warnings.push(format!(
            "the job does not have the tag {tag}, so --prune with this tag does not delete it once its document is gone"
        ));
    }
    warnings
}

/// Returns true if a job has a tag.
fn has_tag(job: &JobInput, tag: &str) -> bool {
    job.tags.iter().any(|own| own == tag)
}

/// Returns a warning about a job that is created, if one of the jobs `left`, which are active and have no document, may be
/// the same one under its former key. Each of them has a name.
pub fn rename_warning<'a>(job: &JobInput, left: impl IntoIterator<Item = (&'a str, &'a JobInput)>) -> Option<String> {
    left.into_iter().find_map(|(name, other)| {
        let same = if other.display_name == job.display_name {
            "name"
        } else if job.schedule != Schedule::Manual && content(other) == content(job) {
            "job type, schedule and input"
        } else {
            return None;
        };
        Some(format!(
            "the job {name} has the same {same} and no document: if this is its new key, delete that job, or both run"
        ))
    })
}

/// Returns what a job does, and when.
fn content(job: &JobInput) -> (&str, &str, &Schedule, &Value) {
    (&job.worker_id, &job.job_type, &job.schedule, &job.job_data)
}

/// Returns the warnings about jobs from files that no document names and that are not deleted: those with the tag of the
/// request, and others that came from its files.
pub fn left_job_warnings(tag: Option<&str>, with_tag: &[&str], of_files: &[&str]) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(tag) = tag.filter(|_| !with_tag.is_empty()) {
        let (jobs, have, them) = number_of_jobs(with_tag.len());
        let names = listed(with_tag);
        warnings.push(format!("{jobs} with the tag {tag} {have} no document: {names}. --prune deletes {them}."));
    }
    if !of_files.is_empty() {
        let (jobs, have, them) = number_of_jobs(of_files.len());
        let reason = match tag {
            Some(tag) => format!("--prune with the tag {tag} does not delete {them}"),
            None => "--prune deletes those with the tag of --selector".to_owned(),
        };
        let names = listed(of_files);
        warnings.push(format!("{jobs} of these files {have} no document any more: {names}. {reason}."));
    }
    warnings
}

/// Returns a number of jobs with its noun, and the verb and the pronoun for it.
fn number_of_jobs(count: usize) -> (String, &'static str, &'static str) {
    match count {
        1 => ("1 job".into(), "has", "it"),
        _ => (format!("{count} jobs"), "have", "them"),
    }
}

/// Returns the first names of a list.
fn listed(names: &[&str]) -> String {
    let shown = names.iter().take(MAX_NAMED_JOBS).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MAX_NAMED_JOBS) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Returns the report of a document that defines `after`, compared with what is stored. `json` returns a definition as JSON,
/// and `budget` is the number of bytes that are left for changes.
pub fn document_plan<T: PartialEq>(
    kind: DocumentKind,
    name: &str,
    before: Option<&T>,
    after: &T,
    json: impl Fn(&T) -> Value,
    budget: &mut usize,
) -> DocumentPlan {
    let (outcome, diff) = match before {
        None => (PlannedOutcome::Created, VersionDiff::default()),
        Some(before) if before == after => (PlannedOutcome::Unchanged, VersionDiff::default()),
        Some(before) => (PlannedOutcome::Changed, bounded_diff(&json(before), &json(after), budget)),
    };
    let VersionDiff { changes, more } = diff;
    let name = name.to_owned();
    DocumentPlan { kind, name, outcome, changes, more, warnings: Vec::new(), taken_from: None, edited: None }
}

/// Returns a definition as JSON.
pub fn to_json<T: Serialize>(definition: &T) -> Value {
    serde_json::to_value(definition).unwrap_or_default()
}

/// Returns the changed fields of a document, with long values cut. `budget` is the number of bytes that are left for
/// changes; without any, the fields are left out.
fn bounded_diff(before: &Value, after: &Value, budget: &mut usize) -> VersionDiff {
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

    fn job(schedule: Schedule) -> JobInput {
        JobInput {
            display_name: "Report".into(),
            worker_id: "w".into(),
            job_type: "t".into(),
            tags: vec!["x".into()],
            ..JobInput::schedule_only(schedule, milvaion_schedule::rules::Rules::default())
        }
    }

    const SURROUNDINGS: JobSurroundings<'static> =
        JobSurroundings { before: None, tag: None, is_offered: true, now: DateTime::UNIX_EPOCH };

    #[test]
    fn passed_due_time_of_a_new_schedule_is_a_warning() {
        let once = |seconds| job(Schedule::once(DateTime::UNIX_EPOCH + chrono::Duration::seconds(seconds)));
        let count = |before: Option<&JobInput>, job: &JobInput| {
            job_warnings(job, JobSurroundings { before, ..SURROUNDINGS }).len()
        };
        assert_eq!(count(None, &once(0)), 1);
        assert_eq!(count(Some(&once(1)), &once(0)), 1);
        let renamed = JobInput { display_name: "Other".into(), ..once(0) };
        assert_eq!(count(Some(&once(0)), &renamed), 0, "the job has run, or was warned of before");
        assert_eq!(count(None, &once(1)), 0);
    }

    #[test]
    fn new_or_changed_job_has_warnings_and_an_unchanged_one_none() {
        let cron = job(Schedule::Cron { expression: "*/45 0 13 * FRI".into(), zone: "UTC".into() });
        let around = JobSurroundings { tag: Some("y"), is_offered: false, ..SURROUNDINGS };
        let warnings = job_warnings(&cron, around);
        assert_eq!(warnings.len(), 4, "{warnings:?}");
        let expected = CronExpression::parse("*/45 0 13 * FRI").expect("a valid expression").warnings();
        assert_eq!(warnings[..2], expected, "the words of `milvaion cron explain`");
        assert!(warnings[2].contains("the worker w offers the job type t"), "{warnings:?}");
        assert!(warnings[3].contains("does not have the tag y"), "{warnings:?}");
        assert!(job_warnings(&cron, JobSurroundings { before: Some(&cron), ..around }).is_empty());
        assert!(job_warnings(&job(Schedule::every(60)), JobSurroundings { tag: Some("x"), ..SURROUNDINGS }).is_empty());
    }

    #[test]
    fn new_key_of_a_job_is_recognized_by_its_name_or_its_content() {
        let (new, other) =
            (job(Schedule::every(60)), JobInput { display_name: "Other".into(), ..job(Schedule::every(60)) });
        let warning = |job: &JobInput, left: &JobInput| rename_warning(job, [("old-key", left)]);
        assert!(warning(&new, &new).is_some_and(|text| text.starts_with("the job old-key has the same name and no")));
        assert!(warning(&new, &other).is_some_and(|text| text.contains("the same job type, schedule and input")));
        let other_input = JobInput { job_data: json!({ "a": 1 }), ..other.clone() };
        assert_eq!(warning(&new, &other_input), None);
        let manual = |job: JobInput| JobInput { schedule: Schedule::Manual, ..job };
        assert_eq!(warning(&manual(new), &manual(other)), None, "many manual jobs are alike");
    }

    #[test]
    fn jobs_without_a_document_are_named() {
        assert!(left_job_warnings(Some("x"), &[], &[]).is_empty());
        assert_eq!(
            left_job_warnings(Some("x"), &["a"], &["b", "c"]),
            [
                "1 job with the tag x has no document: a. --prune deletes it.",
                "2 jobs of these files have no document any more: b, c. --prune with the tag x does not delete them."
            ]
        );
        let many = left_job_warnings(None, &[], &["a"; 12]);
        assert!(
            many[0].starts_with("12 jobs of these files have") && many[0].contains("a and 2 more. --prune"),
            "{many:?}"
        );
    }

    #[test]
    fn document_is_created_changed_or_unchanged() {
        let new = job(Schedule::every(60));
        let report =
            |before: Option<&JobInput>| document_plan(DocumentKind::Job, "report", before, &new, to_json, &mut 10_000);
        let number = |report: &DocumentPlan| (report.outcome, report.changes.len());
        assert_eq!(number(&report(None)), (PlannedOutcome::Created, 0));
        assert_eq!(number(&report(Some(&new))), (PlannedOutcome::Unchanged, 0));
        let before = JobInput { priority: 1, ..new.clone() };
        assert_eq!(number(&report(Some(&before))), (PlannedOutcome::Changed, 1));
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
