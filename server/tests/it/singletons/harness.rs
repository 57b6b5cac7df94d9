//! The commands and the background task on real services, and instances that run the scripts of the protocol.

use futures::StreamExt;
use milvaion_api::{
    alerts::{Alert, AlertCondition, AlertFilter},
    singletons::SingletonLoop,
};
use milvaion_protocol::topology::RedisKeys;
use milvaion_server::{
    background::singletons::{SingletonReport, SingletonWatch},
    cache::Cache,
    clock::{Clock, machine_now},
    command::singletons::SingletonCommands,
    config::cache::CacheConfig,
    domain::singletons::LeaderlessLoops,
    engine::Service,
    live::Hub,
    store::Store,
};
use milvaion_test_support::{database, services, singletons::LoopInstance};

use crate::private_redis::PrivateRedis;

/// The loop of the tests.
pub(super) const LOOP: &str = "price-feed";

pub(super) struct SingletonHarness {
    pub(super) store: Store,
    pub(super) commands: SingletonCommands,
    pub(super) watch: SingletonWatch,
    pub(super) clock: Clock,
    pub(super) keys: RedisKeys,
    url: String,
}

impl SingletonHarness {
    /// Uses the shared Redis, with a prefix of its own.
    pub(super) async fn new() -> Self {
        let config = CacheConfig { url: services::redis_url(), key_prefix: format!("{}:", services::unique("t")) };
        Self::on(Cache::new(&config).expect("a valid URL"), config.url).await
    }

    /// Uses a Redis of this test alone.
    pub(super) async fn on_private(redis: &PrivateRedis) -> Self {
        Self::on(redis.cache(), redis.url()).await
    }

    async fn on(cache: Cache, url: String) -> Self {
        let store = database::open(&database::create().await).await;
        let (clock, hub) = (Clock::manual(machine_now()), Hub::new().0);
        let keys = cache.keys().clone();
        let commands = SingletonCommands { store: store.clone(), cache: cache.clone(), clock: clock.clone() };
        let watch = SingletonWatch {
            store: store.clone(),
            cache,
            clock: clock.clone(),
            hub,
            leaderless: LeaderlessLoops::default(),
            may_resolve: true,
        };
        Self { store, commands, watch, clock, keys, url }
    }

    pub(super) async fn instance(&self, id: &str) -> LoopInstance {
        LoopInstance::connect(&self.url, &self.keys, id).await
    }

    pub(super) async fn get(&self) -> SingletonLoop {
        self.commands.get(LOOP).await.expect("the loop exists")
    }

    pub(super) async fn tick(&mut self) -> SingletonReport {
        self.watch.tick().await.expect("the tick succeeds")
    }

    /// Lets the given seconds pass and runs a tick.
    pub(super) async fn tick_after(&mut self, seconds: i64) -> SingletonReport {
        self.clock.advance(chrono::TimeDelta::seconds(seconds));
        self.tick().await
    }

    /// Subscribes to the channel of the instances.
    pub(super) async fn channel(&self) -> impl futures::Stream<Item = String> + Unpin + use<> {
        let client = redis::Client::open(self.url.as_str()).expect("a valid URL");
        let mut subscriber = client.get_async_pubsub().await.expect("Redis responds");
        subscriber.subscribe(self.keys.singleton_channel()).await.expect("subscribed");
        subscriber.into_on_message().map(|message| message.get_payload().expect("text")).boxed()
    }

    /// Returns the alerts about loops that fire.
    pub(super) async fn firing(&self) -> Vec<Alert> {
        let filter = AlertFilter { firing: Some(true), ..AlertFilter::default() };
        self.store.alerts(&filter).await.expect("read").rows
    }

    /// Returns the actions of the audit log on the loop, the newest first.
    pub(super) async fn audited(&self) -> Vec<String> {
        let object = format!("singleton_loop:{LOOP}");
        let rows = self.store.audit_entries(Some(&object), 10).await.expect("read");
        rows.into_iter().map(|row| row.action).collect()
    }

    /// Returns the rule about loops of a fresh installation.
    pub(super) async fn default_rule(&self) -> milvaion_api::alerts::AlertRuleRow {
        let rules = self.store.alert_rules().await.expect("read");
        let is_about_loops = |condition: &AlertCondition| matches!(condition, AlertCondition::LoopWithoutLeader { .. });
        rules.into_iter().find(|rule| is_about_loops(&rule.definition.condition)).expect("a default rule")
    }
}
