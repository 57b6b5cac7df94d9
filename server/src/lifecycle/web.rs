//! What answers the requests of users: the router, and what stands behind it.

use std::{net::SocketAddr, sync::Arc};

use axum::Router;
use milvaion_app::backend::Backend;
use tokio_util::sync::CancellationToken;

use super::connections::Connections;
use crate::{
    command::{
        alerts::AlertCommands, cluster::ClusterCommands, jobs::JobCommands, sign_in::PassphraseHasher,
        singletons::SingletonCommands,
    },
    config::http::HttpConfig,
    engine::context::Context,
    http::{
        WebState,
        export::ExportState,
        health::{HealthCheck, HealthHistory, LastCheck},
        metrics::scrape::{LastRead, MetricsReader},
        rest::{ApiState, guard::RateLimits},
    },
    ui::{backend::ServerBackend, job_counts::JobCounter},
};

/// What answers the requests of users.
#[derive(Debug)]
pub(super) struct Web {
    /// The settings, with the port that the listener has.
    pub(super) config: Arc<HttpConfig>,
    /// The commands that change jobs and occurrences, with the connections of requests.
    pub(super) jobs: JobCommands,
    /// The operations of the dashboard.
    pub(super) backend: Arc<ServerBackend>,
    /// The reader of the metrics.
    pub(super) metrics: MetricsReader,
    /// All routes.
    pub(super) router: Router,
}

impl Web {
    /// Wires the handlers of a server that listens at `address`. `stop` ends their streams.
    pub(super) fn new(
        context: &Context,
        connections: &Connections,
        address: SocketAddr,
        stop: &CancellationToken,
    ) -> Self {
        // Without `PORT`, the configuration does not have the port.
        let config = Arc::new(HttpConfig { port: Some(address.port()), ..context.config.http.clone() });
        let (store, clock, hub) = (connections.web.clone(), context.clock.clone(), context.hub.clone());
        let sender = context.sender.for_requests();
        let jobs = JobCommands { store: store.clone(), sender, ..JobCommands::of(context) };
        let cluster = ClusterCommands {
            store: store.clone(),
            cache: context.cache.clone(),
            hub: hub.clone(),
            clock: clock.clone(),
            activate_dispatcher: context.activators.dispatcher.clone(),
            activate_slot_granter: context.activators.slot_granter.clone(),
        };
        let health = HealthCheck {
            store: context.store.clone(),
            cache: context.cache.clone(),
            broker: context.broker.clone(),
            publisher: context.publisher.clone(),
            services: context.services.clone(),
            oldest_snapshot: context.oldest_snapshot.clone(),
            deaf_since: context.deaf_since.clone(),
            history: HealthHistory::default(),
            last: LastCheck::default(),
        };
        let metrics = MetricsReader {
            metrics: connections.metrics.clone(),
            store: store.clone(),
            pools: vec![context.store.clone(), store.clone(), context.reports.clone()],
            health: health.clone(),
            services: context.services.clone(),
            leadership: context.leadership.clone(),
            clock: clock.clone(),
            last: LastRead::new(context.broker.clone()),
        };
        let backend = Arc::new(ServerBackend {
            store: store.clone(),
            job_counts: JobCounter::default(),
            clock: clock.clone(),
            jobs: jobs.clone(),
            cluster: cluster.clone(),
            alerts: AlertCommands {
                store: store.clone(),
                clock: clock.clone(),
                hub: hub.clone(),
                notifier: context.notifier.clone(),
            },
            singletons: SingletonCommands { store: store.clone(), cache: context.cache.clone(), clock: clock.clone() },
            hasher: PassphraseHasher::new(),
            health: health.clone(),
            config: config.clone(),
        });
        let site = crate::ui::site::read(&config.site_root);
        let state = WebState {
            store: store.clone(),
            clock: clock.clone(),
            hub: hub.clone(),
            config: config.clone(),
            health: health.clone(),
            build: site.build.as_str().into(),
            stop: stop.clone(),
        };
        let pages = crate::ui::router(&config, site, backend.clone());
        let shown: Arc<dyn Backend> = backend.clone();
        let exports = ExportState::new(store.clone(), clock.clone(), shown.clone());
        let api = ApiState {
            backend: shown,
            jobs: jobs.clone(),
            store,
            clock,
            hub,
            config: config.clone(),
            cluster,
            health,
            limits: RateLimits::new(config.api_rate_limit),
            stop: stop.clone(),
        };
        let router = crate::http::router(&state, exports, &api, &metrics, pages);
        Self { config, jobs, backend, metrics, router }
    }
}
