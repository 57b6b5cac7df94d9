//! Who I am, that I am alive, and that I go.
//!
//! A beat is two things: the keys in Redis (sign of life and claims), which other instances see, and the message to the
//! server, which sees what runs. Neither waits for the other, so one service being away does not silence the other.
//! With each beat the wishes to cancel are read again, in case one was not heard when it was told.

use std::{future::Future, time::Duration};

use milvaion_protocol::{
    message::{InstanceHeartbeat, InstanceHello, RegistrationMessage},
    topology::Topology,
};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    clock,
    control::cancel,
    delivery::claim::{ClaimStore, HEARTBEAT_INTERVAL},
    delivery::run_table::RunTable,
    net::publisher::WorkerPublisher,
    reporting::outbox::OutboxWarning,
};

/// How long a beat may take; the next one comes soon.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);

/// Gives signs of life until told to say goodbye.
pub(crate) struct Heartbeater {
    pub(crate) hello: InstanceHello,
    pub(crate) claims: ClaimStore,
    pub(crate) running: RunTable,
    pub(crate) publisher: WorkerPublisher,
    pub(crate) exchange: String,
    pub(crate) warning: OutboxWarning,
}

impl Heartbeater {
    pub(crate) fn new(
        hello: InstanceHello,
        claims: ClaimStore,
        running: RunTable,
        publisher: WorkerPublisher,
        topology: &Topology,
        warning: OutboxWarning,
    ) -> Self {
        Self { hello, claims, running, publisher, exchange: topology.registration(), warning }
    }

    /// Beats until `leave` fires, then says goodbye.
    pub(crate) async fn run(mut self, leave: CancellationToken) {
        let mut ticks = interval(HEARTBEAT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first connection counts as a change too, so this is where the worker introduces itself.
        let mut introduced = false;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.publisher.changed() => introduced = false,
                () = leave.cancelled() => break,
            }
            let beat = async {
                let ((), heard) = tokio::join!(self.beat_redis(), self.beat_server(introduced));
                heard
            };
            tokio::select! {
                heard = beat => introduced = heard,
                () = leave.cancelled() => break,
            }
        }
        let goodbye = RegistrationMessage::Goodbye { instance_id: self.hello.instance_id.clone() };
        let _ = timeout(HEARTBEAT_TIMEOUT, async { tokio::join!(self.send(&goodbye), self.claims.remove_heartbeat()) })
            .await;
    }

    async fn beat_redis(&self) {
        match self.claims.renew(&self.running.begun()).await {
            // We were silent for too long (stopped, cut off, asleep) and were given up; the next attempt runs elsewhere.
            // Whatever this one reports changes nothing any more, so it had better end.
            Ok(overtaken) => overtaken.into_iter().for_each(|attempt| self.running.end_superseded(attempt)),
            Err(error) => {
                tracing::warn!(error = %error, "no sign of life to Redis");
                return;
            }
        }
        if let Err(error) = cancel::catch_up(&self.claims, &self.running).await {
            tracing::warn!(error = %error, "cancellations could not be read");
        }
    }

    /// Introduces the worker if the server may not know it, else beats. Answers whether it counts as introduced.
    async fn beat_server(&self, introduced: bool) -> bool {
        if !self.publisher.is_up() {
            return introduced;
        }
        let message = if introduced {
            RegistrationMessage::Heartbeat(InstanceHeartbeat {
                worker_id: self.hello.worker_id.clone(),
                instance_id: self.hello.instance_id.clone(),
                running: self.running.begun().into_iter().map(|(occurrence, _)| occurrence).collect(),
                notice: self.warning.notice(),
                timestamp: clock::now(),
            })
        } else {
            RegistrationMessage::Hello(InstanceHello { timestamp: clock::now(), ..self.hello.clone() })
        };
        self.send(&message).await || introduced
    }

    fn send(&self, message: &RegistrationMessage) -> impl Future<Output = bool> + use<> {
        let body = serde_json::to_string(message).expect("a registration is plain data");
        let sending = self.publisher.publish(&self.exchange, body);
        async move {
            match timeout(HEARTBEAT_TIMEOUT, sending).await {
                Ok(Ok(())) => true,
                Ok(Err(error)) => {
                    tracing::warn!(error = %error, "no sign of life to the server");
                    false
                }
                Err(_) => false,
            }
        }
    }
}

/// What this process announces about itself.
pub(crate) fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}
