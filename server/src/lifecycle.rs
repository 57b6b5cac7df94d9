//! Starts the server and stops it again.
//!
//! [`Server::start`] opens the connections to PostgreSQL, Redis and RabbitMQ (`connections`), starts the services of
//! the two lists at the end of this file, and answers requests with what `web` wires together.
//! [`Server::stop`] takes them down in an order that loses nothing. It first stops accepting requests and creating
//! runs. It then waits until the messages in flight have reached the broker. Last it closes the connections. The broker
//! keeps the unacknowledged batches of the consumers and redelivers them. A server that is killed loses nothing either;
//! an orderly stop only spares the other servers the wait for a timeout or a redelivery.

mod connections;
mod error;
mod listener;
mod web;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use milvaion_timer::{LAST_STRETCH, PreciseTimer};
use tokio::sync::{Mutex, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    background::{
        alert_sender::AlertSender,
        alerts::AlertEvaluator,
        auto_disable::AutoDisabler,
        cancellations::CancellationRepeater,
        clock_watch::ClockWatch,
        declared_jobs::DeclaredJobKeeper,
        dispatcher::{self, Dispatcher},
        due_index::DueIndexRebuilder,
        due_times::DueTimeUpdater,
        heartbeat_url::WatcherCalls,
        late_runs::LateRunStopper,
        lease::{self, LEADER_ROLE, Lease},
        lost_messages::LostMessageDetector,
        lost_runs::LostRunDetector,
        maintenance::Maintenance,
        overdue_runs::OverdueRuns,
        presence::WorkerPresence,
        publish_marker::PublishMarker,
        queue_expiry::QueueExpiry,
        republisher::{self, Republisher},
        singletons::SingletonWatch,
        slot_granter::SlotGranter,
        snapshot_watch::SnapshotWatch,
        stats_folder::StatsFolder,
        task_alerts::TaskAlerts,
        vacuum::Vacuum,
    },
    broker::{echo::Echo, publisher::Publisher},
    cache::Cache,
    clock::Clock,
    command::jobs::JobCommands,
    config::ServerConfig,
    engine::{
        activators::Activators,
        context::Context,
        leadership::Leadership,
        observations::{DeafSince, LastSnapshot},
        sender::MessageSender,
        status::ServiceStatuses,
        supervisor::Supervisor,
    },
    http::{
        client_address::warn_of_unknown_clients,
        listener::{ConnectionLimits, raise_file_limit, serve},
        metrics::{self, scrape::MetricsReader},
    },
    ingest::{
        claims::ClaimConsumer, dead_letters::DeadLetterConsumer, enqueue::EnqueueConsumer, logs::LogConsumer,
        registration::RegistrationConsumer, status::StatusConsumer,
    },
    live::{Hub, bridge::EventBridge},
    notify::Notifier,
    store::Store,
    ui::backend::ServerBackend,
};
use connections::Connections;
pub use error::ServerError;
use web::Web;

/// The longest time that an orderly stop waits for its stages.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
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
    /// The loops that keep connections open.
    kept: Supervisor,
    connections: Connections,
}

impl Server {
    /// Connects to the three services, migrates the database, starts the services and listens for requests.
    /// The URLs in the configuration must be filled in.
    ///
    /// # Errors
    ///
    /// Returns [`ServerError`] if the port cannot be bound, if PostgreSQL or RabbitMQ cannot be used, if the URL of Redis
    /// or RabbitMQ cannot be parsed, or if the operating system refuses a thread. Redis itself may be unreachable.
    pub async fn start(config: &ServerConfig, clock: Clock) -> Result<Self, ServerError> {
        let listener = listener::listen(config.http.host, config.http.port).await?;
        let address = listener.local_addr().map_err(ServerError::ListenerAddress)?;
        let connections = Connections::open(config, &clock).await?;
        let timer = PreciseTimer::start("due-timer", LAST_STRETCH).map_err(ServerError::TimerThread)?;
        let (context, lease, kept) = share(config, &connections, clock, timer);
        let background = Supervisor::new(context.services.clone());
        let dispatcher = Dispatcher { store: connections.dispatching.clone(), ..Dispatcher::new(&context) };
        background.keep("lease", {
            let config = context.config.clone();
            move |stop| lease.clone().run_on_own_thread(config.clone(), stop)
        });
        background.keep(dispatcher::NAME, {
            let (dispatcher, services) = (dispatcher.clone(), context.services.clone());
            move |stop| dispatcher.clone().run(services.clone(), stop)
        });
        start_services(&background, &context);
        start_consumers(&background, &context);

        let (stop_http, http_group) = (CancellationToken::new(), TaskTracker::new());
        let web = Web::new(&context, &connections, address, &stop_http);
        web.metrics.set_start();
        let mut metrics_address = None;
        if let Some(address) = config.metrics.address {
            let unusable = |source| ServerError::MetricsAddress { address, source };
            let (bound, serve_metrics) = metrics::listen(address, &web.metrics).await.map_err(unusable)?;
            tracing::info!(http.address = %bound, "serving metrics at http://{bound}/metrics without authentication");
            http_group.spawn(serve_metrics(stop_http.clone()));
            metrics_address = Some(bound);
        }
        let limits = ConnectionLimits::of(&web.config);
        raise_file_limit(limits.total);
        warn_of_unknown_clients(&web.config);
        http_group.spawn(serve(listener, web.router, web.config, limits, stop_http.clone()));
        Ok(Self {
            address,
            metrics_address,
            metrics: web.metrics,
            store: context.store,
            cache: context.cache,
            dispatcher,
            jobs: web.jobs,
            backend: web.backend,
            hub: context.hub,
            clock: context.clock,
            sender: context.sender,
            services: context.services,
            leadership: context.leadership,
            stop_http,
            http_group,
            background,
            kept,
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
            // A browser may keep an idle connection open for minutes.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.http_group.wait()).await;
            // The last requests may have created runs.
            self.sender.drain().await;
            self.kept.request_stop();
            self.kept.stopped().await;
            self.metrics.last.close().await;
        };
        if tokio::time::timeout(STOP_TIMEOUT, stages).await.is_err() {
            tracing::warn!(
                limit_s = STOP_TIMEOUT.as_secs(),
                "the server did not stop within {} s and drops its unfinished work; nothing is lost",
                STOP_TIMEOUT.as_secs()
            );
        }
        let closed = futures::future::join_all(self.connections.pools().map(Store::close));
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closed).await;
    }
}

/// Creates what the services of a server share, its lease, and the loops that keep connections open.
///
/// These loops are stopped last, when the background services have written to the connections for the last time.
fn share(
    config: &ServerConfig,
    connections: &Connections,
    clock: Clock,
    timer: PreciseTimer,
) -> (Context, Lease, Supervisor) {
    let activators = Activators::default();
    let services = ServiceStatuses::new(connections.metrics.clone());
    let kept = Supervisor::new(services.clone());
    let (store, cache, broker) = (&connections.store, &connections.cache, &connections.broker);
    let (hub, unsent_events) = Hub::new();
    let bridge = EventBridge::new(
        cache.clone(),
        hub.clone(),
        clock.clone(),
        activators.dispatcher.clone(),
        activators.slot_granter.clone(),
    );
    let (listening, sending, unsent_events) = (bridge.clone(), bridge, Arc::new(Mutex::new(unsent_events)));
    kept.keep("event-listener", move |stop| listening.clone().listen(stop));
    kept.keep("event-sender", move |stop| sending.clone().send(unsent_events.clone(), stop));
    let (publisher, keep_open) = Publisher::new(broker);
    kept.keep("publisher", keep_open);
    let (echo, keep_echo_open) = Echo::new(broker);
    kept.keep("echo", keep_echo_open);

    let server_name = lease::holder_name();
    let lease = Lease::new(
        LEADER_ROLE,
        server_name.clone(),
        cache.clone(),
        store.clone(),
        clock.clone(),
        activators.due_index.clone(),
    );
    let context = Context {
        config: Arc::new(config.clone()),
        server_name,
        store: store.clone(),
        reports: connections.reports.clone(),
        cache: cache.clone(),
        broker: broker.clone(),
        echo,
        sender: MessageSender::new(store.clone(), publisher.clone(), clock.clone(), activators.republisher.clone()),
        timer,
        publisher,
        hub,
        notifier: Notifier::new(config),
        services,
        clock,
        activators,
        leadership: lease.leadership(),
        dispatch_pulse: lease.pulse(),
        deaf_since: DeafSince::default(),
        oldest_snapshot: LastSnapshot::default(),
    };
    (context, lease, kept)
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
    supervisor.start(context, DueTimeUpdater::new, &context.clock.set_back());
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
