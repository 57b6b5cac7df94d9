//! The views of users and invitations.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::permissions::Role;
use milvaion_protocol::id::UserId;

/// The signed-in user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CurrentUser {
    /// The id.
    pub id: UserId,
    /// The name.
    pub name: String,
    /// The e-mail address.
    pub email: String,
    /// The role.
    pub role: Role,
}

/// A user on the team page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserView {
    /// The user.
    pub me: CurrentUser,
    /// The time of creation.
    pub created_at: DateTime<Utc>,
    /// The time of the last sign-in.
    pub last_sign_in_at: Option<DateTime<Utc>>,
}

/// An invitation that is not used yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InviteView {
    /// The id, for revoking it.
    pub id: UserId,
    /// The name of the invited user.
    pub name: String,
    /// The role of the invited user.
    pub role: Role,
    /// The time at which it expires.
    pub expires_at: DateTime<Utc>,
    /// The user who sent it.
    pub invited_by: String,
}

/// The team page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TeamView {
    /// The users.
    pub users: Vec<UserView>,
    /// The open invitations.
    pub invites: Vec<InviteView>,
}

/// The purpose of a one-time link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InviteInfo {
    /// True for the link that creates the first Admin.
    pub is_setup: bool,
    /// The name that the inviting user entered; empty for the setup link.
    pub name: String,
    /// The role that it grants.
    pub role: Role,
}
