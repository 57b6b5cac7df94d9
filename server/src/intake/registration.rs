//! Registrations, heartbeats and goodbyes.

use milvaion_api::{event::Event, request::is_name};
use milvaion_protocol::message::{Hello, RegistrationMessage};

use crate::{
    broker::{consumer::Handler, publisher::Publisher},
    clock::Clock,
    live::Hub,
    store::Store,
};

/// The most job types one worker may announce.
const MAX_TYPES: usize = 500;
/// The most bytes one JSON Schema may have.
const MAX_SCHEMA: usize = 128 * 1024;

/// The consumer of the registration queue.
#[derive(Clone, Debug)]
pub struct RegistrationIntake {
    /// The truth.
    pub store: Store,
    /// Declares queues.
    pub publisher: Publisher,
    /// The way to browsers.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
}

impl RegistrationIntake {
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
                self.hub.publish(now, vec![Event::Workers]);
            }
            RegistrationMessage::Heartbeat(beat) => match self.store.heartbeat(&beat, now).await? {
                None => {
                    tracing::debug!(worker.instance = beat.instance_id, "a heartbeat came before its registration");
                }
                // Most beats change nothing that anybody looks at.
                Some(false) => {}
                Some(true) => self.hub.publish(now, vec![Event::Workers]),
            },
            RegistrationMessage::Goodbye { instance_id } => {
                self.store.goodbye(&instance_id, now).await?;
                tracing::info!(worker.instance = instance_id, "a worker has stopped");
                self.hub.publish(now, vec![Event::Workers]);
            }
        }
        Ok(())
    }
}

impl Handler for RegistrationIntake {
    const NAME: &'static str = "milvaion server registration";

    fn may_succeed(error: &anyhow::Error) -> bool {
        super::may_succeed(error)
    }

    async fn handle(&self, bodies: Vec<Vec<u8>>) -> anyhow::Result<()> {
        for message in super::read(Self::NAME, bodies) {
            self.take(message).await?;
        }
        Ok(())
    }
}

fn check(hello: &Hello) -> Result<(), String> {
    if !is_name(&hello.worker_id) {
        return Err("its worker id must have 1 to 100 letters, digits, -, _ or .".into());
    }
    if hello.instance_id.is_empty()
        || hello.instance_id.chars().count() > 200
        || hello.instance_id.contains(char::is_control)
    {
        return Err("its instance id must have 1 to 200 printable characters".into());
    }
    if hello.job_types.len() > MAX_TYPES {
        return Err(format!("it announces {} job types: {MAX_TYPES} are the most", hello.job_types.len()));
    }
    for info in &hello.job_types {
        if !is_name(&info.job_type) {
            return Err("a job type must have 1 to 100 letters, digits, -, _ or .".into());
        }
        let schema = info.schema.to_string();
        if schema.len() > MAX_SCHEMA || schema.contains("\\u0000") {
            return Err(format!("the schema of {} is too large: 128 KiB are the most", info.job_type));
        }
    }
    Ok(())
}
