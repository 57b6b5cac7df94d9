//! Registration of the worker, its heartbeats and its goodbye.
//!
//! A heartbeat has two parts: the keys in Redis (the heartbeat of the instance and its claims), which other instances
//! read, and the message to the server, which lists the current runs. Neither part waits for the other, so an outage of
//! one service does not stop the heartbeats to the other. The server answers a registration with the parts that it refused;
//! they are logged, and the heartbeats carry a notice. Each heartbeat also reads the cancel requests from Redis, in
//! case the listener missed one.

use std::{future::Future, time::Duration};

use milvaion_protocol::{
    message::{HelloReply, InstanceHeartbeat, InstanceHello, MAX_NOTICE_BYTES, RegistrationMessage, truncate_text},
    topology::Topology,
};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    api::error::log_text,
    clock,
    control::cancel,
    delivery::claim::{ClaimStore, HEARTBEAT_INTERVAL},
    delivery::run_table::RunTable,
    net::publisher::WorkerPublisher,
    reporting::outbox::OutboxWarning,
};

/// Maximum duration of one heartbeat. A failed one is not retried, because the next one follows soon.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);

/// The sender of the registration, the heartbeats and the goodbye of one instance.
pub(crate) struct Heartbeater {
    /// The description of this instance, sent on registration.
    pub(crate) hello: InstanceHello,
    /// The claims to renew.
    pub(crate) claims: ClaimStore,
    /// The current runs.
    pub(crate) running: RunTable,
    /// The publisher of messages to the server.
    pub(crate) publisher: WorkerPublisher,
    /// The same publisher, for the answers to registrations.
    replies: WorkerPublisher,
    /// The exchange of registration messages.
    pub(crate) exchange: String,
    /// The warning about the outbox that heartbeats carry.
    pub(crate) warning: OutboxWarning,
    /// The parts of the registration that the server refused, in a sentence.
    refused: Option<String>,
}

impl Heartbeater {
    /// Creates the heartbeater of one instance.
    pub(crate) fn new(
        hello: InstanceHello,
        claims: ClaimStore,
        running: RunTable,
        publisher: WorkerPublisher,
        topology: &Topology,
        warning: OutboxWarning,
    ) -> Self {
        Self {
            hello,
            claims,
            running,
            replies: publisher.clone(),
            publisher,
            exchange: topology.registration(),
            warning,
            refused: None,
        }
    }

    /// Sends heartbeats until `stop` fires, then sends a goodbye.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut ticks = interval(HEARTBEAT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first connection also counts as a change, so the worker registers here.
        let mut is_registered = false;
        let mut has_reached_redis = false;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.publisher.changed() => is_registered = false,
                reply = self.replies.hello_reply() => {
                    self.refused = refused_parts(&self.hello.instance_id, &reply);
                    continue;
                }
                () = stop.cancelled() => break,
            }
            let heartbeat = async { tokio::join!(self.renew_in_redis(), self.report_to_server(is_registered)) };
            tokio::select! {
                (is_renewed, is_reported) = heartbeat => {
                    has_reached_redis |= is_renewed;
                    is_registered = is_reported;
                }
                () = stop.cancelled() => break,
            }
        }
        let goodbye = RegistrationMessage::Goodbye { instance_id: self.hello.instance_id.clone() };
        let remove_heartbeat = async {
            if has_reached_redis {
                let _ = self.claims.remove_heartbeat().await;
            }
        };
        let _ = timeout(HEARTBEAT_TIMEOUT, async { tokio::join!(self.send(&goodbye), remove_heartbeat) }).await;
    }

    /// Writes the heartbeat to Redis, renews the claims, and applies the cancel requests found there. Returns false if
    /// Redis did not answer.
    async fn renew_in_redis(&self) -> bool {
        match self.claims.renew(&self.running.begun()).await {
            // This instance sent no heartbeat for too long (stopped, disconnected, suspended) and its runs were
            // declared lost. The next attempts run elsewhere. Reports of these runs have no effect any more, so they
            // are ended.
            Ok(superseded) => superseded.into_iter().for_each(|attempt| self.running.end_superseded(attempt)),
            Err(error) => {
                tracing::warn!(error = %error, "cannot write the heartbeat to Redis; check REDIS_URL if this persists");
                return false;
            }
        }
        if let Err(error) = cancel::catch_up(&self.claims, &self.running).await {
            tracing::warn!(
                error = %error,
                "cannot read cancel requests from Redis; the next heartbeat reads them again"
            );
        }
        true
    }

    /// Sends a heartbeat, or a registration if the server may not have one. Returns true if the worker is registered.
    async fn report_to_server(&self, is_registered: bool) -> bool {
        if !self.publisher.is_up() {
            return is_registered;
        }
        let message = if is_registered {
            RegistrationMessage::Heartbeat(InstanceHeartbeat {
                worker_id: self.hello.worker_id.clone(),
                instance_id: self.hello.instance_id.clone(),
                running: self.running.begun().into_iter().map(|(occurrence, _)| occurrence).collect(),
                notice: self.notice(),
                stopping: false,
                timestamp: clock::now(),
            })
        } else {
            RegistrationMessage::Hello(InstanceHello { timestamp: clock::now(), ..self.hello.clone() })
        };
        self.send(&message).await || is_registered
    }

    /// Returns what operators should know about this process.
    fn notice(&self) -> Option<String> {
        let texts: Vec<String> = self.warning.notice().into_iter().chain(self.refused.clone()).collect();
        (!texts.is_empty()).then(|| truncate_text(texts.join(" "), MAX_NOTICE_BYTES))
    }

    fn send(&self, message: &RegistrationMessage) -> impl Future<Output = bool> + use<> {
        let body = serde_json::to_string(message).expect("a registration is plain data");
        let sending = match message {
            RegistrationMessage::Hello(_) => self.publisher.publish_hello(&self.exchange, body),
            _ => self.publisher.publish(&self.exchange, body),
        };
        async move {
            match timeout(HEARTBEAT_TIMEOUT, sending).await {
                Ok(Ok(())) => true,
                Ok(Err(error)) => {
                    tracing::warn!(
                        error = log_text(&error),
                        "cannot send the heartbeat to the server; check AMQP_URL if this persists"
                    );
                    false
                }
                Err(_) => false,
            }
        }
    }
}

/// Logs the parts of a registration that the server refused, and returns the notice about them.
fn refused_parts(instance_id: &str, reply: &HelloReply) -> Option<String> {
    for problem in &reply.problems {
        let job_type = problem.job_type.as_deref().unwrap_or_default();
        let schedule = problem.schedule.as_deref().unwrap_or_default();
        tracing::warn!(
            worker.instance = instance_id,
            job.r#type = job_type,
            schedule,
            "the server refused a part of the registration: {}",
            problem.text
        );
    }
    if !reply.accepted {
        tracing::error!(
            worker.instance = instance_id,
            "the server refused the registration of instance {instance_id}: it is not shown on the page Workers"
        );
    }
    match reply.problems.len() {
        0 => None,
        1 => Some("The server refused a part of the registration; the log of the worker names it.".to_owned()),
        count => {
            Some(format!("The server refused {count} parts of the registration; the log of the worker names them."))
        }
    }
}

/// Returns the host name, or an empty string if it is unknown.
pub(crate) fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}
