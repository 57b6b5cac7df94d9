//! The actions of the audit log in words, grouped by what they act on.
//!
//! The log may hold actions of an older or a newer version. They are shown by name and can be filtered by name.

/// Actions on one kind of object.
#[derive(Clone, Copy, Debug)]
pub struct ActionGroup {
    /// The label of the group.
    pub label: &'static str,
    /// The start of all its actions, with a dot, if they have one; the filter for all of them.
    pub prefix: Option<&'static str>,
    /// The actions with their words.
    pub actions: &'static [(&'static str, &'static str)],
}

/// Every known action, in the order of the filter.
pub const ACTION_GROUPS: [ActionGroup; 14] = [
    ActionGroup {
        label: "jobs",
        prefix: Some("job."),
        actions: &[
            ("job.create", "Created the job"),
            ("job.update", "Changed the job"),
            ("job.pause", "Paused the job"),
            ("job.resume", "Resumed the job"),
            ("job.skip", "Skipped a due time of the job"),
            ("job.run", "Ran the job"),
            ("job.delete", "Deleted the job"),
            ("job.take-from-file", "Took the job from a file"),
            ("job.auto_disable", "Disabled the failing job"),
            ("job.auto_enable", "Enabled the job again"),
        ],
    },
    ActionGroup {
        label: "occurrences",
        prefix: Some("occurrence."),
        actions: &[
            ("occurrence.cancel", "Cancelled the run"),
            ("occurrence.ask_to_end", "Requested the end of the run"),
        ],
    },
    ActionGroup {
        label: "failures",
        prefix: Some("failure."),
        actions: &[("failure.retry", "Retried the failure"), ("failure.resolve", "Resolved the failure")],
    },
    ActionGroup {
        label: "dead letters",
        prefix: Some("dead_letter."),
        actions: &[("dead_letter.resolve", "Resolved the dead letter")],
    },
    ActionGroup {
        label: "calendars",
        prefix: Some("calendar."),
        actions: &[
            ("calendar.create", "Created the calendar"),
            ("calendar.update", "Changed the calendar"),
            ("calendar.delete", "Deleted the calendar"),
        ],
    },
    ActionGroup {
        label: "alert rules",
        prefix: Some("alert_rule."),
        actions: &[
            ("alert_rule.create", "Created the alert rule"),
            ("alert_rule.update", "Changed the alert rule"),
            ("alert_rule.mute", "Muted the alert rule"),
            ("alert_rule.unmute", "Ended the mute of the alert rule"),
            ("alert_rule.delete", "Deleted the alert rule"),
        ],
    },
    ActionGroup {
        label: "alert channels",
        prefix: Some("alert_channel."),
        actions: &[
            ("alert_channel.create", "Created the alert channel"),
            ("alert_channel.update", "Changed the alert channel"),
            ("alert_channel.test", "Tested the alert channel"),
            ("alert_channel.delete", "Deleted the alert channel"),
        ],
    },
    ActionGroup {
        label: "the cluster",
        prefix: Some("cluster."),
        actions: &[("cluster.pause", "Paused the cluster"), ("cluster.resume", "Resumed the cluster")],
    },
    ActionGroup {
        label: "singleton loops",
        prefix: Some("singleton_loop."),
        actions: &[
            ("singleton_loop.enable", "Enabled the singleton loop"),
            ("singleton_loop.disable", "Disabled the singleton loop"),
            ("singleton_loop.yield", "Asked the leader to yield"),
            ("singleton_loop.forget", "Made the singleton loop forgotten"),
        ],
    },
    ActionGroup {
        label: "users",
        prefix: Some("user."),
        actions: &[
            ("user.change-role", "Changed the role"),
            ("user.deactivate", "Deactivated the user"),
            ("user.reactivate", "Reactivated the user"),
            ("user.remove", "Removed the user"),
            ("user.unlock", "Unlocked the user"),
            ("user.end-sessions", "Ended sessions of the user"),
            ("user.create-reset-link", "Created a reset link"),
            ("user.revoke-reset-link", "Revoked the reset link"),
            ("user.reset-passphrase", "Reset the passphrase"),
            ("user.set-role", "Changed the role"),
            ("user.set-active", "Activated or deactivated the user"),
        ],
    },
    ActionGroup {
        label: "invitations",
        prefix: Some("invite."),
        actions: &[
            ("invite.create", "Created an invitation"),
            ("invite.renew", "Created a new link for the invitation"),
            ("invite.revoke", "Revoked the invitation"),
            ("invite.accept", "Accepted the invitation"),
        ],
    },
    ActionGroup {
        label: "API tokens",
        prefix: Some("token."),
        actions: &[
            ("token.create", "Created the token"),
            ("token.rotate", "Rotated the token"),
            ("token.revoke", "Revoked the token"),
        ],
    },
    ActionGroup {
        label: "own accounts",
        prefix: Some("account."),
        actions: &[
            ("account.rename", "Changed the own name"),
            ("account.change-passphrase", "Changed the own passphrase"),
            ("account.end-sessions", "Ended own sessions"),
        ],
    },
    ActionGroup {
        label: "sign-ins and access",
        prefix: None,
        actions: &[
            ("setup", "Set up the installation"),
            ("sign-in", "Signed in"),
            ("sign-in.refuse", "Failed to sign in"),
            ("sign-out", "Signed out"),
            ("refuse", "Tried an action without permission"),
            ("audit.export", "Exported the audit log"),
            ("team.export", "Exported the team"),
        ],
    },
];

/// Returns the action in words: `job.pause` → `Paused the job`.
#[must_use]
pub fn action_words(action: &str) -> Option<&'static str> {
    let mut actions = ACTION_GROUPS.iter().flat_map(|group| group.actions);
    actions.find(|(name, _)| *name == action).map(|(_, words)| *words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_belongs_to_its_group_once() {
        let mut seen = std::collections::BTreeSet::new();
        for group in ACTION_GROUPS {
            for (action, words) in group.actions {
                assert!(seen.insert(*action), "{action} is listed twice");
                assert!(group.prefix.is_none_or(|prefix| action.starts_with(prefix)), "{action}");
                assert_eq!(action_words(action), Some(*words));
            }
        }
        assert_eq!(action_words("job.teleport"), None);
    }
}
