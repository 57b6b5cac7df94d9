//! Registration of the worker, its heartbeats and its goodbye.
//!
//! A heartbeat has two parts: the keys in Redis (the heartbeat of the instance and its claims), which other instances
//! read, and the message to the server, which lists the current runs. They are two loops, so neither an outage nor slow
//! answers of one service delay the heartbeats to the other. The server answers a registration with the parts that it
//! refused; they are logged, and the heartbeats carry a notice. If no answer arrives, that is logged too: the worker of a
//! first installation with another prefix would otherwise wait silently. Each renewal in Redis is followed by a look at the
//! cancel requests there, in case the listener missed one. The next renewal does not wait for it.
//!
//! A run that has ended is listed until the broker has confirmed its end. As soon as the worker stops, heartbeats announce
//! it: a run that is lost from then on was not lost by its own fault.

use std::{
    collections::BTreeSet,
    future::{self, Future},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use milvaion_protocol::{
    id::OccurrenceId,
    message::{HelloReply, InstanceHeartbeat, InstanceHello, MAX_NOTICE_BYTES, RegistrationMessage, truncate_text},
};
use tokio::{
    sync::Notify,
    time::{Instant, Interval, MissedTickBehavior, interval, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    api::error::log_text,
    clock,
    control::cancel,
    delivery::claim::{ClaimStore, HEARTBEAT_INTERVAL},
    delivery::permits::PrioritySemaphore,
    delivery::refused_queues::RefusedQueues,
    delivery::run_table::RunTable,
    net::publisher::WorkerPublisher,
    net::redis::RedisUnavailable,
    reporting::outbox::OutboxWarning,
    reporting::reporter_inbox::UnconfirmedEnds,
};

/// Maximum duration of one heartbeat. A failed one is not retried, because the next one follows soon.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time without an answer to the registration after which the log says so.
const HELLO_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The sender of the registration, the heartbeats and the goodbye of one instance.
pub(crate) struct Heartbeater {
    /// The description of this instance, sent on registration.
    pub(crate) hello: InstanceHello,
    /// The claims to renew.
    pub(crate) claims: ClaimStore,
    /// The current runs.
    pub(crate) running: RunTable,
    /// The permits, whose use the heartbeats show.
    pub(crate) permits: PrioritySemaphore,
    /// The ended runs that are listed until the broker has confirmed their ends.
    pub(crate) unconfirmed_ends: UnconfirmedEnds,
    /// The publisher of messages to the server.
    pub(crate) publisher: WorkerPublisher,
    /// The exchange of registration messages.
    pub(crate) exchange: String,
    /// The warning about the outbox that heartbeats carry.
    pub(crate) warning: OutboxWarning,
    /// The queues that the broker refuses, which heartbeats show.
    pub(crate) refused_queues: RefusedQueues,
    /// Fires as soon as the worker takes no new work.
    pub(crate) stopping: CancellationToken,
    /// The parts of the registration that the server refused, in a sentence.
    pub(crate) refused_parts: Mutex<Option<String>>,
}

impl Heartbeater {
    /// Sends heartbeats until `stop` fires, then sends a goodbye.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let renewed = Notify::new();
        let (has_reached_redis, (), ()) = tokio::join!(
            self.renew_until(&stop, &renewed),
            self.read_requests_until(&stop, &renewed),
            self.report_until(&stop)
        );
        let goodbye = RegistrationMessage::Goodbye { instance_id: self.hello.instance_id.clone() };
        let remove_heartbeat = async {
            if has_reached_redis {
                let _ = self.claims.remove_heartbeat().await;
            }
        };
        let _ = timeout(HEARTBEAT_TIMEOUT, async { tokio::join!(self.send(&goodbye), remove_heartbeat) }).await;
    }

    /// Renews the keys in Redis until `stop` fires, and notifies `renewed` of each renewal. Returns true if Redis has ever
    /// answered.
    async fn renew_until(&self, stop: &CancellationToken, renewed: &Notify) -> bool {
        let (mut ticks, mut has_reached_redis, mut attempts) = (ticks(), false, 0_u32);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => return has_reached_redis,
            }
            tokio::select! {
                renewal = self.renew_in_redis() => match renewal {
                    Ok(()) => {
                        (has_reached_redis, attempts) = (true, 0);
                        renewed.notify_one();
                    }
                    Err(error) => {
                        attempts = attempts.saturating_add(1);
                        let address = self.claims.redis().client().get_connection_info().addr();
                        tracing::warn!(
                            error = %error,
                            attempts,
                            "cannot write the heartbeat to Redis at {address}; check REDIS_URL if this persists"
                        );
                    }
                },
                () = stop.cancelled() => return has_reached_redis,
            }
        }
    }

    /// Applies the cancel requests in Redis after each renewal, until `stop` fires.
    async fn read_requests_until(&self, stop: &CancellationToken, renewed: &Notify) {
        let reading = async {
            loop {
                renewed.notified().await;
                if let Err(error) = cancel::catch_up(&self.claims, &self.running).await {
                    tracing::warn!(
                        error = %error,
                        "cannot read cancel requests from Redis; the next heartbeat reads them again"
                    );
                }
            }
        };
        let _: Option<()> = stop.run_until_cancelled(reading).await;
    }

    /// Sends heartbeats to the server until `stop` fires.
    async fn report_until(&self, stop: &CancellationToken) {
        let (mut ticks, mut publisher, mut replies) = (ticks(), self.publisher.clone(), self.publisher.clone());
        // The first connection also counts as a change, so the worker registers here.
        let (mut is_registered, mut has_announced_stop) = (false, false);
        let (mut answer_due, mut has_warned) = (None, false);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = publisher.changed() => (is_registered, answer_due) = (false, None),
                () = reached(answer_due) => {
                    (answer_due, has_warned) = (None, true);
                    tracing::warn!(
                        worker.id = self.hello.worker_id,
                        worker.instance = self.hello.instance_id,
                        exchange = self.exchange,
                        "No server has answered the registration for {} s. Check that a server runs with the same RabbitMQ, virtual host and MILVAION_PREFIX. The worker has registered at the exchange {}; the line about its start names the broker. It keeps waiting.",
                        HELLO_ANSWER_TIMEOUT.as_secs(),
                        self.exchange
                    );
                    continue;
                }
                reply = replies.hello_reply() => {
                    answer_due = None;
                    let refused = refused_parts(&self.hello.instance_id, &reply);
                    *self.refused_parts.lock().unwrap_or_else(PoisonError::into_inner) = refused;
                    continue;
                }
                () = self.stopping.cancelled(), if !has_announced_stop => has_announced_stop = true,
                () = stop.cancelled() => return,
            }
            let reporting = async {
                let is_reported = self.report_to_server(is_registered).await;
                // A registration announces no stop.
                if is_reported && !is_registered && self.stopping.is_cancelled() {
                    self.report_to_server(true).await;
                }
                is_reported
            };
            tokio::select! {
                is_reported = reporting => {
                    if is_reported && !is_registered && !has_warned {
                        answer_due = Some(Instant::now() + HELLO_ANSWER_TIMEOUT);
                    }
                    is_registered = is_reported;
                }
                () = stop.cancelled() => return,
            }
        }
    }

    /// Returns the problems that operators should see, or `None` if there is none.
    fn notice(&self) -> Option<String> {
        let refused_parts = self.refused_parts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let texts = self.warning.notice().into_iter().chain(self.refused_queues.notice()).chain(refused_parts);
        let texts: Vec<String> = texts.collect();
        (!texts.is_empty()).then(|| truncate_text(texts.join(" "), MAX_NOTICE_BYTES))
    }

    /// Returns the occurrences that a heartbeat lists: those that run, and those whose end the broker has not confirmed.
    fn listed(&self) -> Vec<OccurrenceId> {
        // Read first: a run that ends in between is then in both.
        let running = self.running.begun();
        let ended = self.unconfirmed_ends.occurrences();
        let listed: BTreeSet<OccurrenceId> =
            running.into_iter().map(|(occurrence, _)| occurrence).chain(ended).collect();
        listed.into_iter().collect()
    }

    /// Writes the heartbeat to Redis and renews the claims.
    async fn renew_in_redis(&self) -> Result<(), RedisUnavailable> {
        // Runs are superseded if this instance sent no heartbeat for too long (stopped, disconnected, suspended) and they
        // were declared lost. The next attempts run elsewhere. Reports of these runs have no effect any more, so they are
        // ended.
        let superseded = self.claims.renew(&self.running.claimed()).await?;
        superseded.into_iter().for_each(|attempt| self.running.end_superseded(attempt));
        Ok(())
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
                running: self.listed(),
                priorities: self.permits.load(),
                notice: self.notice(),
                stopping: self.stopping.is_cancelled(),
                timestamp: clock::now(),
            })
        } else {
            RegistrationMessage::Hello(InstanceHello { timestamp: clock::now(), ..self.hello.clone() })
        };
        self.send(&message).await || is_registered
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

/// Returns the ticks of a loop of heartbeats.
fn ticks() -> Interval {
    let mut ticks = interval(HEARTBEAT_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Waits until `due`, and for ever if there is no such instant.
async fn reached(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => future::pending().await,
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
    if reply.accepted {
        tracing::info!(
            worker.instance = instance_id,
            "the server has registered instance {instance_id}; the page Workers of the dashboard shows it"
        );
    } else {
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

#[cfg(test)]
mod tests {
    use std::{io, net::SocketAddr, sync::Arc};

    use milvaion_protocol::topology::RedisKeys;
    use milvaion_test_support::{broker_env::WorkerTestEnv, services, wait::until};
    use redis::AsyncCommands;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
        task::JoinHandle,
        time::{advance, pause, resume, sleep},
    };

    use super::*;
    use crate::{
        delivery::run_table::RunReservation,
        reporting::outbox::{self, Outbox, OutboxSystem},
        run::stop_signal::StopSignal,
    };

    /// The delay of each answer of Redis, which is below the timeout of a request.
    const ANSWER_DELAY: Duration = Duration::from_millis(300);

    /// Starts a proxy that delays each answer of Redis. Returns the URL behind it.
    async fn slow_redis() -> String {
        let mut url = url::Url::parse(&services::redis_url()).expect("a URL");
        let target = SocketAddr::from(([127, 0, 0, 1], url.port().expect("a port")));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        url.set_port(Some(listener.local_addr().expect("an address").port())).expect("a host");
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (mut requests, mut to_client) = client.into_split();
                let (mut answers, mut to_server) = TcpStream::connect(target).await.expect("Redis").into_split();
                tokio::spawn(async move { tokio::io::copy(&mut requests, &mut to_server).await });
                tokio::spawn(async move {
                    let mut buffer = vec![0; 64 * 1024];
                    while let Ok(read @ 1..) = answers.read(&mut buffer).await {
                        sleep(ANSWER_DELAY).await;
                        if to_client.write_all(&buffer[..read]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        url.into()
    }

    /// The log of the process.
    #[derive(Clone, Default)]
    struct LogText(Arc<Mutex<Vec<u8>>>);

    impl LogText {
        /// Returns the number of times at which the log contains a text.
        fn count(&self, text: &str) -> usize {
            String::from_utf8_lossy(&self.0.lock().expect("no panic")).matches(text).count()
        }
    }

    impl io::Write for LogText {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn keys(env: &WorkerTestEnv) -> RedisKeys {
        RedisKeys::new(format!("{}:", env.topology.registration()).as_str())
    }

    /// Starts the heartbeats of the instance `w-1`. Returns the token that stops them, and their task.
    async fn start(env: &WorkerTestEnv, redis_url: &str, running: RunTable) -> (CancellationToken, JoinHandle<()>) {
        let (stop, close) = (CancellationToken::new(), CancellationToken::new());
        let amqp = services::amqp_url().parse().expect("a valid URL");
        let (publisher, keep_open) = WorkerPublisher::new(amqp, env.topology.clone(), "w-1".to_owned(), close.clone());
        let outbox = outbox::open(&Outbox::Off, "w", &OutboxSystem::default()).await.expect("off");
        let heartbeater = Heartbeater {
            hello: InstanceHello { instance_id: "w-1".to_owned(), ..InstanceHello::default() },
            claims: ClaimStore::new(redis_url, keys(env), "w-1").expect("a valid URL"),
            running,
            permits: PrioritySemaphore::new(1, [1]),
            unconfirmed_ends: UnconfirmedEnds::default(),
            publisher,
            exchange: env.topology.registration(),
            warning: outbox.warning,
            refused_queues: RefusedQueues::default(),
            stopping: CancellationToken::new(),
            refused_parts: Mutex::default(),
        };
        let stopping = stop.clone();
        let beating = async move {
            heartbeater.run(stopping).await;
            close.cancel();
        };
        let task = tokio::spawn(async move {
            tokio::join!(beating, keep_open);
        });
        (stop, task)
    }

    #[tokio::test]
    async fn slow_redis_does_not_delay_heartbeats() {
        let env = WorkerTestEnv::new().await;
        let running = RunTable::default();
        // Their renewal takes one round trip for each 500 runs, and reading their cancel requests one for each 250.
        let guards: Vec<_> = (0..5_000_u16)
            .map(|n| {
                let [high, low] = n.to_be_bytes();
                let id = OccurrenceId::from_parts(clock::now(), [0, 0, 0, 0, 0, 0, 0, 0, high, low]);
                let RunReservation::Reserved(guard) = running.reserve(id, 1) else { panic!("the table is empty") };
                guard.begin(StopSignal::default());
                guard
            })
            .collect();
        let (stop, beating) = start(&env, &slow_redis().await, running).await;
        let mut messages = Vec::new();
        let mut count = async |wanted| {
            until("messages to the server", async || {
                messages.extend(env.registrations().await);
                messages.len() >= wanted
            })
            .await;
        };
        let client = redis::Client::open(services::redis_url()).expect("a valid URL");
        let mut redis = client.get_multiplexed_async_connection().await.expect("Redis");
        let key = keys(&env).heartbeat("w-1");
        let (mut renewals, mut renewed_at) = (BTreeSet::new(), Vec::new());
        let limit = HEARTBEAT_INTERVAL + Duration::from_secs(2);
        let to_server = async {
            count(1).await;
            let registered_at = Instant::now();
            count(2).await;
            let pause = registered_at.elapsed();
            assert!(pause < limit, "the heartbeat to the server came after {pause:?}");
        };
        let to_redis = async {
            until("two heartbeats in Redis", async || {
                let written: Option<String> = redis.get(&key).await.expect("an answer");
                if written.is_some_and(|written| renewals.insert(written)) {
                    renewed_at.push(Instant::now());
                }
                renewed_at.len() == 2
            })
            .await;
            let pause = renewed_at[1] - renewed_at[0];
            assert!(pause < limit, "the heartbeat in Redis came after {pause:?}");
        };
        tokio::join!(to_server, to_redis);
        stop.cancel();
        beating.await.expect("no panic");
        drop(guards);
        env.clean(&[]).await;
    }

    #[tokio::test]
    async fn unanswered_registration_is_logged_once() {
        let env = WorkerTestEnv::new().await;
        let log = LogText::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let (stop, beating) = start(&env, &services::redis_url(), RunTable::default()).await;
        let mut messages = Vec::new();
        // The heartbeat follows the confirmation of the registration.
        until("a registration and a heartbeat", async || {
            messages.extend(env.registrations().await);
            messages.len() >= 2
        })
        .await;
        let warning = "No server has answered the registration for 10 s";
        assert_eq!(log.count(warning), 0, "too early");
        pause();
        for _ in 0..2 {
            advance(HELLO_ANSWER_TIMEOUT).await;
            resume();
            until("the warning", async || log.count(warning) > 0).await;
            pause();
        }
        resume();
        assert_eq!(log.count(warning), 1, "once");
        assert_eq!(log.count(&env.topology.registration()), 2, "in a field and in the text");
        stop.cancel();
        beating.await.expect("no panic");
        env.clean(&[]).await;
    }
}
