//! The catalogue of cases, in the order in which they are reported.
//!
//! A case is a function that starts one or more instances of the worker on a stage of its own, and fails with the expected
//! and the observed behaviour. Each names the sentence of `docs/protocol` on which it rests; a test compares the sentences
//! with the page, so that a changed rule leads to its case.

mod minimal;

use std::{future::Future, pin::Pin};

use crate::{arguments::ConformanceLevel, failure::CaseFailure, stage::Stage};

/// The outcome of a case.
pub(crate) type CaseOutcome = Result<(), CaseFailure>;
type CheckFuture<'a> = Pin<Box<dyn Future<Output = CaseOutcome> + Send + 'a>>;

/// A case of the kit.
pub(crate) struct ConformanceCase {
    /// The level that requires it.
    pub(crate) level: ConformanceLevel,
    /// The name, unique.
    pub(crate) name: &'static str,
    /// The tested behaviour.
    pub(crate) summary: &'static str,
    /// The heading of the section of the protocol page.
    pub(crate) section: &'static str,
    /// The sentence of that section.
    pub(crate) rule: &'static str,
    /// The check.
    pub(crate) check: for<'a> fn(&'a Stage) -> CheckFuture<'a>,
}

/// Writes the catalogue: level, name, summary, section, rule and function of each case.
macro_rules! catalogue {
    ($($level:ident $name:literal $check:path, $summary:literal, $section:literal, $rule:literal;)*) => {
        /// All cases.
        pub(crate) const CASES: &[ConformanceCase] = &[$(ConformanceCase {
            level: ConformanceLevel::$level,
            name: $name,
            summary: $summary,
            section: $section,
            rule: $rule,
            check: |stage| Box::pin($check(stage)),
        }),*];
    };
}

catalogue! {
    Minimal "echo" minimal::echo,
        "runs a job, and reports Running and Completed with the result",
        "Status reports", "it succeeded; `result` is text, for example JSON";
    Minimal "many" minimal::many,
        "runs 30 messages, each once, and acknowledges all",
        "In short", "Consume the queue of each job type";
    Minimal "attempt-number" minimal::attempt_number,
        "reports the attempt of the message",
        "Status reports", "A report about another attempt than the one in force changes nothing";
    Minimal "big-input" minimal::big_input,
        "takes an input of 64 KiB",
        "Bounds", "| `jobData` | 64 KiB |";
    Minimal "values" minimal::values,
        "keeps every JSON value of an input",
        "Encoding and delivery", "Bodies are JSON in UTF-8";
    Minimal "unknown-fields" minimal::unknown_fields,
        "ignores fields that it does not know",
        "Versions", "ignore unknown fields, and use the default for missing ones";
    Minimal "missing-fields" minimal::missing_fields,
        "uses the defaults of missing fields",
        "Versions", "ignore unknown fields, and use the default for missing ones";
    Minimal "unreadable-body" minimal::unreadable_body,
        "rejects a body that is not JSON, and continues",
        "In short", "Reject a message that cannot be read, without requeue";
    Minimal "attempt-zero" minimal::attempt_zero,
        "rejects a message with attempt 0",
        "Job message", "has attempt 0, or names another job type than its queue";
    Minimal "other-job-type" minimal::other_job_type,
        "rejects a message of another job type",
        "Job message", "has attempt 0, or names another job type than its queue";
    Minimal "job-type-case" minimal::job_type_case,
        "compares the job type without case",
        "Job message", "(compared without case)";
    Minimal "too-large" minimal::too_large,
        "rejects a message of more than 1 MiB",
        "Job message", "a message that has more than 1 MiB";
    Minimal "unconfirmed-start" minimal::unconfirmed_start,
        "keeps a message until the broker has confirmed the report",
        "Encoding and delivery", "A message counts as sent when the broker has confirmed it";
    Minimal "returned-report" minimal::returned_report,
        "keeps a message whose report the broker has returned",
        "Encoding and delivery", "A returned message is confirmed too";
    Minimal "second-instance" minimal::second_instance,
        "shares its messages with a second instance",
        "In short", "Consume the queue of each job type";
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol/README.md");

    #[test]
    fn every_rule_is_on_the_page() {
        let page = std::fs::read_to_string(PAGE).expect("the page is readable");
        // The page emphasises parts of sentences.
        let page = page.replace("**", "").replace('*', "");
        for case in CASES {
            assert!(page.contains(case.rule), "the rule of {} is not on the page: {}", case.name, case.rule);
            assert!(page.contains(&format!("# {}\n", case.section)), "{}: no section {}", case.name, case.section);
        }
    }

    #[test]
    fn names_are_unique() {
        for (number, case) in CASES.iter().enumerate() {
            assert!(CASES[..number].iter().all(|other| other.name != case.name), "{} twice", case.name);
        }
    }
}
