//! The rules that are a choice between words: about missed fires, overlaps, blackouts and runs that are lost.
//!
//! Each word is the same in definitions, in the database and in forms, and comes with what it means for people. The first
//! of each is what happens unless a job says otherwise.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal, $says:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// All of them, the default first.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word in definitions, in the database and in forms.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            /// What it means, for people.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $says,)+ }
            }

            /// The one behind a [`as_str`](Self::as_str).
            #[must_use]
            pub fn parse(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.as_str() == word)
            }

            pub(super) fn is_default(&self) -> bool {
                *self == Self::default()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// What becomes of fires that were missed while no scheduler was there.
    MisfirePolicy {
        /// One occurrence stands for all of them.
        #[default]
        FireOnce = "fire_once", "Run once for all missed fires";
        /// None is made up for; a Skipped row says how many there were.
        Skip = "skip", "Skip what was missed";
        /// Each is made up for, as far as limit and window allow.
        CatchUp = "catch_up", "Run each missed fire";
    }
}

words! {
    /// What becomes of a fire while the previous occurrence is still open.
    OverlapPolicy {
        /// It runs beside it.
        #[default]
        Allow = "allow", "Run beside it";
        /// It does not run; a Skipped row says why.
        Skip = "skip", "Skip this fire";
        /// It waits until the previous one has ended.
        Queue = "queue", "Wait for it to end";
        /// The previous one is cancelled; this one starts when that has ended.
        Replace = "replace", "Cancel it and take its place";
    }
}

impl OverlapPolicy {
    /// The wire number, as the database keeps it.
    #[must_use]
    pub const fn code(self) -> i16 {
        match self {
            Self::Skip => 0,
            Self::Queue => 1,
            Self::Allow => 2,
            Self::Replace => 3,
        }
    }

    /// The policy of a number; unknown ones are `Allow`.
    #[must_use]
    pub const fn from_code(code: i16) -> Self {
        match code {
            0 => Self::Skip,
            1 => Self::Queue,
            3 => Self::Replace,
            _ => Self::Allow,
        }
    }
}

words! {
    /// What becomes of a fire that falls into a blackout of one of the job's calendars.
    BlackoutPolicy {
        /// It is left out.
        #[default]
        Skip = "skip", "Leave the fire out";
        /// It runs when the blackout ends; several become one.
        Postpone = "postpone", "Run when the blackout ends";
    }
}

words! {
    /// What becomes of an occurrence whose worker fell silent.
    LostRunPolicy {
        /// It is queued again as the next attempt.
        #[default]
        Requeue = "requeue", "Run it again on another worker";
        /// It stays Unknown for a while, then counts as failed.
        Fail = "fail", "Do not run it again";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lead_back() {
        for misfire in MisfirePolicy::ALL {
            assert_eq!(MisfirePolicy::parse(misfire.as_str()), Some(*misfire));
        }
        for overlap in OverlapPolicy::ALL {
            assert_eq!(OverlapPolicy::parse(overlap.as_str()), Some(*overlap));
            assert_eq!(OverlapPolicy::from_code(overlap.code()), *overlap);
            let json = serde_json::to_string(overlap).expect("writes");
            assert_eq!(json, format!("{:?}", overlap.as_str()));
        }
    }
}
