//! Status reports: folded, applied in few transactions, told to browsers after the commit.
//!
//! What changed nothing is not thrown away unseen: it may tell that an attempt was started twice.

use chrono::{DateTime, Utc};
use milvaion_api::events::LiveEvent;
use milvaion_protocol::message::{StatusMessage, StatusReport};

use crate::{
    background::activators::Activators,
    broker::consumer::BatchHandler,
    clock::Clock,
    domain::{
        duplicates::{ReportedStart, ReportedStarts},
        retry,
        transition::{self, AttemptChange},
    },
    error::chain,
    faults,
    live::Hub,
    store::{Store, reports::AppliedChanges},
};

/// The most reports in one statement. A flood is stored in several, so that none holds its locks for long.
const MAX_REPORTS_PER_STATEMENT: usize = 5_000;

/// The consumer of the status queue.
#[derive(Clone, Debug)]
pub struct StatusConsumer {
    /// The truth.
    pub store: Store,
    /// Who is to look when a slot is free, a pause begins or a job failed.
    pub activators: Activators,
    /// The way to browsers.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
}

impl StatusConsumer {
    /// Applies reports in the order they came. Returns how many occurrences changed.
    ///
    /// # Errors
    ///
    /// When the database does not answer. Then nothing was applied, or all was and only duplicates were not looked for;
    /// the same reports once more do what is missing.
    pub async fn apply(&self, reports: Vec<StatusReport>) -> anyhow::Result<usize> {
        let reports: Vec<StatusReport> = reports.into_iter().map(transition::sanitize_report).collect();
        let starts = ReportedStarts::of(&reports);
        let mut changes = transition::fold(reports);
        if faults::sabotaged("skip_attempt_check") {
            self.mean_the_present_attempt(&mut changes).await?;
        }
        let now = self.clock.now();
        self.decide_about_retries(&mut changes, now).await?;
        faults::point("status.before_commit");
        let AppliedChanges { rows, taken_over, slot_freed, has_failures, starts_pause, has_delayed } =
            self.store.apply(&changes, now).await?;
        faults::point("status.after_commit");
        let changed = rows.len();
        let undisputed = rows.iter().map(|row| row.id).filter(|id| !taken_over.contains(id)).collect();
        let suspects = starts.suspects(&undisputed);
        if slot_freed || starts_pause || has_delayed {
            self.activators.slot_granter.notify_one();
        }
        if has_failures {
            self.activators.auto_disable.notify_one();
        }
        if changed > 0 {
            self.hub.publish(now, vec![LiveEvent::Occurrences { rows }]);
        }
        if changed < changes.len() {
            tracing::debug!(
                reports = changes.len(),
                changed,
                "some reports were late, repeated or about something unknown"
            );
        }
        self.record_duplicates(suspects).await?;
        Ok(changed)
    }

    /// Applies each report by itself, and lets go of those that can never be stored.
    async fn apply_each(&self, reports: Vec<StatusReport>) -> anyhow::Result<()> {
        for report in reports {
            let (id, attempt) = (report.occurrence_id, report.attempt);
            match self.apply(vec![report]).await {
                Err(error) if !Self::is_retryable(&error) => tracing::error!(
                    occurrence.id = %id,
                    occurrence.attempt = attempt,
                    error = %chain(error.as_ref()),
                    "a worker's report can never be stored; it is let go"
                ),
                done => drop(done?),
            }
        }
        Ok(())
    }

    /// Sabotage: takes every report for one of the attempt in force.
    async fn mean_the_present_attempt(&self, changes: &mut [AttemptChange]) -> anyhow::Result<()> {
        let ids: Vec<_> = changes.iter().map(|change| change.occurrence_id).collect();
        let known = self.store.recorded_attempts(&ids).await?;
        for change in changes {
            if let Some(known) = known.get(&change.occurrence_id) {
                change.attempt = known.attempt;
            }
        }
        Ok(())
    }

    /// Most batches hold nothing that could be tried again, and cost no question.
    async fn decide_about_retries(&self, changes: &mut [AttemptChange], now: DateTime<Utc>) -> anyhow::Result<()> {
        let asked: Vec<_> = changes
            .iter()
            .filter(|change| change.may_be_retried())
            .map(|change| (change.occurrence_id, change.attempt))
            .collect();
        if asked.is_empty() {
            return Ok(());
        }
        let mut standings = self.store.retry_contexts(&asked).await?;
        retry::open_quarantines(changes, &mut standings);
        for change in changes {
            // What is not in the attempt that was reported changes nothing, whatever is decided.
            if let Some(standing) = standings.get(&change.occurrence_id) {
                retry::decide(change, standing, now);
            }
        }
        Ok(())
    }

    /// Puts on record which of these starts another instance had made already.
    async fn record_duplicates(&self, suspects: Vec<ReportedStart>) -> anyhow::Result<()> {
        if suspects.is_empty() {
            return Ok(());
        }
        let rows = match self.store.record_duplicates(&suspects).await {
            Ok(rows) => rows,
            // The batch comes again, and what it told of starts with it.
            Err(error) if error.is_outage() => return Err(error.into()),
            Err(error) => {
                tracing::error!(error = %chain(&error), "starts could not be looked at; a duplicate among them goes unrecorded");
                return Ok(());
            }
        };
        for row in &rows {
            tracing::warn!(
                occurrence.id = %row.id,
                job.name = row.job_name,
                "an attempt was started by more than one instance: what it does may have been done twice"
            );
        }
        if !rows.is_empty() {
            self.hub.publish(self.clock.now(), vec![LiveEvent::Occurrences { rows }]);
        }
        Ok(())
    }
}

/// The reports in a body. One that cannot be read does not take the others with it.
fn read(body: &[u8]) -> Vec<StatusReport> {
    #[derive(serde::Deserialize)]
    struct ReportBatch<Report> {
        reports: Vec<Report>,
    }
    // What nearly every body is. Asked for both shapes at once, serde would build every report twice.
    if let Ok(ReportBatch { reports }) = serde_json::from_slice(body) {
        return reports;
    }
    let error = match serde_json::from_slice::<StatusMessage>(body) {
        Ok(message) => return message.into_reports(),
        Err(error) => error,
    };
    let Ok(ReportBatch::<serde_json::Value> { reports }) = serde_json::from_slice(body) else {
        super::unreadable(StatusConsumer::NAME, body, &error);
        return Vec::new();
    };
    reports
        .into_iter()
        .filter_map(|report| {
            let text = report.to_string();
            serde_json::from_value(report)
                .inspect_err(|error| super::unreadable(StatusConsumer::NAME, text.as_bytes(), error))
                .ok()
        })
        .collect()
}

impl BatchHandler for StatusConsumer {
    const NAME: &'static str = "milvaion server status";

    fn is_retryable(error: &anyhow::Error) -> bool {
        super::is_retryable(error)
    }

    async fn handle(&self, bodies: Vec<Vec<u8>>) -> anyhow::Result<()> {
        let reports = || bodies.iter().flat_map(|body| read(body));
        let (mut rest, mut done): (Vec<_>, usize) = (reports().collect(), 0);
        while !rest.is_empty() {
            let later = rest.split_off(rest.len().min(MAX_REPORTS_PER_STATEMENT));
            let some = std::mem::replace(&mut rest, later);
            let count = some.len();
            match self.apply(some).await {
                Err(error) if !Self::is_retryable(&error) => {
                    self.apply_each(reports().skip(done).take(count).collect()).await?;
                }
                applied => drop(applied?),
            }
            done += count;
        }
        Ok(())
    }
}
