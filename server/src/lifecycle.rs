//! Starts the server and stops it again.
//!
//! [`Server::start`] connects to PostgreSQL, Redis and RabbitMQ, wires the modules together and opens the HTTP port.
//! [`Server::stop`] takes them down in an order that loses nothing. It first stops accepting requests and creating
//! runs. It then waits until the messages in flight have reached the broker. Last it closes the connections. The broker
//! keeps the unacknowledged batches of the consumers and redelivers them. A server that is killed loses nothing either;
//! an orderly stop only spares the other servers the wait for a timeout or a redelivery.

mod error;
mod listener;
mod task_spawner;

use std::{collections::HashSet, net::SocketAddr, sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    background::{
        activators::Activators,
        auto_disable::AutoDisabler,
        cancellations::CancellationRepeater,
        clock_watch::ClockWatch,
        dispatcher::Dispatcher,
        due_index::DueIndexRebuilder,
        lease::{self, LEADER_ROLE, Leadership, Lease},
        lost_messages::LostMessageDetector,
        lost_runs::{HeartbeatFeed, LostRunDetector},
        maintenance::Maintenance,
        partition_analyze::PartitionAnalyzer,
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
    http::{
        WebState,
        client_address::warn_of_unknown_clients,
        export::ExportState,
        health::{HealthCheck, HealthHistory, LastCheck},
        listener::{ConnectionLimits, raise_file_limit, serve},
    },
    ingest::{
        claims::ClaimConsumer, dead_letters::DeadLetterConsumer, logs::LogConsumer, registration::RegistrationConsumer,
        status::StatusConsumer,
    },
    live::{Hub, alerts::AlertSender, bridge::EventBridge},
    store::Store,
    ui::backend::ServerBackend,
};
pub use error::ServerError;
use task_spawner::TaskSpawner;

/// The longest time that an orderly stop waits for its stages.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time that a stop waits for open HTTP connections, and again for the database pool.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// The address that the HTTP listener is bound to.
    pub address: SocketAddr,
    /// Access to PostgreSQL.
    pub store: Store,
    /// Access to Redis.
    pub cache: Cache,
    /// The dispatcher, so that a test can call its tick.
    pub dispatcher: Dispatcher,
    /// The commands that change jobs and occurrences.
    pub jobs: JobCommands,
    /// The operations of the dashboard.
    pub backend: Arc<ServerBackend>,
    /// The live events for browsers.
    pub hub: Hub,
    /// The clock of this server.
    pub clock: Clock,
    sender: MessageSender,
    /// The status of each background task.
    pub task_statuses: TaskStatuses,
    /// The leadership of this server; it changes when the lease is won or lost.
    pub leadership: watch::Receiver<Leadership>,
    stop_http: CancellationToken,
    stop_tasks: CancellationToken,
    stop_connections: CancellationToken,
    http_group: TaskTracker,
    task_group: TaskTracker,
    connection_group: TaskTracker,
}

impl Server {
    /// Connects to the three services, migrates the database, starts the background tasks and listens for requests.
    /// The URLs in the configuration must be filled in.
    ///
    /// # Errors
    ///
    /// Returns [`ServerError`] if the port cannot be bound, if PostgreSQL or RabbitMQ cannot be used, or if the URL of
    /// Redis or RabbitMQ cannot be parsed. Redis itself may be unreachable.
    pub async fn start(config: &ServerConfig, clock: Clock) -> Result<Self, ServerError> {
        let listener = listener::listen(config.http.host, config.http.port).await?;
        let address = listener.local_addr().map_err(ServerError::ListenerAddress)?;
        let store = Store::connect(&config.database).await.map_err(ServerError::Postgres)?;
        store.align(&clock).await.map_err(ServerError::PostgresPreparation)?;
        store.ensure_partitions(clock.now()).await.map_err(ServerError::PostgresPreparation)?;
        let cache = Cache::new(&config.cache).map_err(|error| ServerError::RedisUrl(error.into()))?;
        warn_of_eviction(&cache).await;
        let broker = Broker::new(&config.broker).map_err(ServerError::RabbitMqUrl)?;
        if config.amqp_url.is_some() {
            // An address that has never worked is a mistake of the operator; only later failures count as outages.
            let connection = broker.connect("milvaion server check").await.map_err(ServerError::RabbitMq)?;
            let _ = connection.close(200, "checked".into()).await;
        }

        let (stop_http, stop_tasks, stop_connections) =
            (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
        let (http_group, task_group, connection_group) = (TaskTracker::new(), TaskTracker::new(), TaskTracker::new());
        let task_statuses = TaskStatuses::default();
        let activators = Activators::default();

        let (hub, unsent_events) = Hub::new();
        let bridge = EventBridge::new(
            cache.clone(),
            hub.clone(),
            clock.clone(),
            activators.dispatcher.clone(),
            activators.slot_granter.clone(),
        );
        connection_group.spawn(bridge.clone().send(unsent_events, stop_connections.clone()));
        connection_group.spawn(bridge.listen(stop_connections.clone()));
        let (publisher, keep_connected) = Publisher::new(&broker, stop_connections.clone());
        connection_group.spawn(keep_connected);

        let holder = lease::holder_name();
        let lease =
            Lease::new(LEADER_ROLE, holder, cache.clone(), store.clone(), clock.clone(), activators.due_index.clone());
        let leadership = lease.leadership();
        task_group.spawn(lease.run(stop_tasks.clone()));
        let tasks = TaskSpawner {
            group: task_group.clone(),
            statuses: task_statuses.clone(),
            leadership: leadership.clone(),
            stop: stop_tasks.clone(),
        };
        let sender =
            MessageSender::new(store.clone(), publisher.clone(), clock.clone(), activators.republisher.clone());
        tasks.spawn(PublishMarker { sender: sender.clone() }, Arc::default());

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
        let due_index = DueIndexRebuilder {
            store: store.clone(),
            cache: cache.clone(),
            clock: clock.clone(),
            activate_dispatcher: activators.dispatcher.clone(),
            period: config.background.rebuild,
        };
        tasks.spawn_led(due_index, activators.due_index.clone());
        let republisher = Republisher {
            store: store.clone(),
            publisher: publisher.clone(),
            clock: clock.clone(),
            period: config.background.republish,
            known_unsent: HashSet::new(),
        };
        tasks.spawn(republisher, activators.republisher.clone());
        let republish_on_reconnect = republisher::activate_when_up(publisher.clone(), activators.republisher.clone());
        let stop_republish = stop_tasks.clone();
        task_group.spawn(async move { stop_republish.run_until_cancelled(republish_on_reconnect).await });
        let presence = WorkerPresence {
            store: store.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
            last_alive: Default::default(),
        };
        tasks.spawn(presence, Arc::default());

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
        tasks.spawn(cancellations, jobs.activate_cancellation_repeater.clone());
        let slot_granter = SlotGranter {
            store: store.clone(),
            cache: cache.clone(),
            sender: sender.clone(),
            jobs: jobs.clone(),
            clock: clock.clone(),
            activate_dispatcher: activators.dispatcher.clone(),
            next: None,
        };
        tasks.spawn(slot_granter, activators.slot_granter.clone());
        let dead_letters = DeadLetterConsumer {
            store: store.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
            activate_slot_granter: jobs.activate_slot_granter.clone(),
            activate_auto_disable: activators.auto_disable.clone(),
        };
        task_group.spawn(consume(broker.clone(), names.dead_letter_queue(), dead_letters, stop_tasks.clone()));
        let claims = ClaimConsumer { store: store.clone() };
        task_group.spawn(consume(broker.clone(), names.claims(), claims, stop_tasks.clone()));
        let (alerts, send_alerts) = AlertSender::new(config.alerts.webhook_url.clone());
        let stop_alerts = stop_connections.clone();
        connection_group.spawn(async move { stop_alerts.run_until_cancelled(send_alerts).await });
        let auto_disabler = AutoDisabler { jobs: jobs.clone(), alerts, default_rule: config.alerts.auto_disable };
        tasks.spawn(auto_disabler, activators.auto_disable.clone());
        let maintenance = Maintenance {
            store: store.clone(),
            clock: clock.clone(),
            retention: config.retention.clone(),
            activate_slot_granter: jobs.activate_slot_granter.clone(),
        };
        tasks.spawn_led(maintenance, Arc::default());
        let partition_analyzer = PartitionAnalyzer { store: store.clone(), clock: clock.clone() };
        tasks.spawn_led(partition_analyzer, Arc::default());
        let clock_watch = ClockWatch { store: store.clone(), clock: clock.clone(), last_measured: None };
        tasks.spawn(clock_watch, Arc::default());
        let lost_runs = LostRunDetector {
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
        tasks.spawn_led(lost_runs, Arc::default());
        let lost_messages = LostMessageDetector {
            store: store.clone(),
            broker: broker.clone(),
            probe: QueueProbe::new(broker.clone()),
            clock: clock.clone(),
            leadership: leadership.clone(),
            requeue_after: config.lost_runs.requeue_after,
            activate_republisher: jobs.activate_republisher.clone(),
        };
        tasks.spawn_led(lost_messages, Arc::default());
        let health = HealthCheck {
            store: store.clone(),
            cache: cache.clone(),
            broker,
            publisher,
            task_statuses: task_statuses.clone(),
            history: HealthHistory::default(),
            last: LastCheck::default(),
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
        let site = crate::ui::site::read(&config.http.site_root);
        let state = WebState {
            store: store.clone(),
            clock: clock.clone(),
            hub: hub.clone(),
            config: http_config,
            health,
            build: site.build.as_str().into(),
            stop: stop_http.clone(),
        };
        let exports = ExportState::new(store.clone(), clock.clone(), backend.clone());
        let pages = crate::ui::router(&state.config, site, backend.clone());
        let router = crate::http::router(&state, exports, pages);
        let limits = ConnectionLimits::of(&state.config);
        raise_file_limit(limits.total);
        warn_of_unknown_clients(&state.config);
        http_group.spawn(serve(listener, router, state.config, limits, stop_http.clone()));
        Ok(Self {
            address,
            store,
            cache,
            dispatcher,
            jobs,
            backend,
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

    /// Stops the HTTP server and the background tasks, and then the connections that they wrote to. Takes at most six
    /// seconds: five for these stages and one for the database pool.
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
            // A browser may keep an idle connection open for minutes.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.http_group.wait()).await;
        };
        if tokio::time::timeout(STOP_TIMEOUT, stages).await.is_err() {
            tracing::warn!(
                limit_s = STOP_TIMEOUT.as_secs(),
                "the server did not stop within {} s and drops its unfinished work; nothing is lost",
                STOP_TIMEOUT.as_secs()
            );
        }
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.store.close()).await;
    }
}

/// Logs a warning if Redis evicts keys when its memory is full. It would then drop due times without an error; the
/// periodic read from PostgreSQL still finds them, but late.
async fn warn_of_eviction(cache: &Cache) {
    if let Ok(policy) = cache.eviction_policy().await
        && policy != "noeviction"
    {
        tracing::warn!(
            redis.policy = policy,
            "Redis evicts keys when its memory is full (maxmemory-policy {policy}); set maxmemory-policy to noeviction"
        );
    }
}
