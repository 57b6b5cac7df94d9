//! Where a test may end this process, and what it may take away from it.
//!
//! What a crash leaves behind is decided within microseconds: between an effect and its report, between a confirm and
//! an acknowledgement. A signal from outside hits such an instant by luck; so they have names, and a test says at which of
//! them, and at which visit, the process dies. And because a suite that always passes may be blind, the claim, which keeps
//! copies apart, can be taken away: the suite must notice.
//!
//! Both are there only with the feature `faults`, which is in no default and in nothing that is released. Without it each
//! function here is empty or constantly false. The server has a copy of this room with its own points; its essay tells how
//! they are armed: by `FAILPOINTS`, read when the worker is built, as in `FAILPOINTS='executor.before_report=2*off->return'` (abort at the
//! third visit), `'executor.before_report=1*return(stop)'` (freeze until SIGCONT at the first), `'skip_claim=return'`.
//!
//! # Crash points
//!
//! | Name | Where | What a crash there could break |
//! |---|---|---|
//! | `delivery.before_claim` | consumer: a delivery is read, nothing is claimed | nothing should: it is delivered again |
//! | `delivery.after_claim` | consumer: the claim is granted, the run has not begun and no report of it exists | an occurrence that is claimed by a dead worker |
//! | `delivery.before_ack` | consumer: the broker has confirmed that it runs, the delivery is not acknowledged; the run goes on since its start, and is on disk if that was 50 ms ago | a second copy that is run |
//! | `delivery.after_ack` | consumer: acknowledged, the run may still go on | a run that nobody has a message of: only the heartbeat misses it |
//! | `executor.before_report` | executor: the job has done what it does, no report of its end exists | an effect that is repeated or never told |
//! | `reporter.before_send` | reporter: a batch of reports is about to be sent; on disk is what has waited for 50 ms | a result that is lost |
//! | `outbox.after_write` | journal: a write of the outbox has landed: the starts of runs that go on, and whatever waits for the broker | reports that the next process does not send |
//! | `reporter.after_send` | reporter: a batch is handed to the connection, not confirmed; its last bytes may not have left | a report twice |
//! | `reporter.after_confirm` | reporter: a batch is confirmed, its entries are still in the outbox | as `reporter.after_send`, and the broker has it for certain |
//! | `shutdown.before_flush` | shutdown: runs are over or interrupted, the last reports not flushed | an orderly end that forgets what it interrupted |
//!
//! The plan has a write to disk before the acknowledgement, and that before the run. Ours begins the run at once and
//! acknowledges when the broker has confirmed the report that says so; 22 and 23 stand where their meaning went.
//!
//! # Sabotages
//!
//! | Name | What is taken away | What breaks, and what makes it visible |
//! |---|---|---|
//! | `skip_claim` | the claim: whatever Redis says, and without asking the server, what is delivered is started | One attempt is started twice. Copies within one process are still known to it, so there must be two workers of a group: publish each message several times, or abort the server at `publisher.after_confirm`, or cut a worker's consuming connection while it runs something. |

/// Arms what `FAILPOINTS` names. To be called before anything else; a second call does nothing.
#[cfg(feature = "faults")]
pub(crate) fn arm() {
    static ARMED: std::sync::Once = std::sync::Once::new();
    // Not by `FailScenario`, which holds a lock as long as it lives: a process that is server and worker in one, as those
    // of tests are, would wait for it for ever.
    ARMED.call_once(|| {
        let Ok(text) = std::env::var("FAILPOINTS") else { return };
        for one in text.split(';').map(str::trim).filter(|one| !one.is_empty()) {
            let armed = match one.split_once('=') {
                Some((name, actions)) => fail::cfg(name.trim(), actions.trim()),
                None => Err("it has no =".to_owned()),
            };
            match armed {
                Ok(()) => eprintln!("armed: {one}"),
                // A run with a fault that is not there would prove nothing.
                Err(reason) => {
                    eprintln!("FAILPOINTS holds {one:?}, which cannot be armed: {reason}");
                    std::process::exit(2);
                }
            }
        }
    });
}

/// Nothing can be armed in this build.
#[cfg(not(feature = "faults"))]
#[inline]
pub(crate) const fn arm() {}

/// A place where a test may end the process or freeze it.
#[cfg(feature = "faults")]
pub(crate) fn point(name: &'static str) {
    let Some(action) = fail::eval(name, |action| action) else { return };
    if action.as_deref() == Some("stop") {
        eprintln!("crash point {name}: stop");
        // All threads of it, until somebody sends SIGCONT.
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP);
    } else {
        eprintln!("crash point {name}: abort");
        std::process::abort();
    }
}

/// A place where a test might end the process, in another build.
#[cfg(not(feature = "faults"))]
#[inline]
pub(crate) const fn point(_name: &'static str) {}

/// Whether a test has taken a protection away.
#[cfg(feature = "faults")]
pub(crate) fn sabotaged(name: &'static str) -> bool {
    fail::eval(name, drop).is_some()
}

/// Whether a test has taken a protection away: not in this build.
#[cfg(not(feature = "faults"))]
#[inline]
pub(crate) const fn sabotaged(_name: &'static str) -> bool {
    false
}
