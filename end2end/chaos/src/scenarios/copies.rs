//! Messages that come more than once, and reports that come again long after.

use anyhow::ensure;
use rand::seq::SliceRandom;
use serde_json::json;

use super::{Dials, Extra, Scenario, Script};
use crate::{house::House, stand::Stand, tap::Tap, workload::Plan};

pub(super) const C32: Scenario = Scenario {
    id: "C32",
    title: "Every message is published three times more (count: times 10 s)",
    short: 1,
    long: 6,
    play: |house, dials| Box::pin(doubled(house, dials)),
};

async fn doubled(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    Script::new("C32", json!({"slo_ms": 3_000}))
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, extra: &mut Extra| {
            let exchanges = [(stand.names.jobs_exchange(), "#")];
            let tap = Tap::open(stand.house.rabbitmq.url(), &exchanges, 3).await?;
            let fault = stand.evidence.begin("copy", "rabbitmq", "each message three times more");
            stand.go_on(f64::from(dials.count) * 10.0).await;
            tap.rest();
            stand.evidence.over(fault);
            stand.go_on(2.0).await;
            let messages = tap.heard().len();
            tap.close().await?;
            extra.figures.insert("messages", messages as f64);
            extra.at_least("copies_delivered", stand.copies() as f64, messages as f64 / 2.0);
            Ok(())
        })
        .await
}

pub(super) const C33: Scenario = Scenario {
    id: "C33",
    title: "Every report and log line is played back three times, shuffled (count: times 10 s)",
    short: 0,
    long: 3,
    play: |house, dials| Box::pin(replayed(house, dials)),
};

async fn replayed(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    let mut script = Script::new("C33", json!({"slo_ms": 3_000}));
    // Whose second attempts are under way when what the first ones said comes again.
    script.more = vec![Plan::each("flaky", 1).lasting(6_000)];
    script
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, extra: &mut Extra| {
            let (status, logs) = (stand.names.status(), stand.names.logs());
            let exchanges = [(status.clone(), status.as_str()), (logs.clone(), logs.as_str())];
            let tap = Tap::open(stand.house.rabbitmq.url(), &exchanges, 0).await?;
            stand.go_on(f64::from(dials.count) * 10.0).await;
            // What is to be played back must have ended, so that nothing may change any more.
            let before = stand.ended_rows().await?;
            let mut heard: Vec<_> = std::iter::repeat_n(tap.heard(), 3).flatten().collect();
            heard.shuffle(&mut stand.random);
            let fault = stand.evidence.begin("replay", "rabbitmq", format!("{} messages", heard.len()));
            for one in &heard {
                tap.replay(one).await?;
            }
            stand.until("an end of the played back", async |stand| Ok(stand.waiting_reports().await? == 0)).await?;
            stand.go_on(2.0).await;
            stand.evidence.over(fault);
            let after = stand.ended_rows().await?;
            let changed = before.iter().filter(|row| !after.contains(*row)).count();
            tap.close().await?;
            extra.figures.insert("messages_replayed", heard.len() as f64);
            extra.figures.insert("rows_compared", before.len() as f64);
            extra.at_most("rows_changed", changed as f64, 0.0);
            ensure!(!before.is_empty(), "nothing had ended yet");
            Ok(())
        })
        .await
}

impl Stand<'_> {
    /// Everything about the occurrences that have ended, and how many log lines each has.
    async fn ended_rows(&self) -> anyhow::Result<std::collections::HashSet<String>> {
        let query = "SELECT to_jsonb(o)::text || ' ' ||
                            (SELECT count(*) FROM occurrence_logs l WHERE l.occurrence_id = o.id)::text
                       FROM occurrences o WHERE o.status IN (2, 3, 4, 5) AND o.ended_at < now() - interval '3 seconds'";
        Ok(sqlx::query_scalar::<_, String>(query).fetch_all(&self.pool).await?.into_iter().collect())
    }

    async fn waiting_reports(&self) -> anyhow::Result<u32> {
        Ok(self.queues().await?.values().sum())
    }
}
