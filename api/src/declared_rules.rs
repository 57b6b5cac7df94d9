//! The rules that the code of a worker declares for a job type, as the rules of a job and as the first values of a form.
//!
//! A declaration names only what differs from the server's defaults. The jobs of declared schedules and the form of a new job
//! complete it in the same way, so a job that is created on the page begins like one from code.

use std::collections::BTreeMap;

use milvaion_protocol::message::JobDefaults;
use milvaion_schedule::rules::{LostRunPolicy, MisfirePolicy, OverlapPolicy, Rules};

use crate::{requests::JobForm, rules_form};

/// Returns the rules of a job with these declarations. A word that this version does not know has the server's default.
#[must_use]
pub fn rules_of(declared: &JobDefaults) -> Rules {
    let standard = Rules::default();
    Rules {
        max_retries: declared.max_retries.unwrap_or(standard.max_retries),
        base_retry_delay_seconds: declared.base_retry_delay_seconds.unwrap_or(standard.base_retry_delay_seconds),
        retry_jitter_percent: declared.retry_jitter_percent.unwrap_or(standard.retry_jitter_percent),
        max_concurrent: declared.max_concurrent,
        overlap: declared.overlap.as_deref().and_then(OverlapPolicy::parse).unwrap_or(standard.overlap),
        misfire: declared.misfire.as_deref().and_then(MisfirePolicy::parse).unwrap_or(standard.misfire),
        on_lost: declared.on_lost.as_deref().and_then(LostRunPolicy::parse).unwrap_or(standard.on_lost),
        start_within_seconds: declared.start_within_seconds,
        ..standard
    }
}

impl JobForm {
    /// Gives the declarations of another job type to the fields that still have those of the type chosen before. What the
    /// user has changed stays.
    pub fn start_with(&mut self, before: &JobDefaults, after: &JobDefaults) {
        let (old, new) = (first_values(before), first_values(after));
        for (field, value) in new.rules {
            if value != old.rules[&field] && self.rule(&field).trim() == old.rules[&field] {
                self.rules.insert(field, value);
            }
        }
        if self.priority.trim().is_empty() || self.priority.trim() == old.priority {
            self.priority = new.priority;
        }
        if self.tags.trim() == old.tags {
            self.tags = new.tags;
        }
    }
}

/// The fields as text.
struct FirstValues {
    rules: BTreeMap<String, String>,
    priority: String,
    tags: String,
}

fn first_values(declared: &JobDefaults) -> FirstValues {
    FirstValues {
        // None of these rules is an instant, so the zone does not matter.
        rules: rules_form::fields(&rules_of(declared), |_| String::new()),
        priority: declared.priority.unwrap_or(3).to_string(),
        tags: declared.tags.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared() -> JobDefaults {
        JobDefaults {
            max_retries: Some(4),
            max_concurrent: Some(2),
            start_within_seconds: Some(30),
            overlap: Some("skip".into()),
            priority: Some(5),
            tags: vec!["billing".into(), "nightly".into()],
            ..JobDefaults::default()
        }
    }

    fn fresh() -> JobForm {
        JobForm { rules: rules_form::default_fields(), priority: "3".into(), ..JobForm::default() }
    }

    #[test]
    fn declared_rules_replace_untouched_values_only() {
        let mut form = fresh();
        form.rules.insert("max_retries".into(), "7".into());
        form.start_with(&JobDefaults::default(), &declared());
        assert_eq!(form.rule("max_retries"), "7");
        assert_eq!((form.rule("max_concurrent").as_str(), form.rule("overlap").as_str()), ("2", "skip"));
        assert_eq!(form.rule("start_within_seconds"), "30");
        assert_eq!((form.priority.as_str(), form.tags.as_str()), ("5", "billing, nightly"));
    }

    #[test]
    fn another_type_takes_the_rules_of_the_first_away() {
        let mut form = fresh();
        form.start_with(&JobDefaults::default(), &declared());
        form.tags = "billing, nightly, mine".into();
        form.start_with(&declared(), &JobDefaults::default());
        assert_eq!(form, JobForm { tags: "billing, nightly, mine".into(), ..fresh() });
    }

    #[test]
    fn unknown_word_has_the_default() {
        let declared = JobDefaults { overlap: Some("sideways".into()), ..JobDefaults::default() };
        assert_eq!(rules_of(&declared), Rules::default());
    }
}
