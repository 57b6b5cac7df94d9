//! The change of a lost run, and the sentence that says why the run is lost.

use std::time::Duration;

use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus};

use crate::{
    domain::{
        lost_run::{LATE_REPORT_WINDOW, LostRunDecision, StaleRun},
        quarantine,
    },
    store::lost_runs::LostRunUpdate,
};

/// What showed that a run is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossEvidence {
    /// No heartbeat listed it for as long as its timeout.
    Silence,
    /// Its worker released it after it was revoked.
    Released,
    /// The heartbeat of its instance in Redis did not change for this time.
    StillInRedis(Duration),
}

/// Describes the evidence that a run is lost. It states nothing about the run that no heartbeat showed: an instance may
/// be alive and no longer list the run, or may have stopped.
fn describe(run: &StaleRun, evidence: LossEvidence) -> String {
    let age = run.age.as_secs();
    let instance = run.instance_id.as_deref().unwrap_or("its worker instance");
    let text = if evidence == LossEvidence::Released {
        format!("Worker instance {instance} could not be reached over RabbitMQ for {age} s and has given the run back")
    } else if let LossEvidence::StillInRedis(still) = evidence {
        format!("The heartbeat of worker instance {instance} in Redis has not changed for {} s", still.as_secs())
    } else if run.is_stopping {
        format!("Worker instance {instance} announced that it stops and has sent no heartbeat for {age} s")
    } else if run.is_stopped {
        format!("Worker instance {instance} stopped before the run's end was reported")
    } else if run.is_unreported {
        format!("Worker instance {instance} sends heartbeats, but for at least {age} s none of them listed this run")
    } else if run.is_listed {
        format!("No heartbeat of worker instance {instance} for {age} s")
    } else {
        format!("No heartbeat listed this run for at least {age} s")
    };
    match &run.unreadable_report {
        Some(reason) => format!("{text}; one of its reports could not be read: {reason}"),
        None => text,
    }
}

/// Returns the change that `decision` makes to a lost run.
pub(super) fn lost_run_update(run: &StaleRun, decision: LostRunDecision, evidence: LossEvidence) -> LostRunUpdate {
    let counts_as_requeue = !run.is_stopping;
    let requeues = run.requeues + i16::from(counts_as_requeue);
    let is_quarantined = decision == LostRunDecision::Requeue && quarantine::needs_quarantine(requeues);
    let evidence = describe(run, evidence);
    let (status, cause, note) = match decision {
        LostRunDecision::Requeue => {
            let start = if is_quarantined { quarantine::QUARANTINE_NOTE } else { "at once" };
            let note = format!("{evidence}; attempt {} starts {start}", run.attempt + 1);
            (OccurrenceStatus::Queued, None, note)
        }
        LostRunDecision::Poison => (
            OccurrenceStatus::Failed,
            // A living worker did not crash.
            Some(if run.is_unreported { "lost" } else { "poison" }),
            match run.is_unreported {
                // The process of the run is alive, so the run did not end it.
                true => format!(
                    "Failed after it was lost {} times: its worker is alive, and reports neither the run nor its end. \
                     {evidence}",
                    run.requeues + 1
                ),
                false => format!("Failed as a poison run: lost with its worker {} times. {evidence}", run.requeues + 1),
            },
        ),
        LostRunDecision::Unknown => (
            OccurrenceStatus::Unknown,
            None,
            format!(
                "{evidence}; the lost run policy is not to run it again; a report within {} minutes still counts",
                LATE_REPORT_WINDOW.num_minutes()
            ),
        ),
        LostRunDecision::Cancel => {
            (OccurrenceStatus::Cancelled, None, format!("Cancelled: a cancel request was open. {evidence}"))
        }
    };
    LostRunUpdate {
        id: run.id,
        attempt: run.attempt,
        was: OccurrenceStatus::Running,
        last_seen_at: Some(run.last_seen_at),
        status,
        note,
        cause,
        is_quarantined,
        counts_as_requeue,
    }
}

/// Returns the end of a run whose outcome stayed unknown for [`LATE_REPORT_WINDOW`].
pub(super) fn unknown_run_end(id: OccurrenceId, attempt: i32) -> LostRunUpdate {
    LostRunUpdate {
        id,
        attempt,
        was: OccurrenceStatus::Unknown,
        last_seen_at: None,
        status: OccurrenceStatus::Failed,
        note: format!("Lost, and no report of its end arrived within {} minutes", LATE_REPORT_WINDOW.num_minutes()),
        cause: Some("lost"),
        is_quarantined: false,
        counts_as_requeue: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::lost_run::LostRunRule;

    fn run() -> StaleRun {
        StaleRun {
            id: OccurrenceId::default(),
            attempt: 1,
            last_seen_at: chrono::DateTime::UNIX_EPOCH,
            age: Duration::from_secs(16),
            is_listed: true,
            is_stopped: false,
            is_stopping: false,
            instance_id: Some("w-1".into()),
            is_unreported: false,
            heartbeat_timeout: Duration::from_secs(15),
            unreachable_timeout: Duration::from_secs(300),
            on_lost: LostRunRule::Requeue,
            requeues: 0,
            is_cancelled: false,
            unreadable_report: None,
        }
    }

    #[test]
    fn living_instance_is_not_blamed_for_a_lost_run() {
        let alive = StaleRun {
            is_unreported: true,
            is_listed: false,
            requeues: 3,
            unreadable_report: Some("status: the field is missing".into()),
            ..run()
        };
        let update = lost_run_update(&alive, LostRunDecision::Poison, LossEvidence::Silence);
        assert_eq!(update.cause, Some("lost"), "it did not crash its worker");
        assert_eq!(
            update.note,
            "Failed after it was lost 4 times: its worker is alive, and reports neither the run nor its end. Worker \
             instance w-1 sends heartbeats, but for at least 16 s none of them listed this run; one of its reports could \
             not be read: status: the field is missing"
        );
    }

    #[test]
    fn note_names_the_evidence_of_the_loss() {
        let note = |run: StaleRun| lost_run_update(&run, LostRunDecision::Requeue, LossEvidence::Silence).note;
        assert_eq!(note(run()), "No heartbeat of worker instance w-1 for 16 s; attempt 2 starts at once");
        assert_eq!(
            note(StaleRun { is_unreported: true, is_listed: false, ..run() }),
            "Worker instance w-1 sends heartbeats, but for at least 16 s none of them listed this run; attempt 2 starts \
             at once"
        );
        assert_eq!(
            note(StaleRun { is_stopped: true, is_listed: false, ..run() }),
            "Worker instance w-1 stopped before the run's end was reported; attempt 2 starts at once"
        );
        assert_eq!(
            note(StaleRun { is_listed: false, ..run() }),
            "No heartbeat listed this run for at least 16 s; attempt 2 starts at once"
        );
        let note = |evidence| lost_run_update(&run(), LostRunDecision::Requeue, evidence).note;
        assert_eq!(
            note(LossEvidence::Released),
            "Worker instance w-1 could not be reached over RabbitMQ for 16 s and has given the run back; attempt 2 starts \
             at once"
        );
        assert_eq!(
            note(LossEvidence::StillInRedis(Duration::from_secs(60))),
            "The heartbeat of worker instance w-1 in Redis has not changed for 60 s; attempt 2 starts at once"
        );
    }
}
