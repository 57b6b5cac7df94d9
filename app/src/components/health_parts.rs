//! The parts of the installation whose health is shown, and the address of their explanation on the help page.

use milvaion_api::views::{DATABASE_PART, DISPATCHER_PART, TASKS_PART};

/// A part of the installation.
pub struct HealthPart {
    /// The name in the health list.
    pub name: &'static str,
    /// The id of its explanation on the help page.
    pub anchor: &'static str,
    /// What it does, what happens without it, and the remedy.
    pub explanation: &'static str,
}

/// The parts in the order of the health list.
pub const HEALTH_PARTS: [HealthPart; 5] = [
    HealthPart {
        name: DATABASE_PART,
        anchor: "part-postgresql",
        explanation: "Stores jobs, occurrences and logs. Without it no page can be read and no run is created; runs that have started continue. Start it, or check the server's DATABASE_URL.",
    },
    HealthPart {
        name: "Redis",
        anchor: "part-redis",
        explanation: "Holds due times, heartbeats and cancel requests. Without it due times are read from PostgreSQL, and runs start up to 1 s late. Start it, or check the server's REDIS_URL.",
    },
    HealthPart {
        name: "RabbitMQ",
        anchor: "part-rabbitmq",
        explanation: "Carries messages between servers and workers. Without it occurrences are recorded, and sent once it is back. Start it, check the server's AMQP_URL, and look for alarms of memory and disk.",
    },
    HealthPart {
        name: DISPATCHER_PART,
        anchor: "part-dispatcher",
        explanation: "Creates the occurrences of jobs that are due. One server at a time is the leader, and the others are on standby. If it has stalled, restart the server; its log states the cause.",
    },
    HealthPart {
        name: TASKS_PART,
        anchor: "part-background-tasks",
        explanation: "Detect lost runs, evaluate alert rules and delete old data, among others. A task that fails is retried. The log of the server states the cause.",
    },
];

/// Returns the address of the explanation of the part with this name.
#[must_use]
pub fn explanation_address(name: &str) -> String {
    match HEALTH_PARTS.iter().find(|part| part.name == name) {
        Some(part) => format!("/help#{}", part.anchor),
        None => "/help".to_owned(),
    }
}
