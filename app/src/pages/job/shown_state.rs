//! The state, active or paused, that an action on a job shows before a read contains it.

use leptos::prelude::*;
use milvaion_api::views::JobRow;
use milvaion_protocol::id::JobId;

/// The state of a job that an action shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownState {
    /// True if the job is active.
    pub is_active: bool,
    /// False while the action has no answer.
    pub is_answered: bool,
}

/// The states that the actions of a page show. A read that began before the answer may lack the change, so it does not
/// turn the state back.
#[derive(Clone, Copy)]
pub struct ShownStates(StoredValue<Vec<(JobId, ShownState)>>);

impl ShownStates {
    /// Creates the states of a page on which no action was used.
    #[must_use]
    pub fn new() -> Self {
        Self(StoredValue::new(Vec::new()))
    }

    /// Records the state that an action on `job` shows.
    pub fn record(self, job: JobId, state: ShownState) {
        self.0.update_value(|states| {
            states.retain(|(other, _)| *other != job);
            states.push((job, state));
        });
    }

    /// Forgets the actions with an answer, because a read that begins now contains their changes.
    pub fn begin_read(self) {
        self.0.update_value(|states| states.retain(|(_, state)| !state.is_answered));
    }

    /// Forgets the actions on the jobs for which `is_kept` returns false.
    pub fn retain(self, is_kept: impl Fn(JobId) -> bool) {
        self.0.update_value(|states| states.retain(|(job, _)| is_kept(*job)));
    }

    /// Replaces the state that was read by the one that an action shows.
    pub fn correct(self, row: &mut JobRow) {
        self.0.with_value(|states| {
            if let Some((_, state)) = states.iter().find(|(job, _)| *job == row.id) {
                row.is_active = state.is_active;
            }
        });
    }
}

impl Default for ShownStates {
    fn default() -> Self {
        Self::new()
    }
}
