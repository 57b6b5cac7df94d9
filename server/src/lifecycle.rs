//! Up, and down again.
//!
//! [`Server::start`] connects to three services, wires the rooms together and opens the door. [`Server::stop`] undoes it
//! in the order that loses nothing: first no new requests and no new fires, then what is in flight to the broker, then
//! the consumers, whose unacknowledged batches the broker keeps. A server that is killed instead loses nothing either; an
//! orderly stop only saves others the waiting.

use std::{
    collections::HashSet,
    io::ErrorKind,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::TcpListener,
    sync::{Notify, watch},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    background::{
        activators::Activators,
        auto_disable::AutoDisabler,
        cancellations::CancellationRepeater,
        clock_watch::ClockWatch,
        dispatcher::Dispatcher,
        driver::{drive, drive_led},
        due_index::DueIndexRebuilder,
        lease::{self, LEADER_ROLE, Leadership, Lease},
        lost_messages::LostMessageDetector,
        lost_runs::{HeartbeatFeed, LostRunDetector},
        maintenance::Maintenance,
        partition_analyze::AnalyzePartitions,
        presence::WorkerPresence,
        republisher::{self, Republisher},
        sender::{MessageSender, PublishMarker},
        slot_granter::SlotGranter,
        task_status::TaskStatuses,
    },
    broker::{Broker, consumer::consume, publisher::Publisher, queue_probe::QueueProbe},
    cache::Cache,
    clock::Clock,
    command::{cluster::ClusterCommands, jobs::JobCommands, sign_in::PassphraseHasher},
    config::ServerConfig,
    error::chain,
    http::{WebState, health::HealthCheck},
    ingest::{
        claims::ClaimConsumer, dead_letters::DeadLetterConsumer, logs::LogConsumer, registration::RegistrationConsumer,
        status::StatusConsumer,
    },
    live::{Hub, alerts::AlertSender, bridge::EventBridge},
    store::Store,
    ui::backend::ServerBackend,
};

/// The first port tried when none is asked for.
const FIRST_PORT: u16 = 8600;
/// How many ports are tried then.
const MAX_PORTS_TRIED: u16 = 100;
/// How long an orderly stop may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    /// The truth.
    pub store: Store,
    /// The fast clock.
    pub cache: Cache,
    /// The dispatcher, for calling its tick.
    pub dispatcher: Dispatcher,
    /// Changing jobs.
    pub jobs: JobCommands,
    /// What browsers hear.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
    sender: MessageSender,
    /// How its loops are.
    pub task_statuses: TaskStatuses,
    /// Whether this server leads.
    pub leadership: watch::Receiver<Leadership>,
    stop_http: CancellationToken,
    stop_tasks: CancellationToken,
    stop_connections: CancellationToken,
    http_group: TaskTracker,
    task_group: TaskTracker,
    connection_group: TaskTracker,
}

impl Server {
    /// Connects, migrates, wires and listens. The configuration's URLs must be filled in.
    ///
    /// # Errors
    ///
    /// A sentence that names the cause and the remedy.
    pub async fn start(config: &ServerConfig, clock: Clock) -> Result<Self, String> {
        let listener = listen(config.http.host, config.http.port).await?;
        let address = listener.local_addr().map_err(|error| format!("The address listened on is unknown: {error}."))?;
        let store = connect_store(config).await?;
        let upkeep_clock = clock.clone();
        store.align(&clock).await.map_err(database_trouble)?;
        store.ensure_partitions(upkeep_clock.now()).await.map_err(database_trouble)?;
        let cache = Cache::new(&config.cache).map_err(|error| format!("REDIS_URL cannot be read: {error}."))?;
        warn_of_eviction(&cache).await;
        let broker = Broker::new(&config.broker)?;
        if config.amqp_url.is_some() {
            // An address that never worked is a mistake, not an outage.
            let connection = broker.connect("milvaion server check").await.map_err(|reason| {
                format!(
                    "RabbitMQ cannot be reached at AMQP_URL: {reason}. Check the address, the user and that it runs."
                )
            })?;
            let _ = connection.close(200, "checked".into()).await;
        }

        let (stop_http, stop_tasks, stop_connections) =
            (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
        let (http_group, task_group, connection_group) = (TaskTracker::new(), TaskTracker::new(), TaskTracker::new());
        let task_statuses = TaskStatuses::default();
        let activators = Activators::default();

        let (hub, outbox) = Hub::new();
        let bridge = EventBridge::new(
            cache.clone(),
            hub.clone(),
            clock.clone(),
            activators.dispatcher.clone(),
            activators.slot_granter.clone(),
        );
        connection_group.spawn(bridge.clone().send(outbox, stop_connections.clone()));
        connection_group.spawn(bridge.listen(stop_connections.clone()));
        let (publisher, keep_open) = Publisher::new(&broker, stop_connections.clone());
        connection_group.spawn(keep_open);

        let sender =
            MessageSender::new(store.clone(), publisher.clone(), clock.clone(), activators.republisher.clone());
        let marker = PublishMarker { sender: sender.clone() };
        task_group.spawn(drive(marker, Arc::default(), task_statuses.clone(), stop_tasks.clone()));
        let holder = lease::holder_name();
        let lease =
            Lease::new(LEADER_ROLE, holder, cache.clone(), store.clone(), clock.clone(), activators.due_index.clone());
        let leadership = lease.leadership();
        task_group.spawn(lease.run(stop_tasks.clone()));

        let dispatcher = Dispatcher {
            store: store.clone(),
            cache: cache.clone(),
            sender: sender.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
            leadership: leadership.clone(),
            activate_dispatcher: activators.dispatcher.clone(),
            activate_due_index: activators.due_index.clone(),
            activate_slot_granter: activators.slot_granter.clone(),
            config: config.background.clone(),
        };
        task_group.spawn(dispatcher.clone().run(task_statuses.clone(), stop_tasks.clone()));
        let task = |wake: Arc<Notify>| (wake, task_statuses.clone(), stop_tasks.clone());
        let (wake_index, board_index, stop_index) = task(activators.due_index.clone());
        let index = DueIndexRebuilder {
            store: store.clone(),
            cache: cache.clone(),
            clock: clock.clone(),
            activate_dispatcher: activators.dispatcher.clone(),
            period: config.background.rebuild,
        };
        task_group.spawn(drive_led(index, wake_index, board_index, leadership.clone(), stop_index));
        let (wake_republish, board_republish, stop_republish) = task(activators.republisher.clone());
        let republisher = Republisher {
            store: store.clone(),
            publisher: publisher.clone(),
            clock: clock.clone(),
            period: config.background.republish,
            known_unsent: HashSet::new(),
        };
        task_group.spawn(drive(republisher, wake_republish, board_republish, stop_republish));
        let watch = republisher::activate_when_up(publisher.clone(), activators.republisher.clone());
        let stop_watch = stop_tasks.clone();
        task_group.spawn(async move { stop_watch.run_until_cancelled(watch).await });
        let presence = WorkerPresence {
            store: store.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
            last_alive: Default::default(),
        };
        task_group.spawn(drive(presence, Arc::default(), task_statuses.clone(), stop_tasks.clone()));

        let names = broker.topology().clone();
        let status = StatusConsumer {
            store: store.clone(),
            activators: activators.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
        };
        task_group.spawn(consume(broker.clone(), names.status(), status, stop_tasks.clone()));
        let logs = LogConsumer { store: store.clone(), hub: hub.clone(), clock: clock.clone() };
        task_group.spawn(consume(broker.clone(), names.logs(), logs, stop_tasks.clone()));
        let registration = RegistrationConsumer {
            store: store.clone(),
            publisher: publisher.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
        };
        task_group.spawn(consume(broker.clone(), names.registration(), registration, stop_tasks.clone()));

        let jobs = JobCommands {
            store: store.clone(),
            cache: cache.clone(),
            publisher: publisher.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
            activate_dispatcher: activators.dispatcher.clone(),
            activate_republisher: activators.republisher.clone(),
            activate_slot_granter: activators.slot_granter.clone(),
            activate_cancellation_repeater: Arc::default(),
            in_flight: TaskTracker::new(),
        };
        let cluster = ClusterCommands {
            store: store.clone(),
            cache: cache.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
            activate_dispatcher: activators.dispatcher.clone(),
            activate_slot_granter: activators.slot_granter.clone(),
        };
        let cancellations = CancellationRepeater { jobs: jobs.clone(), pending: 0 };
        task_group.spawn(drive(
            cancellations,
            jobs.activate_cancellation_repeater.clone(),
            task_statuses.clone(),
            stop_tasks.clone(),
        ));
        let releaser = SlotGranter {
            store: store.clone(),
            cache: cache.clone(),
            sender: sender.clone(),
            jobs: jobs.clone(),
            clock: clock.clone(),
            activate_dispatcher: activators.dispatcher.clone(),
            next: None,
        };
        task_group.spawn(drive(releaser, activators.slot_granter.clone(), task_statuses.clone(), stop_tasks.clone()));
        let letters = DeadLetterConsumer {
            store: store.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
            activate_slot_granter: jobs.activate_slot_granter.clone(),
            activate_auto_disable: activators.auto_disable.clone(),
        };
        task_group.spawn(consume(broker.clone(), names.dead_letter_queue(), letters, stop_tasks.clone()));
        let claims = ClaimConsumer { store: store.clone() };
        task_group.spawn(consume(broker.clone(), names.claims(), claims, stop_tasks.clone()));
        let (alerts, sending) = AlertSender::new(config.alerts.webhook_url.clone());
        let stop_alerts = stop_connections.clone();
        connection_group.spawn(async move { stop_alerts.run_until_cancelled(sending).await });
        let breaker = AutoDisabler { jobs: jobs.clone(), alerts, default_rule: config.alerts.auto_disable };
        task_group.spawn(drive(breaker, activators.auto_disable.clone(), task_statuses.clone(), stop_tasks.clone()));
        let upkeep = Maintenance {
            store: store.clone(),
            clock: clock.clone(),
            retention: config.retention.clone(),
            activate_slot_granter: jobs.activate_slot_granter.clone(),
        };
        task_group.spawn(drive_led(
            upkeep,
            Arc::default(),
            task_statuses.clone(),
            leadership.clone(),
            stop_tasks.clone(),
        ));
        let growth = AnalyzePartitions { store: store.clone(), clock: clock.clone() };
        task_group.spawn(drive_led(
            growth,
            Arc::default(),
            task_statuses.clone(),
            leadership.clone(),
            stop_tasks.clone(),
        ));
        let watch = ClockWatch { store: store.clone(), clock: clock.clone(), last_measured: None };
        task_group.spawn(drive(watch, Arc::default(), task_statuses.clone(), stop_tasks.clone()));
        let zombies = LostRunDetector {
            store: store.clone(),
            cache: cache.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
            heartbeat_feed: HeartbeatFeed::new(broker.clone()),
            leadership: leadership.clone(),
            heartbeat_timeout: config.lost_runs.heartbeat_timeout,
            activate_dispatcher: jobs.activate_dispatcher.clone(),
            activate_republisher: jobs.activate_republisher.clone(),
            activate_slot_granter: jobs.activate_slot_granter.clone(),
            watch: LostRunDetector::watch(),
        };
        task_group.spawn(drive_led(
            zombies,
            Arc::default(),
            task_statuses.clone(),
            leadership.clone(),
            stop_tasks.clone(),
        ));
        let lost_messages = LostMessageDetector {
            store: store.clone(),
            broker: broker.clone(),
            probe: QueueProbe::new(broker.clone()),
            clock: clock.clone(),
            leadership: leadership.clone(),
            requeue_after: config.lost_runs.requeue_after,
            activate_republisher: jobs.activate_republisher.clone(),
        };
        task_group.spawn(drive_led(
            lost_messages,
            Arc::default(),
            task_statuses.clone(),
            leadership.clone(),
            stop_tasks.clone(),
        ));
        let health = HealthCheck {
            store: store.clone(),
            cache: cache.clone(),
            broker,
            publisher,
            task_statuses: task_statuses.clone(),
        };
        let http_config = Arc::new(config.http.clone());
        let backend = Arc::new(ServerBackend {
            store: store.clone(),
            clock: clock.clone(),
            jobs: jobs.clone(),
            cluster,
            hasher: PassphraseHasher::new(),
            health: health.clone(),
            config: http_config.clone(),
        });
        let state = WebState {
            store: store.clone(),
            clock: clock.clone(),
            hub: hub.clone(),
            config: http_config,
            health,
            stop: stop_http.clone(),
        };
        let service = crate::http::router(&state, backend).into_make_service_with_connect_info::<SocketAddr>();
        let stop_serving = stop_http.clone();
        http_group.spawn(async move {
            let serving = axum::serve(listener, service).with_graceful_shutdown(stop_serving.cancelled_owned());
            if let Err(error) = serving.await {
                tracing::error!(error = %error, "the web server ended");
            }
        });
        Ok(Self {
            address,
            store,
            cache,
            dispatcher,
            jobs,
            hub,
            clock,
            sender,
            task_statuses,
            leadership,
            stop_http,
            stop_tasks,
            stop_connections,
            http_group,
            task_group,
            connection_group,
        })
    }

    /// Stops: the door and the loops, then the pipes they wrote to. Within about five seconds.
    pub async fn stop(self) {
        self.stop_http.cancel();
        self.stop_tasks.cancel();
        self.http_group.close();
        self.task_group.close();
        let stages = async {
            self.task_group.wait().await;
            self.sender.drain().await;
            self.jobs.in_flight.close();
            self.jobs.in_flight.wait().await;
            self.stop_connections.cancel();
            self.connection_group.close();
            self.connection_group.wait().await;
            // A browser that holds a connection open without using it is not waited for any longer than this.
            let _ = tokio::time::timeout(Duration::from_secs(1), self.http_group.wait()).await;
        };
        if tokio::time::timeout(STOP_TIMEOUT, stages).await.is_err() {
            tracing::warn!(
                limit_s = STOP_TIMEOUT.as_secs(),
                "something did not stop in time and is left behind; nothing is lost"
            );
        }
        let _ = tokio::time::timeout(Duration::from_secs(1), self.store.close()).await;
    }
}

async fn connect_store(config: &ServerConfig) -> Result<Store, String> {
    Store::connect(&config.database).await.map_err(|error| {
        format!("PostgreSQL cannot be used: {}. Check DATABASE_URL and that the database runs.", chain(&error))
    })
}

fn database_trouble(error: crate::store::StoreError) -> String {
    format!("PostgreSQL cannot be used: {}.", chain(&error))
}

/// A Redis that drops keys when it is full would drop the schedule; the sweep would save us, but late.
async fn warn_of_eviction(cache: &Cache) {
    if let Ok(policy) = cache.eviction_policy().await
        && policy != "noeviction"
    {
        tracing::warn!(
            redis.policy = policy,
            "Redis may drop keys when it is full; set maxmemory-policy to noeviction"
        );
    }
}

/// Listens on the asked-for port, or on the first free one.
async fn listen(host: IpAddr, port: Option<u16>) -> Result<TcpListener, String> {
    if let Some(port) = port {
        return TcpListener::bind((host, port)).await.map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => {
                format!("Port {port} is taken by another program: end that one, set PORT to another number, or leave PORT out.")
            }
            ErrorKind::PermissionDenied => format!("Port {port} needs more rights: set PORT to a number above 1023."),
            _ => format!("{host}:{port} cannot be listened on: {error}. Check HOST and PORT."),
        });
    }
    let mut last = None;
    for port in FIRST_PORT..FIRST_PORT + MAX_PORTS_TRIED {
        match TcpListener::bind((host, port)).await {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    let reason = last.map(|error| error.to_string()).unwrap_or_default();
    Err(format!(
        "No port from {FIRST_PORT} to {} is free on {host}: {reason}. Set PORT.",
        FIRST_PORT + MAX_PORTS_TRIED - 1
    ))
}
