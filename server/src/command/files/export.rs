//! The export: stored definitions as documents.

use std::collections::{HashMap, HashSet};

use milvaion_api::{
    page::{JobFilter, ListPage},
    rest::{ExportQuery, FileDocument, JobDocument, files::suggested_key},
};
use milvaion_app::error::AppError;
use milvaion_protocol::id::{CalendarId, JobId};
use milvaion_schedule::calendar::Calendar;

use crate::{
    command::jobs::JobCommands,
    domain::liveness,
    store::{calendars::CalendarSet, jobs::StoredJob},
};

impl JobCommands {
    /// Returns a page of the jobs as documents, by name, after the calendars that they name. The first page of all jobs has
    /// all calendars and alert rules.
    ///
    /// # Errors
    ///
    /// Returns `Conflict` if this version cannot read one of the definitions.
    pub async fn export_files(&self, query: ExportQuery) -> Result<ListPage<FileDocument>, AppError> {
        let has_all_calendars = query.tag.is_none() && query.after.is_none();
        let limit = query.limit.unwrap_or_default();
        let filter = JobFilter { text: None, tag: query.tag, active: None, after: query.after, limit };
        let page = self.store.jobs(&filter, liveness::alive_since(self.clock.now())).await?;
        let ids: Vec<JobId> = page.rows.iter().map(|row| row.id).collect();
        let jobs = self.store.jobs_to_show(&ids).await?;
        let used: HashSet<CalendarId> = jobs.iter().flat_map(|job| job.definition.rules.calendars.clone()).collect();
        let calendars = self.store.calendars_by_id(&used).await?;
        let mut rows: Vec<FileDocument> = if has_all_calendars {
            let all = self.store.calendars().await?;
            let readable = |calendar: Option<Calendar>, name: &str| calendar.ok_or_else(|| unreadable_calendar(name));
            all.into_iter()
                .map(|stored| readable(stored.calendar, &stored.name).map(FileDocument::Calendar))
                .collect::<Result<_, _>>()?
        } else {
            let mut named: Vec<Calendar> = calendars.readable.values().cloned().collect();
            named.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            named.into_iter().map(FileDocument::Calendar).collect()
        };
        if has_all_calendars {
            let rules = self.store.alert_rules().await?;
            rows.extend(rules.into_iter().map(|row| FileDocument::AlertRule(row.definition)));
        }
        if let Some(name) = calendars.unreadable.values().next() {
            return Err(unreadable_calendar(name));
        }
        let keys = self.suggested_keys(&jobs).await?;
        for job in jobs {
            rows.push(FileDocument::Job(Box::new(document(job, &keys, &calendars)?)));
        }
        Ok(ListPage { rows, next: page.next })
    }

    /// Returns a key for each job that has none.
    async fn suggested_keys(&self, jobs: &[StoredJob]) -> Result<HashMap<JobId, String>, AppError> {
        let nameless: Vec<&StoredJob> = jobs.iter().filter(|job| job.key.is_none()).collect();
        let plain = |job: &StoredJob| suggested_key(&job.definition.display_name, job.id, |_| false);
        let wanted: Vec<String> = nameless.iter().map(|job| plain(job)).collect();
        let mut taken: HashSet<String> = self.store.job_ids_of_keys(&wanted).await?.into_keys().collect();
        let mut keys = HashMap::with_capacity(nameless.len());
        for job in nameless {
            let key = suggested_key(&job.definition.display_name, job.id, |key| taken.contains(key));
            taken.insert(key.clone());
            keys.insert(job.id, key);
        }
        Ok(keys)
    }
}

/// Returns the document of a job.
fn document(job: StoredJob, keys: &HashMap<JobId, String>, calendars: &CalendarSet) -> Result<JobDocument, AppError> {
    let mut definition = job.definition;
    if let Some(part) = job.unreadable {
        let name = definition.display_name;
        return Err(AppError::Conflict(format!("This server cannot read {part} of the job {name:?}. Upgrade it.")));
    }
    let names = std::mem::take(&mut definition.rules.calendars);
    // A calendar that was deleted blacks out nothing.
    let names = names.iter().filter_map(|id| calendars.readable.get(id)).map(|calendar| calendar.name.clone());
    let (key, id) = match job.key {
        Some(key) => (key, None),
        None => (keys.get(&job.id).cloned().unwrap_or_default(), Some(job.id)),
    };
    let is_active = (!definition.is_active).then_some(false);
    Ok(JobDocument { key, id, is_active, calendars: names.collect(), definition })
}

fn unreadable_calendar(name: &str) -> AppError {
    AppError::Conflict(format!("This server cannot read the calendar {name:?}. Upgrade it."))
}
