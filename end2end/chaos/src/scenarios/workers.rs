//! Workers that die, freeze, are cut off, or are asked to go while they have runs.

use std::time::Duration;

use anyhow::{Context, ensure};
use rand::RngExt;
use serde_json::json;

use super::{Dials, Extra, Scenario, Script, pause};
use crate::{
    api::Reply,
    evidence::now,
    house::House,
    proxy::Mode,
    stand::{PATIENCE, Stand},
    workload::{Plan, When},
};

/// How long a worker lets its runs go on when it is asked to stop, in seconds: what stands set.
const GRACE: f64 = 5.0;

pub(super) const C25: Scenario = Scenario {
    id: "C25",
    title: "Workers are killed at any moment, and come back soon, or so late that others must notice",
    short: 1,
    long: 9,
    play: |house, dials| Box::pin(killed(house, dials)),
};

async fn killed(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    let judge = json!({"allowance_ms": 25_000, "dispatch_allowance_ms": 3_000, "recovery_ms": 20_000});
    let mut script = Script::new("C25", judge);
    script.more = vec![Plan::each("long", 1).lasting(18_000)];
    script
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, _: &mut Extra| {
            for round in 0..dials.count {
                // In turn, so that one that dies has been there for a while.
                let number = round as usize % stand.workers.len();
                match round % 3 {
                    0 => dies(stand, number, 18.0).await?,
                    1 => two_die(stand, number).await?,
                    _ => {
                        let away = pause(&mut stand.random, 0.1, 3.0);
                        dies(stand, number, away).await?;
                    }
                }
                let breath = pause(&mut stand.random, 1.0, 4.0);
                // In one turn a run may lose three workers, which is as often as it is rescued. It must not meet the next.
                let next_turn = if round % 3 == 2 { 20.0 } else { 0.0 };
                stand.go_on(breath + next_turn).await;
            }
            Ok(())
        })
        .await
}

async fn dies(stand: &mut Stand<'_>, number: usize, away: f64) -> anyhow::Result<()> {
    let fault = stand.evidence.begin("kill", stand.workers[number].name(), format!("SIGKILL for {away:.1} s"));
    stand.workers[number].kill().await?;
    stand.go_on(away).await;
    stand.workers[number].start().await?;
    stand.evidence.over(fault);
    Ok(())
}

/// One dies, and soon another, so that of the runs that are given to others the later ones are not the younger ones.
async fn two_die(stand: &mut Stand<'_>, number: usize) -> anyhow::Result<()> {
    let other = (number + 1) % stand.workers.len();
    let first = stand.evidence.begin("kill", stand.workers[number].name(), "SIGKILL for 19 s");
    stand.workers[number].kill().await?;
    stand.go_on(5.0).await;
    let second = stand.evidence.begin("kill", stand.workers[other].name(), "SIGKILL for 19 s");
    stand.workers[other].kill().await?;
    stand.go_on(14.0).await;
    stand.workers[number].start().await?;
    stand.evidence.over(first);
    stand.go_on(5.0).await;
    stand.workers[other].start().await?;
    stand.evidence.over(second);
    Ok(())
}

pub(super) const C26: Scenario = Scenario {
    id: "C26",
    title: "A worker is frozen for twice the limit of silence, and thawed",
    short: 0,
    long: 3,
    play: |house, dials| Box::pin(frozen(house, dials)),
};

async fn frozen(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    let judge = json!({"allowance_ms": 60_000, "dispatch_allowance_ms": 3_000, "recovery_ms": 20_000});
    Script::new("C26", judge)
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, _: &mut Extra| {
            for _ in 0..dials.count {
                let number = stand.random.random_range(0..stand.workers.len());
                let fault = stand.evidence.begin("freeze", stand.workers[number].name(), "SIGSTOP for 30 s");
                stand.workers[number].freeze()?;
                stand.go_on(30.0).await;
                stand.workers[number].thaw()?;
                stand.evidence.over(fault);
                stand.go_on(4.0).await;
            }
            Ok(())
        })
        .await
}

pub(super) const C27: Scenario = Scenario {
    id: "C27",
    title: "A worker cannot reach RabbitMQ while its runs go on",
    short: 1,
    long: 3,
    play: |house, dials| Box::pin(cut(house, dials)),
};

async fn cut(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    let judge =
        json!({"allowance_ms": 60_000, "dispatch_allowance_ms": 3_000, "recovery_ms": 40_000, "orphan_ms": null});
    Script::new("C27", judge)
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, extra: &mut Extra| {
            for round in 0..dials.count {
                let number = stand.random.random_range(0..stand.workers.len());
                let name = format!("{}>rabbitmq", stand.workers[number].name());
                let (word, mode) = [
                    ("blackhole", Mode::Blackhole),
                    ("cut", Mode::Refuse),
                    ("half-open", Mode::HalfOpen),
                    ("latency", Mode::Slow(300)),
                ][(round % 4) as usize];
                let seconds = dials.either(12.0, 60.0);
                let at_work = stand.witness.running(stand.workers[number].name());
                let fault =
                    stand.evidence.begin(word, name.as_str(), format!("for {seconds} s, {at_work} runs at work"));
                stand.link(&name)?.set(mode);
                stand.go_on(seconds).await;
                stand.link(&name)?.set(Mode::Pass);
                stand.evidence.over(fault);
                extra.figures.insert("runs_at_work", at_work as f64);
                stand.go_on(dials.either(5.0, 15.0)).await;
            }
            Ok(())
        })
        .await
}

pub(super) const C28: Scenario = Scenario {
    id: "C28",
    title: "A worker cannot reach RabbitMQ, is killed, and starts again while it still cannot",
    short: 0,
    long: 2,
    play: |house, dials| Box::pin(cut_and_killed(house, dials)),
};

async fn cut_and_killed(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    let judge =
        json!({"allowance_ms": 60_000, "dispatch_allowance_ms": 3_000, "recovery_ms": 40_000, "orphan_ms": null});
    Script::new("C28", judge)
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, _: &mut Extra| {
            for _ in 0..dials.count {
                let number = stand.random.random_range(0..stand.workers.len());
                let name = format!("{}>rabbitmq", stand.workers[number].name());
                let fault = stand.evidence.begin("cut", name.as_str(), "until its worker has come back");
                stand.link(&name)?.set(Mode::Refuse);
                stand.go_on(10.0).await;
                let death = stand.evidence.begin("kill", stand.workers[number].name(), "SIGKILL while cut off");
                stand.workers[number].kill().await?;
                stand.go_on(2.0).await;
                stand.workers[number].start().await?;
                stand.evidence.over(death);
                stand.go_on(10.0).await;
                stand.link(&name)?.set(Mode::Pass);
                stand.evidence.over(fault);
                stand.go_on(15.0).await;
            }
            Ok(())
        })
        .await
}

pub(super) const C30: Scenario = Scenario {
    id: "C30",
    title: "A worker with short and long runs is asked to stop",
    short: 1,
    long: 8,
    play: |house, dials| Box::pin(asked_to_stop(house, dials)),
};

async fn asked_to_stop(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    let judge = json!({"allowance_ms": 8_000, "dispatch_allowance_ms": 3_000, "orphan_ms": 12_000});
    let mut script = Script::new("C30", judge);
    script.more = vec![Plan::each("long", 1).lasting(12_000)];
    script
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, extra: &mut Extra| {
            for round in 0..dials.count {
                let number = round as usize % stand.workers.len();
                let name = stand.workers[number].name().to_owned();
                let fault = stand.evidence.begin("terminate", name.as_str(), "SIGTERM");
                let (status, took) = stand.workers[number].terminate().await?;
                extra.at_most("exit_s", took.as_secs_f64(), GRACE + 2.0);
                if !status.success() {
                    extra.failures.push(format!("{name} ended with {status}"));
                }
                stand.workers[number].start().await?;
                stand.evidence.over(fault);
                stand.go_on(dials.either(3.0, 6.0)).await;
            }
            Ok(())
        })
        .await
}

pub(super) const C31: Scenario = Scenario {
    id: "C31",
    title: "Every worker is killed with thousands queued and running (count: thousands), and three new ones start",
    short: 0,
    long: 5,
    play: |house, dials| Box::pin(all_killed(house, dials)),
};

async fn all_killed(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    // All that waits is late until it has been drained.
    let judge =
        json!({"allowance_ms": null, "dispatch_allowance_ms": 4_500, "recovery_ms": 120_000, "orphan_ms": 200_000});
    let mut script = Script::new("C31", judge);
    script.more = (0..100).map(|_| Plan::each("quick", 1)).collect();
    script
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, extra: &mut Extra| {
            let wanted = i64::from(dials.count) * 1_000;
            let mut faults = Vec::new();
            for worker in &mut stand.workers {
                faults.push(stand.evidence.begin("kill", worker.name(), "SIGKILL, all of them"));
                worker.kill().await?;
            }
            stand.until("a backlog", async |stand| Ok(stand.open_occurrences().await? >= wanted)).await?;
            let orphans = stand.open_occurrences().await?;
            let at = now();
            for worker in &mut stand.workers {
                worker.start().await?;
            }
            for fault in faults {
                stand.evidence.over(fault);
            }
            // Those that were open then, while as many come anew.
            let begun = chrono::DateTime::from_timestamp_micros(at).context("an instant")?;
            stand
                .until("an end of the backlog", async |stand| {
                    let left = "SELECT count(*) FROM occurrences WHERE status IN (0, 1, 6) AND created_at < $1";
                    Ok(sqlx::query_scalar::<_, i64>(left).bind(begun).fetch_one(&stand.pool).await? == 0)
                })
                .await?;
            extra.figures.insert("orphans", orphans as f64);
            extra.at_most("drained_s", (now() - at) as f64 / 1e6, 120.0);
            Ok(())
        })
        .await
}

pub(super) const C35: Scenario = Scenario {
    id: "C35",
    title: "A job kills its worker each time it runs, among innocent ones",
    short: 0,
    long: 3,
    play: |house, dials| Box::pin(poisoned(house, dials)),
};

async fn poisoned(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    let judge = json!({"allowance_ms": 60_000, "dispatch_allowance_ms": 3_000, "recovery_ms": 20_000});
    let mut script = Script::new("C35", judge);
    script.more = vec![Plan::new("killer", When::Manual)];
    script
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, extra: &mut Extra| {
            let job = stand.driver.manual("killer")?;
            for number in 0..dials.count {
                let occurrence = stand.driver.trigger(&job, &format!("killer-{number}")).await;
                let occurrence = occurrence.context("nobody took the run")?;
                let (mut deaths, begun) = (0.0, tokio::time::Instant::now());
                loop {
                    ensure!(begun.elapsed() < PATIENCE, "it has ended {deaths} workers and is still given to others");
                    for number in 0..stand.workers.len() {
                        if stand.workers[number].has_ended() {
                            deaths += 1.0;
                            let death = stand.evidence.begin("kill", stand.workers[number].name(), "by its job");
                            stand.workers[number].ended().await?;
                            stand.go_on(0.5).await;
                            stand.workers[number].start().await?;
                            stand.evidence.over(death);
                        }
                    }
                    let open = "SELECT count(*) FROM occurrences WHERE id = $1::uuid AND status IN (0, 1, 6)";
                    let open: i64 = sqlx::query_scalar(open).bind(&occurrence).fetch_one(&stand.pool).await?;
                    if open == 0 {
                        break;
                    }
                    stand.go_on(0.1).await;
                }
                // The first start and three rescues.
                extra.at_most("deaths_by_one_run", deaths, 4.0);
                // A run that was acquitted lives for another 20 s; one that meets two such jobs in its life has as many
                // deaths to its name as they have.
                stand.go_on(25.0).await;
            }
            Ok(())
        })
        .await
}

pub(super) const C44: Scenario = Scenario {
    id: "C44",
    title: "Runs are cancelled at any moment (count: hundreds)",
    short: 0,
    long: 5,
    play: |house, dials| Box::pin(cancelled(house, dials)),
};

async fn cancelled(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    Script::new("C44", json!({"slo_ms": 3_000}))
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, extra: &mut Extra| {
            let job = stand.driver.manual("obedient")?;
            let mut asked = tokio::task::JoinSet::new();
            for number in 0..dials.count * 100 {
                let (driver, job) = (stand.driver.clone(), job.clone());
                let wait = Duration::from_millis(stand.random.random_range(0..1_500));
                asked.spawn(async move {
                    let occurrence = driver.trigger(&job, &format!("storm-{number}")).await?;
                    tokio::time::sleep(wait).await;
                    let at = std::time::Instant::now();
                    matches!(driver.cancel(&job, &occurrence).await, Reply::Done(_)).then_some((occurrence, at))
                });
                // A storm, not a single gust.
                if asked.len() >= 40 {
                    ended(stand, extra, asked.join_next().await).await?;
                }
            }
            while let Some(one) = asked.join_next().await {
                ended(stand, extra, Some(one)).await?;
            }
            Ok(())
        })
        .await
}

/// Waits until a cancelled run has ended, and notes how long that took.
async fn ended(
    stand: &Stand<'_>,
    extra: &mut Extra,
    cancelled: Option<Result<Option<(String, std::time::Instant)>, tokio::task::JoinError>>,
) -> anyhow::Result<()> {
    let Some((occurrence, at)) = cancelled.transpose()?.flatten() else { return Ok(()) };
    stand
        .until("the end of a cancelled run", async |stand| {
            let open = "SELECT count(*) FROM occurrences WHERE id = $1::uuid AND status IN (0, 1, 6)";
            Ok(sqlx::query_scalar::<_, i64>(open).bind(&occurrence).fetch_one(&stand.pool).await? == 0)
        })
        .await?;
    extra.at_most("cancel_to_end_s", at.elapsed().as_secs_f64(), 5.0);
    *extra.figures.entry("cancelled").or_default() += 1.0;
    Ok(())
}
