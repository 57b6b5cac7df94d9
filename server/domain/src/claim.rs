//! Decides a claim check: may an attempt start although its message may be a duplicate delivery?
//!
//! Redis answers this for duplicates that arrive close together. This module answers it from PostgreSQL, for duplicates
//! that arrive after the claim in Redis has expired. The rule is short: an attempt may start as long as no instance has
//! reported that it started. An instance that starts an attempt without a claim announces its start with the request, and
//! that counts as such a report.
//!
//! The rule holds for the instance that reported the start, too. A worker asks before an attempt starts and never after it, so
//! a second question of the same instance is about a second delivery, and a grant would be a second start. Only the same
//! announcement may arrive twice, because the broker redelivers it to another server when one is lost before its reply.

use std::collections::HashSet;

use chrono::{DateTime, SubsecRound, Utc};
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
    /// The reported start of the attempt.
    pub started_at: Option<DateTime<Utc>>,
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

/// Returns the reports of the starts that granted requests announce, to be recorded before they are granted. Of several
/// announcements of one attempt, only the first is reported: a fold of two would record the instance of one with the time
/// of the other, which neither has announced, and deny both.
#[must_use]
pub fn announced_starts<'a>(granted: impl IntoIterator<Item = &'a ClaimRequest>) -> Vec<StatusReport> {
    let mut announced = HashSet::new();
    let starts = granted.into_iter().filter_map(announced_start);
    starts.filter(|start| announced.insert((start.occurrence_id, start.attempt))).collect()
}

fn announced_start(request: &ClaimRequest) -> Option<StatusReport> {
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
            _ if is_recorded_announcement(request, known) => None,
            _ => Some(ClaimDenial::Running),
        },
    }
}

/// Returns true if the recorded start is the one that this request announces.
fn is_recorded_announcement(request: &ClaimRequest, known: &RecordedAttempt) -> bool {
    // PostgreSQL stores microseconds.
    let announced = request.starts_at.map(|at| at.trunc_subsecs(6));
    known.status == OccurrenceStatus::Running
        && known.instance_id.as_deref() == Some(&request.instance_id)
        && announced.is_some_and(|at| known.started_at.map(|recorded| recorded.trunc_subsecs(6)) == Some(at))
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
        RecordedAttempt { status, attempt: 2, instance_id: instance.map(Into::into), is_held: false, started_at: None }
    }

    #[test]
    fn attempt_starts_until_a_start_is_recorded() {
        use OccurrenceStatus as S;
        assert!(check(2, Some(known(S::Queued, None))).granted);
        let table = [
            (2, Some(known(S::Running, Some("other"))), ClaimDenial::Running),
            (2, Some(known(S::Unknown, Some("other"))), ClaimDenial::Running),
            (2, Some(known(S::Running, Some("me"))), ClaimDenial::Running),
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
            let holder = known.and_then(|known| known.instance_id);
            assert_eq!(reply.by, holder.filter(|_| denial == ClaimDenial::Running));
        }
    }

    #[test]
    fn only_the_recorded_announcement_is_granted_again() {
        let at = DateTime::<Utc>::UNIX_EPOCH + chrono::Duration::nanoseconds(1_234_567);
        let request = ClaimRequest {
            occurrence_id: OccurrenceId::default(),
            attempt: 2,
            instance_id: "me".into(),
            starts_at: Some(at),
        };
        let known = |instance, started_at: DateTime<Utc>| RecordedAttempt {
            started_at: Some(started_at.trunc_subsecs(6)),
            ..known(OccurrenceStatus::Running, Some(instance))
        };
        assert!(answer(&request, Some(&known("me", at))).granted);
        assert!(!answer(&request, Some(&known("other", at))).granted);
        assert!(!answer(&request, Some(&known("me", at + chrono::Duration::milliseconds(1)))).granted);
        let question = ClaimRequest { starts_at: None, ..request };
        assert!(!answer(&question, Some(&known("me", at))).granted);
    }

    #[test]
    fn first_announcement_of_an_attempt_counts() {
        let at = |second| DateTime::<Utc>::UNIX_EPOCH + chrono::Duration::seconds(second);
        let ask = |attempt, instance: &str, second: Option<i64>| ClaimRequest {
            occurrence_id: OccurrenceId::default(),
            attempt,
            instance_id: instance.into(),
            starts_at: second.map(at),
        };
        for [first, second] in [[5, 3], [3, 5]] {
            let granted =
                [ask(1, "w-0", None), ask(1, "w-1", Some(first)), ask(1, "w-2", Some(second)), ask(2, "w-2", Some(7))];
            let starts = announced_starts(&granted);
            let starts: Vec<_> =
                starts.iter().map(|start| (start.attempt, start.instance_id.as_str(), start.timestamp)).collect();
            assert_eq!(starts, [(1, "w-1", at(first)), (2, "w-2", at(7))]);
        }
    }
}
