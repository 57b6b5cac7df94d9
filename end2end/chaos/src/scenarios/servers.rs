//! Servers that die, freeze, or are simply left in peace.

use anyhow::Context;
use chrono::{DateTime, Utc};
use serde_json::json;

use super::{Dials, Extra, Scenario, Script, pause};
use crate::{evidence::now, house::House, stand::Stand};

/// How long a lease lasts, in seconds: `background::lease` of the server.
const LEASE: f64 = 10.0;

pub(super) const C01: Scenario = Scenario {
    id: "C01",
    title: "Nothing happens (count: times 10 s)",
    short: 0,
    long: 12,
    play: |house, dials| Box::pin(nothing(house, dials)),
};

async fn nothing(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    let script = Script::new("C01", json!({"slo_ms": 1_000}));
    script
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, extra: &mut Extra| {
            stand.go_on(f64::from(dials.count) * 10.0).await;
            extra.bounds.push(("/lateness/before/p99_ms", 500.0));
            Ok(())
        })
        .await
}

pub(super) const C02: Scenario = Scenario {
    id: "C02",
    title: "The leading server is killed and started again later",
    short: 1,
    long: 8,
    play: |house, dials| Box::pin(killed(house, dials)),
};

async fn killed(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    let judge = json!({"allowance_ms": 15_000, "dispatch_allowance_ms": 13_000});
    Script::new("C02", judge)
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, extra: &mut Extra| {
            for _ in 0..dials.count {
                let leader = stand.some_leader().await?;
                let fault = stand.evidence.begin("kill", stand.servers[leader].name(), "SIGKILL");
                let at = now();
                stand.servers[leader].kill().await?;
                let longest = dials.either(4.0, 20.0);
                let away = pause(&mut stand.random, 1.0, longest);
                let next = stand.next_dispatch(at).await?;
                extra.at_most("next_dispatch_s", next, LEASE + 2.0);
                stand.go_on((away - next).max(0.0)).await;
                stand.servers[leader].start().await?;
                stand.evidence.over(fault);
                let breath = pause(&mut stand.random, 2.0, dials.either(4.0, 8.0));
                stand.go_on(breath).await;
            }
            Ok(())
        })
        .await
}

pub(super) const C04: Scenario = Scenario {
    id: "C04",
    title: "The leading server is frozen for longer than its lease, also with a write in hand, and thawed",
    short: 1,
    long: 5,
    play: |house, dials| Box::pin(frozen(house, dials)),
};

async fn frozen(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    let judge = json!({"allowance_ms": 30_000, "dispatch_allowance_ms": 28_000, "orphan_ms": null});
    Script::new("C04", judge)
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, extra: &mut Extra| {
            for round in 0..dials.count {
                if round % 2 == 0 {
                    stale(stand, extra).await?;
                } else {
                    paused(stand, dials, extra, ["", "cp05", "cp07"][(round / 2 % 3) as usize]).await?;
                }
                stand.go_on(3.0).await;
            }
            Ok(())
        })
        .await
}

/// The leader freezes with its next statement in hand; a second one takes over and freezes, too, before it has done
/// anything. Now the first one wakes up: what it holds in hand must count for nothing.
async fn stale(stand: &mut Stand<'_>, extra: &mut Extra) -> anyhow::Result<()> {
    let (first, second) = (0, 1);
    let arming = stand.evidence.begin("terminate", stand.servers[first].name(), "to be armed with cp01");
    let waiting = stand.evidence.begin("terminate", stand.servers[second].name(), "to be armed with cp12");
    stand.servers[second].terminate().await?;
    stand.servers[first].terminate().await?;
    stand.servers[first].start_armed("cp01=5*off->1*return(stop)").await?;
    stand.until("a frozen leader", async |stand| Ok(stand.servers[first].is_frozen())).await?;
    stand.evidence.over(arming);
    let frozen = stand.evidence.begin("freeze", stand.servers[first].name(), "at cp01");
    stand.servers[second].start_armed("cp12=1*return(stop)").await?;
    stand.until("a frozen successor", async |stand| Ok(stand.servers[second].is_frozen())).await?;
    stand.evidence.over(waiting);
    let frozen_too = stand.evidence.begin("freeze", stand.servers[second].name(), "at cp12");
    let before = stand.fired().await?;
    stand.servers[first].thaw()?;
    stand.evidence.over(frozen);
    stand.go_on(3.0).await;
    extra.at_most("stale_writes", (stand.fired().await? - before) as f64, 0.0);
    stand.servers[second].thaw()?;
    stand.evidence.over(frozen_too);
    stand.current().await
}

/// The leader freezes anywhere, or at a point, for longer than its lease, and wakes up when another leads.
async fn paused(stand: &mut Stand<'_>, dials: &Dials, extra: &mut Extra, point: &str) -> anyhow::Result<()> {
    let leader = stand.some_leader().await?;
    if point.is_empty() {
        stand.servers[leader].freeze()?;
    } else {
        let other = 1 - leader;
        let arming =
            stand.evidence.begin("terminate", stand.servers[leader].name(), format!("to be armed with {point}"));
        let waiting = stand.evidence.begin("terminate", stand.servers[other].name(), "to come second");
        stand.servers[other].terminate().await?;
        stand.servers[leader].terminate().await?;
        stand.servers[leader].start_armed(&format!("{point}=20*off->1*return(stop)")).await?;
        stand.until("a frozen leader", async |stand| Ok(stand.servers[leader].is_frozen())).await?;
        stand.evidence.over(arming);
        stand.servers[other].start().await?;
        stand.evidence.over(waiting);
    }
    let fault = stand.evidence.begin("freeze", stand.servers[leader].name(), format!("SIGSTOP {point}"));
    let at = now();
    let next = stand.next_dispatch(at).await?;
    // A transaction that stands open with it is ended by PostgreSQL after five seconds.
    extra.at_most("next_dispatch_s", next, LEASE + 2.0 + 5.0);
    let away = pause(&mut stand.random, 1.5 * LEASE, dials.either(1.6, 3.0) * LEASE);
    stand.go_on((away - next).max(0.0)).await;
    stand.servers[leader].thaw()?;
    stand.evidence.over(fault);
    Ok(())
}

impl Stand<'_> {
    /// How many due instants have been fired.
    async fn fired(&self) -> anyhow::Result<i64> {
        let fired = "SELECT count(*) FROM occurrences WHERE trigger = 'schedule'";
        Ok(sqlx::query_scalar(fired).fetch_one(&self.pool).await?)
    }

    /// How many seconds after an instant the next occurrence was made. Waits for it.
    pub(super) async fn next_dispatch(&self, at: i64) -> anyhow::Result<f64> {
        // What was under way at that moment may still have come through.
        let after = DateTime::<Utc>::from_timestamp_micros(at + 50_000).context("an instant")?;
        let next = "SELECT min(created_at) FROM occurrences WHERE created_at > $1 AND trigger = 'schedule'";
        let found = std::cell::Cell::new(None);
        self.until("the next dispatch", async |stand| {
            let first: Option<DateTime<Utc>> = sqlx::query_scalar(next).bind(after).fetch_one(&stand.pool).await?;
            found.set(first);
            Ok(first.is_some())
        })
        .await?;
        let next = found.get().context("it was found")?;
        Ok((next.timestamp_micros() - at) as f64 / 1e6)
    }
}
