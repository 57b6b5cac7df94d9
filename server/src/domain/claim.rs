//! May an attempt start, though another copy of its message may have been before this one?
//!
//! Redis answers that for copies that come close together; this answers it from the truth, for those that come after
//! Redis has forgotten. The rule is short: an attempt may start as long as nobody has said that it began.

use milvaion_protocol::{
    message::{ClaimReply, ClaimRequest, Denial},
    status::OccurrenceStatus,
};

/// What is known of an occurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// What it is.
    pub status: OccurrenceStatus,
    /// The attempt in force.
    pub attempt: i32,
    /// Who runs it, as far as was reported.
    pub instance_id: Option<String>,
    /// Whether it waits for a slot or for its time.
    pub is_held: bool,
}

/// Answers a request from what is known of its occurrence, if there is one.
#[must_use]
pub fn answer(request: ClaimRequest, known: Option<&Known>) -> ClaimReply {
    let denied = denial(&request, known);
    let by = match denied {
        Some(Denial::Running) => known.and_then(|known| known.instance_id.clone()),
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

fn denial(request: &ClaimRequest, known: Option<&Known>) -> Option<Denial> {
    use OccurrenceStatus as S;
    let Some(known) = known else { return Some(Denial::Unknown) };
    match known.status {
        S::Cancelled => return Some(Denial::Cancelled),
        S::Completed | S::Failed | S::TimedOut | S::Skipped => return Some(Denial::Ended),
        S::Queued | S::Running | S::Unknown => {}
    }
    let asked = i64::from(request.attempt);
    match asked.cmp(&i64::from(known.attempt)) {
        std::cmp::Ordering::Less => Some(Denial::Superseded),
        std::cmp::Ordering::Greater => Some(Denial::Unknown),
        std::cmp::Ordering::Equal => match known.status {
            S::Queued if known.is_held => Some(Denial::Waiting),
            S::Queued => None,
            // It asks a second time about what it began itself.
            _ if known.instance_id.as_deref() == Some(&request.instance_id) => None,
            _ => Some(Denial::Running),
        },
    }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::id::OccurrenceId;

    use super::*;

    fn ask(attempt: u32, known: Option<Known>) -> ClaimReply {
        let request = ClaimRequest { occurrence_id: OccurrenceId::default(), attempt, instance_id: "me".into() };
        answer(request, known.as_ref())
    }

    fn known(status: OccurrenceStatus, instance: Option<&str>) -> Known {
        Known { status, attempt: 2, instance_id: instance.map(Into::into), is_held: false }
    }

    #[test]
    fn an_attempt_starts_as_long_as_nobody_said_that_it_began() {
        use OccurrenceStatus as S;
        assert!(ask(2, Some(known(S::Queued, None))).granted);
        assert!(ask(2, Some(known(S::Running, Some("me")))).granted);
        let table = [
            (2, Some(known(S::Running, Some("other"))), Denial::Running),
            (2, Some(known(S::Unknown, Some("other"))), Denial::Running),
            (2, Some(known(S::Completed, Some("me"))), Denial::Ended),
            (2, Some(known(S::Failed, None)), Denial::Ended),
            (2, Some(known(S::Cancelled, None)), Denial::Cancelled),
            (1, Some(known(S::Queued, None)), Denial::Superseded),
            (1, Some(known(S::Running, Some("me"))), Denial::Superseded),
            (3, Some(known(S::Queued, None)), Denial::Unknown),
            (u32::MAX, Some(known(S::Queued, None)), Denial::Unknown),
            (2, Some(Known { is_held: true, ..known(S::Queued, None) }), Denial::Waiting),
            (2, None, Denial::Unknown),
        ];
        for (attempt, known, denial) in table {
            let reply = ask(attempt, known.clone());
            assert_eq!((reply.granted, reply.reason), (false, Some(denial)), "{attempt} {known:?}");
            assert_eq!(reply.by.as_deref(), (denial == Denial::Running).then_some("other"));
        }
    }
}
