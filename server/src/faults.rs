//! Where a test may end this process, and what it may take away from it.
//!
//! That a crash anywhere loses and doubles nothing can be believed only of the instants at which one was made, and the
//! instants that matter last microseconds: between a commit and a publish, between a confirm and its mark. A signal from
//! outside hits them by luck. So they have names, and a test says at which of them, and at which visit, the process dies.
//!
//! A suite that always passes may be blind. So each protection has a switch that takes it away, and the suite must fail
//! with each of them; one that goes unnoticed is a hole in the suite.
//!
//! Both are there only with the feature `faults`, which is in no default and in nothing that is released. Without it each
//! function here is empty or constantly false, and the compiler leaves nothing of its callers' questions. The worker has
//! a copy of this room with its own points.
//!
//! # How they are armed
//!
//! By the environment, when the program starts: `FAILPOINTS='dispatch.after_commit=3*off->return'`, several joined by `;`. What was armed
//! stands on standard error, a line `armed: …` for each; what cannot be read ends the program with status 2.
//!
//! | What | Means |
//! |---|---|
//! | `dispatch.after_commit=return` | abort at the first visit |
//! | `dispatch.after_commit=2*off->return` | abort at the third |
//! | `dispatch.after_commit=1*return(stop)` | freeze the whole process at the first visit, as SIGSTOP does; SIGCONT thaws it |
//! | `dispatch.after_commit=2*off->1*return(stop)` | freeze it at the third |
//! | `dispatch.after_commit=1*sleep(3000)` | hold up the thread that comes by first for three seconds; the others go on |
//! | `skip_claim=return` | the sabotage is done from the start to the end |
//!
//! `2*off->return` aborts at each visit from the third on, which makes no difference; `2*off->return(stop)` would freeze
//! at each, so a freeze takes its `1*`. Before the process goes, `crash point dispatch.after_commit: abort` or `… stop` is on standard
//! error. Abort is SIGABRT: no destructor runs, nothing is flushed, as if it had been killed; `ulimit -c 0` spares the
//! core dump. A program started from this one inherits the variable. A name the program does not know is armed and never
//! visited, so one setting serves servers and workers alike.
//!
//! # Crash points
//!
//! | Name | Where | What a crash there could break |
//! |---|---|---|
//! | `dispatch.before_commit` | dispatcher: what is due is read and judged, with the epoch in hand; the statement that fires is not sent | frozen here, an old leader fires what its successor has fired: a double |
//! | `dispatch.after_commit` | dispatcher: occurrences are committed, no message is on its way, Redis was told nothing | an occurrence without a message; the job due again unknown to Redis |
//! | `publisher.before_send` | publisher: before the first message of a batch is handed to the broker | as `dispatch.after_commit`, also for runs by hand, retries and what is sent again |
//! | `publisher.after_send` | publisher: all messages of a batch are handed to the connection, none is known to be confirmed; their last bytes may not have left | a message that is there and counts as not sent: a double |
//! | `publisher.after_confirm` | publisher: confirmed, and not yet told to whoever marks it | as `publisher.after_send`, and the broker has it for certain |
//! | `publisher.after_mark` | store: marked as published (a short run's report may have marked it before) | nothing should: all is told |
//! | `due_index.mid_rebuild` | index: a slice of the schedule is noted in Redis, what does not belong there is not removed, the mark of completeness not left | a half-written index that is believed |
//! | `lease.before_epoch` | lease: the key in Redis is ours, the epoch is not raised | a role held by a dead server until its key ends |
//! | `lease.after_epoch` | lease: the epoch is raised, the term has not begun | a term in which nobody works |
//! | `status.before_commit` | status: a batch is read and decided about, not committed | a report that is lost |
//! | `status.after_commit` | status: committed, not acknowledged, nobody told | a report that is applied twice; a slot nobody knows to be free |
//! | `logs.before_commit` | logs: read, not committed | lines lost |
//! | `logs.after_commit` | logs: committed, not acknowledged | lines twice |
//! | `lost_runs.before_commit` | zombies: decided that runs are lost, not committed; frozen here, their workers may speak meanwhile | a run that is taken from a living worker |
//! | `lost_runs.after_commit` | zombies: committed, nobody told | a next attempt that nobody sends |
//! | `dead_letters.after_store` | dead letters: one is stored, none of its batch is acknowledged | a letter twice, a failure twice |
//! | `claims.before_reply` | claims: decided, not answered | a worker that waits for its answer for ever |
//!
//! Of the numbers in the plan, 2, 3 and 4 have no place: epoch, compare, swap, occurrences and commit are one statement,
//! and PostgreSQL does all of it or nothing whatever becomes of us; `dispatch.before_commit` and `dispatch.after_commit` are the instants before and after.
//! 19, half-way through the migrations, has none either: each migration is one transaction, made within the library that
//! runs them. 20 to 28 are the worker's.
//!
//! # Sabotages
//!
//! | Name | What is taken away | What breaks, and what makes it visible |
//! |---|---|---|
//! | `skip_compare_and_swap` | the compare before the swap: what was read is made true again first | One due instant fires twice. With one dispatcher nothing is seen. Freeze the leader at `dispatch.before_commit` until another leads and has fired, thaw it: the other fires the same instants again (take a job whose period is longer than the freeze, or its misfire policy decides about the second one). Or take Redis away from two servers: both fire, for certain with `dispatch.before_commit=sleep(300)` at one of them. |
//! | `publish_before_commit` | the commit before the message | A start of an occurrence that is not there, and the same instant again under another id. Abort at `dispatch.before_commit`, or take PostgreSQL away while the broker stays. Only jobs without turns and limits are sent early, so nothing is seen without a fault. |
//! | `skip_publisher_confirms` | the wait for confirms: what was handed over counts as sent | A message that got lost is not missed for `REQUEUE_AFTER_SECONDS` (60) instead of `REPUBLISH_SECONDS` (5). Kill the broker, or swallow or reset the publishing connection, under load: starts are late by a minute. |
//! | `skip_mandatory_flag` | `mandatory`: what no queue takes is confirmed and gone | Delete a job's queue, or its binding, under load: no row waits as unpublished, the queue is not declared anew, its starts are late by a minute or more. |
//! | `skip_fence` | the epoch in the statement that fires | A stale leader's write counts. The compare still keeps doubles away, so look at who fires: freeze leader A at `dispatch.before_commit`, the new leader B at `lease.after_epoch`, thaw A: with the epoch A fires nothing, without it occurrences appear that are younger than B's epoch in `leases`. With `skip_compare_and_swap` they are doubles. |
//! | `skip_attempt_check` | the attempt in reports: each is taken for one of the attempt in force | Freeze a worker until its run is given to another, thaw it: what it says ends the attempt that runs elsewhere. Or send an old attempt's report again by hand. |
//! | `ack_before_commit` | the commit before the acknowledgement, for everything workers send | Abort at `status.before_commit` (or `logs.before_commit`), or kill a server that `status.before_commit=sleep(1500)` holds up: the reports in its hand are lost, and finished runs are taken for lost ones and run again. |
//! | `trust_due_index` | PostgreSQL's word about what is due: only what Redis names is fired | Stop Redis for longer than a lease lives (10 s): nothing fires until it is back. Remove one member from the schedule in Redis: that job is late by up to `REBUILD_SECONDS` (300). |
//! | `skip_observed_time` | observed time: silence is counted on the wall, deafness too | Freeze a server for longer than `HEARTBEAT_TIMEOUT_SECONDS` (15) and thaw it, or cut the servers off from the broker for as long: living runs are given to others. |
//! | `skip_republish_lookback` | the look back: the republisher sends nothing older than the newest it has seen | A rescued run keeps its old id: start two long runs, kill the worker of the younger one first and, when that is rescued, the worker of the elder: it is queued for ever. |
//! | `fail_unpublished` | patience with the broker: what cannot be published is Failed | Stop the broker while jobs are due: occurrences fail for no fault of theirs. |
//!
//! `skip_claim`, the claim, is the worker's.

/// Arms what `FAILPOINTS` names. To be called before anything else; a second call does nothing.
#[cfg(feature = "faults")]
pub fn arm() {
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
pub const fn arm() {}

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
