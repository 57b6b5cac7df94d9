//! Singleton loops: list, enable, disable, yield and forget.
//!
//! PostgreSQL decides which loops are disabled, because Redis may lose its data. Workers read Redis only. A change is
//! therefore stored first and then written to Redis, and the background task `singletons` repeats what Redis missed.

use std::collections::{BTreeMap, HashMap};

use milvaion_api::{
    alerts::is_loop_name,
    singletons::{LoopDisabled, MAX_LOOPS, SingletonLoop, SingletonLoopList},
};
use milvaion_app::{backend::RequestUser, error::AppError};
use serde_json::json;

use crate::{
    cache::{Cache, RedisError},
    clock::Clock,
    domain::singletons::{LoopKeys, view},
    store::{Store, audit::AuditEntry},
};

/// The commands that show and control singleton loops.
#[derive(Clone, Debug)]
pub struct SingletonCommands {
    /// Access to PostgreSQL.
    pub store: Store,
    /// Access to Redis.
    pub cache: Cache,
    /// The clock of this server.
    pub clock: Clock,
}

/// The loops as they are in Redis and PostgreSQL.
#[derive(Clone, Debug, Default)]
pub struct LoopsRead {
    /// The time of Redis in milliseconds since 1970.
    pub now_ms: i64,
    /// The keys of each loop, by name.
    pub keys: Vec<LoopKeys>,
    /// The disabled loops.
    pub disabled: HashMap<String, LoopDisabled>,
    /// True if there are more loops.
    pub is_truncated: bool,
}

impl LoopsRead {
    /// Reads all loops. PostgreSQL is read after Redis, so that the key of a loop that was just disabled is not taken for
    /// one of a loop that was enabled.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis or PostgreSQL fails.
    pub async fn read<E: From<RedisError> + From<crate::store::StoreError>>(
        store: &Store,
        cache: &Cache,
    ) -> Result<Self, E> {
        let found = cache.loop_names().await?;
        let mut names: BTreeMap<String, Option<i64>> =
            found.names.into_iter().map(|(name, seen)| (name, Some(seen))).collect();
        for name in store.disabled_loops().await?.into_keys() {
            names.entry(name).or_insert(None);
        }
        let is_truncated = found.is_truncated || names.len() > MAX_LOOPS;
        let all: Vec<String> = names.keys().take(MAX_LOOPS).cloned().collect();
        let mut keys = cache.loop_keys(&all, found.now_ms).await?;
        for (keys, seen) in keys.iter_mut().zip(names.values()) {
            keys.last_seen_ms = *seen;
        }
        Ok(Self { now_ms: found.now_ms, keys, disabled: store.disabled_loops().await?, is_truncated })
    }

    /// Returns the views of the loops, by name.
    #[must_use]
    pub fn views(&self) -> Vec<SingletonLoop> {
        self.keys.iter().map(|keys| view(keys, self.disabled.get(&keys.name).cloned())).collect()
    }
}

/// An error of a read, as the user gets it.
struct ReadError(AppError);

impl From<RedisError> for ReadError {
    fn from(error: RedisError) -> Self {
        Self(unavailable(&error))
    }
}

impl From<crate::store::StoreError> for ReadError {
    fn from(error: crate::store::StoreError) -> Self {
        Self(error.into())
    }
}

fn unavailable(error: &RedisError) -> AppError {
    tracing::warn!(error = %error, "the singleton loops could not be read, because Redis does not answer");
    AppError::Unavailable("Redis does not answer, and singleton loops are there only. Try again in a moment.".into())
}

impl SingletonCommands {
    /// Returns all loops by name.
    ///
    /// # Errors
    ///
    /// Returns `Unavailable` if Redis or PostgreSQL fails.
    pub async fn list(&self) -> Result<SingletonLoopList, AppError> {
        let read = LoopsRead::read::<ReadError>(&self.store, &self.cache).await.map_err(|error| error.0)?;
        Ok(SingletonLoopList { loops: read.views(), is_truncated: read.is_truncated })
    }

    /// Returns a loop.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if no instance has offered it, and `Unavailable` if Redis or PostgreSQL fails.
    pub async fn get(&self, name: &str) -> Result<SingletonLoop, AppError> {
        let missing = || AppError::NotFound(format!("The singleton loop {name} does not exist or was forgotten."));
        if !is_loop_name(name) {
            return Err(missing());
        }
        let redis = |error: RedisError| unavailable(&error);
        let (now_ms, last_seen_ms) = self.cache.loop_seen(name).await.map_err(redis)?;
        let disabled = self.store.disabled_loop(name).await?;
        if last_seen_ms.is_none() && disabled.is_none() {
            return Err(missing());
        }
        let keys = self.cache.loop_keys(&[name.to_owned()], now_ms).await.map_err(redis)?;
        let keys = keys.into_iter().next().unwrap_or_default();
        Ok(view(&LoopKeys { last_seen_ms, ..keys }, disabled))
    }

    /// Enables or disables a loop. Succeeds if it is so already.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if no instance has offered it.
    pub async fn set_enabled(&self, me: &RequestUser, name: &str, is_enabled: bool) -> Result<(), AppError> {
        self.get(name).await?;
        let action = if is_enabled { "singleton_loop.enable" } else { "singleton_loop.disable" };
        let entry = self.entry(me, action, name);
        let is_changed = if is_enabled {
            self.store.enable_loop(name, &entry).await?
        } else {
            self.store.disable_loop(name, &entry).await?
        };
        // Redis may lack an earlier change, so it is written in any case.
        let stored = self.store.disabled_loop(name).await?;
        let written = match &stored {
            Some(disabled) => self.cache.disable_loop(name, disabled).await,
            None => self.cache.enable_loop(name).await,
        };
        if let Err(error) = written {
            tracing::warn!(
                singleton.name = name, error = %error,
                "the singleton loop {name} was changed, but Redis did not answer; the change is repeated"
            );
        }
        if is_changed {
            let word = if is_enabled { "enabled" } else { "disabled" };
            tracing::info!(user.id = %me.id, singleton.name = name, "user {} {word} the singleton loop {name}", me.id);
        }
        Ok(())
    }

    /// Asks the leader of a loop to hand it over to another instance.
    ///
    /// # Errors
    ///
    /// Returns `NotFound`, `Conflict` without a leader or without another instance, and `Unavailable` if Redis fails.
    pub async fn yield_leadership(&self, me: &RequestUser, name: &str) -> Result<(), AppError> {
        let found = self.get(name).await?;
        let refuse = |text: String| Err(AppError::Conflict(text));
        if !found.is_enabled {
            return refuse(format!("The singleton loop {name} is disabled. Enable it first."));
        }
        let Some(leader) = &found.leader else {
            return refuse(format!(
                "The singleton loop {name} has no leader that could yield. Wait until an instance leads it."
            ));
        };
        if !found.has_standby() {
            return refuse(format!(
                "No other instance offers the singleton loop {name}. Start another one first, or disable the loop to stop it."
            ));
        }
        let asked = self.cache.ask_to_yield(name, &leader.instance_id).await;
        asked.map_err(|error| unavailable(&error))?;
        let entry = self.entry(me, "singleton_loop.yield", name);
        let change = json!({ "leader": leader.instance_id, "epoch": leader.epoch });
        self.store.audit(&entry.change(Some(change), None)).await?;
        tracing::info!(
            user.id = %me.id, singleton.name = name, instance.id = leader.instance_id,
            "user {} asked instance {} to hand over the singleton loop {name}", me.id, leader.instance_id
        );
        Ok(())
    }

    /// Forgets a loop that no instance has offered for a minute. Its epoch is kept, so that an instance that offers it
    /// again continues with a higher one.
    ///
    /// # Errors
    ///
    /// Returns `NotFound`, `Conflict` if an instance offers or leads it, and `Unavailable` if Redis fails.
    pub async fn forget(&self, me: &RequestUser, name: &str) -> Result<(), AppError> {
        self.get(name).await?;
        // Redis first, because it alone can refuse.
        if !self.cache.forget_loop(name).await.map_err(|error| unavailable(&error))? {
            return Err(AppError::Conflict(format!(
                "An instance offers the singleton loop {name}, or has offered it within the last minute. Stop its worker, or remove the loop from it, and try again after a minute."
            )));
        }
        self.store.forget_loop(name, &self.entry(me, "singleton_loop.forget", name)).await?;
        tracing::info!(user.id = %me.id, singleton.name = name, "user {} made the singleton loop {name} forgotten", me.id);
        Ok(())
    }

    fn entry(&self, me: &RequestUser, action: &'static str, name: &str) -> AuditEntry {
        AuditEntry::new(self.clock.now(), &me.email, action, format!("singleton_loop:{name}"))
            .from(me.address.map(|address| address.to_string()))
    }
}
