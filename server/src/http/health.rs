//! Health checks of the process and of the services it depends on.
//!
//! The checks need no sign-in, and each takes a connection to PostgreSQL. Their result is therefore kept for a second,
//! and one check at a time runs, so that outsiders cannot take all connections.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Json, extract::State, response::IntoResponse};
use chrono::{DateTime, Utc};
use http::StatusCode;
use milvaion_api::views::{DATABASE_PART, DISPATCHER_PART, HealthItem, HealthState, TASKS_PART};
use tokio::time::Instant;

use super::WebState;
use crate::{
    background::dispatcher,
    broker::{Broker, publisher::Publisher},
    cache::Cache,
    clock::Clock,
    engine::{
        observations::{DeafSince, LastSnapshot},
        status::{ServiceHealth, ServiceStatuses},
    },
    store::Store,
};

/// The longest time that one service may take to respond.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// The time for which the result of a check is returned again.
const CACHE_TTL: Duration = Duration::from_secs(1);

/// The most characters of a task's error in the health report.
const MAX_REASON_CHARS: usize = 200;

/// Checks PostgreSQL, Redis, RabbitMQ and the server's own services.
#[derive(Clone, Debug)]
pub struct HealthCheck {
    /// Access to PostgreSQL.
    pub store: Store,
    /// Access to Redis.
    pub cache: Cache,
    /// The consuming side of RabbitMQ.
    pub broker: Broker,
    /// The publishing side of RabbitMQ.
    pub publisher: Publisher,
    /// The state of each service.
    pub services: ServiceStatuses,
    /// The oldest snapshot that a session of PostgreSQL holds.
    pub oldest_snapshot: LastSnapshot,
    /// The time since which no message of workers arrives.
    pub deaf_since: DeafSince,
    /// The start of each current trouble.
    pub history: HealthHistory,
    /// The result of the last check.
    pub last: LastCheck,
}

/// The result of the last check. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct LastCheck {
    result: Arc<tokio::sync::Mutex<Option<CheckResult>>>,
}

#[derive(Debug)]
struct CheckResult {
    at: Instant,
    items: Vec<HealthItem>,
}

impl LastCheck {
    /// Returns the last result, or that of `check` if there is none from the last second. Concurrent callers wait for
    /// one check and share its result.
    async fn get_or(&self, check: impl Future<Output = Vec<HealthItem>>) -> Vec<HealthItem> {
        let mut last = self.result.lock().await;
        if let Some(result) = &*last
            && result.at.elapsed() < CACHE_TTL
        {
            return result.items.clone();
        }
        let items = check.await;
        *last = Some(CheckResult { at: Instant::now(), items: items.clone() });
        items
    }
}

/// The time of the first check of each trouble. Clones share the times.
#[derive(Clone, Debug, Default)]
pub struct HealthHistory {
    since: Arc<Mutex<BTreeMap<String, DateTime<Utc>>>>,
}

impl HealthHistory {
    /// Records the states that were checked at `now`, and adds to each trouble the time at which it was first found.
    fn record(&self, items: &mut [HealthItem], now: DateTime<Utc>) {
        let Ok(mut since) = self.since.lock() else { return };
        for item in items {
            if item.state == HealthState::Ok {
                since.remove(&item.name);
            } else {
                item.since = Some(*since.entry(item.name.clone()).or_insert(now));
            }
        }
    }
}

impl HealthCheck {
    /// Returns the state of PostgreSQL, Redis, RabbitMQ, the dispatcher and the other background tasks, in the order in
    /// which they depend on each other. Each trouble carries the time of the first check that found it. The result may be
    /// up to one second old.
    pub async fn items(&self, now: DateTime<Utc>) -> Vec<HealthItem> {
        let check = async {
            let mut items = self.check(now).await;
            self.history.record(&mut items, now);
            items
        };
        self.last.get_or(check).await
    }

    async fn check(&self, now: DateTime<Utc>) -> Vec<HealthItem> {
        // The check must not move the clock of the server.
        let scratch = Clock::system();
        let (database, redis) = tokio::join!(
            tokio::time::timeout(CHECK_TIMEOUT, self.store.align(&scratch)),
            tokio::time::timeout(CHECK_TIMEOUT, self.cache.check())
        );
        let item = |name: &str, state, detail: &str| HealthItem {
            name: name.into(),
            state,
            detail: detail.into(),
            since: None,
        };
        vec![
            match database {
                Ok(Ok(_)) => match self.oldest_snapshot.get() {
                    None => item(DATABASE_PART, HealthState::Ok, "responds"),
                    Some(found) => {
                        let minutes = (now - found.since).num_minutes().max(1);
                        let detail = format!(
                            "responds, but a transaction of session {} ({}) has been open for {minutes} min; runs will \
                             start late: end it, and take dumps from a replica",
                            found.pid,
                            if found.application.is_empty() { "no name" } else { &found.application }
                        );
                        item(DATABASE_PART, HealthState::Warn, &detail)
                    }
                },
                _ => item(
                    DATABASE_PART,
                    HealthState::Down,
                    "does not respond or is read-only; no data can be read or changed and no runs are created until it accepts \
                     changes",
                ),
            },
            match redis {
                Ok(Ok(())) => item("Redis", HealthState::Ok, "responds"),
                _ => item(
                    "Redis",
                    HealthState::Warn,
                    "does not respond or accepts no changes; due times are read from PostgreSQL, and runs start up to 1 s late",
                ),
            },
            match (self.publisher.is_up(), self.broker.is_consuming()) {
                (true, true) => match self.deaf_since.get(now) {
                    None => item("RabbitMQ", HealthState::Ok, "publishes and consumes messages"),
                    Some(since) => {
                        let detail = format!(
                            "has not returned a test message for {} s; reports and heartbeats of workers are late, and only \
                             workers that Redis shows to be dead count as lost: check for memory and disk alarms, and the \
                             length of the queues",
                            (now - since).num_seconds()
                        );
                        item("RabbitMQ", HealthState::Warn, &detail)
                    }
                },
                (false, false) => item(
                    "RabbitMQ",
                    HealthState::Down,
                    "does not respond; occurrences are recorded and sent once it is back",
                ),
                _ => item("RabbitMQ", HealthState::Warn, "is reconnecting"),
            },
            match self.services.health(dispatcher::NAME) {
                ServiceHealth::Healthy if self.services.since_last_tick(dispatcher::NAME).is_none() => {
                    item(DISPATCHER_PART, HealthState::Down, "is starting")
                }
                ServiceHealth::Healthy => item(DISPATCHER_PART, HealthState::Ok, "runs on schedule"),
                ServiceHealth::Failing(reason) => {
                    item(DISPATCHER_PART, HealthState::Warn, &format!("retries: {}", excerpt(&reason)))
                }
                ServiceHealth::Standby => {
                    item(DISPATCHER_PART, HealthState::Ok, "is on standby; another server is the leader")
                }
                ServiceHealth::Stalled => item(DISPATCHER_PART, HealthState::Down, "has stalled; restart this server"),
            },
            match self.services.troubles().as_slice() {
                [] => item(TASKS_PART, HealthState::Ok, "run on schedule"),
                troubles => {
                    let troubles: Vec<_> =
                        troubles.iter().map(|(name, reason)| format!("{name}: {}", excerpt(reason))).collect();
                    let detail = format!("some fail and are retried: {}", troubles.join("; "));
                    item(TASKS_PART, HealthState::Warn, &detail)
                }
            },
        ]
    }
}

/// Returns the start of an error, which may be long.
fn excerpt(reason: &str) -> String {
    reason.chars().take(MAX_REASON_CHARS).collect()
}

/// Replaces details that contain errors or names of the installation, because outsiders may read them.
fn hide_internals(item: &mut HealthItem) {
    if item.state == HealthState::Warn && [DATABASE_PART, DISPATCHER_PART, TASKS_PART].contains(&item.name.as_str()) {
        item.detail = "works with restrictions; the log and the dashboard have the details".into();
    }
}

/// Handles `GET /health/live`: returns 200 while the process runs.
pub async fn live() -> impl IntoResponse {
    "alive\n"
}

/// Handles `GET /health/ready`: returns all checks as JSON, with status 503 if a check is down.
pub async fn ready(State(state): State<WebState>) -> impl IntoResponse {
    let mut items = state.health.items(state.clock.now()).await;
    items.iter_mut().for_each(hide_internals);
    let down = items.iter().any(|item| item.state == HealthState::Down);
    let status = if down { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (status, Json(items))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn concurrent_checks_are_one_check_a_second() {
        let last = LastCheck::default();
        let checks = std::sync::atomic::AtomicUsize::new(0);
        let get = async || {
            let check = async {
                checks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(100)).await;
                Vec::new()
            };
            last.get_or(check).await
        };
        futures::future::join_all((0..50).map(|_| get())).await;
        get().await;
        assert_eq!(checks.load(std::sync::atomic::Ordering::Relaxed), 1);
        tokio::time::advance(CACHE_TTL).await;
        get().await;
        assert_eq!(checks.load(std::sync::atomic::Ordering::Relaxed), 2);
    }

    fn since(history: &HealthHistory, state: HealthState, seconds: i64) -> Option<i64> {
        let mut items = [HealthItem { name: DATABASE_PART.into(), state, detail: String::new(), since: None }];
        history.record(&mut items, DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(seconds));
        items[0].since.map(|at| at.timestamp())
    }

    #[test]
    fn trouble_keeps_the_time_of_its_first_check() {
        let history = HealthHistory::default();
        assert_eq!(since(&history, HealthState::Ok, 1), None);
        assert_eq!(since(&history, HealthState::Down, 2), Some(2));
        assert_eq!(since(&history, HealthState::Warn, 3), Some(2));
        assert_eq!(since(&history, HealthState::Ok, 4), None);
        assert_eq!(since(&history, HealthState::Down, 5), Some(5));
    }
}
