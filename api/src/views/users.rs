//! The views of the signed-in user and of an invitation that is being accepted.

use serde::{Deserialize, Serialize};

use crate::permissions::Role;
use milvaion_protocol::id::UserId;

/// The signed-in user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
