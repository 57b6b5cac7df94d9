//! Calls the address of a watcher outside while the dispatcher works: a dead man's switch.
//!
//! A server cannot raise an alarm about its own death, and no rule can report that all servers are gone. The watcher, which
//! runs elsewhere, raises the alarm when the calls stop. A call is therefore made only after a good tick of the dispatcher:
//! a server that answers requests and dispatches nothing must look dead. A cluster that users have paused dispatches
//! nothing either and is well, so its calls go on.
//!
//! The leader calls. While no server can lead because Redis is away, every server dispatches, and every one calls.

use std::time::Duration;

use anyhow::Context as _;
use reqwest::{Client, redirect::Policy};

use super::dispatcher;
use crate::{
    config::secret_text::SecretText,
    engine::{
        RunsOn, Service,
        context::Context,
        dispatch_pulse::DispatchPulse,
        status::{ServiceHealth, ServiceStatuses},
    },
    error::chain,
};

/// The time between two calls.
const CALL_INTERVAL: Duration = Duration::from_secs(60);
/// The time until the next look while the first tick of the dispatcher has not ended.
const FIRST_TICK_INTERVAL: Duration = Duration::from_secs(1);
/// The time until the next try after a call that failed or was left out.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// The timeout of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The time without a tick of the dispatcher, counted from the expected one, after which it counts as stalled. The lease
/// is given back then too.
const MAX_DISPATCH_DELAY: Duration = Duration::from_secs(20);
/// The most redirects that are followed. The operator has chosen the address.
const MAX_REDIRECTS: usize = 3;

/// The background task that calls the watcher.
#[derive(Debug)]
pub struct WatcherCalls {
    /// The address; none makes no call.
    pub url: Option<SecretText>,
    /// The pulse of this server's dispatcher.
    pub pulse: DispatchPulse,
    /// The state of each service of this server.
    pub services: ServiceStatuses,
    /// The time without a tick after which the dispatcher counts as stalled.
    pub max_delay: Duration,
    /// The result of the last tick.
    pub last: WatcherReport,
    client: Option<Client>,
}

impl WatcherCalls {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        let url = context.config.alerts.heartbeat_url.clone();
        Self::with(url, context.dispatch_pulse.clone(), context.services.clone())
    }

    /// Creates the service for a dispatcher with this pulse and these statuses.
    #[must_use]
    pub fn with(url: Option<SecretText>, pulse: DispatchPulse, services: ServiceStatuses) -> Self {
        let (max_delay, last) = (MAX_DISPATCH_DELAY, WatcherReport::default());
        Self { url, pulse, services, max_delay, last, client: None }
    }
}

/// The state of the dispatcher of this server.
enum DispatcherState {
    /// Its last tick is recent and succeeded.
    Works,
    /// Its first tick under this lease has not ended yet.
    Begins,
    /// It does not work, for this reason.
    Unwell(&'static str),
}

/// The result of one tick.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct WatcherReport {
    /// True if the watcher accepted the call.
    pub was_accepted: bool,
    /// The reason why it was not called or did not accept the call.
    pub failure: Option<String>,
}

impl Service for WatcherCalls {
    const NAME: &'static str = "watcher-calls";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    type Report = WatcherReport;

    fn period(&self) -> Duration {
        CALL_INTERVAL
    }

    fn next_tick_in(&self) -> Option<Duration> {
        match &self.last {
            WatcherReport { was_accepted: true, .. } => None,
            WatcherReport { failure: Some(_), .. } => Some(RETRY_INTERVAL),
            _ => Some(FIRST_TICK_INTERVAL),
        }
    }

    /// Calls the watcher. A failure is no failure of the tick: the watcher itself raises the alarm, and the health of this
    /// server must not depend on a system outside.
    async fn tick(&mut self) -> anyhow::Result<WatcherReport> {
        let Some(url) = self.url.clone() else { return Ok(WatcherReport::default()) };
        let failure = match self.dispatcher() {
            DispatcherState::Works => self.call(&url).await?.err(),
            DispatcherState::Unwell(reason) => Some(reason.to_owned()),
            DispatcherState::Begins => {
                self.last = WatcherReport::default();
                return Ok(self.last.clone());
            }
        };
        match &failure {
            Some(reason) if self.last.failure.as_ref() != Some(reason) => {
                tracing::warn!(error = reason, "the watcher of HEARTBEAT_URL gets no heartbeat: {reason}");
            }
            None if self.last.failure.is_some() => tracing::info!("the watcher of HEARTBEAT_URL gets heartbeats again"),
            _ => {}
        }
        self.last = WatcherReport { was_accepted: failure.is_none(), failure };
        Ok(self.last.clone())
    }

    fn is_notable(_: &WatcherReport) -> bool {
        // What is worth a line is logged by the tick.
        false
    }
}

impl WatcherCalls {
    /// Returns the state of the dispatcher. The pulse alone is not enough: it begins with the lease, before the first tick,
    /// and a server that took the lease again and again would look well.
    fn dispatcher(&self) -> DispatcherState {
        if self.pulse.is_overdue(self.max_delay) {
            return DispatcherState::Unwell("the dispatcher has stalled");
        }
        match self.services.health(dispatcher::NAME) {
            ServiceHealth::Healthy if self.services.since_last_tick(dispatcher::NAME).is_some() => {
                DispatcherState::Works
            }
            ServiceHealth::Healthy | ServiceHealth::Standby => DispatcherState::Begins,
            ServiceHealth::Stalled => DispatcherState::Unwell("the dispatcher has stalled"),
            ServiceHealth::Failing(_) => DispatcherState::Unwell("the dispatcher fails"),
        }
    }

    /// Calls the watcher. Returns why it did not accept the call.
    async fn call(&mut self, url: &SecretText) -> anyhow::Result<Result<(), String>> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => {
                let user_agent = concat!("milvaion/", env!("CARGO_PKG_VERSION"));
                let builder = Client::builder().timeout(CALL_TIMEOUT).user_agent(user_agent);
                let client = builder.redirect(Policy::limited(MAX_REDIRECTS)).build();
                self.client.insert(client.context("no HTTP client can be created")?).clone()
            }
        };
        Ok(match client.get(url.expose()).send().await {
            Ok(answer) if answer.status().is_success() => Ok(()),
            Ok(answer) => Err(format!("it answers {}; check HEARTBEAT_URL", answer.status())),
            // The address is a secret.
            Err(error) => Err(format!("the request fails: {}; check HEARTBEAT_URL", chain(&error.without_url()))),
        })
    }
}
