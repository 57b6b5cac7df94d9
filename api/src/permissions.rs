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
    pub const fn label(self) -> &'static str {
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
    pub fn allows(self, action: Permission) -> bool {
        self >= action.required_role()
    }
}

/// Everything a person can ask of the server. A new server function must name one of these to get at the backend, so
/// none can be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
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
pub const ALL_PERMISSIONS: [Permission; 10] = [
    Permission::Read,
    Permission::RunJob,
    Permission::CancelOccurrence,
    Permission::SettleFailures,
    Permission::DefineJob,
    Permission::DefineCalendar,
    Permission::PauseCluster,
    Permission::DeleteJob,
    Permission::ReadTeam,
    Permission::ManageTeam,
];

impl Permission {
    /// The least role that may do it.
    #[must_use]
    pub const fn required_role(self) -> Role {
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
    pub const fn describe(self) -> &'static str {
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
        for action in ALL_PERMISSIONS {
            assert_eq!(Role::Viewer.allows(action), action == Permission::Read);
            assert!(Role::Admin.allows(action));
        }
        let an_operator_s = [
            Permission::RunJob,
            Permission::CancelOccurrence,
            Permission::SettleFailures,
            Permission::DefineJob,
            Permission::DefineCalendar,
            Permission::PauseCluster,
        ];
        for action in an_operator_s {
            assert!(Role::Operator.allows(action), "{}", action.describe());
        }
        assert!(!Role::Operator.allows(Permission::ReadTeam));
    }
}
