//! The permissions of each role: one table, which the server checks for every action and pages use to hide controls.

use serde::{Deserialize, Serialize};

/// The role of a user. Each role has all permissions of the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reads everything but the team, changes nothing.
    Viewer,
    /// Defines and runs jobs.
    Operator,
    /// Does everything, including the management of users.
    Admin,
}

impl Role {
    /// Every role, the one with the fewest rights first.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// Returns the word in the database and in forms.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// Returns the name for display.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Viewer => "Viewer",
            Self::Operator => "Operator",
            Self::Admin => "Admin",
        }
    }

    /// Returns the role of a [`slug`](Self::slug).
    #[must_use]
    pub fn from_slug(slug: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.slug() == slug)
    }

    /// Returns true if this role may take `action`.
    #[must_use]
    pub fn allows(self, action: Permission) -> bool {
        self >= action.required_role()
    }
}

/// An action that a user can request. A server function must name one to get access to the backend, so that no check
/// can be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    /// Read jobs, occurrences, logs, workers and the overview.
    Read,
    /// Run a job now.
    RunJob,
    /// Cancel queued occurrences, and request the end of running ones.
    CancelOccurrence,
    /// Retry failures, and resolve failures and dead letters.
    SettleFailures,
    /// Create, edit, pause and resume jobs, and restore earlier versions.
    DefineJob,
    /// Create, edit and delete calendars.
    DefineCalendar,
    /// Create, edit, mute and delete alert rules, and read alert channels.
    DefineAlert,
    /// Create, edit, test and delete alert channels.
    ManageAlertChannels,
    /// Enable, disable and forget singleton loops, and move their leadership.
    ControlLoops,
    /// Pause and resume the cluster.
    PauseCluster,
    /// Delete a job.
    DeleteJob,
    /// Read the team.
    ReadTeam,
    /// Invite users, change their roles, deactivate and remove them, and end their sessions.
    ManageTeam,
    /// Change the own name, passphrase and preferences, and end own sessions.
    ManageAccount,
    /// Create, rotate and revoke own API tokens; Admins also those of others and of services.
    ManageTokens,
    /// Read the audit log of one job or occurrence.
    ReadObjectAudit,
    /// Read the whole audit log.
    ReadAudit,
    /// Export the team or the audit log as a file.
    Export,
}

/// Every permission, for tests of the whole table.
pub const ALL_PERMISSIONS: [Permission; 18] = [
    Permission::Read,
    Permission::RunJob,
    Permission::CancelOccurrence,
    Permission::SettleFailures,
    Permission::DefineJob,
    Permission::DefineCalendar,
    Permission::DefineAlert,
    Permission::ManageAlertChannels,
    Permission::ControlLoops,
    Permission::PauseCluster,
    Permission::DeleteJob,
    Permission::ReadTeam,
    Permission::ManageTeam,
    Permission::ManageAccount,
    Permission::ManageTokens,
    Permission::ReadObjectAudit,
    Permission::ReadAudit,
    Permission::Export,
];

impl Permission {
    /// Returns the lowest role with this permission.
    #[must_use]
    pub const fn required_role(self) -> Role {
        match self {
            Self::Read | Self::ManageAccount | Self::ManageTokens => Role::Viewer,
            Self::RunJob
            | Self::CancelOccurrence
            | Self::SettleFailures
            | Self::DefineJob
            | Self::DefineCalendar
            | Self::DefineAlert
            | Self::ControlLoops
            | Self::PauseCluster
            | Self::ReadObjectAudit => Role::Operator,
            Self::ManageAlertChannels
            | Self::DeleteJob
            | Self::ReadTeam
            | Self::ManageTeam
            | Self::ReadAudit
            | Self::Export => Role::Admin,
        }
    }

    /// Returns true if the action changes anything. Such a request must come from our own pages.
    #[must_use]
    pub const fn mutates(self) -> bool {
        !matches!(self, Self::Read | Self::ReadTeam | Self::ReadObjectAudit | Self::ReadAudit | Self::Export)
    }

    /// Returns the action as words, for messages such as "Only an Operator may …".
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Read => "view this page",
            Self::RunJob => "run jobs",
            Self::CancelOccurrence => "cancel runs",
            Self::SettleFailures => "resolve failures",
            Self::DefineJob => "change jobs",
            Self::DefineCalendar => "change calendars",
            Self::DefineAlert => "change alert rules",
            Self::ManageAlertChannels => "change alert channels",
            Self::ControlLoops => "control singleton loops",
            Self::PauseCluster => "pause or resume all schedules",
            Self::DeleteJob => "delete jobs",
            Self::ReadTeam => "view the team",
            Self::ManageTeam => "change the team",
            Self::ManageAccount => "change the own account",
            Self::ManageTokens => "manage API tokens",
            Self::ReadObjectAudit => "view the changes of a job",
            Self::ReadAudit => "view the audit log",
            Self::Export => "export the team and the audit log",
        }
    }
}

/// The permissions that a user gains and loses by a change of role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RightsChange {
    /// The permissions that only the new role has.
    pub gained: Vec<Permission>,
    /// The permissions that only the old role has.
    pub lost: Vec<Permission>,
}

impl RightsChange {
    /// Returns the difference between two roles, in the order of [`ALL_PERMISSIONS`].
    #[must_use]
    pub fn between(from: Role, to: Role) -> Self {
        let only = |has: Role, lacks: Role| {
            ALL_PERMISSIONS.into_iter().filter(|action| has.allows(*action) && !lacks.allows(*action)).collect()
        };
        Self { gained: only(to, from), lost: only(from, to) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn viewer_only_reads_and_admin_may_do_all() {
        for action in ALL_PERMISSIONS {
            let is_viewers = matches!(action, Permission::Read | Permission::ManageAccount | Permission::ManageTokens);
            assert_eq!(Role::Viewer.allows(action), is_viewers, "{}", action.describe());
            assert!(Role::Admin.allows(action));
        }
        let operator_permissions = [
            Permission::RunJob,
            Permission::CancelOccurrence,
            Permission::SettleFailures,
            Permission::DefineJob,
            Permission::DefineCalendar,
            Permission::ControlLoops,
            Permission::PauseCluster,
            Permission::ReadObjectAudit,
        ];
        for action in operator_permissions {
            assert!(Role::Operator.allows(action), "{}", action.describe());
        }
        assert!(!Role::Operator.allows(Permission::ReadTeam));
        assert!(!Role::Operator.allows(Permission::ReadAudit));
    }

    #[test]
    fn a_role_change_names_the_rights_gained_and_lost() {
        let words = |rights: Vec<Permission>| rights.into_iter().map(Permission::describe).collect::<Vec<_>>();
        let RightsChange { gained, lost } = RightsChange::between(Role::Viewer, Role::Operator);
        assert!(words(gained).contains(&"run jobs"));
        assert!(lost.is_empty());
        let RightsChange { gained, lost } = RightsChange::between(Role::Admin, Role::Operator);
        assert!(gained.is_empty());
        assert!(words(lost).contains(&"change the team"));
    }
}
