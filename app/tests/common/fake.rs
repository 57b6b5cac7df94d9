//! A backend of plain values.

mod backend;

use std::sync::{Arc, Mutex};

use milvaion_api::{
    permissions::Role,
    views::{ClusterPause, CurrentUser},
};
use milvaion_app::{backend::FlashMessage, error::AppError};
use milvaion_protocol::{id::JobId, status::OccurrenceStatus};

use super::samples;

/// What the backend holds and what was asked of it.
pub(crate) struct FakeBackend {
    /// Who asks; nobody when signed out.
    pub(crate) me: Option<CurrentUser>,
    /// Whether there is anything at all.
    pub(crate) empty: bool,
    /// The status of every occurrence.
    pub(crate) status: OccurrenceStatus,
    /// Whether a live worker can run it.
    pub(crate) worker_alive: bool,
    /// Whether occurrences were started twice.
    pub(crate) duplicate_starts: bool,
    /// The pause of everything, while there is one.
    pub(crate) paused: Mutex<Option<ClusterPause>>,
    /// What plain forms left.
    pub(crate) flashes: Mutex<Vec<FlashMessage>>,
    /// What was changed, one line for each change.
    pub(crate) done: Mutex<Vec<String>>,
}

impl FakeBackend {
    /// Somebody with this role before a busy installation.
    pub(crate) fn signed_in(role: Role) -> Self {
        Self {
            me: Some(samples::me(role)),
            empty: false,
            status: OccurrenceStatus::Completed,
            worker_alive: true,
            duplicate_starts: false,
            paused: Mutex::default(),
            flashes: Mutex::default(),
            done: Mutex::default(),
        }
    }

    /// Nobody.
    pub(crate) fn signed_out() -> Self {
        Self { me: None, ..Self::signed_in(Role::Viewer) }
    }

    /// The same, before an installation that holds nothing yet.
    pub(crate) fn empty(self) -> Self {
        Self { empty: true, ..self }
    }

    /// The same, with every occurrence in this state.
    pub(crate) fn with_status(self, status: OccurrenceStatus) -> Self {
        Self { status, ..self }
    }

    /// The same, with a second start of every occurrence.
    pub(crate) fn duplicate_starts(self) -> Self {
        Self { duplicate_starts: true, ..self }
    }

    /// The same, without a live worker.
    pub(crate) fn without_worker(self) -> Self {
        Self { worker_alive: false, ..self }
    }

    /// The same, while everything is paused for this reason.
    pub(crate) fn paused(self, reason: &str) -> Self {
        Self { paused: Mutex::new(Some(samples::pause(reason))), ..self }
    }

    /// Ready to be asked.
    pub(crate) fn ready(self) -> Arc<Self> {
        Arc::new(self)
    }

    fn note(&self, what: impl Into<String>) {
        self.done.lock().expect("no test panics inside").push(what.into());
    }

    fn known(&self, id: JobId) -> Result<(), AppError> {
        if id == samples::job_id() { Ok(()) } else { Err(AppError::NotFound("There is no such job.".into())) }
    }
}
