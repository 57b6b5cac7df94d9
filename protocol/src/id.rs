//! Identifiers.
//!
//! Jobs, occurrences and users are named by UUIDv7 made in the application, never by the database: a writer knows the
//! name of what it writes before it writes it, which is what makes a retried insert harmless. An occurrence's
//! `created_at` *is* the timestamp inside its id, so the daily partition that holds it is found from the id alone.

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
            /// Builds the id from the instant it names and ten random bytes. Milliseconds are kept, finer time is not.
            #[must_use]
            pub fn from_parts(at: DateTime<Utc>, random: [u8; 10]) -> Self {
                let millis = u64::try_from(at.timestamp_millis()).unwrap_or(0);
                Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
            }

            /// The instant inside the id, to the millisecond.
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
    /// Names a job: the definition of what runs and when.
    JobId
);
uuid_id!(
    /// Names a calendar: a set of blackouts that jobs keep to.
    CalendarId
);
uuid_id!(
    /// Names an occurrence: one execution of a job, with all its attempts.
    OccurrenceId
);
uuid_id!(
    /// Names a dead letter: a message that belongs to no occurrence.
    DeadLetterId
);
uuid_id!(
    /// Names a person.
    UserId
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_carries_its_instant_to_the_millisecond() {
        let at = DateTime::from_timestamp_millis(1_795_000_123_456).expect("in range");
        let id = OccurrenceId::from_parts(at, [7; 10]);
        assert_eq!(id.created_at(), at);
        assert_eq!(id.0.get_version_num(), 7);
    }

    #[test]
    fn an_id_survives_its_text() {
        let id = JobId::from_parts(DateTime::UNIX_EPOCH, [255; 10]);
        assert_eq!(id.to_string().parse::<JobId>(), Ok(id));
    }
}
