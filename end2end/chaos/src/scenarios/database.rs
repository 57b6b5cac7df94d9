//! PostgreSQL, killed.

use serde_json::json;

use super::{Dials, Extra, Scenario, Script, pause};
use crate::{evidence::now, house::House, service::Kind, stand::Stand};

pub(super) const C14: Scenario = Scenario {
    id: "C14",
    title: "PostgreSQL is killed with all its children, and recovers",
    short: 1,
    long: 8,
    play: |house, dials| Box::pin(killed(house, dials)),
};

async fn killed(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    let judge = json!({"allowance_ms": 30_000, "dispatch_allowance_ms": 25_000});
    Script::new("C14", judge)
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, extra: &mut Extra| {
            for _ in 0..dials.count {
                let away = pause(&mut stand.random, 0.0, dials.either(1.0, 6.0));
                stand.crash(Kind::Postgres, away).await?;
                let next = stand.next_dispatch(now()).await?;
                extra.at_most("next_dispatch_s", next, 8.0);
                let breath = pause(&mut stand.random, 3.0, dials.either(4.0, 8.0));
                stand.go_on(breath).await;
            }
            Ok(())
        })
        .await
}
