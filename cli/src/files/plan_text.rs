//! A plan for people: what each file creates and changes, and what is deleted.

use milvaion_api::{
    rest::{DocumentPlan, FilesPlan, PlannedOutcome},
    sources::JobSourceKind,
};
use serde_json::Value;

use crate::{session::Session, table::Color, times};

/// The maximum length of a value, in characters.
const MAX_VALUE_CHARS: usize = 200;

/// Formats a plan. Documents that change nothing are left out.
pub(super) fn plan_text(session: &Session<'_>, plan: &FilesPlan) -> String {
    let mut text = String::new();
    for file in &plan.files {
        let shown = file.documents.iter().filter(|document| is_shown(document));
        let lines: String = shown.map(|document| document_text(session, document)).collect();
        if !lines.is_empty() {
            text += &format!("{}\n{lines}", session.paint(&file.name, Color::Plain));
        }
    }
    if !plan.deleted.is_empty() {
        text += "Deleted, because no file has them:\n";
    }
    for job in &plan.deleted {
        let key = job.key.clone().unwrap_or_else(|| job.id.to_string());
        let line = format!("- job {key} ({:?}, from {})", job.display_name, job.file);
        text += &format!("  {}\n", session.paint(&line, Color::Red));
    }
    for warning in &plan.warnings {
        text += &format!("{}\n", session.paint(&format!("Warning: {warning}"), Color::Yellow));
    }
    text
}

/// Summarises a plan in one line.
pub(super) fn summary(plan: &FilesPlan) -> String {
    let documents = || plan.files.iter().flat_map(|file| &file.documents);
    let count = |outcome: PlannedOutcome| documents().filter(|document| document.outcome == outcome).count();
    let (created, changed) = (count(PlannedOutcome::Created), count(PlannedOutcome::Changed));
    let (unchanged, deleted) = (count(PlannedOutcome::Unchanged), plan.deleted.len());
    format!("{created} created, {changed} changed, {deleted} deleted, {unchanged} unchanged.")
}

fn is_shown(document: &DocumentPlan) -> bool {
    document.outcome != PlannedOutcome::Unchanged || document.taken_from.is_some() || !document.warnings.is_empty()
}

fn document_text(session: &Session<'_>, document: &DocumentPlan) -> String {
    let (sign, color) = match document.outcome {
        PlannedOutcome::Created => ("+", Color::Green),
        PlannedOutcome::Changed => ("~", Color::Yellow),
        PlannedOutcome::Unchanged => ("=", Color::Faint),
    };
    let line = format!("{sign} {} {}", document.kind.noun(), document.name);
    let mut text = format!("  {}\n", session.paint(&line, color));
    let mut add = |line: String, color: Color| text += &format!("      {}\n", session.paint(&line, color));
    for change in &document.changes {
        let before = value_text(change.before.as_ref());
        add(format!("{}: {before} -> {}", change.field, value_text(change.after.as_ref())), Color::Plain);
    }
    if document.more {
        add("and further fields".into(), Color::Plain);
    }
    for warning in &document.warnings {
        add(format!("Warning: {warning}"), Color::Yellow);
    }
    if let Some(edited) = &document.edited {
        let at = times::moment(edited.at, session.now, session.console.environment.to_local);
        add(format!("edited by {} at {at}: the file overwrites the edit", edited.by), Color::Red);
    }
    if let Some(source) = document.taken_from {
        add(format!("defined {} until now, from now on by this file", source_words(source)), Color::Faint);
    }
    text
}

const fn source_words(source: JobSourceKind) -> &'static str {
    match source {
        JobSourceKind::Dashboard => "in the dashboard",
        JobSourceKind::Api => "over the API",
        JobSourceKind::Code => "by a worker",
        JobSourceKind::File => "by another file",
    }
}

/// Formats a value as JSON; a missing one has its default.
fn value_text(value: Option<&Value>) -> String {
    let Some(value) = value else { return "default".into() };
    let text = value.to_string();
    match text.char_indices().nth(MAX_VALUE_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
