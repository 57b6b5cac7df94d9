//! Decides a claim check: may an attempt start although its message may be a duplicate delivery?
//!
//! Redis answers this for duplicates that arrive close together. This module answers it from PostgreSQL, for duplicates
//! that arrive after the claim in Redis has expired. The rule is short: an attempt may start as long as no instance has
//! reported that it started. An instance that starts an attempt without a claim announces its start with the request, and
//! that counts as such a report.

use milvaion_protocol::{
    message::{ClaimDenial, ClaimReply, ClaimRequest, StatusReport},
    status::OccurrenceStatus,
};

/// The state of an occurrence as PostgreSQL records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedAttempt {
    /// The stored status.
    pub status: OccurrenceStatus,
    /// The attempt in force.
    pub attempt: i32,
    /// The instance that runs it, if one has reported so.
    pub instance_id: Option<String>,
    /// True if it waits for a slot or is delayed.
    pub is_held: bool,
}

/// Decides a claim check from the recorded state of its occurrence; `None` means there is no such occurrence.
#[must_use]
pub fn answer(request: &ClaimRequest, known: Option<&RecordedAttempt>) -> ClaimReply {
    let denied = denial(request, known);
    let by = match denied {
        Some(ClaimDenial::Running) => known.and_then(|known| known.instance_id.clone()),
        _ => None,
    };
    ClaimReply {
        occurrence_id: request.occurrence_id,
        attempt: request.attempt,
        granted: denied.is_none(),
        reason: denied,
        by,
    }
}

/// Returns the report of the start that a request announces, to be recorded before it is granted.
#[must_use]
pub fn announced_start(request: &ClaimRequest) -> Option<StatusReport> {
    let (id, instance_id) = (request.occurrence_id, request.instance_id.clone());
    let at = request.starts_at?;
    Some(StatusReport::new(id, request.attempt, instance_id, OccurrenceStatus::Running, at))
}

fn denial(request: &ClaimRequest, known: Option<&RecordedAttempt>) -> Option<ClaimDenial> {
    use OccurrenceStatus as S;
    let Some(known) = known else { return Some(ClaimDenial::Unknown) };
    match known.status {
        S::Cancelled => return Some(ClaimDenial::Cancelled),
        S::Completed | S::Failed | S::TimedOut | S::Skipped => return Some(ClaimDenial::Ended),
        S::Queued | S::Running | S::Unknown => {}
    }
    let requested = i64::from(request.attempt);
    match requested.cmp(&i64::from(known.attempt)) {
        std::cmp::Ordering::Less => Some(ClaimDenial::Superseded),
        std::cmp::Ordering::Greater => Some(ClaimDenial::Unknown),
        std::cmp::Ordering::Equal => match known.status {
            S::Queued if known.is_held => Some(ClaimDenial::Waiting),
            S::Queued => None,
            // The instance checks again for an attempt that it started itself.
            _ if known.instance_id.as_deref() == Some(&request.instance_id) => None,
            _ => Some(ClaimDenial::Running),
        },
    }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::id::OccurrenceId;

    use super::*;

    fn check(attempt: u32, known: Option<RecordedAttempt>) -> ClaimReply {
        let occurrence_id = OccurrenceId::default();
        let request = ClaimRequest { occurrence_id, attempt, instance_id: "me".into(), starts_at: None };
        answer(&request, known.as_ref())
    }

    fn known(status: OccurrenceStatus, instance: Option<&str>) -> RecordedAttempt {
        RecordedAttempt { status, attempt: 2, instance_id: instance.map(Into::into), is_held: false }
    }

    #[test]
    fn attempt_starts_until_a_start_is_recorded() {
        use OccurrenceStatus as S;
        assert!(check(2, Some(known(S::Queued, None))).granted);
        assert!(check(2, Some(known(S::Running, Some("me")))).granted);
        let table = [
            (2, Some(known(S::Running, Some("other"))), ClaimDenial::Running),
            (2, Some(known(S::Unknown, Some("other"))), ClaimDenial::Running),
            (2, Some(known(S::Completed, Some("me"))), ClaimDenial::Ended),
            (2, Some(known(S::Failed, None)), ClaimDenial::Ended),
            (2, Some(known(S::Cancelled, None)), ClaimDenial::Cancelled),
            (1, Some(known(S::Queued, None)), ClaimDenial::Superseded),
            (1, Some(known(S::Running, Some("me"))), ClaimDenial::Superseded),
            (3, Some(known(S::Queued, None)), ClaimDenial::Unknown),
            (u32::MAX, Some(known(S::Queued, None)), ClaimDenial::Unknown),
            (2, Some(RecordedAttempt { is_held: true, ..known(S::Queued, None) }), ClaimDenial::Waiting),
            (2, None, ClaimDenial::Unknown),
        ];
        for (attempt, known, denial) in table {
            let reply = check(attempt, known.clone());
            assert_eq!((reply.granted, reply.reason), (false, Some(denial)), "{attempt} {known:?}");
            assert_eq!(reply.by.as_deref(), (denial == ClaimDenial::Running).then_some("other"));
        }
    }
}
