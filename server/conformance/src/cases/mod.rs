//! The catalogue of cases, in the order in which they are reported.
//!
//! A case is a function that starts one or more instances of the worker in a context of its own, and fails with the expected
//! and the observed behaviour. Each names the sentence of `docs/protocol` on which it rests; a test compares the sentences
//! with the page, so that a changed rule leads to its case.

mod bundles;
mod claims;
mod control;
mod critical;
mod duplicates;
mod lifecycle;
mod minimal;
mod reporting;
mod restarts;

use std::{future::Future, pin::Pin};

use crate::{arguments::ConformanceLevel, context::CaseContext, failure::CaseFailure};

/// The outcome of a case.
pub(crate) type CaseOutcome = Result<(), CaseFailure>;
type CheckFuture<'a> = Pin<Box<dyn Future<Output = CaseOutcome> + Send + 'a>>;

/// A case of the kit.
pub(crate) struct ConformanceCase {
    /// The level that requires it.
    pub(crate) level: ConformanceLevel,
    /// The name, unique.
    pub(crate) name: &'static str,
    /// The tested behaviour.
    pub(crate) summary: &'static str,
    /// The heading of the section of the protocol page.
    pub(crate) section: &'static str,
    /// The sentence of that section.
    pub(crate) rule: &'static str,
    /// True if it restarts a service, so that no other case may run meanwhile.
    pub(crate) restarts_services: bool,
    /// The check.
    pub(crate) check: for<'a> fn(&'a CaseContext) -> CheckFuture<'a>,
}

/// Returns true for the names of the cases that restart a service.
const fn is_restart(name: &str) -> bool {
    matches!(name.as_bytes(), b"broker-restarted" | b"redis-restarted")
}

/// Writes the catalogue: level, name, summary, section, rule and function of each case.
macro_rules! catalogue {
    ($($level:ident $name:literal $check:path, $summary:literal, $section:literal, $rule:literal;)*) => {
        /// All cases.
        pub(crate) const CASES: &[ConformanceCase] = &[$(ConformanceCase {
            level: ConformanceLevel::$level,
            name: $name,
            summary: $summary,
            section: $section,
            rule: $rule,
            restarts_services: is_restart($name),
            check: |context| Box::pin($check(context)),
        }),*];
    };
}

catalogue! {
    Minimal "echo" minimal::echo,
        "runs a job, and reports Running and Completed with the result",
        "Status reports", "it succeeded; `result` is text, for example JSON";
    Minimal "many" minimal::many,
        "runs 30 messages, each once, and acknowledges all",
        "In short", "Consume the queue of each job type";
    Minimal "attempt-number" minimal::attempt_number,
        "reports the attempt of the message",
        "Status reports", "A report about another attempt than the one in force changes nothing";
    Minimal "big-input" minimal::big_input,
        "takes an input of 64 KiB",
        "Bounds", "| `jobData` | 64 KiB |";
    Minimal "values" minimal::values,
        "keeps every JSON value of an input",
        "Encoding and delivery", "Bodies are JSON in UTF-8";
    Minimal "unknown-fields" minimal::unknown_fields,
        "ignores fields that it does not know",
        "Versions", "ignore unknown fields, and use the default for missing ones";
    Minimal "missing-fields" minimal::missing_fields,
        "uses the defaults of missing fields",
        "Versions", "ignore unknown fields, and use the default for missing ones";
    Minimal "whole-numbers" minimal::whole_numbers,
        "takes whole numbers with a fraction of zero, and null for a default",
        "Encoding and delivery", "Where a whole number stands, `12.0` is taken too";
    Minimal "unreadable-body" minimal::unreadable_body,
        "rejects a body that is not JSON, and continues",
        "In short", "Reject a message that cannot be read, without requeue";
    Minimal "attempt-zero" minimal::attempt_zero,
        "rejects a message with attempt 0",
        "Job message", "has attempt 0, or names another job type than its queue";
    Minimal "other-job-type" minimal::other_job_type,
        "rejects a message of another job type",
        "Job message", "has attempt 0, or names another job type than its queue";
    Minimal "job-type-case" minimal::job_type_case,
        "compares the job type without case",
        "Job message", "(compared without case)";
    Minimal "too-large" minimal::too_large,
        "rejects a message of more than 1 MiB",
        "Job message", "a message that has more than 1 MiB";
    Minimal "unconfirmed-start" minimal::unconfirmed_start,
        "keeps a message until the broker has confirmed the report",
        "Encoding and delivery", "A message counts as sent when the broker has confirmed it";
    Minimal "returned-report" minimal::returned_report,
        "keeps a message whose report the broker has returned",
        "Encoding and delivery", "A returned message is confirmed too";
    Minimal "second-instance" minimal::second_instance,
        "shares its messages with a second instance",
        "In short", "Consume the queue of each job type";

    Claims "ledger" duplicates::ledger,
        "writes the ledger as each run begins",
        "In short", "Run it.";
    Claims "claim" claims::key,
        "holds running:{id} during a run, and done: afterwards",
        "Claim in Redis", "a lease of 15 s, renewed every 5 s, plus 24 h";
    Claims "claim-renewal" claims::lease,
        "renews the lease of a run",
        "Scripts of a claim", "Every 5 seconds, renew the claims of all runs with one script.";
    Claims "claim-of-a-lower-attempt" claims::next_attempt,
        "takes over a claim or an end of a lower attempt",
        "Claim in Redis", "A higher attempt takes over from a lower one";
    Claims "claim-ended" claims::ended,
        "drops a message whose attempt has ended, or a later one was claimed",
        "Claim in Redis", "| a higher attempt, or `done` of one | any | any | | acknowledge |";
    Claims "claim-ended-long-ago" claims::ended_long_ago,
        "reports an attempt as lost whose end was never reported",
        "Claim in Redis", "report Unknown with your own `instanceId`, acknowledge when that is confirmed";
    Claims "claim-held" claims::held,
        "drops a first delivery whose attempt another instance holds",
        "Claim in Redis", "| another instance, this attempt | more than 24 h | no | | acknowledge |";
    Claims "claim-held-and-renewed" claims::held_and_renewed,
        "drops a duplicate whose holder renews its lease",
        "Claim in Redis", "acknowledge: it was renewed, so its holder is alive";
    Claims "claim-expired" claims::expired,
        "reports an attempt as lost whose holder's lease has expired",
        "Claim in Redis", "report Unknown with the holder as `instanceId`, acknowledge when that is confirmed";
    Claims "claim-expires-later" claims::expires_later,
        "waits for the end of a lease that is not renewed",
        "Claim in Redis", "| another instance, this attempt | more than 24 h | yes | | read it again after a second |";
    Claims "claim-expired-denied" claims::expired_and_denied,
        "drops an attempt with an expired lease if the server denies it",
        "Claim in Redis", "| another instance, this attempt | in between: the lease has expired | any | denied | acknowledge |";
    Claims "claim-lost" claims::lost_to_another,
        "ends a run whose later attempt another instance has claimed",
        "Scripts of a claim", "A higher attempt: end the run, and drop it from the heartbeats";
    Claims "claim-after-an-earlier-end" claims::earlier_done,
        "continues a run whose key has the end of an earlier attempt",
        "Scripts of a claim", "takes over from a lower attempt";
    Claims "redis-loses-data" claims::redis_loses_data,
        "claims a run again after Redis lost its data, and starts no duplicate",
        "Scripts of a claim", "It restores a claim that is gone, because Redis has lost its data";
    Claims "redis-away" claims::redis_away,
        "announces the start to the server while Redis is away",
        "Claim in Redis", "start at once: the server has recorded the start";
    Claims "redis-away-denied" claims::redis_away_denied,
        "starts nothing that the server denies while Redis is away",
        "Claim in Redis", "acknowledge: the occurrence may have been cancelled";
    Claims "redis-away-no-server" claims::redis_away_no_server,
        "starts a first delivery without Redis and without a server",
        "Claim in Redis", "report Running, start when that is confirmed";
    Claims "redis-away-unconfirmed" claims::redis_away_unconfirmed,
        "starts nothing before the report is confirmed, without Redis and without a server",
        "Claim in Redis", "report Running, start when that is confirmed";
    Claims "redis-away-at-start" claims::redis_away_at_start,
        "starts without Redis, runs jobs, and claims them once Redis is there",
        "Claim in Redis", "A worker that cannot reach Redis when its process starts works all the same";
    Claims "redis-away-duplicate" claims::redis_away_duplicate,
        "hands back a possible duplicate while Redis is away",
        "Claim in Redis", "| Redis does not answer | | yes | | nack after a second |";
    Claims "duplicate-same-instance" duplicates::same_instance,
        "runs an attempt once that the broker delivers three times",
        "Table of runs", "A second delivery of an attempt in this table must not start.";
    Claims "duplicate-granted" duplicates::same_instance_granted,
        "runs an attempt once although the server grants its duplicates",
        "Table of runs", "A second delivery of an attempt in this table must not start.";
    Claims "duplicate-at-once" duplicates::at_once,
        "runs four messages of one attempt once",
        "Table of runs", "A second delivery of an attempt in this table must not start.";
    Claims "duplicate-other-instance" duplicates::other_instance,
        "runs an attempt once that two instances receive",
        "Duplicate deliveries", "The same message may arrive twice";
    Claims "duplicate-after-the-end" duplicates::after_the_end,
        "drops duplicates after the end, also in the next instance",
        "Claim in Redis", "| `done` of this attempt | 23 h 50 min or more | any | | acknowledge |";
    Claims "own-redelivery" duplicates::own_redelivery,
        "continues a run whose message is redelivered to it",
        "Table of runs", "A second delivery of an attempt in this table must not start.";
    Claims "own-redelivery-after-the-end" duplicates::own_redelivery_after_the_end,
        "starts no ended run whose message is redelivered to it",
        "Table of runs", "A second delivery of an attempt in this table must not start.";
    Claims "check-granted" duplicates::check_granted,
        "asks about a republished message, and runs it if that is granted",
        "Claim check", "Send one for each delivery that may be a duplicate, before any part of it runs";
    Claims "check-denied" duplicates::check_denied,
        "drops a message for each reason of a denial",
        "Claim check", "Denied: acknowledge the message and drop it, whatever the reason.";
    Claims "check-denied-unknown-reason" duplicates::check_denied_for_an_unknown_reason,
        "drops a message for a reason that it does not know",
        "Claim check", "Denied: acknowledge the message and drop it, whatever the reason.";
    Claims "check-without-reply" duplicates::check_without_reply,
        "hands a message back if the server does not reply",
        "Claim check", "hand the message back (`basic.nack`, `requeue` true) after a second";
    Claims "killed-while-running" duplicates::killed_while_running,
        "runs the next attempt of a run whose process was killed",
        "Claim in Redis", "A higher attempt takes over from a lower one";
    Claims "killed-before-its-report" duplicates::killed_before_its_report,
        "reports a run as lost that another process claimed before it was killed",
        "Claim in Redis", "its holder is gone, and it is unknown whether the attempt has started";
    Claims "superseded" duplicates::superseded_in_one_instance,
        "runs a later attempt beside an earlier one, and ends the earlier one",
        "Claim in Redis", "A higher attempt takes over from a lower one";
    Claims "heartbeats" control::heartbeats,
        "sends hello, and heartbeats that list its runs",
        "Registration", "`running` has the attempts that have started and not ended";
    Claims "heartbeats-while-blocked" control::heartbeats_of_a_blocked_worker,
        "sends heartbeats while a run blocks its thread",
        "Registration", "from a thread that no run can block";
    Claims "listed-until-confirmed" control::listed_until_confirmed,
        "lists a run in its heartbeats until its end is confirmed",
        "Traps", "The run out of the heartbeats before its end is confirmed";

    Full "hello" control::hello,
        "announces its job types with schema and concurrency",
        "Registration", "its identity and its job types";
    Full "hello-again" control::hello_again,
        "sends hello again after a reconnect, under the same instance",
        "Registration", "when the worker starts and after each reconnect";
    Full "heartbeat-key" control::heartbeat_key,
        "writes heartbeat:{instanceId}",
        "Claim in Redis", "15 s, renewed every 5 s |";
    Full "worker-first" lifecycle::worker_first,
        "declares everything if it starts before a server",
        "Names", "Server and workers declare the same things, so either may start first";
    Full "names" lifecycle::names,
        "converts its worker id into a word of the routing key",
        "Names", "lower case, then every `_` doubled, then every `.` replaced by `_d`";
    Full "concurrency" reporting::concurrency,
        "runs no more at once than it announces",
        "In short", "with a prefetch of as many messages as may run at once";
    Full "surplus" reporting::surplus,
        "keeps no message that it cannot run",
        "Prefetch", "Never hold surplus messages unacknowledged";
    Full "bundle" bundles::all_runs,
        "starts all runs of a bundle, and acknowledges it once, if it announces bundles",
        "Bundles", "acknowledge the bundle when the last of them would be acknowledged";
    Full "bundle-redelivered" bundles::redelivered,
        "rejects a redelivered bundle unread, if it announces bundles",
        "Bundles", "Reject a bundle whose `redelivered` flag is set, without requeue and without parsing it";
    Full "bundle-refused" bundles::refused,
        "rejects a bundle that it can run in part only, if it announces bundles",
        "Bundles", "wait until the starts of the other runs are confirmed, and then reject the bundle without requeue";
    Full "bundle-stopped" bundles::stopped,
        "rejects a bundle that has not started when it stops, if it announces bundles",
        "Bundles", "Never return a bundle to its queue";
    Full "critical-slot" critical::reserved_slot,
        "starts a critical run although all permits are taken, if it announces reserved slots",
        "Critical runs", "starts a critical run at once although all permits are taken";
    Full "critical-stopped" critical::stopped,
        "returns a critical run that has not started when it stops, if it announces reserved slots",
        "Critical runs", "Everything else is as for the queue of the job type";
    Full "retry" reporting::retry,
        "reports a failure with its exception, and runs the next attempt",
        "Status reports", "A worker reports Failed or TimedOut and is done";
    Full "retry-after" reporting::retry_after,
        "reports the delay that a job asks for",
        "Status reports", "or after `retryAfterMs`, at most 30 days";
    Full "permanent" reporting::permanent,
        "reports a failure that no retry can fix",
        "Status reports", "does not contain `\"permanent\": true`";
    Full "snooze" reporting::snooze,
        "hands an attempt back until a later time",
        "Status reports", "the next one starts after `retryAfterMs`, at once by default";
    Full "invalid-input" reporting::invalid_input,
        "reports input that the job cannot read as a permanent failure",
        "Job message", "report Running, then Failed with `permanent`";
    Full "duration" reporting::duration,
        "reports the duration of a run",
        "Clocks", "Measure `durationMs` with a monotonic clock";
    Full "log-lines" reporting::lines,
        "sends log lines with the numbers of their attempt",
        "Log lines", "`seq` is attempt × 1,000,000 + the line's number from 0";
    Full "log-batches" reporting::line_batches,
        "sends log lines in batches",
        "Log lines", "Collect lines for about 20 milliseconds instead of sending each one";
    Full "log-exception" reporting::exception_in_the_log,
        "writes the exception of an attempt to its log",
        "Log lines", "Write the exception of an attempt to the log as well";
    Full "progress" reporting::progress,
        "reports progress, at most four times a second",
        "Status reports", "again with `progress`, at most four times a second";
    Full "checkpoint" reporting::checkpoint,
        "passes a checkpoint to the next attempt, if it announces checkpoints",
        "Checkpoints", "The message of the next attempt has the last one in `checkpoint`.";
    Full "trace" reporting::trace,
        "keeps the trace of a message in the reports of start and end",
        "Traces", "leave it out of progress reports";
    Full "trace-malformed" reporting::malformed_trace,
        "treats a malformed traceparent as missing",
        "Traces", "Treat a malformed one as missing; never reject the message for it";
    Full "cancel" control::cancel_on_the_channel,
        "ends a run within seconds that a user cancels",
        "Cancellation", "End the run, then report Cancelled";
    Full "cancel-by-key" control::cancel_by_the_key,
        "ends a run whose cancel request was not published",
        "Cancellation", "The channel is fast and the key is reliable";
    Full "cancel-before-the-start" control::cancel_before_the_start,
        "reports a cancelled occurrence without running it",
        "Claim in Redis", "report Cancelled without starting";
    Full "cancel-of-an-earlier-attempt" control::cancel_of_an_earlier_attempt,
        "continues an attempt after the cancelled one",
        "Cancellation", "It applies to this attempt and earlier ones";
    Full "cancel-while-redis-is-away" control::cancel_while_redis_is_away,
        "reads the cancel requests of its runs after a reconnect",
        "Cancellation", "read the keys of your runs after each (re)subscription";
    Full "timeout" control::timeout,
        "ends a run when its timeout expires, and runs the next one",
        "Status reports", "its timeout expired";
    Full "claims-since" claims::claims_since,
        "asks about a message that is older than the data of Redis",
        "Claim in Redis", "delete the key if it holds your value; acknowledge";
    Full "duplicate-after-loss" claims::duplicate_after_loss,
        "waits a lease with what may be a duplicate after Redis lost its data",
        "Claim in Redis", "what may be a duplicate is not claimed in the first 15 seconds";
    Full "claims-since-set" claims::claims_since_set,
        "sets claims_since if it is missing",
        "Claim in Redis", "a worker that finds none sets it";
    Full "revoked" claims::revoked,
        "ends a revoked run, and deletes its claim",
        "Revocation", "If its value is higher than the attempt of your run, end the run";
    Full "stop-idle" lifecycle::stop_idle,
        "ends after SIGTERM with goodbye",
        "Shutdown", "Send goodbye.";
    Full "stop-running" lifecycle::stop_running,
        "hands a run back when its grace has passed",
        "Shutdown", "then end them and report them as Queued";
    Full "stop-finishing" lifecycle::stop_finishing,
        "lets a run end within the grace",
        "Shutdown", "Let the runs continue for a while";
    Full "stop-waiting" lifecycle::stop_with_waiting_messages,
        "returns messages that have not started",
        "Shutdown", "`basic.nack` with `requeue` what has not started";
    Full "stop-announced" lifecycle::stop_announced,
        "lists its runs in heartbeats with stopping during its grace",
        "Shutdown", "Cancel the consumers, and send heartbeats with `stopping`.";
    Full "broker-away" lifecycle::broker_away,
        "continues a run while the broker is away, and reports later",
        "Encoding and delivery", "keep the message and send it again on a new channel";
    Full "unconfirmed-end" lifecycle::unconfirmed_end,
        "reports an end again that was not confirmed",
        "Encoding and delivery", "keep the message and send it again on a new channel";
    Full "slow-confirms" lifecycle::slow_confirms,
        "works with a slow broker",
        "Encoding and delivery", "no answer within 10 seconds";
    Full "mute-broker" lifecycle::mute_broker,
        "continues after a broker was silent for some seconds",
        "Encoding and delivery", "Sending again is harmless";
    Full "blocked-publisher" lifecycle::blocked_publisher,
        "reports after a broker that accepted no messages, and sends heartbeats again",
        "Encoding and delivery", "a broker short of memory blocks connections that publish";
    Full "redis-away-while-running" lifecycle::redis_away_while_running,
        "continues a run while Redis is away",
        "Scripts of a claim", "Every 5 seconds, renew the claims of all runs with one script.";
    Full "broker-restarted" restarts::broker,
        "continues its runs and its work after a restart of the broker",
        "Registration", "when the worker starts and after each reconnect";
    Full "redis-restarted" restarts::redis,
        "continues its runs and its claims after a restart of Redis",
        "Claim in Redis", "a worker that finds none sets it";
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol/README.md");

    #[test]
    fn every_rule_is_on_the_page() {
        let page = std::fs::read_to_string(PAGE).expect("the page is readable");
        // The page emphasises parts of sentences.
        let page = page.replace("**", "").replace('*', "");
        for case in CASES {
            assert!(page.contains(case.rule), "the rule of {} is not on the page: {}", case.name, case.rule);
            assert!(page.contains(&format!("# {}\n", case.section)), "{}: no section {}", case.name, case.section);
        }
    }

    #[test]
    fn names_are_unique() {
        for (number, case) in CASES.iter().enumerate() {
            assert!(CASES[..number].iter().all(|other| other.name != case.name), "{} twice", case.name);
        }
    }
}
