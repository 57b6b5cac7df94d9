//! Registrations, heartbeats and goodbyes.

use milvaion_api::{events::LiveEvent, requests::is_valid_name};
use milvaion_protocol::message::{InstanceHello, RegistrationMessage};

use crate::{
    broker::{consumer::BatchHandler, publisher::Publisher},
    clock::Clock,
    live::Hub,
    store::Store,
};

/// The most job types one worker may announce.
const MAX_JOB_TYPES: usize = 500;
/// The most bytes one JSON Schema may have.
const MAX_SCHEMA_BYTES: usize = 128 * 1024;

/// The consumer of the registration queue.
#[derive(Clone, Debug)]
pub struct RegistrationConsumer {
    /// The truth.
    pub store: Store,
    /// Declares queues.
    pub publisher: Publisher,
    /// The way to browsers.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
}

impl RegistrationConsumer {
    /// Takes in one message.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn take(&self, message: RegistrationMessage) -> anyhow::Result<()> {
        let now = self.clock.now();
        match message {
            RegistrationMessage::Hello(hello) => {
                if let Err(reason) = check(&hello) {
                    tracing::warn!(worker.id = %hello.worker_id.escape_default(), reason, "a worker's registration was refused");
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
                    "a worker is there"
                );
                self.hub.publish(now, vec![LiveEvent::Workers]);
            }
            RegistrationMessage::Heartbeat(beat) => match self.store.heartbeat(&beat, now).await? {
                None => {
                    tracing::debug!(worker.instance = beat.instance_id, "a heartbeat came before its registration");
                }
                // Most beats change nothing that anybody looks at.
                Some(false) => {}
                Some(true) => self.hub.publish(now, vec![LiveEvent::Workers]),
            },
            RegistrationMessage::Goodbye { instance_id } => {
                self.store.goodbye(&instance_id, now).await?;
                tracing::info!(worker.instance = instance_id, "a worker has stopped");
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

    async fn handle(&self, bodies: Vec<Vec<u8>>) -> anyhow::Result<()> {
        for message in super::read(Self::NAME, bodies) {
            self.take(message).await?;
        }
        Ok(())
    }
}

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
        return Err(format!("it announces {} job types: {MAX_JOB_TYPES} are the most", hello.job_types.len()));
    }
    for info in &hello.job_types {
        if !is_valid_name(&info.job_type) {
            return Err("a job type must have 1 to 100 letters, digits, -, _ or .".into());
        }
        let schema = info.schema.to_string();
        if schema.len() > MAX_SCHEMA_BYTES || schema.contains("\\u0000") {
            return Err(format!("the schema of {} is too large: 128 KiB are the most", info.job_type));
        }
    }
    Ok(())
}
