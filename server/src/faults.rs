//! Crash points at which a test may end or freeze this process, and sabotages that disable a protection.
//!
//! The guarantee that no crash loses or duplicates work is tested only at the instants at which a crash really
//! happened. The critical instants last microseconds: between a commit and a publish, between a publisher confirm and
//! its mark. A signal from outside hits them only by luck. They therefore have names, and a test selects at which of
//! them, and at which visit, the process dies.
//!
//! A test suite that always passes may not detect anything. Each protection therefore has a switch that disables it, a
//! sabotage, and the suite must fail with each of them; a sabotage that goes unnoticed is a gap in the suite.
//!
//! Both exist only with the feature `faults`, which is not a default feature and is in no release. Without it each
//! crash point is empty, and `is_sabotaged` is the constant false. What a sabotage needs beyond a condition is in a
//! file `sabotage.rs` of the module whose protection it disables, which is compiled only with the feature; this module
//! knows no other. The worker has its own copy of this module with its own crash points.
//!
//! # Arming
//!
//! The environment variable `FAILPOINTS` arms them when the program starts:
//! `FAILPOINTS='dispatch.after_commit=3*off->return'`, several joined by `;`. For each armed name the program writes a
//! line `armed: …` to standard error. An entry that cannot be parsed ends the program with exit status 2.
//!
//! | Setting | Effect |
//! |---|---|
//! | `dispatch.after_commit=return` | abort at the first visit |
//! | `dispatch.after_commit=2*off->return` | abort at the third visit |
//! | `dispatch.after_commit=1*return(stop)` | freeze the whole process at the first visit, as SIGSTOP does; SIGCONT resumes it |
//! | `dispatch.after_commit=2*off->1*return(stop)` | freeze it at the third visit |
//! | `dispatch.after_commit=1*sleep(3000)` | block the first visiting thread for three seconds; the other threads continue |
//! | `skip_claim=return` | disable this protection for the life of the process |
//!
//! `2*off->return` aborts at each visit from the third on, which makes no difference. `2*off->return(stop)` would
//! freeze at each visit, so a freeze needs its `1*`. Before the process ends or stops, it writes `crash point
//! dispatch.after_commit: abort` or `… stop` to standard error. Abort is SIGABRT: no destructor runs and nothing is
//! flushed, as after SIGKILL; `ulimit -c 0` prevents the core dump. Child processes inherit the variable. A name that
//! the program does not have is armed and never visited, so one setting serves servers and workers.
//!
//! # Crash points
//!
//! | Name | Where | What a crash there could break |
//! |---|---|---|
//! | `dispatch.before_commit` | dispatcher: the due jobs are read and decided, with the epoch at hand; the statement that creates their occurrences is not sent | if frozen here, an old leader dispatches what its successor has dispatched: a duplicate |
//! | `dispatch.after_commit` | dispatcher: occurrences are committed, no message is sent, Redis is not updated | an occurrence without a message; a next due time that is missing in Redis |
//! | `publisher.before_send` | publisher: before the first message of a batch is written to the connection | as `dispatch.after_commit`, also for manual runs, retries and republished messages |
//! | `publisher.after_send` | publisher: all messages of a batch are written to the connection, no confirm was received; the last bytes may not have left | a delivered message that counts as unsent: a duplicate |
//! | `publisher.after_confirm` | publisher: confirmed, but not yet marked as published | as `publisher.after_send`, and the broker has it for certain |
//! | `publisher.after_mark` | store: marked as published (the report of a short run may have marked it before) | nothing is expected to break: all state is stored |
//! | `due_index.mid_rebuild` | due index: a slice of the schedule is written to Redis, stale members are not removed, the marker of completeness is not set | a half-written index that is trusted |
//! | `lease.before_epoch` | lease: this server holds the key in Redis, the epoch is not raised | a role held by a dead server until its key expires |
//! | `lease.after_epoch` | lease: the epoch is raised, the leadership has not begun | a leadership in which no server works |
//! | `status.before_commit` | status ingest: a batch is read and decided, not committed | a lost report |
//! | `status.after_commit` | status ingest: committed, not acknowledged, no activator notified | a report that is applied twice; a free slot that is not granted |
//! | `logs.before_commit` | log ingest: read, not committed | lost lines |
//! | `logs.after_commit` | log ingest: committed, not acknowledged | duplicate lines |
//! | `lost_runs.before_commit` | lost run detector: runs are decided to be lost, not committed; if frozen here, their workers may report meanwhile | a run that is taken from a live worker |
//! | `lost_runs.after_commit` | lost run detector: committed, no activator notified | a next attempt that is not sent |
//! | `dead_letters.after_store` | dead letter ingest: one message is stored, or the runs of all bundles are marked as unsent, and none of the batch is acknowledged | a dead letter twice, a failure twice; the runs of a bundle marked again while they are sent |
//! | `enqueue.before_commit` | ingest of new occurrences: a message is read, nothing is committed | occurrences that the broker has confirmed and that no server creates |
//! | `enqueue.after_commit` | ingest of new occurrences: committed, neither sent, answered nor acknowledged | occurrences created twice, or never sent |
//! | `claims.before_reply` | claim check: decided, not answered | a worker that waits for the reply forever |
//!
//! Two sequences have no crash point inside. Checking the epoch, comparing and moving the due time, inserting
//! occurrences and committing are one statement, and PostgreSQL does all of it or nothing however this process ends;
//! the instants before and after it are `dispatch.before_commit` and `dispatch.after_commit`. A migration is one
//! transaction, made inside the library that runs migrations.
//!
//! # Sabotages
//!
//! | Name | Disabled protection | What breaks, and what reveals it |
//! |---|---|---|
//! | `skip_compare_and_swap` | the compare before the swap: the due time that was read is written back first | One due time is dispatched twice. With one dispatcher nothing shows. Freeze the leader at `dispatch.before_commit` until another server leads and has dispatched, then resume it: it dispatches the same due times again (use a job whose period is longer than the freeze, or its misfire policy decides about the second one). Or cut two servers off from Redis: both dispatch, with certainty if one of them has `dispatch.before_commit=sleep(300)`. |
//! | `publish_before_commit` | the commit before the message | A run of an occurrence that does not exist, and the same due time again with another id. Abort at `dispatch.before_commit`, or stop PostgreSQL while the broker stays up. Only jobs without overlap rules and limits are sent early, so nothing shows without a fault. |
//! | `skip_publisher_confirms` | the wait for publisher confirms: a message written to the connection counts as sent | A lost message is not missed for `REQUEUE_AFTER_SECONDS` (60) instead of `REPUBLISH_SECONDS` (5). Kill the broker, or drop or reset the publishing connection, under load: starts are late by a minute. |
//! | `skip_mandatory_flag` | the `mandatory` flag: a message that no queue takes is confirmed and dropped | Delete a job's queue, or its binding, under load: no row is unsent, the queue is not declared again, its starts are late by a minute or more. |
//! | `skip_fence` | the epoch in the statement that dispatches | A stale leader's write counts. The compare still prevents duplicates, so look at which server dispatches: freeze leader A at `dispatch.before_commit`, the new leader B at `lease.after_epoch`, resume A: with the epoch A dispatches nothing, without it occurrences appear that are younger than B's epoch in `leases`. With `skip_compare_and_swap` they are duplicates. |
//! | `skip_attempt_check` | the attempt number in reports: each report is applied to the attempt in force | Freeze a worker until its run is requeued, then resume it: its report ends the attempt that runs elsewhere. Or send an old attempt's report again by hand. |
//! | `ack_before_commit` | the commit before the acknowledgement, for everything workers send | Abort at `status.before_commit` (or `logs.before_commit`), or kill a server that is blocked by `status.before_commit=sleep(1500)`: its unprocessed reports are lost, and finished runs are taken for lost runs and run again. |
//! | `trust_due_index` | PostgreSQL as the source of due times: only jobs that Redis names are dispatched | Stop Redis for longer than a lease lasts (10 s): nothing is dispatched until it is back. Remove one member from the schedule in Redis: that job is late by up to `REBUILD_SECONDS` (300). |
//! | `skip_observed_time` | observed time: the heartbeat timeout is counted by wall clock, including the server's own outages | Freeze a server for longer than `HEARTBEAT_TIMEOUT_SECONDS` (15) and resume it, or cut the servers off from the broker for as long: live runs are requeued. |
//! | `skip_republish_lookback` | the look-back of the republisher: it sends nothing older than the newest occurrence it has seen | A requeued run keeps its old id: start two long runs, kill the worker of the younger one first and, when that is requeued, the worker of the older one: it stays queued forever. |
//! | `skip_receipts` | the receipts of enqueued occurrences: a redelivered message finds no trace of its first delivery | Abort at `enqueue.after_commit`: the redelivery collides with the open occurrences until they have ended, and then creates and runs them again. |
//! | `trust_any_version` | the precedence of the newest version among the instances that declare schedules | Let an instance of an older version register last: its schedules and rules replace those of the newer one. |
//! | `ignore_bundle_sizes` | the size of sent bundles: the search for lost messages counts each message as one run | Let bundles wait for longer than `REQUEUE_AFTER_SECONDS`, for example while no worker lives: most of their runs are taken for lost and are sent again, although the broker has lost nothing. |
//! | `fail_unpublished` | the retry of unsent messages: an occurrence that cannot be published is Failed | Stop the broker while jobs are due: occurrences fail through no fault of their own. |
//!
//! `skip_claim`, which disables the claim, belongs to the worker.

/// Arms the crash points and sabotages that `FAILPOINTS` names. Must be called first at start; a second call has no
/// effect.
#[cfg(feature = "faults")]
pub fn arm() {
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
pub const fn arm() {}

/// Aborts or freezes the process if a test has armed this crash point.
#[cfg(feature = "faults")]
pub(crate) fn crash_point(name: &'static str) {
    let Some(action) = fail::eval(name, |action| action) else { return };
    if action.as_deref() == Some("stop") {
        eprintln!("crash point {name}: stop");
        // Stops all threads of the process until it receives SIGCONT.
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP);
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
pub(crate) fn is_sabotaged(name: &'static str) -> bool {
    fail::eval(name, drop).is_some()
}

/// Returns false: in this build no protection can be disabled.
#[cfg(not(feature = "faults"))]
#[inline]
pub(crate) const fn is_sabotaged(_name: &'static str) -> bool {
    false
}
