//! Runs cases side by side, and reports their verdicts in the order of the catalogue. Those that restart a service are at
//! its end and run alone.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};

use crate::{
    arguments::{ConformanceArguments, ConformanceLevel},
    cases::{CASES, ConformanceCase},
    clock,
    context::CaseContext,
    failure::{CaseFailure, ConformanceError},
    settings::{ConformanceSettings, KitSettings},
    verdict::{CaseVerdict, ConformanceReport},
};

/// The longest time of one case. The longest case takes about half of it.
const CASE_TIMEOUT: Duration = Duration::from_secs(90);

/// Returns the text that lists the cases of the chosen level.
///
/// # Errors
/// Returns [`ConformanceError::UnknownCase`] if a chosen name is unknown.
pub fn list(arguments: &ConformanceArguments) -> Result<String, ConformanceError> {
    let mut text = String::new();
    for case in select(arguments.level, &arguments.cases)? {
        text.push_str(&format!("{:<8} {:<34} {}\n", case.level.name(), case.name, case.summary));
    }
    Ok(text)
}

/// Runs the cases of a level, or those with the given names. Calls `on_verdict` after each case, in the order of the
/// catalogue.
///
/// # Errors
/// Returns [`ConformanceError`] if a name is unknown or a service does not answer. A worker that fails a case is no error.
pub async fn run(
    settings: &ConformanceSettings,
    level: ConformanceLevel,
    names: &[String],
    mut on_verdict: impl FnMut(&CaseVerdict),
) -> Result<ConformanceReport, ConformanceError> {
    let selected = select(level, names)?;
    let folder = std::env::temp_dir().join(format!("milvaion-conformance-{}", clock::random_word()));
    std::fs::create_dir_all(&folder)?;
    let since = Instant::now();
    let outcome = async {
        let kit = Arc::new(KitSettings::open(settings, folder.clone()).await?);
        let mut verdicts = Vec::new();
        // What restarts a service would disturb the cases beside it, so it follows them, one case after the other.
        let (restarting, others): (Vec<_>, Vec<_>) = selected.into_iter().partition(|case| case.restarts_services);
        let running = others.into_iter().map(|case| judge(case, kit.clone()));
        let mut running = stream::iter(running).buffered(settings.parallel.clamp(1, 64));
        while let Some(verdict) = running.next().await {
            on_verdict(&verdict);
            verdicts.push(verdict);
        }
        drop(running);
        for case in restarting {
            let kit = Arc::new(KitSettings::open(settings, folder.clone()).await?);
            let verdict = judge(case, kit).await;
            on_verdict(&verdict);
            verdicts.push(verdict);
        }
        Ok(ConformanceReport { level, verdicts, duration: since.elapsed() })
    }
    .await;
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}

/// Runs the cases that the arguments choose, and prints the verdicts. Returns true if the worker passes.
///
/// # Errors
/// Returns [`ConformanceError`] like [`run`].
pub async fn run_and_print(
    settings: &ConformanceSettings,
    arguments: &ConformanceArguments,
) -> Result<bool, ConformanceError> {
    let print = |verdict: &CaseVerdict| {
        if !arguments.json {
            println!("{verdict}");
        }
    };
    let report = run(settings, arguments.level, &arguments.cases, print).await?;
    if arguments.json {
        println!("{:#}", report.to_json());
    } else {
        print!("\n{}", report.summary());
    }
    Ok(report.is_passed())
}

fn select(level: ConformanceLevel, names: &[String]) -> Result<Vec<&'static ConformanceCase>, ConformanceError> {
    for name in names {
        if !CASES.iter().any(|case| case.name == name) {
            return Err(ConformanceError::UnknownCase(name.clone()));
        }
    }
    let is_selected = |case: &&ConformanceCase| {
        if names.is_empty() { case.level <= level } else { names.iter().any(|name| name == case.name) }
    };
    Ok(CASES.iter().filter(is_selected).collect())
}

async fn judge(case: &'static ConformanceCase, kit: Arc<KitSettings>) -> CaseVerdict {
    let since = Instant::now();
    // A task of its own: a case that computes for long delays no other one.
    let judging = tokio::spawn(async move {
        let context = CaseContext::open(kit).await?;
        let outcome = match tokio::time::timeout(CASE_TIMEOUT, (case.check)(&context)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let expected = format!("the end of the case within {} s", CASE_TIMEOUT.as_secs());
                Err(CaseFailure::new(expected, "it still waits"))
            }
        };
        // What breaks a rule for every message is the cause of what follows from it.
        let outcome = context.judge_everything().and(outcome);
        context.close().await;
        outcome
    });
    let outcome =
        judging.await.unwrap_or_else(|error| Err(CaseFailure::new("a verdict", format!("a defect: {error}"))));
    let (failure, skipped) = CaseFailure::split(outcome);
    CaseVerdict {
        level: case.level,
        name: case.name,
        summary: case.summary,
        section: case.section,
        rule: case.rule,
        failure,
        skipped,
        duration: since.elapsed(),
    }
}
