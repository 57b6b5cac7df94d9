//! The status reports that wait for the broker, in their order.
//!
//! A progress or a checkpoint replaces the one of its attempt that still waits. During an outage thousands of runs report
//! them four times a second, on the thread that sends the heartbeats, so the waiting one is found by its number.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tokio::sync::oneshot;

use crate::{delivery::claim::AttemptKey, reporting::outbox::EntryId};

/// A report that waits or is in flight.
pub(super) struct PendingReport {
    pub(super) attempt: AttemptKey,
    pub(super) stage: ReportStage,
    /// The report as JSON.
    pub(super) text: Arc<str>,
    pub(super) confirmed: Option<oneshot::Sender<()>>,
}

/// The stage that a report announces, and its outbox entry if it has one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportStage {
    Start(EntryId),
    /// The next one of the same kind and attempt replaces it, and it does not survive the process.
    Update(RunUpdate),
    End(EntryId),
}

/// What a report during a run brings. The two kinds are told apart, because a report with progress must not replace one with
/// a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum RunUpdate {
    Progress,
    Checkpoint,
}

impl PendingReport {
    /// Returns what identifies an update, or `None` for a start and an end.
    const fn update(&self) -> Option<(AttemptKey, RunUpdate)> {
        match self.stage {
            ReportStage::Update(update) => Some((self.attempt, update)),
            ReportStage::Start(_) | ReportStage::End(_) => None,
        }
    }
}

/// The waiting reports.
#[derive(Default)]
pub(super) struct StatusQueue {
    reports: VecDeque<PendingReport>,
    /// The number of the first report. The next ones have the numbers that follow.
    first: usize,
    /// The number of the waiting update of each kind and attempt.
    updates: HashMap<(AttemptKey, RunUpdate), usize>,
}

impl StatusQueue {
    /// Adds a report. An update takes the place of the waiting one of the same kind and attempt.
    pub(super) fn push(&mut self, report: PendingReport) {
        if let Some(update) = report.update() {
            let next = self.first.wrapping_add(self.reports.len());
            let number = *self.updates.entry(update).or_insert(next);
            if let Some(waiting) = self.reports.get_mut(number.wrapping_sub(self.first)) {
                *waiting = report;
                return;
            }
        }
        self.reports.push_back(report);
    }

    /// Returns the first report.
    pub(super) fn front(&self) -> Option<&PendingReport> {
        self.reports.front()
    }

    /// Removes the first report.
    pub(super) fn pop(&mut self) -> Option<PendingReport> {
        let report = self.reports.pop_front()?;
        self.first = self.first.wrapping_add(1);
        if let Some(update) = report.update() {
            self.updates.remove(&update);
        }
        Some(report)
    }

    /// Puts back the reports of a batch that was not sent, in front of the others. An update that was replaced meanwhile is
    /// dropped.
    pub(super) fn put_back(&mut self, batch: Vec<PendingReport>) {
        for report in batch.into_iter().rev() {
            let number = self.first.wrapping_sub(1);
            if let Some(update) = report.update()
                && *self.updates.entry(update).or_insert(number) != number
            {
                continue;
            }
            self.first = number;
            self.reports.push_front(report);
        }
    }

    /// Returns the number of reports.
    pub(super) fn len(&self) -> usize {
        self.reports.len()
    }

    /// Returns true if no report waits.
    pub(super) fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }

    /// Returns the reports in their order.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &PendingReport> {
        self.reports.iter()
    }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::id::OccurrenceId;

    use super::*;

    fn update(attempt: u32, update: RunUpdate, text: &str) -> PendingReport {
        let attempt = (OccurrenceId::default(), attempt);
        PendingReport { attempt, stage: ReportStage::Update(update), text: text.into(), confirmed: None }
    }

    fn texts(queue: &StatusQueue) -> Vec<&str> {
        queue.iter().map(|report| &*report.text).collect()
    }

    #[test]
    fn update_replaces_the_waiting_one_of_its_kind_and_attempt() {
        let mut queue = StatusQueue::default();
        for text in ["a1", "a2"] {
            queue.push(update(1, RunUpdate::Progress, text));
            queue.push(update(2, RunUpdate::Progress, &format!("{text} of 2")));
            queue.push(update(1, RunUpdate::Checkpoint, &format!("{text} checkpoint")));
        }
        assert_eq!(texts(&queue), ["a2", "a2 of 2", "a2 checkpoint"]);
        assert_eq!(queue.pop().map(|report| report.text), Some("a2".into()));
        queue.push(update(1, RunUpdate::Progress, "a3"));
        queue.push(update(1, RunUpdate::Checkpoint, "a3 checkpoint"));
        assert_eq!(texts(&queue), ["a2 of 2", "a3 checkpoint", "a3"]);
        assert_eq!(queue.front().map(|report| &*report.text), Some("a2 of 2"));
    }

    #[test]
    fn returned_batch_comes_first_without_what_was_replaced() {
        let mut queue = StatusQueue::default();
        let end = |attempt| PendingReport {
            attempt: (OccurrenceId::default(), attempt),
            stage: ReportStage::End(EntryId::default()),
            text: format!("end of {attempt}").into(),
            confirmed: None,
        };
        queue.push(update(1, RunUpdate::Progress, "old"));
        queue.push(update(2, RunUpdate::Progress, "kept"));
        queue.push(end(3));
        let batch: Vec<PendingReport> = std::iter::from_fn(|| queue.pop()).collect();
        assert!(queue.is_empty());
        queue.push(end(4));
        queue.push(update(1, RunUpdate::Progress, "new"));
        queue.put_back(batch);
        assert_eq!(texts(&queue), ["kept", "end of 3", "end of 4", "new"]);
        // A later one finds both.
        queue.push(update(1, RunUpdate::Progress, "newer"));
        queue.push(update(2, RunUpdate::Progress, "replaced"));
        assert_eq!(texts(&queue), ["replaced", "end of 3", "end of 4", "newer"]);
        assert_eq!(queue.len(), 4);
    }
}
