//! Redis, emptied or away.

use serde_json::json;

use super::{Dials, Extra, Scenario, Script, pause};
use crate::{house::House, service::Kind, stand::Stand};

pub(super) const C10: Scenario = Scenario {
    id: "C10",
    title: "Redis is flushed",
    short: 3,
    long: 30,
    play: |house, dials| Box::pin(flushed(house, dials)),
};

async fn flushed(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    let judge = json!({"allowance_ms": 4_500, "dispatch_allowance_ms": 4_500, "recovery_ms": 3_000, "orphan_ms": null});
    Script::new("C10", judge)
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, _: &mut Extra| {
            for _ in 0..dials.count {
                stand.evidence.happened("flush", "redis", "FLUSHALL");
                stand.house.redis(&["FLUSHALL"]).await?;
                let breath = pause(&mut stand.random, 0.5, dials.either(3.0, 5.0));
                stand.go_on(breath).await;
            }
            Ok(())
        })
        .await
}

pub(super) const C11: Scenario = Scenario {
    id: "C11",
    title: "Redis is stopped, killed, or comes back empty",
    short: 1,
    long: 5,
    play: |house, dials| Box::pin(away(house, dials)),
};

async fn away(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    let judge = json!({"allowance_ms": 6_000, "dispatch_allowance_ms": 4_500, "orphan_ms": null});
    Script::new("C11", judge)
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, _: &mut Extra| {
            for round in 0..dials.count {
                let away = pause(&mut stand.random, dials.either(8.0, 5.0), dials.either(10.0, 40.0));
                let (word, is_empty) = [("wipe", true), ("stop", false), ("kill", false)][(round % 3) as usize];
                let fault = stand.evidence.begin(word, "redis", format!("for {away:.1} s"));
                if word == "stop" {
                    stand.house.redis.stop().await;
                } else {
                    stand.house.redis.kill().await?;
                }
                stand.go_on(away).await;
                if is_empty {
                    stand.house.redis.wipe()?;
                }
                stand.house.service(Kind::Redis).start().await?;
                stand.evidence.over(fault);
                stand.go_on(dials.either(3.0, 8.0)).await;
            }
            Ok(())
        })
        .await
}
