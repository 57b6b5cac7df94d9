//! The team and the own account: requests and views of users, invitations, sessions and one-time links.

use chrono::{DateTime, Utc};
use milvaion_protocol::id::{JobId, SessionId, UserId};
use serde::{Deserialize, Serialize};

use crate::{permissions::Role, views::CurrentUser};

/// The largest number of jobs that a person's page lists.
pub const MAX_OWNED_JOBS: usize = 50;

/// The state of a row of the team page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum UserState {
    /// The user can sign in.
    Active,
    /// The user can sign in from known devices only, because there were too many failed sign-ins.
    Locked,
    /// An Admin has deactivated the user, who cannot sign in.
    Deactivated,
    /// The person has not used the invitation yet.
    Invited,
}

impl UserState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Active, Self::Locked, Self::Deactivated, Self::Invited];

    /// Returns the word in addresses and in CSV files.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Locked => "locked",
            Self::Deactivated => "deactivated",
            Self::Invited => "invited",
        }
    }

    /// Returns the state of a [`slug`](Self::slug).
    #[must_use]
    pub fn from_slug(slug: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.slug() == slug)
    }

    /// Returns the name for display.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Active => "Active",
            Self::Locked => "Locked",
            Self::Deactivated => "Deactivated",
            Self::Invited => "Invited",
        }
    }
}

/// The filter of the team page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TeamFilter {
    /// Only rows whose name or e-mail address contains this text, in any case; at most 100 characters. Empty means all.
    pub q: String,
    /// Only rows with this role.
    pub role: Option<Role>,
    /// Only rows in this state.
    pub state: Option<UserState>,
}

/// A row of the team page: a user or an invitation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TeamRow {
    /// The id of the user or, in the state [`UserState::Invited`], of the invitation.
    pub id: UserId,
    /// The name.
    pub name: String,
    /// The e-mail address; none for an invitation.
    pub email: Option<String>,
    /// The role.
    pub role: Role,
    /// The state.
    pub state: UserState,
    /// The last use of a session, to the minute.
    pub last_seen_at: Option<DateTime<Utc>>,
    /// The number of valid sessions.
    pub sessions: u32,
    /// The time at which the user joined or was invited.
    pub created_at: DateTime<Utc>,
    /// The details of an invitation.
    pub invite: Option<PendingInvite>,
}

/// The details of an invitation that is not used yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PendingInvite {
    /// The time at which the link expires or has expired.
    pub expires_at: DateTime<Utc>,
    /// The name of the user who created the invitation.
    pub invited_by: String,
    /// True if the link has expired.
    pub is_expired: bool,
}

/// The team page: all users and invitations that match a filter, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TeamView {
    /// The rows, at most 1,000 users and 1,000 invitations.
    pub rows: Vec<TeamRow>,
    /// The number of users and invitations without the filter.
    pub total: u32,
}

/// A session, as its user and Admins see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionView {
    /// The id for revocation. It grants nothing.
    pub id: SessionId,
    /// The device in words, as in `Firefox on Linux`.
    pub device: String,
    /// The network address of the sign-in, if it was known.
    pub address: Option<String>,
    /// The time of the sign-in.
    pub created_at: DateTime<Utc>,
    /// The last request, to the minute.
    pub last_seen_at: DateTime<Utc>,
    /// True for the session of this request.
    pub is_current: bool,
}

/// A job that a user has created.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OwnedJob {
    /// The id.
    pub id: JobId,
    /// The name.
    pub name: String,
    /// False if the job is paused.
    pub is_active: bool,
}

/// A one-time link with which a user chooses a new passphrase, without its token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PendingReset {
    /// The e-mail address of the Admin who created it, or `system` for the command line.
    pub created_by: String,
    /// The time of creation.
    pub created_at: DateTime<Utc>,
    /// The time at which it expires.
    pub expires_at: DateTime<Utc>,
}

/// The page of a person, for Admins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PersonView {
    /// The user.
    pub user: CurrentUser,
    /// The state; never [`UserState::Invited`].
    pub state: UserState,
    /// The time at which the user joined.
    pub created_at: DateTime<Utc>,
    /// The time of the last sign-in.
    pub last_sign_in_at: Option<DateTime<Utc>>,
    /// The last use of a session, to the minute.
    pub last_seen_at: Option<DateTime<Utc>>,
    /// The last change of the passphrase; none since the user joined.
    pub passphrase_changed_at: Option<DateTime<Utc>>,
    /// The time of the deactivation.
    pub deactivated_at: Option<DateTime<Utc>>,
    /// The time until which sign-ins from unknown devices are refused.
    pub locked_until: Option<DateTime<Utc>>,
    /// The valid sessions, the last used one first.
    pub sessions: Vec<SessionView>,
    /// The number of API tokens that are not revoked.
    pub tokens: u32,
    /// The open link for a new passphrase.
    pub reset: Option<PendingReset>,
    /// The jobs that the user has created, by name, at most [`MAX_OWNED_JOBS`].
    pub jobs: Vec<OwnedJob>,
    /// The number of jobs that the user has created.
    pub jobs_total: u32,
    /// True if no other active user is an Admin, so that this one can be neither demoted nor deactivated.
    pub is_last_admin: bool,
}

/// The page of the own account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AccountView {
    /// The user.
    pub user: CurrentUser,
    /// The time at which the user joined.
    pub created_at: DateTime<Utc>,
    /// The last change of the passphrase; none since the user joined.
    pub passphrase_changed_at: Option<DateTime<Utc>>,
    /// The valid sessions, the current one first, then the last used one.
    pub sessions: Vec<SessionView>,
}

/// The purpose of a one-time link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LinkKind {
    /// It creates the first Admin. The server prints it while there is no user.
    Setup,
    /// It creates a user that an Admin invited.
    #[default]
    Invite,
    /// It sets a new passphrase of a user.
    Reset,
}

impl LinkKind {
    /// Every purpose.
    pub const ALL: [Self; 3] = [Self::Setup, Self::Invite, Self::Reset];

    /// Returns the word in the address of the link and in the database.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Invite => "invite",
            Self::Reset => "reset",
        }
    }

    /// Returns the purpose of a [`slug`](Self::slug).
    #[must_use]
    pub fn from_slug(slug: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.slug() == slug)
    }
}

/// The contents of a one-time link that can still be used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkInfo {
    /// The purpose.
    pub kind: LinkKind,
    /// The name of the user; empty for the setup link.
    pub name: String,
    /// The e-mail address of the user who chooses a new passphrase; empty for a new user.
    pub email: String,
    /// The role of the user.
    pub role: Role,
}

/// The form behind a one-time link. Not `Debug`, so that no log can contain the passphrase.
#[derive(Clone, Default)]
pub struct LinkForm {
    /// The page of the form.
    pub page: LinkKind,
    /// The token of the link.
    pub token: String,
    /// The name of a new user.
    pub name: String,
    /// The e-mail address of a new user.
    pub email: String,
    /// The new passphrase.
    pub passphrase: String,
}
