//! People as pages show them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::permissions::Role;
use milvaion_protocol::id::UserId;

/// Who is signed in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CurrentUser {
    /// Their id.
    pub id: UserId,
    /// Their name.
    pub name: String,
    /// Their e-mail address.
    pub email: String,
    /// What they are.
    pub role: Role,
}

/// Somebody on the team page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserView {
    /// Who.
    pub me: CurrentUser,
    /// Since when.
    pub created_at: DateTime<Utc>,
    /// When they last signed in.
    pub last_sign_in_at: Option<DateTime<Utc>>,
}

/// An invitation that nobody has used yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InviteView {
    /// For taking it back.
    pub id: UserId,
    /// For whom.
    pub name: String,
    /// As what.
    pub role: Role,
    /// Until when.
    pub expires_at: DateTime<Utc>,
    /// By whom.
    pub invited_by: String,
}

/// The team page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TeamView {
    /// Everybody.
    pub users: Vec<UserView>,
    /// Everybody to be.
    pub invites: Vec<InviteView>,
}

/// What a one-time link is good for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InviteInfo {
    /// True for the link that makes the first Admin.
    pub is_setup: bool,
    /// The name the inviter wrote; empty for the setup link.
    pub name: String,
    /// The role it gives.
    pub role: Role,
}
