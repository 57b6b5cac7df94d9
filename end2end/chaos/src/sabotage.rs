//! Tests the suite: with a protection taken away from the programs, the scenario that needs it must fail.
//!
//! What is armed besides must not be what makes it fail: such a scenario is played once more with nothing else armed.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};

use crate::{
    house::House,
    one,
    scenarios::{self, Dials},
};

/// A protection that can be taken away, and where that must be noticed.
struct Sabotage {
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

const ALL: &[Sabotage] = &[
    Sabotage {
        name: "s01",
        what: "the compare before the swap",
        scenario: "C11",
        count: 1,
        besides: "cp01=sleep(300)",
        noticed_by: &["dup_occurrence"],
    },
    Sabotage {
        name: "s02",
        what: "the commit before the message",
        scenario: "C14",
        count: 3,
        besides: "",
        noticed_by: &["phantom", "lost", "stuck"],
    },
    Sabotage {
        name: "s03",
        what: "the wait for confirmations",
        scenario: "C23",
        count: 10,
        besides: "",
        noticed_by: &["late"],
    },
    Sabotage {
        name: "s04",
        what: "the return of what no queue takes",
        scenario: "C22",
        count: 1,
        besides: "",
        noticed_by: &["late", "stuck", "lost"],
    },
    Sabotage { name: "s05", what: "the claim", scenario: "C32", count: 1, besides: "", noticed_by: &["dup_start"] },
    Sabotage {
        name: "s06",
        what: "the fencing epoch",
        scenario: "C04",
        count: 1,
        besides: "",
        noticed_by: &["stale_writes"],
    },
    Sabotage {
        name: "s07",
        what: "the attempt in reports",
        scenario: "C33",
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
    Sabotage {
        name: "s08",
        what: "the commit before the acknowledgement",
        scenario: "C02",
        count: 2,
        // Longer than the second between two bursts of runs, so that its hand is full whenever it is killed. PostgreSQL's
        // death hardly shows it: what is in hand waits for its return.
        besides: "cp13=sleep(1500)",
        noticed_by: &["lost_result", "false_zombie", "stuck", "overlap", "dup_start", "status_lie"],
    },
    Sabotage {
        name: "s09",
        what: "PostgreSQL's word about what is due",
        scenario: "C11",
        count: 1,
        besides: "",
        noticed_by: &["late"],
    },
    Sabotage {
        name: "s10",
        what: "observed time",
        scenario: "C18",
        count: 2,
        besides: "",
        noticed_by: &["false_zombie", "overlap"],
    },
    Sabotage {
        name: "s11",
        what: "the look back for unpublished occurrences",
        scenario: "C25",
        count: 5,
        besides: "",
        noticed_by: &["stuck", "orphan_late"],
    },
    Sabotage {
        name: "s12",
        what: "patience with the broker",
        scenario: "C18",
        count: 1,
        besides: "",
        noticed_by: &["failed_by_infra"],
    },
];

/// Takes protections away, each in turn or the named one. True when every one was noticed.
pub(crate) async fn test_the_suite(house: &mut House, name: &str, seed: u64) -> anyhow::Result<bool> {
    let chosen: Vec<_> = ALL.iter().filter(|one| name == "all" || one.name == name).collect();
    ensure!(!chosen.is_empty(), "there is no sabotage {name}: choose s01 to s12, or all");
    let mut unnoticed = Vec::new();
    for sabotage in chosen {
        let findings = commit(house, sabotage, seed).await?;
        let innocent = match sabotage.besides {
            "" => BTreeMap::new(),
            besides => play(house, sabotage, besides.to_owned(), seed).await?,
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
async fn commit(house: &mut House, sabotage: &Sabotage, seed: u64) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut armed = format!("{}=return", sabotage.name);
    if !sabotage.besides.is_empty() {
        armed = format!("{armed};{}", sabotage.besides);
    }
    play(house, sabotage, armed, seed).await
}

async fn play(
    house: &mut House,
    sabotage: &Sabotage,
    armed: String,
    seed: u64,
) -> anyhow::Result<BTreeMap<String, u64>> {
    let scenario = scenarios::ALL.iter().find(|one| one.id == sabotage.scenario).context("a scenario of ours")?;
    let dials = Dials { count: sabotage.count, seed, is_short: true, armed: Some(armed) };
    let verdict = one(house, scenario, dials).await?;
    verdict.print();
    let mut findings = verdict.findings;
    // What a scenario looks at itself.
    if verdict.failures.iter().any(|failure| failure.starts_with("stale_writes")) {
        findings.insert("stale_writes".into(), 1);
    }
    Ok(findings)
}
