//! The audit log: the actions of users and of the system, with author, time, result and change.
//!
//! A page of the log is found by a keyset: the time and the number of the last row that was shown. New rows arrive at
//! the start only, so a page never repeats or skips one.

use std::{fmt, str::FromStr};

use chrono::{DateTime, NaiveDate, Utc};
use milvaion_protocol::id::{JobId, OccurrenceId, UserId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// The number of rows in a page.
pub const AUDIT_PAGE_ROWS: u32 = 50;

/// The result of an action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum AuditResult {
    /// The action was carried out.
    #[default]
    Done,
    /// The action was not allowed, or a sign-in failed.
    Refused,
}

impl AuditResult {
    /// Both results.
    pub const ALL: [Self; 2] = [Self::Done, Self::Refused];

    /// Returns the word in the database, in addresses and in exports.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
        }
    }

    /// Returns the result of a [`slug`](Self::slug).
    #[must_use]
    pub fn from_slug(slug: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|result| result.slug() == slug)
    }

    /// Returns the name for display.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Done => "Done",
            Self::Refused => "Refused",
        }
    }
}

/// The place of a row in the log. As text it is the time in microseconds and the number of the row, as in
/// `1795000123456789-42`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditCursor {
    /// The time of the row, to the microsecond.
    pub at: DateTime<Utc>,
    /// The number of the row.
    pub id: i64,
}

impl fmt::Display for AuditCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.at.timestamp_micros(), self.id)
    }
}

impl FromStr for AuditCursor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (at, id) = text.split_once('-')?;
            let at = DateTime::from_timestamp_micros(at.parse().ok()?)?;
            Some(Self { at, id: id.parse().ok()? })
        };
        parse().ok_or_else(|| format!("{text:?} is not a place in the audit log: open the first page"))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for AuditCursor {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "AuditCursor".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "description": "The place of a row in the audit log." })
    }
}

impl Serialize for AuditCursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AuditCursor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The object whose entries a page shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "id", rename_all = "camelCase")]
pub enum AuditObject {
    /// A job.
    Job(JobId),
    /// An occurrence.
    Occurrence(OccurrenceId),
    /// A user, as object or as author.
    User(UserId),
}

impl AuditObject {
    /// Returns the object as `kind:id`, as in the log.
    #[must_use]
    pub fn key(self) -> String {
        match self {
            Self::Job(id) => format!("job:{id}"),
            Self::Occurrence(id) => format!("occurrence:{id}"),
            Self::User(id) => format!("user:{id}"),
        }
    }

    /// Returns the object of a [`key`](Self::key).
    #[must_use]
    pub fn from_key(key: &str) -> Option<Self> {
        match key.split_once(':')? {
            ("job", id) => id.parse().ok().map(Self::Job),
            ("occurrence", id) => id.parse().ok().map(Self::Occurrence),
            ("user", id) => id.parse().ok().map(Self::User),
            _ => None,
        }
    }
}

/// The filter of the audit page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AuditFilter {
    /// Only actions of this author: an e-mail address, `system` or `unknown`. Empty means all.
    pub who: String,
    /// Only this action, as in `job.pause`, or with a dot at the end all actions of a kind, as in `job.`. Empty means
    /// all.
    pub action: String,
    /// Only actions on this object, as `kind:id`. Empty means all.
    pub object: String,
    /// Only actions with this result.
    pub result: Option<AuditResult>,
    /// Only actions on or after this day in UTC.
    pub since: Option<NaiveDate>,
    /// Only actions on or before this day in UTC.
    pub until: Option<NaiveDate>,
    /// The cursor: only rows older than this one.
    pub before: Option<AuditCursor>,
}

/// A row of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AuditRow {
    /// The place of the row.
    pub cursor: AuditCursor,
    /// The author: an e-mail address, `system` or `unknown`.
    pub who: String,
    /// The API token of the request, as its name and the last characters of its secret; none for a session.
    #[serde(default)]
    pub token: Option<String>,
    /// The action, as in `job.pause`.
    pub action: String,
    /// The object, as `kind:id`.
    pub object: String,
    /// The present name of the object, if it exists and has one.
    pub object_name: Option<String>,
    /// The result.
    pub result: AuditResult,
    /// The reason that the user gave, or the reason of the refusal.
    pub reason: Option<String>,
    /// The network address of the request, if it was known.
    pub address: Option<String>,
    /// True if later refusals in this row came from other addresses.
    pub has_other_addresses: bool,
    /// The state before the change, without the reason.
    pub before: Option<Value>,
    /// The state after the change, without the reason.
    pub after: Option<Value>,
    /// The number of refusals that the row stands for; 1 for everything else.
    pub repeats: u32,
    /// The time of the last of several refusals.
    pub last_at: Option<DateTime<Utc>>,
}

impl AuditRow {
    /// Returns the time of the action, or of the first of several refusals.
    #[must_use]
    pub const fn at(&self) -> DateTime<Utc> {
        self.cursor.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_its_text() {
        let at = DateTime::from_timestamp_micros(1_795_000_123_456_789).expect("the timestamp is in range");
        let cursor = AuditCursor { at, id: 42 };
        assert_eq!(cursor.to_string(), "1795000123456789-42");
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for bad in ["", "1", "x-1", "1-x", "9223372036854775807-1"] {
            assert!(bad.parse::<AuditCursor>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_object_survives_its_key() {
        let id = "01980000-0000-7000-8000-000000000001";
        let job = AuditObject::Job(id.parse().expect("a valid id"));
        assert_eq!(job.key(), format!("job:{id}"));
        for kind in ["job", "occurrence", "user"] {
            let key = format!("{kind}:{id}");
            assert_eq!(AuditObject::from_key(&key).map(AuditObject::key), Some(key));
        }
        for bad in ["", "job", "job:", "job:7", "calendar:01980000-0000-7000-8000-000000000001"] {
            assert_eq!(AuditObject::from_key(bad), None, "{bad}");
        }
    }
}
