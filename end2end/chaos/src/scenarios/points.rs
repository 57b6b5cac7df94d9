//! Crash points: places in the programs between two steps that belong together, at which one of them ends on its own.
//!
//! A kill from outside hits such a place once in thousands of times. These are compiled in, so each is hit for certain:
//! the program is started with one of them armed, dies there when it comes by for the third time, and is started again.

use serde_json::json;

use super::{Dials, Extra, Scenario, Script};
use crate::{house::House, stand::Stand};

/// Those in the server.
const SERVER: &[&str] = &[
    "cp01", "cp05", "cp06", "cp07", "cp08", "cp09", "cp10", "cp11", "cp12", "cp13", "cp14", "cp15", "cp15b", "cp16",
    "cp16b", "cp17", "cp18",
];
/// Those in the worker.
const WORKER: &[&str] = &["cp20", "cp21", "cp22", "cp23", "cp24", "cp25", "cp25b", "cp26", "cp27", "cp28"];
/// How long the program may take to come by, in seconds. Some points are on ways that are not gone in every run.
const COMES_BY: f64 = 6.0;

pub(super) const CP: Scenario = Scenario {
    id: "CP",
    title: "A program dies at a crash point (count: how many points)",
    short: 0,
    long: (SERVER.len() + WORKER.len()) as u32,
    play: |house, dials| Box::pin(sweep(house, dials)),
};

async fn sweep(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    let judge = json!({"allowance_ms": 60_000, "dispatch_allowance_ms": 25_000, "recovery_ms": 20_000});
    Script::new("CP", judge)
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, extra: &mut Extra| {
            let points = SERVER.iter().map(|point| (*point, true)).chain(WORKER.iter().map(|point| (*point, false)));
            for (point, is_server) in points.take(dials.count as usize) {
                let died = dies_at(stand, point, is_server).await?;
                *extra.figures.entry(if died { "points_hit" } else { "points_not_reached" }).or_default() += 1.0;
            }
            Ok(())
        })
        .await
}

/// Starts a program with the point armed and waits until it has died there. Returns whether it has.
async fn dies_at(stand: &mut Stand<'_>, point: &str, is_server: bool) -> anyhow::Result<bool> {
    // Some are passed once in a life, or in a term.
    let visits = if matches!(point, "cp10" | "cp11" | "cp12" | "cp28") { 0 } else { 2 };
    let arm = if visits == 0 { format!("{point}=return") } else { format!("{point}={visits}*off->return") };
    let number = if is_server { stand.some_leader().await? } else { 0 };
    let processes = if is_server { &mut stand.servers } else { &mut stand.workers };
    let name = processes[number].name().to_owned();
    let arming = stand.evidence.begin("terminate", name.as_str(), format!("to be armed with {point}"));
    processes[number].terminate().await?;
    if is_server {
        // The one that is armed is to lead: the other one goes away, too, and comes back second.
        let other = 1 - number;
        let giving_way = stand.evidence.begin("terminate", processes[other].name(), "to make way");
        processes[other].terminate().await?;
        processes[number].start_armed(&arm).await?;
        stand.evidence.over(arming);
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        processes[other].start().await?;
        stand.evidence.over(giving_way);
    } else {
        processes[number].start_armed(&arm).await?;
        stand.evidence.over(arming);
    }
    let begun = tokio::time::Instant::now();
    while !processes[number].has_ended() && begun.elapsed().as_secs_f64() < COMES_BY {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let fault = stand.evidence.begin("crash-point", name.as_str(), point);
    let died = if processes[number].has_ended() {
        processes[number].ended().await?;
        true
    } else {
        // Disarmed, so that it does not die later, unseen. Some points lie on the way of an orderly end.
        !processes[number].terminate().await?.0.success()
    };
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    processes[number].start().await?;
    stand.evidence.over(fault);
    if is_server {
        // The next one dies at its first work. Without a breath in between, what waits would grow from point to point.
        stand.some_leader().await?;
        stand.current().await?;
    }
    stand.go_on(2.0).await;
    Ok(died)
}
