//! The audit log, users and tokens.

use chrono::NaiveDate;
use milvaion_protocol::id::TokenId;
use serde::{Deserialize, Serialize};

use crate::{audit::AuditResult, permissions::Role, team::UserState};

/// The filter of the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct AuditQuery {
    /// Only actions of this author: an e-mail address, `system` or `unknown`.
    #[cfg_attr(feature = "schema", schemars(length(max = 254)))]
    pub who: Option<String>,
    /// Only this action, as in `job.pause`, or with a dot at the end all actions of a kind, as in `job.`.
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub action: Option<String>,
    /// Only actions on this object, as `kind:id`.
    #[cfg_attr(feature = "schema", schemars(length(max = 200)))]
    pub object: Option<String>,
    /// Only actions with this result.
    pub result: Option<AuditResult>,
    /// Only actions on or after this day in UTC.
    pub since: Option<NaiveDate>,
    /// Only actions on or before this day in UTC.
    pub until: Option<NaiveDate>,
    /// The cursor: the `next` of the previous page.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[0-9]{1,16}-[0-9]{1,18}$")))]
    pub before: Option<String>,
}

/// The cursor of the audit log of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct JobAuditQuery {
    /// The cursor: the `next` of the previous page.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[0-9]{1,16}-[0-9]{1,18}$")))]
    pub before: Option<String>,
}

/// The filter of the list of users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct TeamQuery {
    /// A text that must occur in the name or the e-mail address.
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub text: Option<String>,
    /// Only users with this role.
    pub role: Option<Role>,
    /// Only users in this state.
    pub state: Option<UserState>,
}

/// A request to invite a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InviteUser {
    /// The name, at most 100 characters.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100)))]
    pub name: String,
    /// The role.
    pub role: Role,
}

/// A request to change the role of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ChangeRole {
    /// The new role.
    pub role: Role,
}

/// A link that works once. It is shown only in this answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OneTimeLink {
    /// The path of the link, relative to the address of the dashboard.
    pub path: String,
}

/// The filter of the list of tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct TokenQuery {
    /// True for the tokens of all users and services, for Admins.
    pub all: bool,
    /// The cursor: the `next` of the previous page.
    pub after: Option<TokenId>,
    /// The maximum number of items; 50 without it.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 200)))]
    pub limit: Option<u32>,
}
