//! The view of the signed-in user.

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
