//! Health checks of the process and of the services it depends on.

use std::time::Duration;

use axum::{Json, extract::State, response::IntoResponse};
use http::StatusCode;
use milvaion_api::views::{HealthItem, HealthState};

use super::WebState;
use crate::{
    background::{
        dispatcher,
        task_status::{TaskHealth, TaskStatuses},
    },
    broker::{Broker, publisher::Publisher},
    cache::Cache,
    clock::Clock,
    store::Store,
};

/// The longest time that one service may take to respond.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Checks the three services and the dispatcher.
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
    /// The status of each background task.
    pub task_statuses: TaskStatuses,
}

impl HealthCheck {
    /// Returns the state of each service and of the dispatcher, in the order in which they depend on each other.
    pub async fn items(&self) -> Vec<HealthItem> {
        // The check must not move the clock of the server.
        let scratch = Clock::system();
        let (database, redis) = tokio::join!(
            tokio::time::timeout(CHECK_TIMEOUT, self.store.align(&scratch)),
            tokio::time::timeout(CHECK_TIMEOUT, self.cache.ping())
        );
        let item = |name: &str, state, detail: &str| HealthItem { name: name.into(), state, detail: detail.into() };
        vec![
            match database {
                Ok(Ok(_)) => item("PostgreSQL", HealthState::Ok, "responds"),
                _ => item("PostgreSQL", HealthState::Down, "does not respond; no runs are created until it does"),
            },
            match redis {
                Ok(Ok(())) => item("Redis", HealthState::Ok, "responds"),
                _ => item(
                    "Redis",
                    HealthState::Warn,
                    "does not respond; due times are read from PostgreSQL, and runs start up to 1 s late",
                ),
            },
            match (self.publisher.is_up(), self.broker.is_consuming()) {
                (true, true) => item("RabbitMQ", HealthState::Ok, "publishes and consumes messages"),
                (false, false) => item(
                    "RabbitMQ",
                    HealthState::Down,
                    "does not respond; occurrences are recorded and sent once it is back",
                ),
                _ => item("RabbitMQ", HealthState::Warn, "is reconnecting"),
            },
            match self.task_statuses.health(dispatcher::NAME) {
                TaskHealth::Healthy => item("Dispatcher", HealthState::Ok, "runs on schedule"),
                TaskHealth::Failing(_) => {
                    item("Dispatcher", HealthState::Warn, "retries; its last database query failed")
                }
                TaskHealth::Standby => {
                    item("Dispatcher", HealthState::Ok, "is on standby; another server is the leader")
                }
                TaskHealth::Stalled => item("Dispatcher", HealthState::Down, "has stalled; restart this server"),
            },
        ]
    }
}

/// Handles `GET /health/live`: returns 200 while the process runs.
pub async fn live() -> impl IntoResponse {
    "alive\n"
}

/// Handles `GET /health/ready`: returns all checks as JSON, with status 503 if a check is down.
pub async fn ready(State(state): State<WebState>) -> impl IntoResponse {
    let items = state.health.items().await;
    let down = items.iter().any(|item| item.state == HealthState::Down);
    let status = if down { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (status, Json(items))
}
