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
        board::Board,
        breaker::Breaker,
        cancellations::Cancellations,
        clock_watch::ClockWatch,
        dispatcher::Dispatcher,
        driver::{drive, drive_led},
        due_index::DueIndex,
        growth::Growth,
        lease::{self, LEADER, Leadership, Lease},
        lost_messages::LostMessages,
        presence::Presence,
        releaser::Releaser,
        republisher::{self, Republisher},
        sender::{Marker, Sender},
        upkeep::Upkeep,
        wakes::Wakes,
        zombies::{Ears, Zombies},
    },
    broker::{Broker, consumer::consume, depth::QueueProbe, publisher::Publisher},
    cache::Cache,
    clock::Clock,
    command::{cluster::Cluster, jobs::Jobs, sign_in::Hasher},
    config::Config,
    error::chain,
    http::{WebState, health::HealthCheck},
    intake::{
        claims::ClaimIntake, dead_letters::DeadLetterIntake, logs::LogIntake, registration::RegistrationIntake,
        status::StatusIntake,
    },
    live::{Hub, alerts::Alerts, bridge::Bridge},
    store::Store,
    ui::backend::ServerBackend,
};

/// The first port tried when none is asked for.
const FIRST_PORT: u16 = 8600;
/// How many ports are tried then.
const PORTS: u16 = 100;
/// How long an orderly stop may take.
const STOP: Duration = Duration::from_secs(5);

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
    pub jobs: Jobs,
    /// What browsers hear.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
    sender: Sender,
    /// How its loops are.
    pub board: Board,
    /// Whether this server leads.
    pub leadership: watch::Receiver<Leadership>,
    stop_doors: CancellationToken,
    stop_loops: CancellationToken,
    stop_pipes: CancellationToken,
    doors: TaskTracker,
    loops: TaskTracker,
    pipes: TaskTracker,
}

impl Server {
    /// Connects, migrates, wires and listens. The configuration's URLs must be filled in.
    ///
    /// # Errors
    ///
    /// A sentence that names the cause and the remedy.
    pub async fn start(config: &Config, clock: Clock) -> Result<Self, String> {
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

        let (stop_doors, stop_loops, stop_pipes) =
            (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
        let (doors, loops, pipes) = (TaskTracker::new(), TaskTracker::new(), TaskTracker::new());
        let board = Board::default();
        let wakes = Wakes::default();

        let (hub, outbox) = Hub::new();
        let bridge =
            Bridge::new(cache.clone(), hub.clone(), clock.clone(), wakes.dispatch.clone(), wakes.release.clone());
        pipes.spawn(bridge.clone().send(outbox, stop_pipes.clone()));
        pipes.spawn(bridge.listen(stop_pipes.clone()));
        let (publisher, keep_open) = Publisher::new(&broker, stop_pipes.clone());
        pipes.spawn(keep_open);

        let sender = Sender::new(store.clone(), publisher.clone(), clock.clone(), wakes.republish.clone());
        let marker = Marker { sender: sender.clone() };
        loops.spawn(drive(marker, Arc::default(), board.clone(), stop_loops.clone()));
        let holder = lease::holder_name();
        let lease = Lease::new(LEADER, holder, cache.clone(), store.clone(), clock.clone(), wakes.rebuild.clone());
        let leadership = lease.leadership();
        loops.spawn(lease.run(stop_loops.clone()));

        let dispatcher = Dispatcher {
            store: store.clone(),
            cache: cache.clone(),
            sender: sender.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
            leadership: leadership.clone(),
            wake: wakes.dispatch.clone(),
            rebuild: wakes.rebuild.clone(),
            release: wakes.release.clone(),
            config: config.background.clone(),
        };
        loops.spawn(dispatcher.clone().run(board.clone(), stop_loops.clone()));
        let task = |wake: Arc<Notify>| (wake, board.clone(), stop_loops.clone());
        let (wake_index, board_index, stop_index) = task(wakes.rebuild.clone());
        let index = DueIndex {
            store: store.clone(),
            cache: cache.clone(),
            clock: clock.clone(),
            dispatch: wakes.dispatch.clone(),
            every: config.background.rebuild,
        };
        loops.spawn(drive_led(index, wake_index, board_index, leadership.clone(), stop_index));
        let (wake_republish, board_republish, stop_republish) = task(wakes.republish.clone());
        let republisher = Republisher {
            store: store.clone(),
            publisher: publisher.clone(),
            clock: clock.clone(),
            every: config.background.republish,
            left: HashSet::new(),
        };
        loops.spawn(drive(republisher, wake_republish, board_republish, stop_republish));
        let watch = republisher::wake_when_up(publisher.clone(), wakes.republish.clone());
        let stop_watch = stop_loops.clone();
        loops.spawn(async move { stop_watch.run_until_cancelled(watch).await });
        let presence =
            Presence { store: store.clone(), hub: hub.clone(), clock: clock.clone(), known: Default::default() };
        loops.spawn(drive(presence, Arc::default(), board.clone(), stop_loops.clone()));

        let names = broker.topology().clone();
        let status =
            StatusIntake { store: store.clone(), wakes: wakes.clone(), hub: hub.clone(), clock: clock.clone() };
        loops.spawn(consume(broker.clone(), names.status(), status, stop_loops.clone()));
        let logs = LogIntake { store: store.clone(), hub: hub.clone(), clock: clock.clone() };
        loops.spawn(consume(broker.clone(), names.logs(), logs, stop_loops.clone()));
        let registration = RegistrationIntake {
            store: store.clone(),
            publisher: publisher.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
        };
        loops.spawn(consume(broker.clone(), names.registration(), registration, stop_loops.clone()));

        let jobs = Jobs {
            store: store.clone(),
            cache: cache.clone(),
            publisher: publisher.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
            wake: wakes.dispatch.clone(),
            republish: wakes.republish.clone(),
            release: wakes.release.clone(),
            cancellations: Arc::default(),
            flights: TaskTracker::new(),
        };
        let cluster = Cluster {
            store: store.clone(),
            cache: cache.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
            wake: wakes.dispatch.clone(),
            release: wakes.release.clone(),
        };
        let cancellations = Cancellations { jobs: jobs.clone(), open: 0 };
        loops.spawn(drive(cancellations, jobs.cancellations.clone(), board.clone(), stop_loops.clone()));
        let releaser = Releaser {
            store: store.clone(),
            cache: cache.clone(),
            sender: sender.clone(),
            jobs: jobs.clone(),
            clock: clock.clone(),
            wake: wakes.dispatch.clone(),
            next: None,
        };
        loops.spawn(drive(releaser, wakes.release.clone(), board.clone(), stop_loops.clone()));
        let letters = DeadLetterIntake {
            store: store.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
            release: jobs.release.clone(),
            failed: wakes.breaker.clone(),
        };
        loops.spawn(consume(broker.clone(), names.dead_letter_queue(), letters, stop_loops.clone()));
        let claims = ClaimIntake { store: store.clone() };
        loops.spawn(consume(broker.clone(), names.claims(), claims, stop_loops.clone()));
        let (alerts, sending) = Alerts::new(config.alerts.webhook_url.clone());
        let stop_alerts = stop_pipes.clone();
        pipes.spawn(async move { stop_alerts.run_until_cancelled(sending).await });
        let breaker = Breaker { jobs: jobs.clone(), alerts, usual: config.alerts.auto_disable };
        loops.spawn(drive(breaker, wakes.breaker.clone(), board.clone(), stop_loops.clone()));
        let upkeep = Upkeep {
            store: store.clone(),
            clock: clock.clone(),
            retention: config.retention.clone(),
            release: jobs.release.clone(),
        };
        loops.spawn(drive_led(upkeep, Arc::default(), board.clone(), leadership.clone(), stop_loops.clone()));
        let growth = Growth { store: store.clone(), clock: clock.clone() };
        loops.spawn(drive_led(growth, Arc::default(), board.clone(), leadership.clone(), stop_loops.clone()));
        let watch = ClockWatch { store: store.clone(), clock: clock.clone(), measured: None };
        loops.spawn(drive(watch, Arc::default(), board.clone(), stop_loops.clone()));
        let zombies = Zombies {
            store: store.clone(),
            cache: cache.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
            ears: Ears::new(broker.clone()),
            leadership: leadership.clone(),
            limit: config.lost.zombie,
            wake: jobs.wake.clone(),
            republish: jobs.republish.clone(),
            release: jobs.release.clone(),
            watch: Zombies::watch(),
        };
        loops.spawn(drive_led(zombies, Arc::default(), board.clone(), leadership.clone(), stop_loops.clone()));
        let lost_messages = LostMessages {
            store: store.clone(),
            broker: broker.clone(),
            probe: QueueProbe::new(broker.clone()),
            clock: clock.clone(),
            leadership: leadership.clone(),
            after: config.lost.requeue_after,
            republish: jobs.republish.clone(),
        };
        loops.spawn(drive_led(lost_messages, Arc::default(), board.clone(), leadership.clone(), stop_loops.clone()));
        let health =
            HealthCheck { store: store.clone(), cache: cache.clone(), broker, publisher, board: board.clone() };
        let http_config = Arc::new(config.http.clone());
        let backend = Arc::new(ServerBackend {
            store: store.clone(),
            clock: clock.clone(),
            jobs: jobs.clone(),
            cluster,
            hasher: Hasher::new(),
            health: health.clone(),
            config: http_config.clone(),
        });
        let state = WebState {
            store: store.clone(),
            clock: clock.clone(),
            hub: hub.clone(),
            config: http_config,
            health,
            stop: stop_doors.clone(),
        };
        let service = crate::http::router(&state, backend).into_make_service_with_connect_info::<SocketAddr>();
        let stop_serving = stop_doors.clone();
        doors.spawn(async move {
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
            board,
            leadership,
            stop_doors,
            stop_loops,
            stop_pipes,
            doors,
            loops,
            pipes,
        })
    }

    /// Stops: the door and the loops, then the pipes they wrote to. Within about five seconds.
    pub async fn stop(self) {
        self.stop_doors.cancel();
        self.stop_loops.cancel();
        self.doors.close();
        self.loops.close();
        let stages = async {
            self.loops.wait().await;
            self.sender.finish().await;
            self.jobs.flights.close();
            self.jobs.flights.wait().await;
            self.stop_pipes.cancel();
            self.pipes.close();
            self.pipes.wait().await;
            // A browser that holds a connection open without using it is not waited for any longer than this.
            let _ = tokio::time::timeout(Duration::from_secs(1), self.doors.wait()).await;
        };
        if tokio::time::timeout(STOP, stages).await.is_err() {
            tracing::warn!(
                limit_s = STOP.as_secs(),
                "something did not stop in time and is left behind; nothing is lost"
            );
        }
        let _ = tokio::time::timeout(Duration::from_secs(1), self.store.close()).await;
    }
}

async fn connect_store(config: &Config) -> Result<Store, String> {
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
    for port in FIRST_PORT..FIRST_PORT + PORTS {
        match TcpListener::bind((host, port)).await {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    let reason = last.map(|error| error.to_string()).unwrap_or_default();
    Err(format!("No port from {FIRST_PORT} to {} is free on {host}: {reason}. Set PORT.", FIRST_PORT + PORTS - 1))
}
