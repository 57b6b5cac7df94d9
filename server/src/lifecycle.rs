//! Starts the server and stops it again.
//!
//! [`Server::start`] connects to PostgreSQL, Redis and RabbitMQ, wires the modules together and opens the HTTP port.
//! [`Server::stop`] takes them down in an order that loses nothing. It first stops accepting requests and creating
//! runs. It then waits until the messages in flight have reached the broker. Last it closes the connections. The broker
//! keeps the unacknowledged batches of the consumers and redelivers them. A server that is killed loses nothing either;
//! an orderly stop only spares the other servers the wait for a timeout or a redelivery.

mod error;
mod listener;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use milvaion_app::backend::Backend;
use tokio::sync::{Mutex, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    background::{
        activators::Activators,
        alert_sender::AlertSender,
        alerts::AlertEvaluator,
        auto_disable::AutoDisabler,
        calendar_edits::CalendarEdits,
        cancellations::CancellationRepeater,
        clock_repair::ClockRepair,
        clock_watch::ClockWatch,
        declared_jobs::DeclaredJobKeeper,
        dispatcher::{self, Dispatcher},
        due_index::DueIndexRebuilder,
        heartbeat_url::WatcherCalls,
        late_runs::LateRunStopper,
        lease::{self, LEADER_ROLE, Leadership, Lease},
        lost_messages::LostMessageDetector,
        lost_runs::{DeafSince, LostRunDetector},
        maintenance::Maintenance,
        overdue_runs::OverdueRuns,
        presence::WorkerPresence,
        queue_expiry::QueueExpiry,
        republisher::{self, Republisher},
        sender::{MessageSender, PublishMarker},
        singletons::SingletonWatch,
        slot_granter::SlotGranter,
        snapshot_watch::{LastSnapshot, SnapshotWatch},
        stats_folder::StatsFolder,
        task_alerts::TaskAlerts,
        vacuum::Vacuum,
    },
    broker::{Broker, echo::Echo, publisher::Publisher},
    cache::Cache,
    clock::Clock,
    command::{
        alerts::AlertCommands, cluster::ClusterCommands, jobs::JobCommands, sign_in::PassphraseHasher,
        singletons::SingletonCommands,
    },
    config::{ServerConfig, http::HttpConfig},
    engine::{context::Context, status::ServiceStatuses, supervisor::Supervisor},
    http::{
        WebState,
        client_address::warn_of_unknown_clients,
        export::ExportState,
        health::{HealthCheck, HealthHistory, LastCheck},
        listener::{ConnectionLimits, raise_file_limit, serve},
        metrics::{
            self as metrics_http,
            scrape::{LastRead, MetricsReader},
        },
        rest::{ApiState, guard::RateLimits},
    },
    ingest::{
        claims::ClaimConsumer, dead_letters::DeadLetterConsumer, enqueue::EnqueueConsumer, logs::LogConsumer,
        registration::RegistrationConsumer, status::StatusConsumer,
    },
    live::{Hub, bridge::EventBridge},
    metrics::Metrics,
    notify::Notifier,
    store::{PoolUse, Store},
    ui::{backend::ServerBackend, job_counts::JobCounter},
};
pub use error::ServerError;

/// The longest time that an orderly stop waits for its stages.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The connections that the servers leave to other clients of PostgreSQL.
const SPARE_CONNECTIONS: u32 = 10;
/// The longest time that a stop waits for open HTTP connections, and again for the database pool.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// The address that the HTTP listener is bound to.
    pub address: SocketAddr,
    /// The address at which the metrics are served without authentication, if there is one.
    pub metrics_address: Option<SocketAddr>,
    /// The reader of the metrics.
    pub metrics: MetricsReader,
    /// Access to PostgreSQL, with the connections of the services.
    pub store: Store,
    /// Access to PostgreSQL, with the connections of requests.
    web: Store,
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
    /// The state of each service.
    pub services: ServiceStatuses,
    /// The leadership of this server; it changes when the lease is won or lost.
    pub leadership: watch::Receiver<Leadership>,
    stop_http: CancellationToken,
    http_group: TaskTracker,
    background: Supervisor,
    connections: Supervisor,
    reports: Store,
}

impl Server {
    /// Connects to the three services, migrates the database, starts the services and listens for requests.
    /// The URLs in the configuration must be filled in.
    ///
    /// # Errors
    ///
    /// Returns [`ServerError`] if the port cannot be bound, if PostgreSQL or RabbitMQ cannot be used, or if the URL of
    /// Redis or RabbitMQ cannot be parsed. Redis itself may be unreachable.
    pub async fn start(config: &ServerConfig, clock: Clock) -> Result<Self, ServerError> {
        let listener = listener::listen(config.http.host, config.http.port).await?;
        let address = listener.local_addr().map_err(ServerError::ListenerAddress)?;
        let store = Store::connect(&config.database.for_background()).await.map_err(ServerError::Postgres)?;
        let metrics = Metrics::new(config.metrics.job_labels);
        let store = store.with_retention(config.retention.clone()).with_metrics(metrics.clone());
        let connect = async |pool_use| store.with_connections_for(pool_use, &config.database).await;
        let dispatching = connect(PoolUse::Own).await.map_err(ServerError::Postgres)?;
        let reports = connect(PoolUse::Reports).await.map_err(ServerError::Postgres)?;
        let web_config = config.database.for_web();
        let web = store.with_connections_for(PoolUse::Web, &web_config).await.map_err(ServerError::Postgres)?;
        store.align(&clock).await.map_err(ServerError::PostgresPreparation)?;
        store.ensure_partitions(clock.now()).await.map_err(ServerError::PostgresPreparation)?;
        warn_of_few_connections(&store, config.database.max_connections).await;
        let cache = Cache::new(&config.cache).map_err(|error| ServerError::RedisUrl(error.into()))?;
        warn_of_eviction(&cache).await;
        let broker = Broker::new(&config.broker).map_err(ServerError::RabbitMqUrl)?;
        if config.amqp_url.is_some() {
            // An address that has never worked is a mistake of the operator; only later failures count as outages.
            let connection = broker.connect("milvaion server check").await.map_err(ServerError::RabbitMq)?;
            let _ = connection.close(200, "checked".into()).await;
        }

        let activators = Activators::default();
        let services = ServiceStatuses::new(metrics.clone());
        // The connections are closed last, when the background services have written to them for the last time.
        let (connections, background) = (Supervisor::new(services.clone()), Supervisor::new(services.clone()));

        let (hub, unsent_events) = Hub::new();
        let bridge = EventBridge::new(
            cache.clone(),
            hub.clone(),
            clock.clone(),
            activators.dispatcher.clone(),
            activators.slot_granter.clone(),
        );
        let (listening, sending, unsent_events) = (bridge.clone(), bridge, Arc::new(Mutex::new(unsent_events)));
        connections.keep("event-listener", move |stop| listening.clone().listen(stop));
        connections.keep("event-sender", move |stop| sending.clone().send(unsent_events.clone(), stop));
        let (publisher, keep_open) = Publisher::new(&broker);
        connections.keep("publisher", keep_open);
        let (echo, keep_echo_open) = Echo::new(&broker);
        connections.keep("echo", keep_echo_open);

        let server_name = lease::holder_name();
        let holder = server_name.clone();
        let lease =
            Lease::new(LEADER_ROLE, holder, cache.clone(), store.clone(), clock.clone(), activators.due_index.clone());
        let leadership = lease.leadership();
        let sender =
            MessageSender::new(store.clone(), publisher.clone(), clock.clone(), activators.republisher.clone());
        let context = Context {
            config: Arc::new(config.clone()),
            server_name,
            store: store.clone(),
            reports: reports.clone(),
            cache: cache.clone(),
            broker,
            echo,
            publisher,
            sender: sender.clone(),
            hub: hub.clone(),
            notifier: Notifier::new(config),
            services: services.clone(),
            clock: clock.clone(),
            activators,
            leadership: leadership.clone(),
            dispatch_pulse: lease.pulse(),
            deaf_since: DeafSince::default(),
            oldest_snapshot: LastSnapshot::default(),
            in_flight: TaskTracker::new(),
        };
        let dispatcher = Dispatcher { store: dispatching, ..Dispatcher::new(&context) };
        background.keep("lease", {
            let config = context.config.clone();
            move |stop| lease.clone().run_on_own_thread(config.clone(), stop)
        });
        background.keep(dispatcher::NAME, {
            let (dispatcher, services) = (dispatcher.clone(), services.clone());
            move |stop| dispatcher.clone().run(services.clone(), stop)
        });
        start_services(&background, &context);
        start_consumers(&background, &context);

        let jobs = JobCommands { store: web.clone(), ..context.jobs() };
        let cluster = ClusterCommands {
            store: web.clone(),
            cache: cache.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
            activate_dispatcher: context.activators.dispatcher.clone(),
            activate_slot_granter: context.activators.slot_granter.clone(),
        };
        let health = HealthCheck {
            store: store.clone(),
            cache: cache.clone(),
            broker: context.broker,
            publisher: context.publisher,
            services: services.clone(),
            oldest_snapshot: context.oldest_snapshot,
            deaf_since: context.deaf_since,
            history: HealthHistory::default(),
            last: LastCheck::default(),
        };
        let metrics = MetricsReader {
            metrics,
            store: web.clone(),
            pools: vec![store.clone(), web.clone(), reports.clone()],
            health: health.clone(),
            services: services.clone(),
            leadership: leadership.clone(),
            clock: clock.clone(),
            last: LastRead::new(health.broker.clone()),
        };
        metrics.set_start();
        let (stop_http, http_group) = (CancellationToken::new(), TaskTracker::new());
        // Without `PORT`, the configuration does not have the port.
        let http_config = Arc::new(HttpConfig { port: Some(address.port()), ..config.http.clone() });
        let alert_commands =
            AlertCommands { store: web.clone(), clock: clock.clone(), hub: hub.clone(), notifier: context.notifier };
        let backend = Arc::new(ServerBackend {
            store: web.clone(),
            job_counts: JobCounter::default(),
            clock: clock.clone(),
            jobs: jobs.clone(),
            cluster: cluster.clone(),
            alerts: alert_commands,
            singletons: SingletonCommands { store: web.clone(), cache: cache.clone(), clock: clock.clone() },
            hasher: PassphraseHasher::new(),
            health: health.clone(),
            config: http_config.clone(),
        });
        let site = crate::ui::site::read(&config.http.site_root);
        let state = WebState {
            store: web.clone(),
            clock: clock.clone(),
            hub: hub.clone(),
            config: http_config,
            health,
            build: site.build.as_str().into(),
            stop: stop_http.clone(),
        };
        let exports = ExportState::new(web.clone(), clock.clone(), backend.clone());
        let api_backend: Arc<dyn Backend> = backend.clone();
        let pages = crate::ui::router(&state.config, site, backend.clone());
        let api = ApiState {
            backend: api_backend,
            jobs: jobs.clone(),
            store: web.clone(),
            clock: clock.clone(),
            hub: hub.clone(),
            config: state.config.clone(),
            cluster,
            health: state.health.clone(),
            limits: RateLimits::new(state.config.api_rate_limit),
            stop: stop_http.clone(),
        };
        let mut metrics_address = None;
        if let Some(address) = config.metrics.address {
            let unusable = |source| ServerError::MetricsAddress { address, source };
            let (bound, serve_metrics) = metrics_http::listen(address, &metrics).await.map_err(unusable)?;
            tracing::info!(http.address = %bound, "serving metrics at http://{bound}/metrics without authentication");
            http_group.spawn(serve_metrics(stop_http.clone()));
            metrics_address = Some(bound);
        }
        let router = crate::http::router(&state, exports, &api, &metrics, pages);
        let limits = ConnectionLimits::of(&state.config);
        raise_file_limit(limits.total);
        warn_of_unknown_clients(&state.config);
        http_group.spawn(serve(listener, router, state.config, limits, stop_http.clone()));
        Ok(Self {
            address,
            metrics_address,
            metrics,
            store,
            web,
            reports,
            cache,
            dispatcher,
            jobs,
            backend,
            hub,
            clock,
            sender,
            services,
            leadership,
            stop_http,
            http_group,
            background,
            connections,
        })
    }

    /// Stops the HTTP server and the background services, and then the connections that they wrote to. Takes at most six
    /// seconds: five for these stages and one for the database pool.
    pub async fn stop(self) {
        self.stop_http.cancel();
        self.background.request_stop();
        self.http_group.close();
        let stages = async {
            self.background.stopped().await;
            self.sender.drain().await;
            self.jobs.in_flight.close();
            self.jobs.in_flight.wait().await;
            self.connections.request_stop();
            self.connections.stopped().await;
            self.metrics.last.close().await;
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
        let stores = [&self.store, &self.web, &self.reports, &self.dispatcher.store];
        let closed = futures::future::join_all(stores.map(Store::close));
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closed).await;
    }
}

/// Starts the services with a period.
fn start_services(supervisor: &Supervisor, context: &Context) {
    let activators = &context.activators;
    let none = Arc::default();
    supervisor.start(context, PublishMarker::new, &none);
    supervisor.start(context, DueIndexRebuilder::new, &activators.due_index);
    supervisor.start(context, Republisher::new, &activators.republisher);
    supervisor.start(context, SlotGranter::new, &activators.slot_granter);
    supervisor.start(context, CancellationRepeater::new, &activators.cancellation_repeater);
    supervisor.start(context, LateRunStopper::new, &none);
    supervisor.start(context, AutoDisabler::new, &activators.auto_disable);
    supervisor.start(context, LostRunDetector::new, &none);
    supervisor.start(context, OverdueRuns::new, &none);
    supervisor.start(context, LostMessageDetector::new, &none);
    supervisor.start(context, WorkerPresence::new, &none);
    supervisor.start(context, Maintenance::new, &none);
    supervisor.start(context, QueueExpiry::new, &none);
    supervisor.start(context, Vacuum::new, &none);
    supervisor.start(context, ClockWatch::new, &none);
    supervisor.start(context, ClockRepair::new, &context.clock.set_back());
    supervisor.start(context, CalendarEdits::new, &none);
    supervisor.start(context, SnapshotWatch::new, &none);
    supervisor.start(context, StatsFolder::new, &none);
    supervisor.start(context, AlertEvaluator::new, &none);
    supervisor.start(context, AlertSender::new, &none);
    supervisor.start(context, TaskAlerts::new, &none);
    supervisor.start(context, SingletonWatch::new, &none);
    supervisor.start(context, DeclaredJobKeeper::new, &none);
    if context.config.alerts.heartbeat_url.is_some() {
        supervisor.start(context, WatcherCalls::new, &none);
    }
    let (publisher, activator) = (context.publisher.clone(), activators.republisher.clone());
    supervisor.keep("republish-on-reconnect", move |stop| {
        let activate = republisher::activate_when_up(publisher.clone(), activator.clone());
        async move { stop.run_until_cancelled(activate).await.unwrap_or_default() }
    });
}

/// Starts the consumers of what workers send.
fn start_consumers(supervisor: &Supervisor, context: &Context) {
    let names = context.broker.topology();
    supervisor.consume(context, names.status(), StatusConsumer::new(context));
    supervisor.consume(context, names.logs(), LogConsumer::new(context));
    supervisor.consume(context, names.registration(), RegistrationConsumer::new(context));
    supervisor.consume(context, names.claims(), ClaimConsumer::new(context));
    supervisor.consume(context, names.ingest(), EnqueueConsumer::new(context));
    supervisor.consume(context, names.dead_letter_queue(), DeadLetterConsumer::new(context));
}

/// Logs a warning if this server alone may use up the connections of PostgreSQL. The others need some: a second server
/// during an upgrade, a dump, an operator.
async fn warn_of_few_connections(store: &Store, own: u32) {
    if let Ok(limit) = store.max_connections().await
        && own + SPARE_CONNECTIONS > limit
    {
        tracing::warn!(
            own,
            limit,
            "DATABASE_CONNECTIONS is {own}, and PostgreSQL accepts {limit} connections in all; keep the sum over all servers {SPARE_CONNECTIONS} below max_connections"
        );
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
