//! Who may do what: one table, asked by the server for every action and by pages to decide what to draw.

use serde::{Deserialize, Serialize};

/// What a person is to this installation. Each role may do all that the one before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sees everything that runs, changes nothing.
    Viewer,
    /// Defines jobs and runs them.
    Operator,
    /// Does everything, people included.
    Admin,
}

impl Role {
    /// The word in the database and in forms.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// The word people read.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Viewer => "Viewer",
            Self::Operator => "Operator",
            Self::Admin => "Admin",
        }
    }

    /// The role behind a [`slug`](Self::slug).
    #[must_use]
    pub fn from_slug(slug: &str) -> Option<Self> {
        [Self::Viewer, Self::Operator, Self::Admin].into_iter().find(|role| role.slug() == slug)
    }

    /// Whether this role may do `action`.
    #[must_use]
    pub fn may(self, action: Action) -> bool {
        self >= action.needs()
    }
}

/// Everything a person can ask of the server. A new server function must name one of these to get at the backend, so
/// none can be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Read jobs, occurrences, logs, workers, the overview.
    Read,
    /// Run a job now.
    RunJob,
    /// Cancel what waits, and ask what runs to end.
    CancelOccurrence,
    /// Run failures again, and settle failures and dead letters.
    SettleFailures,
    /// Create, edit, pause and resume jobs, and go back to an earlier version of one.
    DefineJob,
    /// Make, change and delete calendars.
    DefineCalendar,
    /// Stop everything from being fired, and let it go on.
    PauseCluster,
    /// Delete a job.
    DeleteJob,
    /// See the team.
    ReadTeam,
    /// Add people and change what they are.
    ManageTeam,
}

/// Every action, for the tests that walk the whole table.
pub const ALL_ACTIONS: [Action; 10] = [
    Action::Read,
    Action::RunJob,
    Action::CancelOccurrence,
    Action::SettleFailures,
    Action::DefineJob,
    Action::DefineCalendar,
    Action::PauseCluster,
    Action::DeleteJob,
    Action::ReadTeam,
    Action::ManageTeam,
];

impl Action {
    /// The least role that may do it.
    #[must_use]
    pub const fn needs(self) -> Role {
        match self {
            Self::Read => Role::Viewer,
            Self::RunJob
            | Self::CancelOccurrence
            | Self::SettleFailures
            | Self::DefineJob
            | Self::DefineCalendar
            | Self::PauseCluster => Role::Operator,
            Self::DeleteJob | Self::ReadTeam | Self::ManageTeam => Role::Admin,
        }
    }

    /// Whether it changes anything; such a request must come from our own pages.
    #[must_use]
    pub const fn mutates(self) -> bool {
        !matches!(self, Self::Read | Self::ReadTeam)
    }

    /// The action in words, for "only an Operator may …".
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Read => "see this page",
            Self::RunJob => "run jobs",
            Self::CancelOccurrence => "cancel occurrences",
            Self::SettleFailures => "settle failures",
            Self::DefineJob => "change jobs",
            Self::DefineCalendar => "change calendars",
            Self::PauseCluster => "pause or resume everything",
            Self::DeleteJob => "delete jobs",
            Self::ReadTeam => "see the team",
            Self::ManageTeam => "change the team",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_viewer_only_reads_and_an_admin_may_all() {
        for action in ALL_ACTIONS {
            assert_eq!(Role::Viewer.may(action), action == Action::Read);
            assert!(Role::Admin.may(action));
        }
        let an_operator_s = [
            Action::RunJob,
            Action::CancelOccurrence,
            Action::SettleFailures,
            Action::DefineJob,
            Action::DefineCalendar,
            Action::PauseCluster,
        ];
        for action in an_operator_s {
            assert!(Role::Operator.may(action), "{}", action.words());
        }
        assert!(!Role::Operator.may(Action::ReadTeam));
    }
}
