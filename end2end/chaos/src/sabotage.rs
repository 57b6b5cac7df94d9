//! Tests the suite itself: with a protection disabled in the programs, the scenario that depends on it must fail.
//!
//! A suite that always passes may not detect anything. Each sabotage disables one protection, such as the claim or the
//! fencing epoch, and lists the findings that would reveal it. A scenario that fails for any other reason does not
//! count.
//!
//! Some sabotages need another failpoint, such as a delay, so that their effect is certain to occur. The findings must
//! not come from that failpoint, so such a scenario is run once more with the failpoint alone, and what it finds then
//! does not count either.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};

use crate::{
    harness::ServiceHarness,
    run_scenario,
    scenarios::{self, ScenarioConfig},
};

/// A sabotage, and the scenario that must detect it.
struct SabotageCase {
    name: &'static str,
    /// The disabled protection.
    protection: &'static str,
    scenario: &'static str,
    /// The number of faults, which is large enough for the effect to be certain.
    count: u32,
    /// Failpoints that are armed as well, so that the effect is certain to occur; empty if none are needed.
    extra_failpoints: &'static str,
    /// Findings that reveal the sabotage. At least one must occur.
    detected_by: &'static [&'static str],
}

/// The beginnings of failures that a scenario itself measures, because the checker does not see them.
const MEASURED_FINDINGS: &[&str] = &["stale_writes", "answer_s", "declared_wrong", "needless_messages"];

const SABOTAGE_CASES: &[SabotageCase] = &[
    SabotageCase {
        name: "skip_compare_and_swap",
        protection: "the compare before the swap",
        scenario: "redis_outage",
        count: 1,
        extra_failpoints: "dispatch.before_commit=sleep(300)",
        detected_by: &["dup_occurrence"],
    },
    SabotageCase {
        name: "publish_before_commit",
        protection: "the commit before the message",
        scenario: "postgres_killed",
        count: 3,
        extra_failpoints: "",
        detected_by: &["phantom", "lost", "stuck"],
    },
    SabotageCase {
        name: "skip_publisher_confirms",
        protection: "the wait for publisher confirms",
        scenario: "confirms_lost",
        count: 10,
        extra_failpoints: "",
        detected_by: &["late"],
    },
    SabotageCase {
        name: "skip_mandatory_flag",
        protection: "the mandatory flag of published messages",
        scenario: "queue_removed",
        count: 1,
        extra_failpoints: "",
        detected_by: &["late", "stuck", "lost"],
    },
    SabotageCase {
        name: "skip_claim",
        protection: "the claim",
        scenario: "messages_duplicated",
        count: 1,
        extra_failpoints: "",
        detected_by: &["dup_start"],
    },
    SabotageCase {
        name: "skip_fence",
        protection: "the fencing epoch",
        scenario: "leader_frozen",
        count: 1,
        extra_failpoints: "",
        detected_by: &["stale_writes"],
    },
    SabotageCase {
        name: "skip_attempt_check",
        protection: "the attempt number in reports",
        scenario: "reports_replayed",
        count: 1,
        extra_failpoints: "",
        detected_by: &[
            "overlap",
            "state_regress",
            "status_lie",
            "lost_result",
            "phantom",
            "dup_start",
            "failed_by_infra",
        ],
    },
    SabotageCase {
        name: "ack_before_commit",
        protection: "the commit before the acknowledgement",
        scenario: "leader_killed",
        count: 2,
        // The delay is longer than the second between two bursts of runs, so the server holds an unfinished batch
        // whenever it is killed. Killing PostgreSQL instead hardly reveals the sabotage, because the server keeps its
        // batch until PostgreSQL is back.
        extra_failpoints: "status.before_commit=sleep(1500)",
        detected_by: &["lost_result", "false_lost", "stuck", "overlap", "dup_start", "status_lie"],
    },
    SabotageCase {
        name: "ack_before_commit",
        protection: "the commit before the acknowledgement",
        scenario: "enqueue_faults",
        count: 1,
        // As above: both servers hold a message that they have not stored when they are killed.
        extra_failpoints: "enqueue.before_commit=sleep(1500)",
        detected_by: &["lost"],
    },
    SabotageCase {
        name: "skip_receipts",
        protection: "the receipts of enqueued occurrences",
        scenario: "enqueue_redelivered",
        count: 2,
        extra_failpoints: "",
        detected_by: &["dup_start", "dup_occurrence", "answer_s"],
    },
    SabotageCase {
        name: "trust_any_version",
        protection: "the precedence of the newest version",
        scenario: "declared_schedules",
        count: 1,
        extra_failpoints: "",
        detected_by: &["declared_wrong"],
    },
    SabotageCase {
        name: "trust_due_index",
        protection: "PostgreSQL as the source of due times",
        scenario: "redis_outage",
        count: 1,
        extra_failpoints: "",
        detected_by: &["late"],
    },
    SabotageCase {
        name: "skip_observed_time",
        protection: "observed time",
        scenario: "rabbitmq_killed",
        count: 2,
        extra_failpoints: "",
        detected_by: &["false_lost", "overlap"],
    },
    SabotageCase {
        name: "skip_republish_lookback",
        protection: "the look-back of the republisher",
        scenario: "worker_killed",
        count: 8,
        extra_failpoints: "",
        detected_by: &["stuck", "orphan_late"],
    },
    SabotageCase {
        name: "ignore_bundle_sizes",
        protection: "the size of the bundles that were sent",
        scenario: "all_workers_killed",
        // The backlog waits for longer than the fifteen seconds after which a message is missed.
        count: 5,
        extra_failpoints: "",
        detected_by: &["needless_messages"],
    },
    SabotageCase {
        name: "fail_unpublished",
        protection: "the retry of unpublished messages",
        scenario: "rabbitmq_killed",
        count: 1,
        extra_failpoints: "",
        detected_by: &["failed_by_infra"],
    },
    SabotageCase {
        name: "skip_loop_deadlines",
        protection: "the deadlines of a loop's lease",
        scenario: "loop_leader_partitioned",
        count: 1,
        extra_failpoints: "",
        detected_by: &["loop_overlap"],
    },
];

/// Runs the named sabotage, or `all` of them one after the other. Returns true if each was detected.
///
/// # Errors
///
/// Returns an error if there is no such sabotage, or if the services cannot be restored after a scenario.
pub(crate) async fn test_the_suite(harness: &mut ServiceHarness, name: &str, seed: u64) -> anyhow::Result<bool> {
    let chosen: Vec<_> = SABOTAGE_CASES.iter().filter(|case| name == "all" || case.name == name).collect();
    let known: Vec<_> = SABOTAGE_CASES.iter().map(|case| case.name).collect();
    ensure!(!chosen.is_empty(), "there is no sabotage {name}; choose all or one of {}", known.join(", "));
    let mut undetected = Vec::new();
    for case in chosen {
        let findings = run_sabotaged(harness, case, seed).await?;
        let baseline = match case.extra_failpoints {
            "" => BTreeMap::new(),
            failpoints => run_with(harness, case, failpoints.to_owned(), seed).await?,
        };
        let revealing: Vec<_> = findings
            .keys()
            .filter(|name| case.detected_by.contains(&name.as_str()) && !baseline.contains_key(*name))
            .collect();
        let result = if revealing.is_empty() { "UNDETECTED" } else { "detected" };
        println!("{} {result}: without {} in {}: {findings:?}", case.name, case.protection, case.scenario);
        if revealing.is_empty() {
            undetected.push(case.name);
        }
    }
    if !undetected.is_empty() {
        println!("The suite does not detect {}", undetected.join(", "));
    }
    Ok(undetected.is_empty())
}

/// Runs the scenario without the protection. Returns the findings with their counts.
async fn run_sabotaged(
    harness: &mut ServiceHarness,
    case: &SabotageCase,
    seed: u64,
) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut armed = format!("{}=return", case.name);
    if !case.extra_failpoints.is_empty() {
        armed = format!("{armed};{}", case.extra_failpoints);
    }
    run_with(harness, case, armed, seed).await
}

/// Runs the scenario with these failpoints armed in every program. Returns the findings with their counts.
async fn run_with(
    harness: &mut ServiceHarness,
    case: &SabotageCase,
    armed: String,
    seed: u64,
) -> anyhow::Result<BTreeMap<String, u64>> {
    let scenario = scenarios::SCENARIOS.iter().find(|scenario| scenario.id == case.scenario);
    let scenario = scenario.with_context(|| format!("{} names an unknown scenario {}", case.name, case.scenario))?;
    let config = ScenarioConfig { count: case.count, seed, is_short: true, armed: Some(armed) };
    let verdict = run_scenario(harness, scenario, config).await?;
    verdict.print();
    let mut findings = verdict.findings;
    for name in MEASURED_FINDINGS {
        if verdict.failures.iter().any(|failure| failure.starts_with(name)) {
            findings.insert((*name).into(), 1);
        }
    }
    Ok(findings)
}
