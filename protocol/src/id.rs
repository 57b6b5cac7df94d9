//! Identifiers.
//!
//! Jobs, occurrences and users have UUIDv7 ids that the application generates, never the database. A writer knows the
//! id of a row before it inserts the row, so a retried insert is harmless. The `created_at` of an occurrence *is* the
//! timestamp inside its id, so its daily partition is found from the id alone.

use std::{fmt, str::FromStr};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// Builds an id from an instant, truncated to milliseconds, and ten random bytes.
            #[must_use]
            pub fn from_parts(at: DateTime<Utc>, random: [u8; 10]) -> Self {
                let millis = u64::try_from(at.timestamp_millis()).unwrap_or(0);
                Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
            }

            /// Returns the instant inside the id, in milliseconds.
            #[must_use]
            pub fn created_at(self) -> DateTime<Utc> {
                let bytes = self.0.as_bytes();
                let millis = bytes[..6].iter().fold(0_i64, |acc, byte| (acc << 8) | i64::from(*byte));
                DateTime::from_timestamp_millis(millis).unwrap_or_default()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(s: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(s).map(Self)
            }
        }
    };
}

uuid_id!(
    /// The id of a job: the definition of work and its schedule.
    JobId
);
uuid_id!(
    /// The id of a calendar: a set of blackouts in which its jobs must not start.
    CalendarId
);
uuid_id!(
    /// The id of an occurrence: one execution of a job, with all its attempts.
    OccurrenceId
);
uuid_id!(
    /// The id of a dead letter: a message that no consumer could read.
    DeadLetterId
);
uuid_id!(
    /// The id of a user.
    UserId
);
uuid_id!(
    /// The id of a session in lists. It grants nothing: only the id in the cookie does.
    SessionId
);
uuid_id!(
    /// The id of an API token in lists. It grants nothing: only the secret of the token does.
    TokenId
);
uuid_id!(
    /// The id of an alert: one episode in which an alert rule fires for one cause.
    AlertId
);
uuid_id!(
    /// The id of an alert rule.
    AlertRuleId
);
uuid_id!(
    /// The id of an alert channel.
    AlertChannelId
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_keeps_its_instant_to_the_millisecond() {
        let at = DateTime::from_timestamp_millis(1_795_000_123_456).expect("the timestamp is in range");
        let id = OccurrenceId::from_parts(at, [7; 10]);
        assert_eq!(id.created_at(), at);
        assert_eq!(id.0.get_version_num(), 7);
    }

    #[test]
    fn id_round_trips_through_text() {
        let id = JobId::from_parts(DateTime::UNIX_EPOCH, [255; 10]);
        assert_eq!(id.to_string().parse::<JobId>(), Ok(id));
    }
}
