//! Crash points at which a test may end or freeze this process, and a sabotage that disables a protection.
//!
//! The effect of a crash depends on microseconds: between an effect and its report, between a publisher confirm and an
//! acknowledgement. A signal from outside hits such an instant only by luck. These instants therefore have names, and a
//! test selects at which of them, and at which visit, the process dies. A test suite that always passes may not detect
//! anything, so the claim, which prevents duplicate runs, can be disabled; the suite must then fail.
//!
//! Both exist only with the feature `faults`, which is not a default feature and is in no release. Without it each
//! crash point is empty, and so is each seam, the place at which the sabotage takes effect. The server has its own copy of this module with its own crash
//! points; its module documentation explains how they are armed. `FAILPOINTS` is read when the worker is built, for
//! example `FAILPOINTS='executor.before_report=2*off->return'` (abort at the third visit),
//! `'executor.before_report=1*return(stop)'` (freeze until SIGCONT at the first visit), `'skip_claim=return'`.
//!
//! # Crash points
//!
//! | Name | Where | What a crash there could break |
//! |---|---|---|
//! | `delivery.before_claim` | consumer: a run is read, not claimed | nothing is expected to break: its message is redelivered, or its bundle is rejected and it is sent again |
//! | `delivery.after_claim` | consumer: the claim is granted, the run has not started and no report of it exists | an occurrence that is claimed by a dead worker |
//! | `delivery.before_ack` | consumer: the broker has confirmed the *Running* report, the delivery is not acknowledged; the run has been executing since its start, and is in the outbox if that was 50 ms ago | a duplicate delivery that runs |
//! | `delivery.after_ack` | consumer: acknowledged, the run may still be executing | a run without a message at the broker: only the missing heartbeat reveals its loss |
//! | `executor.before_report` | executor: the job has returned, no report of its end exists | an effect that is repeated or never reported |
//! | `reporter.before_send` | reporter: a batch of reports is about to be sent; the reports that have waited for 50 ms are in the outbox | a lost result |
//! | `outbox.after_write` | journal: a write of the outbox has finished: the starts of executing runs, and the reports that wait for the broker | reports that the next process does not send |
//! | `reporter.after_send` | reporter: a batch is written to the connection, not confirmed; its last bytes may not have left | a duplicate report |
//! | `reporter.after_confirm` | reporter: a batch is confirmed, its entries are still in the outbox | as `reporter.after_send`, and the broker has it for certain |
//! | `shutdown.before_flush` | shutdown: runs have finished or are interrupted, the last reports are not flushed | an orderly shutdown that forgets the runs it interrupted |
//!
//! A run starts before its start is on disk, and its delivery is acknowledged when the broker has confirmed the
//! *Running* report. No crash point therefore lies between a write to disk and the acknowledgement, or between the
//! acknowledgement and the start of the run; `delivery.before_ack` and `delivery.after_ack` cover the corresponding
//! losses.
//!
//! # Sabotages
//!
//! | Name | Disabled protection | What breaks, and what reveals it |
//! |---|---|---|
//! | `skip_claim` | the claim: each delivery starts, regardless of the claim in Redis and without a claim check at the server | One attempt starts twice. A process still detects duplicates of its own runs, so there must be two instances of a worker: publish each message several times, or abort the server at `publisher.after_confirm`, or cut a worker's consuming connection while it runs something. |
//! | `skip_loop_deadlines` | the deadlines of a singleton loop's lease: a leader that cannot renew it goes on | Two leaders run one loop: cut a leader off from Redis for longer than its lease. |

pub(crate) mod seams;

/// Arms the crash points and sabotages that `FAILPOINTS` names. Must be called first at start; a second call has no
/// effect.
#[cfg(feature = "faults")]
pub(crate) fn arm() {
    static ARMED: std::sync::Once = std::sync::Once::new();
    // `FailScenario` is not used: it holds a lock for its whole life, and a process that is server and worker in one,
    // as in tests, would wait for that lock forever.
    ARMED.call_once(|| {
        let Ok(text) = std::env::var("FAILPOINTS") else { return };
        for entry in text.split(';').map(str::trim).filter(|entry| !entry.is_empty()) {
            let armed = match entry.split_once('=') {
                Some((name, actions)) => fail::cfg(name.trim(), actions.trim()),
                None => Err("it has no =".to_owned()),
            };
            match armed {
                Ok(()) => eprintln!("armed: {entry}"),
                // A test run without the fault it asked for would prove nothing.
                Err(reason) => {
                    eprintln!("FAILPOINTS holds {entry:?}, which cannot be armed: {reason}");
                    std::process::exit(2);
                }
            }
        }
    });
}

/// Does nothing: this build has no crash points.
#[cfg(not(feature = "faults"))]
#[inline]
pub(crate) const fn arm() {}

/// Aborts or freezes the process if a test has armed this crash point.
#[cfg(feature = "faults")]
pub(crate) fn crash_point(name: &'static str) {
    let Some(action) = fail::eval(name, |action| action) else { return };
    if action.as_deref() == Some("stop") {
        eprintln!("crash point {name}: stop");
        // Stops all threads of the process until it receives SIGCONT.
        let _ = signal_hook::low_level::raise(signal_hook::consts::SIGSTOP);
    } else {
        eprintln!("crash point {name}: abort");
        std::process::abort();
    }
}

/// Does nothing: this build has no crash points.
#[cfg(not(feature = "faults"))]
#[inline]
pub(crate) const fn crash_point(_name: &'static str) {}

/// Returns true if a test has disabled the protection of this name.
#[cfg(feature = "faults")]
fn is_sabotaged(name: &'static str) -> bool {
    fail::eval(name, drop).is_some()
}
