//! A backend that returns fixed values and records changes.

mod account;
pub(crate) mod alerts;
mod audit;
mod backend;
pub(crate) mod singletons;
pub(crate) mod team;
pub(crate) mod tokens;

use std::sync::{Arc, Mutex, MutexGuard, atomic::AtomicBool};

use milvaion_api::{
    permissions::Role,
    singletons::SingletonLoop,
    tokens::TokenRow,
    views::{ClusterPause, CurrentUser},
};
use milvaion_app::{backend::FlashMessage, error::AppError};
use milvaion_protocol::{id::JobId, status::OccurrenceStatus};

use self::{alerts::FakeAlerts, team::FakeTeam};
use super::samples;

/// A backend that pages and forms are tested against: its settings, and a record of the calls that changed something.
pub(crate) struct FakeBackend {
    /// The signed-in user; none while signed out.
    pub(crate) me: Option<CurrentUser>,
    /// True for an installation without jobs, occurrences, workers or accounts.
    pub(crate) empty: bool,
    /// The status of every occurrence.
    pub(crate) status: OccurrenceStatus,
    /// True if a live worker offers the sample job type.
    pub(crate) worker_alive: bool,
    /// True if every occurrence was started twice.
    pub(crate) duplicate_starts: bool,
    pub(crate) started_after_end: bool,
    /// True if a cancel request is stored for every occurrence.
    pub(crate) cancelling: bool,
    /// True if no session can be ended.
    pub(crate) sign_out_fails: bool,
    /// True while PostgreSQL is down, so that no session and no data can be read.
    pub(crate) database_down: bool,
    /// The cluster pause.
    pub(crate) paused: Mutex<Option<ClusterPause>>,
    /// True after the first read. The position of the stream is known only before it, because a later one would skip
    /// events that the data does not contain.
    pub(crate) was_read: AtomicBool,
    /// The users and invitations.
    pub(crate) team: Mutex<FakeTeam>,
    /// The API tokens, newest first.
    pub(crate) tokens: Mutex<Vec<TokenRow>>,
    /// The alerts, their rules and channels.
    pub(crate) alerts: Mutex<FakeAlerts>,
    /// The singleton loops, by name.
    pub(crate) loops: Mutex<Vec<SingletonLoop>>,
    /// The flash messages that plain forms left behind.
    pub(crate) flashes: Mutex<Vec<FlashMessage>>,
    /// The changes that were made, one line each.
    pub(crate) done: Mutex<Vec<String>>,
    /// The objects whose audit log was read.
    pub(crate) reads: Mutex<Vec<String>>,
}

impl FakeBackend {
    /// Returns a busy installation with a signed-in user of this role.
    pub(crate) fn signed_in(role: Role) -> Self {
        Self {
            me: Some(samples::me(role)),
            empty: false,
            status: OccurrenceStatus::Completed,
            worker_alive: true,
            duplicate_starts: false,
            started_after_end: false,
            cancelling: false,
            sign_out_fails: false,
            database_down: false,
            paused: Mutex::default(),
            was_read: AtomicBool::default(),
            team: Mutex::new(FakeTeam::around(samples::me(role))),
            tokens: Mutex::new(tokens::tokens_of(&samples::me(role))),
            alerts: Mutex::new(FakeAlerts::busy()),
            loops: Mutex::new(singletons::loops()),
            flashes: Mutex::default(),
            done: Mutex::default(),
            reads: Mutex::default(),
        }
    }

    /// Returns a busy installation without a signed-in user.
    pub(crate) fn signed_out() -> Self {
        Self { me: None, ..Self::signed_in(Role::Viewer) }
    }

    /// Empties the installation.
    pub(crate) fn empty(self) -> Self {
        let team = self.me.clone().map_or(self.team, |me| Mutex::new(FakeTeam::only(me)));
        Self { empty: true, team, tokens: Mutex::default(), alerts: Mutex::default(), loops: Mutex::default(), ..self }
    }

    /// Sets the status of every occurrence.
    pub(crate) fn with_status(self, status: OccurrenceStatus) -> Self {
        Self { status, ..self }
    }

    /// Gives every occurrence a second start.
    pub(crate) fn duplicate_starts(self) -> Self {
        Self { duplicate_starts: true, ..self }
    }

    /// Gives every occurrence a start after its end, and none before.
    pub(crate) fn started_after_end(self) -> Self {
        Self { started_after_end: true, ..self }
    }

    /// Stores a cancel request for every occurrence.
    pub(crate) fn cancelling(self) -> Self {
        Self { cancelling: true, ..self }
    }

    /// Makes every sign-out fail.
    pub(crate) fn with_failing_sign_out(self) -> Self {
        Self { sign_out_fails: true, ..self }
    }

    /// Stops PostgreSQL.
    pub(crate) fn database_down(self) -> Self {
        Self { database_down: true, ..self }
    }

    /// Removes the live workers.
    pub(crate) fn without_worker(self) -> Self {
        Self { worker_alive: false, ..self }
    }

    /// Makes Grace a second Admin.
    pub(crate) fn second_admin(self) -> Self {
        self.team.lock().expect("the mutex is not poisoned").make_grace_admin();
        self
    }

    /// Pauses all schedules with this reason.
    pub(crate) fn paused(self, reason: &str) -> Self {
        Self { paused: Mutex::new(Some(samples::pause(reason))), ..self }
    }

    /// Wraps the backend for use in requests.
    pub(crate) fn ready(self) -> Arc<Self> {
        Arc::new(self)
    }

    /// Returns the alerts.
    pub(crate) fn lock_alerts(&self) -> MutexGuard<'_, FakeAlerts> {
        self.alerts.lock().expect("the mutex is not poisoned")
    }

    fn record(&self, change: impl Into<String>) {
        self.done.lock().expect("the mutex is not poisoned").push(change.into());
    }

    fn check_database(&self) -> Result<(), AppError> {
        if self.database_down {
            Err(AppError::Unavailable("The session cannot be read. Try again in a moment.".into()))
        } else {
            Ok(())
        }
    }

    fn check_job_exists(&self, id: JobId) -> Result<(), AppError> {
        if id == samples::job_id() { Ok(()) } else { Err(AppError::NotFound("This job does not exist.".into())) }
    }
}
