//! The policies: rules that are a choice of one word, for misfires, overlap, blackouts and lost runs.
//!
//! Each word is the same in definitions, in the database and in forms, and has a label for display. The first value of
//! each policy is its default.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal, $label:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// All values, the default first.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns the word in definitions, in the database and in forms.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            /// Returns the label for display.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }

            /// Returns the value of an [`as_str`](Self::as_str) word.
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
    /// The policy for misfires: due times that were missed while no scheduler was running.
    MisfirePolicy {
        /// One occurrence runs for all of them.
        #[default]
        FireOnce = "fire_once", "Run once for all missed due times";
        /// None of them runs. One Skipped occurrence names their number.
        Skip = "skip", "Skip missed due times";
        /// Each of them runs, within the catch-up limit and window.
        CatchUp = "catch_up", "Run each missed due time";
    }
}

words! {
    /// The overlap policy: the policy for a due time while the previous occurrence is open.
    OverlapPolicy {
        /// Both run concurrently.
        #[default]
        Allow = "allow", "Run concurrently";
        /// The new occurrence is Skipped, with the reason as its note.
        Skip = "skip", "Skip the new run";
        /// The new occurrence waits until the previous one has ended.
        Queue = "queue", "Wait for the previous run to end";
        /// The previous occurrence is cancelled. The new one starts when that has ended.
        Replace = "replace", "Cancel the previous run, then start";
    }
}

impl OverlapPolicy {
    /// Returns the number of the policy in the database.
    #[must_use]
    pub const fn code(self) -> i16 {
        match self {
            Self::Skip => 0,
            Self::Queue => 1,
            Self::Allow => 2,
            Self::Replace => 3,
        }
    }
}

words! {
    /// The policy for a due time in a blackout of one of the job's calendars.
    BlackoutPolicy {
        /// The due time is skipped.
        #[default]
        Skip = "skip", "Skip the due time";
        /// The job runs when the blackout ends. Several due times become one.
        Postpone = "postpone", "Run when the blackout ends";
    }
}

words! {
    /// The policy for lost runs: attempts whose worker stopped sending heartbeats.
    LostRunPolicy {
        /// The occurrence is requeued as the next attempt.
        #[default]
        Requeue = "requeue", "Run again as the next attempt";
        /// The occurrence stays Unknown for a while and then counts as failed.
        Fail = "fail", "Do not run it again";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        for misfire in MisfirePolicy::ALL {
            assert_eq!(MisfirePolicy::parse(misfire.as_str()), Some(*misfire));
        }
        for overlap in OverlapPolicy::ALL {
            assert_eq!(OverlapPolicy::parse(overlap.as_str()), Some(*overlap));
            let json = serde_json::to_string(overlap).expect("the value serializes");
            assert_eq!(json, format!("{:?}", overlap.as_str()));
        }
    }
}
