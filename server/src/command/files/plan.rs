//! The plan: compares the documents of files with what is stored.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use milvaion_api::{
    alerts::MAX_ALERT_RULES,
    requests::JobInput,
    rest::{
        ApplyFiles, DocumentKind, DocumentPlan, FileDocument, FilesPlan, JobDocument, PlannedOutcome, ProblemField,
        files::{MAX_DOCUMENTS, MAX_FILES, MAX_PRUNED},
    },
    sources::{EditSinceSource, JobSourceKind},
};
use milvaion_app::error::AppError;
use milvaion_protocol::id::{CalendarId, JobId};
use milvaion_schedule::{calendar::Calendar, printable::check_printable};
use serde_json::Value;

use super::{
    DocumentErrors, FilesCaller, FilesError, Place, Plan, PlannedCalendar, PlannedFile, PlannedJob, documents,
};
use crate::{
    command::{calendars::checked_calendar, definitions::checked_definition, jobs::JobCommands},
    domain::{
        file_plan::{
            FileCalendars, JobSurroundings, MAX_CHANGES_BYTES, document_plan, file_order, job_warnings, to_json,
            with_calendar_names,
        },
        liveness,
    },
    store::{calendars::CalendarSet, jobs::StoredJob, sources::JobOfFile},
};

/// What is stored about the objects that a request names.
struct Stored {
    jobs_by_key: HashMap<String, JobId>,
    jobs: HashMap<JobId, StoredJob>,
    edits: HashMap<JobId, EditSinceSource>,
    /// The workers with the job types that their live instances offer.
    offered: HashSet<(String, String)>,
    calendar_ids: HashMap<String, CalendarId>,
    calendar_names: HashMap<CalendarId, String>,
    calendars: CalendarSet,
    /// The versions and definitions of the calendars that documents define; no definition if this version cannot read it.
    defined: HashMap<String, (CalendarId, i32, Option<Calendar>)>,
}

impl JobCommands {
    /// Returns what applying files changes. Changes nothing.
    ///
    /// # Errors
    ///
    /// Returns `Documents` with the invalid documents, `Denied` if the token may not change one of the objects, and
    /// `Conflict` if the plan cannot be carried out.
    pub async fn plan_files(&self, caller: FilesCaller<'_>, request: &ApplyFiles) -> Result<FilesPlan, FilesError> {
        Ok(self.prepare_files(caller, request).await?.into_report())
    }

    /// Checks all documents and compares them with what is stored.
    pub(super) async fn prepare_files(
        &self,
        caller: FilesCaller<'_>,
        request: &ApplyFiles,
    ) -> Result<Plan, FilesError> {
        let order = check_request(request)?;
        let mut stored = self.read_stored(request).await?;
        let mut errors = DocumentErrors::default();
        let mut budget = MAX_CHANGES_BYTES;
        let mut files: Vec<PlannedFile> = request.files.iter().map(|file| PlannedFile::new(&file.name)).collect();
        // The calendars of all files first, because jobs of any file may name them.
        let mut reports: HashMap<(usize, usize), DocumentPlan> = HashMap::new();
        for (place, document) in documents(request) {
            if let FileDocument::Calendar(calendar) = document {
                deny_untagged(caller, "calendars")?;
                let planned = self.plan_calendar(place, calendar, &mut stored, &mut errors, &mut budget)?;
                let Some((planned, report)) = planned else { continue };
                if report.outcome != PlannedOutcome::Unchanged {
                    files[place.file].calendars.push(planned);
                }
                reports.insert((place.file, place.document), report);
            }
        }
        let rules = self.read_rules(request).await?;
        let mut new_rules = 0;
        for (place, document) in documents(request) {
            if let FileDocument::AlertRule(rule) = document {
                deny_untagged(caller, "alert rules")?;
                match self.plan_rule(rule, &rules, &mut budget) {
                    Ok((Some(planned), _)) if planned.version.is_none() && new_rules >= rules.room() => {
                        let text =
                            format!("there are {MAX_ALERT_RULES} alert rules, which is the limit: delete unused ones");
                        errors.add(place, "name", text);
                    }
                    Ok((planned, report)) => {
                        new_rules += usize::from(planned.as_ref().is_some_and(|planned| planned.version.is_none()));
                        files[place.file].rules.extend(planned);
                        reports.insert((place.file, place.document), report);
                    }
                    Err(wrong) => errors.extend(place, wrong),
                }
            }
        }
        let (now, tag) = (self.clock.now(), caller.selected_tag(request));
        let mut schemas: HashMap<(String, String), Option<Value>> = HashMap::new();
        let mut seen: HashSet<JobId> = HashSet::new();
        for (place, document) in documents(request) {
            if let FileDocument::Job(job) = document {
                let target = (job.definition.worker_id.clone(), job.definition.job_type.clone());
                if !schemas.contains_key(&target) {
                    let schema = self.store.schema(&target.0, &target.1).await?;
                    schemas.insert(target.clone(), schema);
                }
                let schema = schemas.get(&target).and_then(Option::as_ref);
                let Some(planned) = self.plan_job(place, job, schema, &stored, &mut errors)? else { continue };
                if !seen.insert(planned.id) {
                    errors.add(place, "id", "another document has this id: remove the line, or the other document");
                }
                deny_other_tags(caller, &planned)?;
                reports.insert((place.file, place.document), planned.report(&stored, &mut budget, tag, now));
                files[place.file].jobs.push(planned);
                // A thousand checks are a second of work, during which other requests go on.
                tokio::task::yield_now().await;
            }
        }
        errors.into_result()?;
        for (place, _) in documents(request) {
            files[place.file].report.documents.extend(reports.remove(&(place.file, place.document)));
        }
        let deleted = self.planned_deletions(caller, request, &files).await?;
        let warnings = self.add_warnings(caller, request, &mut files, &deleted).await?;
        Ok(Plan { files, order, deleted, warnings, calendars: stored.calendars })
    }

    /// Reads everything that a request names.
    async fn read_stored(&self, request: &ApplyFiles) -> Result<Stored, FilesError> {
        let (mut keys, mut ids) = (Vec::new(), Vec::new());
        let (mut names, mut defined_names) = (HashSet::new(), HashSet::new());
        for (_, document) in documents(request) {
            match document {
                FileDocument::Job(job) => {
                    keys.push(job.key.clone());
                    ids.extend(job.id);
                    names.extend(job.calendars.iter().map(|name| name.trim().to_owned()));
                }
                FileDocument::Calendar(calendar) => {
                    names.insert(calendar.name.trim().to_owned());
                    defined_names.insert(calendar.name.trim());
                }
                FileDocument::AlertRule(_) => {}
            }
        }
        let jobs_by_key = self.store.job_ids_of_keys(&keys).await?;
        ids.extend(jobs_by_key.values().copied());
        let jobs = self.store.jobs_to_show(&ids).await?;
        let behind: Vec<JobId> =
            jobs.iter().filter(|job| job.source.is_behind(job.version)).map(|job| job.id).collect();
        let offered = self.store.live_job_types(liveness::alive_since(self.clock.now())).await?;
        let edits = if behind.is_empty() { HashMap::new() } else { self.store.edits_since_source(&behind).await? };
        let used: HashSet<CalendarId> = jobs.iter().flat_map(|job| job.definition.rules.calendars.clone()).collect();
        let mut calendars = self.store.calendars_by_id(&used).await?;
        let names: Vec<String> = names.into_iter().collect();
        let (mut calendar_ids, mut defined) = (HashMap::new(), HashMap::new());
        for named in self.store.calendars_of_names(&names).await? {
            calendar_ids.insert(named.name.clone(), named.id);
            match &named.calendar {
                Some(calendar) => drop(calendars.readable.insert(named.id, calendar.clone())),
                None => drop(calendars.unreadable.insert(named.id, named.name.clone())),
            }
            if defined_names.contains(named.name.as_str()) {
                defined.insert(named.name, (named.id, named.version, named.calendar));
            }
        }
        let readable = calendars.readable.iter().map(|(id, calendar)| (*id, calendar.name.clone()));
        let unreadable = calendars.unreadable.iter().map(|(id, name)| (*id, name.clone()));
        let calendar_names = readable.chain(unreadable).collect();
        let jobs = jobs.into_iter().map(|job| (job.id, job)).collect();
        Ok(Stored { jobs_by_key, jobs, edits, offered, calendar_ids, calendar_names, calendars, defined })
    }

    /// Checks a calendar, notes it for the jobs that name it, and compares it with the stored one.
    fn plan_calendar(
        &self,
        place: Place,
        calendar: &Calendar,
        stored: &mut Stored,
        errors: &mut DocumentErrors,
        budget: &mut usize,
    ) -> Result<Option<(PlannedCalendar, DocumentPlan)>, FilesError> {
        let calendar = match checked_calendar(calendar) {
            Ok(calendar) => calendar,
            Err(wrong) => {
                errors.extend(place, wrong);
                return Ok(None);
            }
        };
        let before = match stored.defined.remove(&calendar.name) {
            Some((_, _, None)) => {
                let text = format!("This server cannot read the calendar {}. Upgrade it.", calendar.name);
                return Err(AppError::Conflict(text).into());
            }
            Some((id, version, Some(before))) => Some((id, version, before)),
            None => None,
        };
        let id = before.as_ref().map_or_else(|| self.clock.calendar_id(), |(id, ..)| *id);
        stored.calendar_ids.insert(calendar.name.clone(), id);
        stored.calendar_names.insert(id, calendar.name.clone());
        stored.calendars.readable.insert(id, calendar.clone());
        let earlier = before.as_ref().map(|(_, _, calendar)| calendar);
        let report = document_plan(DocumentKind::Calendar, &calendar.name, earlier, &calendar, to_json, budget);
        let version = before.as_ref().map(|(_, version, _)| *version);
        Ok(Some((PlannedCalendar { id, version, calendar }, report)))
    }

    /// Checks a job and compares it with the stored one.
    fn plan_job(
        &self,
        place: Place,
        document: &JobDocument,
        schema: Option<&Value>,
        stored: &Stored,
        errors: &mut DocumentErrors,
    ) -> Result<Option<PlannedJob>, FilesError> {
        let before = match stored.job_of(document) {
            Ok(before) => before,
            Err((field, message)) => {
                errors.add(place, field, message);
                return Ok(None);
            }
        };
        if let Some(part) = before.and_then(|job| job.unreadable.as_deref()) {
            let text = format!("This server cannot read {part} of the job {}. Upgrade it.", document.key);
            return Err(AppError::Conflict(text).into());
        }
        let mut job = document.definition.clone();
        job.is_active = document.is_active.unwrap_or_else(|| before.is_none_or(|job| job.definition.is_active));
        for (index, name) in document.calendars.iter().enumerate() {
            match stored.calendar_ids.get(name.trim()) {
                Some(id) => job.rules.calendars.push(*id),
                None => errors.add(
                    place,
                    &format!("rules.calendars.{index}"),
                    format!("there is no calendar {name:?}: correct the name, or add a document of the calendar"),
                ),
            }
        }
        // Without the time: an export has jobs whose single instant has passed, and must be applicable elsewhere.
        let job = match checked_definition(&job, None, schema, |_| true) {
            Ok(job) => job,
            Err(wrong) => {
                errors.extend_job(place, wrong);
                return Ok(None);
            }
        };
        let outcome = match before {
            None => PlannedOutcome::Created,
            Some(before) if before.definition == job => PlannedOutcome::Unchanged,
            Some(_) => PlannedOutcome::Changed,
        };
        let id = before.map_or_else(|| self.clock.job_id(), |job| job.id);
        Ok(Some(PlannedJob { id, key: document.key.clone(), before: before.cloned(), job, outcome }))
    }

    /// Returns the jobs that no document names any more, if the request asks for it.
    async fn planned_deletions(
        &self,
        caller: FilesCaller<'_>,
        request: &ApplyFiles,
        files: &[PlannedFile],
    ) -> Result<Vec<JobOfFile>, FilesError> {
        let Some(prune) = &request.prune else { return Ok(Vec::new()) };
        let kept: Vec<JobId> = files.iter().flat_map(|file| &file.jobs).map(|job| job.id).collect();
        let limit = i64::try_from(MAX_PRUNED).unwrap_or(i64::MAX);
        let deleted = self.store.jobs_of_files(Some(prune.tag.as_str()), &[], &kept, limit + 1).await?;
        if deleted.len() > MAX_PRUNED {
            let text = format!(
                "More than {MAX_PRUNED} jobs with the tag {} are in no file of this request. Check that all files are given, \
                 and delete jobs in smaller parts.",
                prune.tag
            );
            return Err(AppError::Conflict(text).into());
        }
        if let Some(expected) = prune.expected.filter(|expected| usize::try_from(*expected) != Ok(deleted.len())) {
            let text = format!("{} jobs would be deleted now, not {expected}. Look at the plan again.", deleted.len());
            return Err(AppError::Conflict(text).into());
        }
        if let Some(tag) = caller.tag
            && let Some(other) = deleted.iter().find(|job| !job.tags.iter().any(|own| own == tag))
        {
            return Err(outside_tag(tag, &format!("the job {:?}, which would be deleted", other.display_name)));
        }
        Ok(deleted)
    }
}

impl Stored {
    /// Returns the job that a document is about; none for a new one. A key that exists decides; the id finds a job that has
    /// no key yet.
    fn job_of(&self, document: &JobDocument) -> Result<Option<&StoredJob>, (&'static str, String)> {
        let by_key = self.jobs_by_key.get(&document.key).and_then(|id| self.jobs.get(id));
        let by_id = document.id.and_then(|id| self.jobs.get(&id));
        match (by_key, by_id) {
            (Some(by_key), Some(by_id)) if by_key.id != by_id.id => Err((
                "key",
                format!("the job {:?} has this key already: choose another key", by_key.definition.display_name),
            )),
            (None, Some(StoredJob { key: Some(key), .. })) => {
                Err(("key", format!("the job with this id has the key {key}, which cannot change: use that key")))
            }
            (Some(found), _) | (None, Some(found)) => Ok(Some(found)),
            (None, None) => Ok(None),
        }
    }
}

impl PlannedJob {
    /// Returns the report of the change at `now`.
    fn report(&self, stored: &Stored, budget: &mut usize, tag: Option<&str>, now: DateTime<Utc>) -> DocumentPlan {
        let surroundings = JobSurroundings {
            before: self.before.as_ref().map(|before| &before.definition),
            tag,
            is_offered: stored.offered.contains(&(self.job.worker_id.clone(), self.job.job_type.clone())),
            now,
        };
        let name_of = |id| stored.calendar_names.get(&id).cloned().unwrap_or_else(|| id.to_string());
        let json = |job: &JobInput| with_calendar_names(job, name_of);
        let compared = document_plan(DocumentKind::Job, &self.key, surroundings.before, &self.job, json, budget);
        let from = self.before.as_ref().map(|before| before.source.kind);
        let is_changed = self.outcome == PlannedOutcome::Changed;
        DocumentPlan {
            warnings: job_warnings(&self.job, surroundings),
            taken_from: from.filter(|kind| *kind != JobSourceKind::File),
            edited: stored.edits.get(&self.id).filter(|_| is_changed).cloned(),
            ..compared
        }
    }
}

/// Checks a request as far as that needs no service, and returns the order of its files.
fn check_request(request: &ApplyFiles) -> Result<Vec<usize>, FilesError> {
    let (files, total) = (request.files.len(), documents(request).count());
    if files > MAX_FILES || total > MAX_DOCUMENTS {
        let message = format!(
            "has {files} files with {total} documents, at most {MAX_FILES} and {MAX_DOCUMENTS} are allowed: send fewer files"
        );
        return Err(FilesError::Documents(vec![ProblemField { field: "files".into(), message }]));
    }
    if let Some(prune) = request.prune.as_ref().filter(|_| total == 0) {
        let message = format!(
            "has no documents, so prune would delete all jobs with the tag {} that came from files: check the program that \
             writes the documents, and delete the last jobs of a tag one by one",
            prune.tag
        );
        return Err(FilesError::Documents(vec![ProblemField { field: "files".into(), message }]));
    }
    for (index, file) in request.files.iter().enumerate() {
        if let Err(message) = check_printable(&file.name) {
            return Err(FilesError::Documents(vec![ProblemField { field: format!("files.{index}.name"), message }]));
        }
    }
    let mut errors = DocumentErrors::default();
    let mut places: HashMap<(DocumentKind, &str), Place> = HashMap::new();
    for (place, document) in documents(request) {
        if let Some(first) = places.insert((document.kind(), document.name()), place) {
            let (noun, field) = (document.kind().noun(), document.kind().name_field());
            let file = &request.files[first.file].name;
            let text = format!("this {noun} is also document {} of {file}: remove one of them", first.document + 1);
            errors.add(place, field, text);
        }
    }
    errors.into_result()?;
    let calendars: Vec<_> = request.files.iter().map(|file| FileCalendars::of(&file.documents)).collect();
    file_order(&calendars).map_err(|file| {
        let name = &request.files[file].name;
        let text = format!(
            "{name} has a calendar that another file needs, and needs a calendar of that file. Move both calendars to one file."
        );
        FilesError::Other(AppError::Conflict(text))
    })
}

/// Refuses objects without tags to a token that is limited to a tag, because they concern jobs of other tags too.
fn deny_untagged(caller: FilesCaller<'_>, what: &str) -> Result<(), FilesError> {
    caller.tag.map_or(Ok(()), |tag| Err(outside_tag(tag, what)))
}

/// Refuses a job that a token's tag excludes, before or after the change.
fn deny_other_tags(caller: FilesCaller<'_>, planned: &PlannedJob) -> Result<(), FilesError> {
    let Some(tag) = caller.tag else { return Ok(()) };
    let has_tag = |job: &JobInput| job.tags.iter().any(|own| own == tag);
    if has_tag(&planned.job) && planned.before.as_ref().is_none_or(|before| has_tag(&before.definition)) {
        return Ok(());
    }
    Err(outside_tag(tag, &format!("the job {}", planned.key)))
}

fn outside_tag(tag: &str, what: &str) -> FilesError {
    let text =
        format!("This token is limited to jobs with the tag {tag}, and not allowed for {what}. Use another token.");
    FilesError::Other(AppError::Denied(text))
}
