//! RabbitMQ, killed, emptied, or made to keep a confirmation to itself.

use std::collections::HashMap;

use lapin::{Connection, ConnectionProperties, options::QueueDeleteOptions, types::FieldTable};
use milvaion_protocol::topology::Topology;
use serde_json::json;

use super::{Dials, Extra, Scenario, Script, pause};
use crate::{
    evidence::now,
    house::House,
    service::Kind,
    stand::Stand,
    workload::{Plan, WORKER},
};

pub(super) const C18: Scenario = Scenario {
    id: "C18",
    title: "RabbitMQ is killed and boots again",
    short: 1,
    long: 5,
    play: |house, dials| Box::pin(killed(house, dials)),
};

async fn killed(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    // Nothing can start while it is away, but everything is created on time.
    let judge =
        json!({"allowance_ms": 60_000, "dispatch_allowance_ms": 4_500, "recovery_ms": 30_000, "orphan_ms": null});
    Script::new("C18", judge)
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, extra: &mut Extra| {
            for round in 0..dials.count {
                // With its boot, shorter and longer than a worker may be silent.
                let (from, to) = if round % 2 == 0 { (0.0, 1.0) } else { (8.0, 12.0) };
                let away = pause(&mut stand.random, from, to);
                stand.crash(Kind::RabbitMq, away).await?;
                let ready = now();
                stand
                    .until("an empty backlog of messages", async |stand| {
                        let behind = "SELECT count(*) FROM occurrences WHERE published_at IS NULL AND status = 0
                                         AND waits_until IS NULL AND created_at < now() - interval '1 second'";
                        Ok(sqlx::query_scalar::<_, i64>(behind).fetch_one(&stand.pool).await? == 0)
                    })
                    .await?;
                extra.at_most("backlog_published_s", (now() - ready) as f64 / 1e6, 30.0);
                stand.go_on(dials.either(2.0, 6.0)).await;
            }
            Ok(())
        })
        .await
}

pub(super) const C20: Scenario = Scenario {
    id: "C20",
    title: "RabbitMQ loses everything while 500 occurrences are queued",
    short: 0,
    long: 2,
    play: |house, dials| Box::pin(wiped(house, dials)),
};

async fn wiped(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    let judge = json!({
        "allowance_ms": 90_000, "dispatch_allowance_ms": 4_500, "recovery_ms": 60_000, "orphan_ms": null,
    });
    let mut script = Script::new("C20", judge);
    script.more = (0..40).map(|_| Plan::each("quick", 1)).collect();
    script
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, extra: &mut Extra| {
            for _ in 0..dials.count {
                let mut faults = Vec::new();
                for worker in &mut stand.workers {
                    faults.push(stand.evidence.begin("terminate", worker.name(), "so that work piles up"));
                    worker.terminate().await?;
                }
                stand
                    .until("500 queued occurrences", async |stand| {
                        let queued = "SELECT count(*) FROM occurrences WHERE status = 0 AND published_at IS NOT NULL";
                        Ok(sqlx::query_scalar::<_, i64>(queued).fetch_one(&stand.pool).await? >= 500)
                    })
                    .await?;
                let fault = stand.evidence.begin("wipe", "rabbitmq", "SIGKILL, and everything deleted");
                stand.house.rabbitmq.kill().await?;
                stand.house.rabbitmq.wipe()?;
                stand.house.rabbitmq.start().await?;
                stand.evidence.over(fault);
                let (ready, before) = (now(), stand.witness.starts());
                for worker in &mut stand.workers {
                    worker.start().await?;
                }
                for fault in faults {
                    stand.evidence.over(fault);
                }
                stand.until("a start", async |stand| Ok(stand.witness.starts() > before)).await?;
                extra.at_most("topology_back_s", (now() - ready) as f64 / 1e6, 15.0);
                stand.until("an end of the backlog", async |stand| Ok(stand.open_occurrences().await? < 300)).await?;
            }
            Ok(())
        })
        .await
}

pub(super) const C22: Scenario = Scenario {
    id: "C22",
    title: "A queue that work is published to loses its binding, or is deleted",
    short: 0,
    long: 6,
    play: |house, dials| Box::pin(unbound(house, dials)),
};

async fn unbound(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    // What finds no queue comes back at once. What lay in a queue that is deleted, as happens in every other round, is
    // missed once it is 15 s old (REQUEUE_AFTER_SECONDS), by a look each 7.5 s.
    let allowance = if dials.count > 1 { 25_000 } else { 15_000 };
    let judge = json!({
        "allowance_ms": allowance, "dispatch_allowance_ms": 3_000, "recovery_ms": 10_000, "orphan_ms": null,
    });
    Script::new("C22", judge)
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, _: &mut Extra| {
            for round in 0..dials.count {
                let queue = stand.names.job_queue(WORKER, "quick");
                let connection =
                    Connection::connect(stand.house.rabbitmq.url(), ConnectionProperties::default()).await?;
                let channel = connection.create_channel().await?;
                if round % 2 == 0 {
                    let (exchange, key) = (stand.names.jobs_exchange(), Topology::job_binding(WORKER, "quick"));
                    let (queue, exchange, key) = (queue.as_str().into(), exchange.as_str().into(), key.as_str().into());
                    channel.queue_unbind(queue, exchange, key, FieldTable::default()).await?;
                    stand.evidence.happened("unbind", "rabbitmq", "the queue of quick");
                } else {
                    channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await?;
                    stand.evidence.happened("delete-queue", "rabbitmq", "the queue of quick");
                }
                let _ = connection.close(200, "done".into()).await;
                let breath = pause(&mut stand.random, 12.0, 15.0);
                stand.go_on(breath).await;
            }
            Ok(())
        })
        .await
}

pub(super) const C23: Scenario = Scenario {
    id: "C23",
    title: "The broker's confirmation, or the message, is lost with the connection",
    short: 10,
    long: 200,
    play: |house, dials| Box::pin(unconfirmed(house, dials)),
};

async fn unconfirmed(house: &mut House, dials: Dials) -> anyhow::Result<super::Played> {
    let judge = json!({"allowance_ms": 8_000, "dispatch_allowance_ms": 6_000, "orphan_ms": null});
    Script::new("C23", judge)
        .play(house, dials, async |stand: &mut Stand<'_>, dials: &Dials, extra: &mut Extra| {
            let (mut lost, mut unsent) = (0, 0);
            while lost < dials.count {
                let leader = stand.some_leader().await?;
                let name = format!("{}>rabbitmq", stand.servers[leader].name());
                let some = 1 + lost % 3;
                stand.lose_confirms(&name, some).await?;
                lost += some;
                let breath = pause(&mut stand.random, 0.1, dials.either(0.6, 0.8));
                stand.go_on(breath).await;
                // To the sender it looks the same: no answer. This time nobody has the message.
                if lost >= (unsent + 1) * 4 {
                    stand.lose_publish(&name).await?;
                    unsent += 1;
                }
            }
            stand.go_on(6.0).await;
            let copies = stand.copies();
            extra.figures.insert("confirmations_lost", f64::from(lost));
            extra.figures.insert("messages_lost", f64::from(unsent));
            extra.at_least("copies_delivered", copies as f64, f64::from(dials.count) / 10.0);
            Ok(())
        })
        .await
}

impl Stand<'_> {
    async fn lose_confirms(&mut self, link: &str, count: u32) -> anyhow::Result<()> {
        let fault = self.evidence.begin("drop-confirm", link, format!("{count} lost, then a reset"));
        let before = self.link(link)?.dropped();
        self.link(link)?.drop_confirms(count);
        self.until("a lost confirmation", async |stand| Ok(stand.link(link)?.dropped() >= before + u64::from(count)))
            .await?;
        self.evidence.over(fault);
        Ok(())
    }

    async fn lose_publish(&mut self, link: &str) -> anyhow::Result<()> {
        let fault = self.evidence.begin("lose-publish", link, "a reset, the message on its way".to_owned());
        let before = self.link(link)?.swallowed();
        self.link(link)?.swallow_publish();
        self.until("a lost message", async |stand| Ok(stand.link(link)?.swallowed() > before)).await?;
        self.evidence.over(fault);
        Ok(())
    }

    /// How many occurrences had their message delivered more than once.
    pub(super) fn copies(&self) -> usize {
        let mut times = HashMap::<String, u32>::new();
        for link in &self.links {
            for (occurrence, count) in link.delivered() {
                *times.entry(occurrence).or_default() += count;
            }
        }
        times.values().filter(|count| **count > 1).count()
    }
}
