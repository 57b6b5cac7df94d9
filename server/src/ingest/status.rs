//! Status reports of workers: folded, applied in few transactions, and published to open pages after the commit.
//!
//! A report that changed nothing is still examined, because it may show that an attempt was started twice.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use milvaion_api::{events::LiveEvent, views::OccurrenceRow};
use milvaion_protocol::{id::OccurrenceId, message::StatusReport, reading::StatusReading, status::OccurrenceStatus};
use milvaion_telemetry::occurrences::{SpanStart, record_stored};

use crate::{
    broker::consumer::{BatchHandler, Channel, Delivery},
    clock::Clock,
    domain::{
        duplicates::{ReportedStart, ReportedStarts},
        retry,
        transition::{self, AttemptChange},
    },
    engine::{activators::Activators, context::Context},
    error::chain,
    faults,
    ingest::unreadable,
    live::Hub,
    store::{Store, late_starts::LateStarts, reports::AppliedChanges, unreadable::UnreadablePart},
};

/// The most reports in one statement. A larger batch is stored in several, so that none holds its locks for long.
const MAX_REPORTS_PER_STATEMENT: usize = 2_500;

/// The consumer of the status queue.
#[derive(Clone, Debug)]
pub struct StatusConsumer {
    /// The PostgreSQL store.
    pub store: Store,
    /// The activators of the tasks that follow a freed slot, a pause or a failure.
    pub activators: Activators,
    /// The hub for live events.
    pub hub: Hub,
    /// The server's clock.
    pub clock: Clock,
}

impl StatusConsumer {
    /// Creates the consumer of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.reports.clone(),
            activators: context.activators.clone(),
            hub: context.hub.clone(),
            clock: context.clock.clone(),
        }
    }
}

impl StatusConsumer {
    /// Applies reports in the order of their arrival. Returns the number of occurrences that changed.
    ///
    /// # Errors
    ///
    /// Returns an error if PostgreSQL fails. Either no report was applied, or all were applied and only the search for
    /// duplicates is missing. Applying the same reports again completes the work.
    pub async fn apply(&self, reports: Vec<StatusReport>) -> anyhow::Result<usize> {
        let (traced, start) = (TracedReports::of(&reports), SpanStart::now());
        let reports: Vec<StatusReport> = reports.into_iter().map(sanitize).collect();
        let starts = ReportedStarts::of(&reports);
        let mut changes = transition::fold(reports);
        #[cfg(feature = "faults")]
        self.store.sabotage_attempts(&mut changes).await?;
        let now = self.clock.now();
        self.decide_about_retries(&mut changes, now).await?;
        faults::crash_point("status.before_commit");
        let AppliedChanges { rows, taken_over, known_starts, slot_freed, has_failures, ended_jobs, has_delayed } =
            self.store.apply(&changes, now).await?;
        faults::crash_point("status.after_commit");
        let changed = rows.len();
        traced.record(&rows, start);
        let undisputed = rows.iter().map(|row| row.id).filter(|id| !taken_over.contains(id)).collect();
        let undisputed: HashSet<OccurrenceId> = undisputed;
        let undisputed = undisputed.difference(&known_starts).copied().collect();
        let suspects = starts.suspects(&undisputed);
        let starts_pause = !ended_jobs.is_empty();
        self.activators.ended_jobs.add(ended_jobs);
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
                "some reports were late, repeated or about unknown occurrences"
            );
        }
        self.record_duplicates(suspects).await?;
        Ok(changed)
    }

    /// Applies the reports in some bodies, and records what could not be read.
    async fn process(&self, bodies: &[ReceivedBody<'_>]) -> anyhow::Result<()> {
        let received_at = self.clock.now();
        let (reports, unreadable) = read(bodies, received_at);
        let (mut reports, mut done) = (reports.into_iter(), 0);
        let mut refused = None;
        loop {
            let chunk: Vec<StatusReport> = reports.by_ref().take(MAX_REPORTS_PER_STATEMENT).collect();
            let count = chunk.len();
            if count == 0 {
                break;
            }
            match self.apply(chunk).await {
                Err(error) if !Self::is_retryable(&error) => {
                    // Read again: a copy of every report would cost each batch more than a refusal costs, which is rare.
                    let again = read(bodies, received_at).0.into_iter().skip(done).take(count);
                    refused = self.apply_each(again.collect()).await?.or(refused);
                }
                applied => drop(applied?),
            }
            done += count;
        }
        let now = self.clock.now();
        if unreadable::record(&self.store, "status", &unreadable, now).await? {
            self.hub.publish(now, vec![LiveEvent::Workers]);
        }
        // Everything else is stored.
        refused.map_or(Ok(()), Err)
    }

    /// Applies each report individually. Returns the error of one that can never be stored.
    async fn apply_each(&self, reports: Vec<StatusReport>) -> anyhow::Result<Option<anyhow::Error>> {
        let mut refused = None;
        for report in reports {
            let (id, attempt) = (report.occurrence_id, report.attempt);
            match self.apply(vec![report]).await {
                Err(error) if !Self::is_retryable(&error) => {
                    refused = Some(error.context(format!("the report about attempt {attempt} of occurrence {id}")));
                }
                done => drop(done?),
            }
        }
        Ok(refused)
    }

    /// Decides about retries. Most batches contain no retryable failure and need no query.
    async fn decide_about_retries(&self, changes: &mut [AttemptChange], now: DateTime<Utc>) -> anyhow::Result<()> {
        let failed: Vec<_> = changes
            .iter()
            .filter(|change| change.may_be_retried())
            .map(|change| (change.occurrence_id, change.attempt))
            .collect();
        if failed.is_empty() {
            return Ok(());
        }
        let contexts = self.store.retry_contexts(&failed).await?;
        for change in changes {
            // A report about another attempt than the current one has no context, and the guarded update ignores it.
            if let Some(context) = contexts.get(&change.occurrence_id) {
                retry::decide(change, context, now);
            }
        }
        Ok(())
    }

    /// Records the starts that another instance had already reported for the same attempt, and those of occurrences that
    /// had ended. The latter are stopped.
    async fn record_duplicates(&self, suspects: Vec<ReportedStart>) -> anyhow::Result<()> {
        if suspects.is_empty() {
            return Ok(());
        }
        let LateStarts { rows, late_runs } = match self.store.record_late_starts(&suspects).await {
            Ok(found) => found,
            // The batch is redelivered, and the starts in it are examined then.
            Err(error) if error.is_outage() => return Err(error.into()),
            Err(error) => {
                tracing::error!(error = %chain(&error), "starts could not be examined; a duplicate among them is not recorded");
                return Ok(());
            }
        };
        self.store.metrics().duplicate_starts(rows.len());
        for row in &rows {
            tracing::warn!(
                occurrence.id = %row.id,
                job.name = row.job_name,
                "occurrence {} was started by a second instance or after its end; its effects may have happened once too often",
                row.id
            );
        }
        if !late_runs.is_empty() {
            self.activators.late_runs.add(late_runs);
            self.activators.cancellation_repeater.notify_one();
        }
        if !rows.is_empty() {
            self.hub.publish(self.clock.now(), vec![LiveEvent::Occurrences { rows }]);
        }
        Ok(())
    }
}

/// Truncates a report to its bounds, and logs a checkpoint that cannot be kept.
fn sanitize(report: StatusReport) -> StatusReport {
    let has_checkpoint = report.checkpoint.is_some();
    let report = transition::sanitize_report(report);
    if has_checkpoint && report.checkpoint.is_none() {
        let id = report.occurrence_id;
        tracing::warn!(
            occurrence.id = %id,
            "a checkpoint of occurrence {id} is larger than 32 KiB or contains NUL and is dropped; the next attempt gets the \
             one before"
        );
    }
    report
}

/// The newest report of each occurrence in a batch that is traced. Empty if this process records no spans.
#[derive(Debug, Default)]
struct TracedReports(HashMap<OccurrenceId, (String, i32, OccurrenceStatus)>);

impl TracedReports {
    fn of(reports: &[StatusReport]) -> Self {
        if !milvaion_telemetry::is_recording() {
            return Self::default();
        }
        let traced = reports.iter().filter_map(|report| {
            let attempt = i32::try_from(report.attempt).unwrap_or(i32::MAX);
            Some((report.occurrence_id, (report.traceparent.clone()?, attempt, report.status)))
        });
        Self(traced.collect())
    }

    /// Records that the reports are stored which changed their occurrence.
    fn record(&self, rows: &[OccurrenceRow], start: SpanStart) {
        for row in rows {
            if let Some((traceparent, attempt, status)) = self.0.get(&row.id) {
                record_stored(traceparent, row.id, *attempt, status.slug(), start);
            }
        }
    }
}

/// A body of the status queue, and the instance that its properties name.
type ReceivedBody<'a> = (&'a [u8], Option<String>);

/// Parses the reports in some bodies, which arrived at `now`. Of a report that cannot be read in part, the status counts.
fn read(bodies: &[ReceivedBody<'_>], now: DateTime<Utc>) -> (Vec<StatusReport>, Vec<UnreadablePart>) {
    let (mut read, mut parts) = (Vec::new(), Vec::new());
    for (body, sender) in bodies {
        let StatusReading { reports, unreadable } = StatusReading::of(body, sender.as_deref(), now);
        for (report, problems) in reports {
            parts.extend(unreadable::of_report(&report, &problems));
            read.push(report);
        }
        parts.extend(unreadable.into_iter().map(unreadable::of_dropped_report));
    }
    (read, parts)
}

impl BatchHandler for StatusConsumer {
    const NAME: &'static str = "milvaion server status";
    const KEEPS_REFUSED: bool = true;

    fn is_retryable(error: &anyhow::Error) -> bool {
        super::is_retryable(error)
    }

    async fn check(&self) -> anyhow::Result<()> {
        Ok(self.store.ping().await?)
    }

    async fn handle(&self, bodies: Vec<Vec<u8>>) -> anyhow::Result<()> {
        self.process(&bodies.iter().map(|body| (body.as_slice(), None)).collect::<Vec<_>>()).await
    }

    async fn handle_deliveries(&self, _: &Channel, batch: &[Delivery]) -> anyhow::Result<()> {
        let bodies = batch.iter().map(|delivery| (delivery.data.as_slice(), super::sender(delivery)));
        self.process(&bodies.collect::<Vec<_>>()).await
    }
}
