//! Registrations, heartbeats and goodbyes of worker instances.

use milvaion_api::{events::LiveEvent, requests::is_valid_name};
use milvaion_protocol::{
    message::{InstanceHello, RegistrationMessage},
    topology::Topology,
};

use crate::{
    broker::{consumer::BatchHandler, publisher::Publisher},
    clock::Clock,
    engine::context::Context,
    live::Hub,
    store::Store,
};

/// The most job types that one worker may register.
const MAX_JOB_TYPES: usize = 500;
/// The largest JSON Schema of a job type, in bytes.
const MAX_SCHEMA_BYTES: usize = 128 * 1024;

/// The consumer of the registration queue.
#[derive(Clone, Debug)]
pub struct RegistrationConsumer {
    /// The PostgreSQL store.
    pub store: Store,
    /// The publisher, which declares the queues of job types.
    pub publisher: Publisher,
    /// The hub for live events.
    pub hub: Hub,
    /// The server's clock.
    pub clock: Clock,
}

impl RegistrationConsumer {
    /// Creates the consumer of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.reports.clone(),
            publisher: context.publisher.clone(),
            hub: context.hub.clone(),
            clock: context.clock.clone(),
        }
    }
}

impl RegistrationConsumer {
    /// Processes one message.
    ///
    /// # Errors
    ///
    /// Returns an error if PostgreSQL fails.
    pub async fn take(&self, message: RegistrationMessage) -> anyhow::Result<()> {
        let now = self.clock.now();
        match message {
            RegistrationMessage::Hello(hello) => {
                if let Err(reason) = check(&hello) {
                    tracing::warn!(worker.id = %hello.worker_id.escape_default(), reason, "the registration of worker {} was refused: {reason}", hello.worker_id.escape_default());
                    return Ok(());
                }
                self.store.hello(&hello, now).await?;
                for info in &hello.job_types {
                    self.publisher.ensure_queue(&hello.worker_id, &info.job_type).await;
                }
                tracing::info!(
                    worker.id = hello.worker_id,
                    worker.instance = hello.instance_id,
                    job_types = hello.job_types.len(),
                    "worker {} registered instance {}",
                    hello.worker_id,
                    hello.instance_id
                );
                self.hub.publish(now, vec![LiveEvent::Workers]);
            }
            RegistrationMessage::Heartbeat(heartbeat) => match self.store.heartbeat(&heartbeat, now).await? {
                None => {
                    tracing::debug!(
                        worker.instance = heartbeat.instance_id,
                        "a heartbeat of instance {} arrived before its registration",
                        heartbeat.instance_id
                    );
                }
                // Most heartbeats change nothing that a page shows.
                Some(false) => {}
                Some(true) => self.hub.publish(now, vec![LiveEvent::Workers]),
            },
            RegistrationMessage::Goodbye { instance_id } => {
                self.store.goodbye(&instance_id, now).await?;
                tracing::info!(worker.instance = instance_id, "instance {instance_id} has stopped");
                self.hub.publish(now, vec![LiveEvent::Workers]);
            }
        }
        Ok(())
    }
}

impl BatchHandler for RegistrationConsumer {
    const NAME: &'static str = "milvaion server registration";

    fn is_retryable(error: &anyhow::Error) -> bool {
        super::is_retryable(error)
    }

    async fn check(&self) -> anyhow::Result<()> {
        Ok(self.store.ping().await?)
    }

    async fn handle(&self, bodies: Vec<Vec<u8>>) -> anyhow::Result<()> {
        for message in super::read(Self::NAME, bodies) {
            self.take(message).await?;
        }
        Ok(())
    }
}

/// Checks the limits of a registration, and returns the reason for a refusal.
fn check(hello: &InstanceHello) -> Result<(), String> {
    if !is_valid_name(&hello.worker_id) {
        return Err("its worker id must have 1 to 100 letters, digits, -, _ or .".into());
    }
    if hello.instance_id.is_empty()
        || hello.instance_id.chars().count() > 200
        || hello.instance_id.contains(char::is_control)
    {
        return Err("its instance id must have 1 to 200 printable characters".into());
    }
    if hello.job_types.len() > MAX_JOB_TYPES {
        return Err(format!("it registers {} job types; the maximum is {MAX_JOB_TYPES}", hello.job_types.len()));
    }
    for info in &hello.job_types {
        if !is_valid_name(&info.job_type) {
            return Err("a job type must have 1 to 100 letters, digits, -, _ or .".into());
        }
        if !Topology::fits(&hello.worker_id, &info.job_type) {
            let job_type = &info.job_type;
            return Err(format!("its id and the job type {job_type} are too long together: shorten one of them"));
        }
        let schema = info.schema.to_string();
        if schema.len() > MAX_SCHEMA_BYTES || schema.contains("\\u0000") {
            return Err(format!("the schema of job type {} contains NUL or is larger than 128 KiB", info.job_type));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::message::JobTypeInfo;

    use super::*;

    fn hello(job_type: &str) -> InstanceHello {
        let info = JobTypeInfo {
            job_type: job_type.into(),
            description: String::new(),
            schema: serde_json::json!({ "type": "object" }),
            concurrency: 1,
            timeout_seconds: None,
        };
        InstanceHello {
            worker_id: "w".repeat(100),
            instance_id: "w-1".into(),
            host: "host".into(),
            pid: 1,
            version: "0".into(),
            capacity: 1,
            job_types: vec![info],
            timestamp: chrono::DateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn names_that_the_broker_cannot_hold_are_refused() {
        assert_eq!(check(&hello("echo")), Ok(()));
        let reason = check(&hello(&"_".repeat(100))).expect_err("200 bytes on the broker");
        assert!(reason.contains("too long together"), "{reason}");
    }
}
