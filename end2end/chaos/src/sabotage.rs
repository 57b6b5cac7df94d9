//! Tests the suite: with a protection taken away from the programs, the scenario that needs it must fail.
//!
//! What is armed besides must not be what makes it fail: such a scenario is played once more with nothing else armed.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};

use crate::{
    harness::ServiceHarness,
    run_scenario,
    scenarios::{self, ScenarioConfig},
};

/// A protection that can be taken away, and where that must be noticed.
struct SabotageCase {
    name: &'static str,
    /// What is taken away.
    what: &'static str,
    scenario: &'static str,
    /// How often the scenario's fault happens; enough to be hit for certain, not by luck.
    count: u32,
    /// What is armed besides, to be hit for certain.
    besides: &'static str,
    /// One of these findings must be among those of the checker. Any other failure would be a failure for another reason.
    noticed_by: &'static [&'static str],
}

const SABOTAGE_CASES: &[SabotageCase] = &[
    SabotageCase {
        name: "skip_compare_and_swap",
        what: "the compare before the swap",
        scenario: "redis_outage",
        count: 1,
        besides: "dispatch.before_commit=sleep(300)",
        noticed_by: &["dup_occurrence"],
    },
    SabotageCase {
        name: "publish_before_commit",
        what: "the commit before the message",
        scenario: "postgres_killed",
        count: 3,
        besides: "",
        noticed_by: &["phantom", "lost", "stuck"],
    },
    SabotageCase {
        name: "skip_publisher_confirms",
        what: "the wait for confirmations",
        scenario: "confirms_lost",
        count: 10,
        besides: "",
        noticed_by: &["late"],
    },
    SabotageCase {
        name: "skip_mandatory_flag",
        what: "the return of what no queue takes",
        scenario: "queue_removed",
        count: 1,
        besides: "",
        noticed_by: &["late", "stuck", "lost"],
    },
    SabotageCase {
        name: "skip_claim",
        what: "the claim",
        scenario: "messages_duplicated",
        count: 1,
        besides: "",
        noticed_by: &["dup_start"],
    },
    SabotageCase {
        name: "skip_fence",
        what: "the fencing epoch",
        scenario: "leader_frozen",
        count: 1,
        besides: "",
        noticed_by: &["stale_writes"],
    },
    SabotageCase {
        name: "skip_attempt_check",
        what: "the attempt in reports",
        scenario: "reports_replayed",
        count: 1,
        besides: "",
        noticed_by: &[
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
        what: "the commit before the acknowledgement",
        scenario: "leader_killed",
        count: 2,
        // Longer than the second between two bursts of runs, so that its hand is full whenever it is killed. PostgreSQL's
        // death hardly shows it: what is in hand waits for its return.
        besides: "status.before_commit=sleep(1500)",
        noticed_by: &["lost_result", "false_lost", "stuck", "overlap", "dup_start", "status_lie"],
    },
    SabotageCase {
        name: "trust_due_index",
        what: "PostgreSQL's word about what is due",
        scenario: "redis_outage",
        count: 1,
        besides: "",
        noticed_by: &["late"],
    },
    SabotageCase {
        name: "skip_observed_time",
        what: "observed time",
        scenario: "rabbitmq_killed",
        count: 2,
        besides: "",
        noticed_by: &["false_lost", "overlap"],
    },
    SabotageCase {
        name: "skip_republish_lookback",
        what: "the look back for unpublished occurrences",
        scenario: "worker_killed",
        count: 5,
        besides: "",
        noticed_by: &["stuck", "orphan_late"],
    },
    SabotageCase {
        name: "fail_unpublished",
        what: "patience with the broker",
        scenario: "rabbitmq_killed",
        count: 1,
        besides: "",
        noticed_by: &["failed_by_infra"],
    },
];

/// Takes protections away, each in turn or the named one. True when every one was noticed.
pub(crate) async fn test_the_suite(harness: &mut ServiceHarness, name: &str, seed: u64) -> anyhow::Result<bool> {
    let chosen: Vec<_> = SABOTAGE_CASES.iter().filter(|one| name == "all" || one.name == name).collect();
    ensure!(
        !chosen.is_empty(),
        "there is no sabotage {name}: choose skip_compare_and_swap to fail_unpublished, or all"
    );
    let mut unnoticed = Vec::new();
    for sabotage in chosen {
        let findings = commit(harness, sabotage, seed).await?;
        let innocent = match sabotage.besides {
            "" => BTreeMap::new(),
            besides => play(harness, sabotage, besides.to_owned(), seed).await?,
        };
        let by: Vec<_> = findings
            .keys()
            .filter(|name| sabotage.noticed_by.contains(&name.as_str()) && !innocent.contains_key(*name))
            .collect();
        let word = if by.is_empty() { "UNNOTICED" } else { "noticed" };
        println!("{} {word}: without {} in {}: {findings:?}", sabotage.name, sabotage.what, sabotage.scenario);
        if by.is_empty() {
            unnoticed.push(sabotage.name);
        }
    }
    if !unnoticed.is_empty() {
        println!("The suite is blind to {}", unnoticed.join(", "));
    }
    Ok(unnoticed.is_empty())
}

/// Plays the scenario without the protection. Returns what was found.
async fn commit(
    harness: &mut ServiceHarness,
    sabotage: &SabotageCase,
    seed: u64,
) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut armed = format!("{}=return", sabotage.name);
    if !sabotage.besides.is_empty() {
        armed = format!("{armed};{}", sabotage.besides);
    }
    play(harness, sabotage, armed, seed).await
}

async fn play(
    harness: &mut ServiceHarness,
    sabotage: &SabotageCase,
    armed: String,
    seed: u64,
) -> anyhow::Result<BTreeMap<String, u64>> {
    let scenario = scenarios::SCENARIOS.iter().find(|one| one.id == sabotage.scenario).context("a scenario of ours")?;
    let config = ScenarioConfig { count: sabotage.count, seed, is_short: true, armed: Some(armed) };
    let verdict = run_scenario(harness, scenario, config).await?;
    verdict.print();
    let mut findings = verdict.findings;
    // What a scenario looks at itself.
    if verdict.failures.iter().any(|failure| failure.starts_with("stale_writes")) {
        findings.insert("stale_writes".into(), 1);
    }
    Ok(findings)
}
