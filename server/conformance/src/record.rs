//! The messages that the kit has received from a worker, in the order of their arrival, and the model of each occurrence
//! from which it answers claim checks.

use std::{collections::HashMap, time::Instant};

use milvaion_protocol::{
    id::OccurrenceId,
    message::{ClaimDenial, ClaimRequest, InstanceHeartbeat, InstanceHello, LogMessage, StatusReport},
    status::OccurrenceStatus,
};

/// A message of a worker.
#[derive(Clone, Debug)]
pub(crate) enum WorkerMessage {
    Report(StatusReport),
    Lines(LogMessage),
    Hello(InstanceHello),
    Heartbeat(InstanceHeartbeat),
    Goodbye(String),
    ClaimCheck(ClaimRequest),
    /// The message of an occurrence that was rejected, or given up with a cause.
    DeadLetter(String),
}

/// A message with the time of its arrival.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedMessage {
    pub(crate) at: Instant,
    pub(crate) message: WorkerMessage,
}

/// The rule by which claim checks are answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ClaimPolicy {
    /// As the server does, from the reports that it has received.
    #[default]
    FromReports,
    /// Every attempt may start.
    Grant,
    /// No attempt may start, for this reason.
    Deny(String),
    /// No reply.
    Silent,
}

/// Everything received in one case.
#[derive(Debug, Default)]
pub(crate) struct MessageRecord {
    pub(crate) messages: Vec<ReceivedMessage>,
    /// The reasons why messages could not be read, or broke a rule for every message.
    pub(crate) complaints: Vec<String>,
    pub(crate) claim_policy: ClaimPolicy,
    /// The highest attempt that was sent, by occurrence.
    pub(crate) sent: HashMap<OccurrenceId, u32>,
}

impl MessageRecord {
    pub(crate) fn add(&mut self, message: WorkerMessage) {
        self.messages.push(ReceivedMessage { at: Instant::now(), message });
    }

    /// Returns the reports about an attempt, in the order of their arrival.
    pub(crate) fn reports(&self, occurrence: OccurrenceId, attempt: u32) -> Vec<StatusReport> {
        let all = self.messages.iter().filter_map(|one| match &one.message {
            WorkerMessage::Report(report) => Some(report),
            _ => None,
        });
        all.filter(|report| report.occurrence_id == occurrence && report.attempt == attempt).cloned().collect()
    }

    /// Returns the end of an attempt: its first report other than *Running*.
    pub(crate) fn end(&self, occurrence: OccurrenceId, attempt: u32) -> Option<StatusReport> {
        self.reports(occurrence, attempt).into_iter().find(|report| report.status != OccurrenceStatus::Running)
    }

    /// Returns the claim checks about an attempt.
    pub(crate) fn claim_checks(&self, occurrence: OccurrenceId, attempt: u32) -> Vec<ClaimRequest> {
        let all = self.messages.iter().filter_map(|one| match &one.message {
            WorkerMessage::ClaimCheck(request) => Some(request),
            _ => None,
        });
        all.filter(|request| request.occurrence_id == occurrence && request.attempt == attempt).cloned().collect()
    }

    /// Returns the reason to deny an attempt; an error if no reply is sent.
    pub(crate) fn denial(&self, request: &ClaimRequest) -> Result<Option<(String, Option<String>)>, ()> {
        match &self.claim_policy {
            ClaimPolicy::Silent => Err(()),
            ClaimPolicy::Grant => Ok(None),
            ClaimPolicy::Deny(reason) => Ok(Some((reason.clone(), None))),
            ClaimPolicy::FromReports => Ok(self.denial_by_reports(request)),
        }
    }

    fn denial_by_reports(&self, request: &ClaimRequest) -> Option<(String, Option<String>)> {
        let named = |denial: ClaimDenial| match serde_json::to_value(denial) {
            Ok(serde_json::Value::String(name)) => name,
            _ => "unknown".to_owned(),
        };
        let Some(&in_force) = self.sent.get(&request.occurrence_id) else {
            return Some((named(ClaimDenial::Unknown), None));
        };
        if request.attempt < in_force {
            return Some((named(ClaimDenial::Superseded), None));
        }
        if self.end(request.occurrence_id, request.attempt).is_some() {
            return Some((named(ClaimDenial::Ended), None));
        }
        let start = self.reports(request.occurrence_id, request.attempt).into_iter().next()?;
        Some((named(ClaimDenial::Running), Some(start.instance_id)))
    }
}
