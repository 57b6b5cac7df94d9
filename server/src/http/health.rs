//! Is the server there, and is everything it needs?

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

/// How long one part may take to answer.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Looks at every part.
#[derive(Clone, Debug)]
pub struct HealthCheck {
    /// PostgreSQL.
    pub store: Store,
    /// Redis.
    pub cache: Cache,
    /// RabbitMQ, consuming.
    pub broker: Broker,
    /// RabbitMQ, publishing.
    pub publisher: Publisher,
    /// The loops.
    pub task_statuses: TaskStatuses,
}

impl HealthCheck {
    /// The state of every part, the ones the others rest on first.
    pub async fn items(&self) -> Vec<HealthItem> {
        let scratch = Clock::system();
        let (database, redis) = tokio::join!(
            tokio::time::timeout(CHECK_TIMEOUT, self.store.align(&scratch)),
            tokio::time::timeout(CHECK_TIMEOUT, self.cache.ping())
        );
        let item = |name: &str, state, detail: &str| HealthItem { name: name.into(), state, detail: detail.into() };
        vec![
            match database {
                Ok(Ok(_)) => item("PostgreSQL", HealthState::Ok, "answers"),
                _ => item("PostgreSQL", HealthState::Down, "does not answer: nothing fires until it does"),
            },
            match redis {
                Ok(Ok(())) => item("Redis", HealthState::Ok, "answers"),
                _ => item(
                    "Redis",
                    HealthState::Warn,
                    "does not answer: the schedule is read from PostgreSQL, up to a second late",
                ),
            },
            match (self.publisher.is_up(), self.broker.is_consuming()) {
                (true, true) => item("RabbitMQ", HealthState::Ok, "publishes and consumes"),
                (false, false) => item("RabbitMQ", HealthState::Down, "is away: occurrences are recorded and wait"),
                _ => item("RabbitMQ", HealthState::Warn, "is being reconnected"),
            },
            match self.task_statuses.health(dispatcher::NAME) {
                TaskHealth::Healthy => item("Dispatcher", HealthState::Ok, "is on time"),
                TaskHealth::Failing(_) => {
                    item("Dispatcher", HealthState::Warn, "tries again: the last look at the database failed")
                }
                TaskHealth::Standby => item("Dispatcher", HealthState::Ok, "stands by: another server leads"),
                TaskHealth::Stalled => {
                    item("Dispatcher", HealthState::Down, "has not been heard of: restart this server")
                }
            },
        ]
    }
}

/// The process runs.
pub async fn live() -> impl IntoResponse {
    "alive\n"
}

/// Every part is there; 503 names the first that is not.
pub async fn ready(State(state): State<WebState>) -> impl IntoResponse {
    let items = state.health.items().await;
    let down = items.iter().any(|item| item.state == HealthState::Down);
    let status = if down { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (status, Json(items))
}
