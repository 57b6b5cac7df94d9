//! Queries of alerts. The documents are those of [`crate::alerts`].

use milvaion_protocol::id::{AlertId, AlertRuleId};
use serde::{Deserialize, Serialize};

use crate::alerts::AlertFilter;

/// The filter of the list of alerts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct AlertQuery {
    /// Only firing or only resolved alerts.
    pub firing: Option<bool>,
    /// Only alerts of this rule.
    pub rule: Option<AlertRuleId>,
    /// The cursor: the `next` of the previous page. Only alerts older than this id are returned.
    pub before: Option<AlertId>,
    /// The maximum number of items; 50 without it.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 200)))]
    pub limit: Option<u32>,
}

impl From<AlertQuery> for AlertFilter {
    fn from(query: AlertQuery) -> Self {
        Self { firing: query.firing, rule: query.rule, before: query.before, limit: query.limit.unwrap_or_default() }
    }
}
