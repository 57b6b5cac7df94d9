//! Waits for what a worker does, by its reports, the ledger and the answers to its deliveries. A wait that ends without the
//! expected behaviour describes what was seen instead.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use milvaion_protocol::{
    id::OccurrenceId,
    message::{InstanceHello, JobMessage, StatusReport},
    status::OccurrenceStatus,
};

use super::{CaseContext, END_WITHIN, LOOK_INTERVAL, READY_WITHIN, TestJob};
use crate::{failure::CaseFailure, record::WorkerMessage, worker_process::WorkerProcess};

impl CaseContext {
    /// Returns the attempts of an occurrence that have begun, in the order in which the job wrote them to the ledger.
    pub(crate) fn starts(&self, occurrence: OccurrenceId) -> Vec<u32> {
        self.ledger_lines().into_iter().filter(|(id, _)| *id == occurrence).map(|(_, attempt)| attempt).collect()
    }

    /// Returns every line of the ledger.
    pub(crate) fn ledger_lines(&self) -> Vec<(OccurrenceId, u32)> {
        let text = std::fs::read_to_string(self.ledger()).unwrap_or_default();
        let read = |line: &str| {
            let (id, attempt) = line.trim().split_once(' ')?;
            Some((id.parse().ok()?, attempt.trim().parse().ok()?))
        };
        text.lines().filter_map(read).collect()
    }

    /// Waits until a condition holds. Fails with the expectation and with what is seen then.
    pub(crate) async fn until<T>(
        &self,
        within: Duration,
        expected: impl Into<String>,
        mut look: impl FnMut() -> Option<T>,
        seen: impl FnOnce() -> String,
    ) -> Result<T, CaseFailure> {
        let since = Instant::now();
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            if since.elapsed() > within {
                let expected = format!("{} within {} s", expected.into(), within.as_secs_f32());
                return Err(CaseFailure::new(expected, seen()));
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Waits like [`until`](Self::until) for a condition that asks a service.
    pub(crate) async fn until_async<T, F>(
        &self,
        within: Duration,
        expected: impl Into<String>,
        mut look: impl FnMut() -> F,
        seen: impl FnOnce() -> String,
    ) -> Result<T, CaseFailure>
    where
        F: Future<Output = Option<T>>,
    {
        let since = Instant::now();
        loop {
            if let Some(found) = look().await {
                return Ok(found);
            }
            if since.elapsed() > within {
                let expected = format!("{} within {} s", expected.into(), within.as_secs_f32());
                return Err(CaseFailure::new(expected, seen()));
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Describes everything seen about an occurrence.
    pub(crate) fn describe(&self, message: &JobMessage) -> String {
        let id = message.occurrence_id;
        let answers: Vec<_> = self.lock_taps().iter().flat_map(|tap| tap.answers(id)).collect();
        let starts = self.starts(id);
        let record = self.server.record();
        let mut reports = Vec::new();
        let highest = record.sent.get(&id).copied().unwrap_or(1);
        for attempt in 1..=highest {
            for report in record.reports(id, attempt) {
                let exception = report.exception.map(|text| format!(" ({})", text.lines().next().unwrap_or_default()));
                let progress = if report.progress.is_some() { " with progress" } else { "" };
                let label = report.status.label();
                reports.push(format!("attempt {attempt} {label}{progress}{}", exception.unwrap_or_default()));
            }
        }
        if reports.len() > 6 {
            let left_out = reports.len() - 6;
            reports.truncate(6);
            reports.push(format!("{left_out} more"));
        }
        let reports = if reports.is_empty() { "no report".to_owned() } else { reports.join(", ") };
        let checks: usize = (1..=highest).map(|attempt| record.claim_checks(id, attempt).len()).sum();
        let complaints = record.complaints.first().map(|one| format!("; {one}")).unwrap_or_default();
        format!("{reports}; starts in the ledger {starts:?}; {checks} claim check(s); answers {answers:?}{complaints}")
    }

    /// Waits for the end of an attempt.
    pub(crate) async fn end(&self, message: &JobMessage, within: Duration) -> Result<StatusReport, CaseFailure> {
        let (id, attempt) = (message.occurrence_id, message.attempt);
        let expected = format!("a report of the end of attempt {attempt}");
        self.until(within, expected, || self.server.record().end(id, attempt), || self.describe(message)).await
    }

    /// Waits for the end of an attempt with a status.
    pub(crate) async fn ends_as(
        &self,
        message: &JobMessage,
        status: OccurrenceStatus,
    ) -> Result<StatusReport, CaseFailure> {
        self.ends_as_within(message, status, END_WITHIN).await
    }

    /// Waits for the end of an attempt with a status, for a time.
    pub(crate) async fn ends_as_within(
        &self,
        message: &JobMessage,
        status: OccurrenceStatus,
        within: Duration,
    ) -> Result<StatusReport, CaseFailure> {
        let report = self.end(message, within).await?;
        self.expect(report.status == status, format!("the end {}", status.label()), || self.describe(message))?;
        Ok(report)
    }

    /// Returns the registrations of instances, in the order in which they arrived, or those after an instant.
    pub(crate) fn hellos(&self, since: Option<Instant>) -> Vec<InstanceHello> {
        let record = self.server.record();
        let later = record.messages.iter().filter(|received| since.is_none_or(|since| received.at > since));
        let all = later.filter_map(|received| match &received.message {
            WorkerMessage::Hello(hello) => Some(hello.clone()),
            _ => None,
        });
        all.collect()
    }

    /// Waits for the registration of an instance.
    pub(crate) async fn first_hello(&self) -> Result<InstanceHello, CaseFailure> {
        let found = || self.hellos(None).into_iter().next();
        self.until(READY_WITHIN, "a hello", found, || "none".to_owned()).await
    }

    /// Waits until an attempt has begun, by the ledger.
    pub(crate) async fn begins(&self, message: &JobMessage) -> Result<(), CaseFailure> {
        let begun = || self.starts(message.occurrence_id).contains(&message.attempt).then_some(());
        self.until(END_WITHIN, "a start in the ledger", begun, || self.describe(message)).await
    }

    /// Waits until as many runs have begun as `conformance-sleep` may have at once, by the ledger.
    pub(crate) async fn all_permits_are_taken(&self) -> Result<(), CaseFailure> {
        let count = || self.ledger_lines().len();
        self.until(END_WITHIN, "four runs", || (count() >= 4).then_some(()), || format!("{} runs", count())).await
    }

    /// Waits until an attempt was reported *Running*.
    pub(crate) async fn is_running(&self, message: &JobMessage) -> Result<StatusReport, CaseFailure> {
        let running = || {
            let reports = self.server.record().reports(message.occurrence_id, message.attempt);
            reports.into_iter().find(|report| report.status == OccurrenceStatus::Running)
        };
        self.until(END_WITHIN, "a report Running", running, || self.describe(message)).await
    }

    /// Waits until every delivery to a worker is answered and none waits in the queue of a job.
    pub(crate) async fn settles(
        &self,
        worker: &WorkerProcess,
        job: TestJob,
        within: Duration,
    ) -> Result<(), CaseFailure> {
        let (id, job_type) = (self.worker_id(), self.job_type(job));
        let settled = || async {
            let open = worker.tap.unanswered();
            let waiting = self.server.job_queue(&id, job_type).await.map_or(0, |(_, waiting)| waiting);
            (open == 0 && waiting == 0).then_some(())
        };
        let seen = || format!("{} delivery without an answer, or a message that waits", worker.tap.unanswered());
        self.until_async(within, "an answer to every delivery", settled, seen).await
    }

    /// Fails unless a condition holds.
    pub(crate) fn expect(
        &self,
        holds: bool,
        expected: impl Into<String>,
        seen: impl FnOnce() -> String,
    ) -> Result<(), CaseFailure> {
        if holds { Ok(()) } else { Err(CaseFailure::new(expected, seen())) }
    }

    /// Fails unless the attempts of an occurrence that have begun are these.
    pub(crate) fn expect_starts(&self, message: &JobMessage, starts: &[u32]) -> Result<(), CaseFailure> {
        let seen = self.starts(message.occurrence_id);
        self.expect(seen == starts, format!("starts of the attempts {starts:?}"), || self.describe(message))
    }

    /// Fails if a rule that holds for every message and every run was broken.
    pub(crate) fn judge_everything(&self) -> Result<(), CaseFailure> {
        if let Some(complaint) = self.server.record().complaints.first() {
            return Err(CaseFailure::new("messages that match their schemas", complaint.clone()));
        }
        for tap in self.lock_taps().iter() {
            if let Some(exchange) = tap.careless_publishing().first() {
                return Err(CaseFailure::new(
                    "every message with the flag mandatory, on a channel with publisher confirms",
                    format!("a message to {exchange} without one of them"),
                ));
            }
        }
        let mut lines = self.ledger_lines();
        lines.sort_unstable();
        for pair in lines.windows(2) {
            if pair[0] == pair[1] {
                let (id, attempt) = pair[0];
                return Err(CaseFailure::new(
                    "one start of each attempt",
                    format!("attempt {attempt} of {id} started twice"),
                ));
            }
        }
        Ok(())
    }
}
