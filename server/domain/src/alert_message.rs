//! The texts of a message about alerts.
//!
//! One message is about the alerts of one rule. It is rendered for each kind of channel: a subject and a plain text for an
//! e-mail, a JSON document for a webhook, and blocks for Slack. Names and error texts come from users and from jobs, so
//! each place bounds their length, and escapes or removes what would have a meaning there. There is no HTML: a mail
//! program makes links out of addresses in plain text, and plain text needs no escaping.

use chrono::{DateTime, Utc};
use milvaion_api::alerts::AlertSeverity;
use milvaion_protocol::id::{AlertId, AlertRuleId, JobId, OccurrenceId};
use serde_json::{Value, json};
use uuid::Uuid;

/// The most alerts that a message lists.
pub const MAX_LISTED_ALERTS: usize = 20;
/// The most characters of a subject.
const MAX_SUBJECT_CHARS: usize = 200;
/// The most characters of a title in a text.
const MAX_TITLE_CHARS: usize = 300;
/// The most characters of a detail in a text for people.
const MAX_DETAIL_CHARS: usize = 1_000;
/// The most characters of a detail in the document for programs.
const MAX_DOCUMENT_DETAIL_CHARS: usize = 4_000;
/// The most characters that Slack accepts in a header block.
const MAX_SLACK_HEADER_CHARS: usize = 150;
/// The most characters of a section for Slack, which accepts 3,000.
const MAX_SLACK_SECTION_CHARS: usize = 2_900;
/// The most characters of the text that Slack shows in notifications, and that compatible programs show instead of blocks.
const MAX_SLACK_TEXT_CHARS: usize = 3_000;

/// A message about alerts of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertMessage {
    /// The id of the delivery. A repeated delivery has the same, so that a receiver recognizes it.
    pub id: Uuid,
    /// The rule.
    pub rule_id: AlertRuleId,
    /// The name of the rule.
    pub rule_name: String,
    /// The severity of the rule.
    pub severity: AlertSeverity,
    /// The alerts, at most [`MAX_LISTED_ALERTS`].
    pub alerts: Vec<AlertItem>,
    /// The number of further alerts that the message does not list.
    pub omitted: u64,
    /// The address of the dashboard, without a slash at its end; none leaves out the links.
    pub url: Option<String>,
    /// True for a message that a user requested to test the channel.
    pub is_test: bool,
}

/// One alert in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertItem {
    /// The alert.
    pub id: AlertId,
    /// True if it no longer fires.
    pub is_resolved: bool,
    /// The event in one line, as in "Job nightly-report failed".
    pub title: String,
    /// Details of the latest event; may be empty.
    pub detail: String,
    /// The job, if the alert is about one.
    pub job_id: Option<JobId>,
    /// The name of that job.
    pub job_name: Option<String>,
    /// The latest occurrence, if the alert is about one.
    pub occurrence_id: Option<OccurrenceId>,
    /// The number of events.
    pub count: i64,
    /// The time of the first event.
    pub first_at: DateTime<Utc>,
    /// The time of the latest event.
    pub last_at: DateTime<Utc>,
    /// The time of the resolution.
    pub resolved_at: Option<DateTime<Utc>>,
    /// The reason for the resolution as a sentence.
    pub resolution: Option<String>,
}

/// The state of all alerts of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageStatus {
    Firing,
    Resolved,
    Mixed,
}

impl MessageStatus {
    const fn slug(self) -> &'static str {
        match self {
            Self::Firing => "firing",
            Self::Resolved => "resolved",
            Self::Mixed => "mixed",
        }
    }

    const fn label(self) -> &'static str {
        match self {
            Self::Firing => "Firing",
            Self::Resolved => "Resolved",
            Self::Mixed => "Firing and resolved",
        }
    }
}

impl AlertMessage {
    fn status(&self) -> MessageStatus {
        let resolved = self.alerts.iter().filter(|alert| alert.is_resolved).count();
        match resolved {
            0 => MessageStatus::Firing,
            all if all == self.alerts.len() => MessageStatus::Resolved,
            _ => MessageStatus::Mixed,
        }
    }

    /// Returns the subject: one line of at most 200 characters.
    #[must_use]
    pub fn subject(&self) -> String {
        let label = if self.is_test { "Test" } else { self.status().label() };
        let what = match (self.alerts.as_slice(), self.omitted) {
            ([], 0) => self.rule_name.clone(),
            ([alert], 0) => format!("{}: {}", self.severity.label(), alert.headline()),
            (alerts, omitted) => {
                let total = (alerts.len() as u64).saturating_add(omitted);
                format!("{}: {} alerts", self.rule_name, with_separators(total))
            }
        };
        shortened(&on_one_line(&format!("[{label}] {what}")), MAX_SUBJECT_CHARS)
    }

    /// Returns the plain text of an e-mail.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        if self.is_test {
            text.push_str("This is a test of the channel. No alert fires.\n\n");
        }
        text.push_str(&on_one_line(&format!("Rule: {} ({})", self.rule_name, self.severity.label())));
        text.push('\n');
        for alert in &self.alerts {
            text.push_str(&format!("\n{}: {}\n", alert.label(), on_one_line(&alert.headline())));
            text.push_str(&format!("  {}\n", alert.times()));
            let detail = shortened(alert.detail.trim(), MAX_DETAIL_CHARS);
            for line in detail.lines() {
                text.push_str(&format!("  {}\n", on_one_line(line)));
            }
            if let Some(link) = alert.link(self.url.as_deref()) {
                text.push_str(&format!("  {link}\n"));
            }
        }
        if let Some(more) = self.omitted_sentence() {
            text.push_str(&format!("\n{more}\n"));
        }
        if let Some(link) = self.link() {
            text.push_str(&format!("\nAll alerts: {link}\n"));
        }
        text
    }

    /// Returns the JSON document for a webhook.
    #[must_use]
    pub fn document(&self) -> Value {
        let alert = |alert: &AlertItem| {
            json!({
                "id": alert.id,
                "status": if alert.is_resolved { MessageStatus::Resolved } else { MessageStatus::Firing }.slug(),
                "title": alert.title,
                "detail": shortened(&alert.detail, MAX_DOCUMENT_DETAIL_CHARS),
                "jobId": alert.job_id,
                "jobName": alert.job_name,
                "occurrenceId": alert.occurrence_id,
                "count": alert.count,
                "firstAt": alert.first_at,
                "lastAt": alert.last_at,
                "resolvedAt": alert.resolved_at,
                "resolution": alert.resolution,
                "url": alert.link(self.url.as_deref()),
            })
        };
        json!({
            "version": 1,
            "id": self.id,
            "isTest": self.is_test,
            "status": self.status().slug(),
            "rule": { "id": self.rule_id, "name": self.rule_name, "severity": self.severity.slug() },
            "alerts": self.alerts.iter().map(alert).collect::<Vec<_>>(),
            "omitted": self.omitted,
            "url": self.link(),
        })
    }

    /// Returns the JSON document for a webhook that is compatible with Slack. Slack shows the blocks; programs that do not
    /// know blocks show the text, which therefore lists the alerts too.
    #[must_use]
    pub fn slack_document(&self) -> Value {
        let subject = self.subject();
        let sections: Vec<String> = self.alerts.iter().map(|alert| alert.slack_section(self.url.as_deref())).collect();
        let header = shortened(&subject, MAX_SLACK_HEADER_CHARS);
        let mut blocks = vec![json!({ "type": "header", "text": { "type": "plain_text", "text": header } })];
        blocks.extend(sections.iter().map(|section| slack_block("section", section)));
        let mut notes =
            vec![format!("Rule: {} ({})", escaped_for_slack(&on_one_line(&self.rule_name)), self.severity.label())];
        notes.extend(self.is_test.then(|| "This is a test of the channel. No alert fires.".to_owned()));
        notes.extend(self.omitted_sentence());
        notes.extend(self.link().map(|link| format!("<{}|All alerts>", escaped_for_slack(&link))));
        let notes = notes.join("\n");
        blocks.push(json!({ "type": "context", "elements": [{ "type": "mrkdwn", "text": notes }] }));
        let mut text = escaped_for_slack(&subject);
        // Whole sections only: a cut could leave half an escape or half a link.
        for section in sections.iter().chain([&notes]) {
            if text.chars().count() + section.chars().count() < MAX_SLACK_TEXT_CHARS {
                text.push('\n');
                text.push_str(section);
            }
        }
        json!({ "text": text, "blocks": blocks })
    }

    fn omitted_sentence(&self) -> Option<String> {
        match self.omitted {
            0 => None,
            1 => Some("1 more alert is not listed.".to_owned()),
            more => Some(format!("{} more alerts are not listed.", with_separators(more))),
        }
    }

    fn link(&self) -> Option<String> {
        Some(format!("{}/alerts", self.url.as_deref()?))
    }
}

impl AlertItem {
    fn label(&self) -> &'static str {
        if self.is_resolved { MessageStatus::Resolved } else { MessageStatus::Firing }.label()
    }

    /// Returns the title with the number of events, as in "Job nightly-report failed (2,000 times)".
    fn headline(&self) -> String {
        let title = shortened(&self.title, MAX_TITLE_CHARS);
        match u64::try_from(self.count) {
            Ok(count) if count > 1 => format!("{title} ({} times)", with_separators(count)),
            _ => title,
        }
    }

    fn times(&self) -> String {
        let mut text = if self.first_at == self.last_at {
            format!("At {}.", readable(self.first_at))
        } else {
            format!("First at {}, last at {}.", readable(self.first_at), readable(self.last_at))
        };
        if let Some(at) = self.resolved_at {
            text.push_str(&format!(" Resolved at {}.", readable(at)));
        }
        if let Some(reason) = &self.resolution {
            text.push(' ');
            text.push_str(&shortened(&on_one_line(reason), MAX_TITLE_CHARS));
        }
        text
    }

    /// Returns the page of the occurrence, or else of the job.
    fn link(&self, url: Option<&str>) -> Option<String> {
        let url = url?;
        let occurrence = self.occurrence_id.map(|id| format!("{url}/occurrences/{id}"));
        occurrence.or_else(|| Some(format!("{url}/jobs/{}", self.job_id?)))
    }

    fn slack_section(&self, url: Option<&str>) -> String {
        let headline = escaped_for_slack(&on_one_line(&self.headline()));
        let headline = match self.link(url) {
            Some(link) => format!("<{}|{headline}>", escaped_for_slack(&link)),
            None => headline,
        };
        let mut section = format!("*{}*: {headline}\n{}", self.label(), escaped_for_slack(&self.times()));
        let detail = escaped_for_slack(&shortened(self.detail.trim(), MAX_DETAIL_CHARS));
        // An escape takes up to five characters, so a detail full of them may not fit.
        let has_room = section.chars().count() + detail.chars().count() < MAX_SLACK_SECTION_CHARS;
        if !detail.is_empty() && has_room {
            section.push('\n');
            section.push_str(&detail);
        }
        section
    }
}

fn slack_block(kind: &str, text: &str) -> Value {
    json!({ "type": kind, "text": { "type": "mrkdwn", "text": text } })
}

/// Replaces the three characters that have a meaning in Slack's texts: they begin links and mentions.
fn escaped_for_slack(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Replaces line breaks and other control characters, which could begin another header of an e-mail, by spaces.
fn on_one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Returns the first `max` characters; the last one is an ellipsis if there are more.
fn shortened(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        None => text.to_owned(),
        Some(_) => text.chars().take(max.saturating_sub(1)).chain(['…']).collect(),
    }
}

fn readable(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

fn with_separators(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    fn at(minutes: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::minutes(minutes)
    }

    fn item(title: &str) -> AlertItem {
        AlertItem {
            id: AlertId::default(),
            is_resolved: false,
            title: title.into(),
            detail: String::new(),
            job_id: None,
            job_name: None,
            occurrence_id: None,
            count: 1,
            first_at: at(0),
            last_at: at(0),
            resolved_at: None,
            resolution: None,
        }
    }

    fn resolved(title: &str) -> AlertItem {
        let resolution = Some("An occurrence completed.".into());
        AlertItem { is_resolved: true, resolved_at: Some(at(9)), resolution, ..item(title) }
    }

    fn message(alerts: Vec<AlertItem>) -> AlertMessage {
        AlertMessage {
            id: Uuid::nil(),
            rule_id: AlertRuleId::default(),
            rule_name: "Failures".into(),
            severity: AlertSeverity::Critical,
            alerts,
            omitted: 0,
            url: None,
            is_test: false,
        }
    }

    #[test]
    fn subject_names_the_state_and_the_only_alert() {
        let failed = AlertItem { count: 2_000, ..item("Job nightly-report failed") };
        let one = message(vec![failed.clone()]);
        assert_eq!(one.subject(), "[Firing] Critical: Job nightly-report failed (2,000 times)");
        assert_eq!(message(vec![resolved("Job a failed")]).subject(), "[Resolved] Critical: Job a failed");
        let three = message(vec![item("a"), item("b"), item("c")]);
        assert_eq!(three.subject(), "[Firing] Failures: 3 alerts");
        let mixed = AlertMessage { omitted: 1_234_567, ..message(vec![item("a"), resolved("b")]) };
        assert_eq!(mixed.subject(), "[Firing and resolved] Failures: 1,234,569 alerts");
        let one_listed = AlertMessage { omitted: 1, ..one };
        assert_eq!(one_listed.subject(), "[Firing] Failures: 2 alerts");
        let test = AlertMessage { is_test: true, ..message(vec![]) };
        assert_eq!(test.subject(), "[Test] Failures");
    }

    #[test]
    fn subject_is_one_short_line() {
        let subject = message(vec![item(&format!("a\r\nBcc: evil@example.org {}", "ü".repeat(500)))]).subject();
        assert!(subject.starts_with("[Firing] Critical: a  Bcc: evil@example.org ü"), "{subject}");
        assert_eq!(subject.chars().count(), 200);
        assert!(subject.ends_with('…') && !subject.contains(char::is_control));
    }

    #[test]
    fn text_lists_alerts_with_times_and_links() {
        let first = AlertItem {
            detail: "panicked: no space\nat line 7".into(),
            job_id: Some(JobId::default()),
            count: 3,
            last_at: at(5),
            ..item("Job a failed")
        };
        let second = AlertItem { occurrence_id: Some(OccurrenceId::default()), ..resolved("Job b failed") };
        let all =
            AlertMessage { omitted: 1, url: Some("https://jobs.example.org".into()), ..message(vec![first, second]) };
        let expected = "Rule: Failures (Critical)\n\
            \n\
            Firing: Job a failed (3 times)\n\
            \x20 First at 2024-10-04 00:00:00 UTC, last at 2024-10-04 00:05:00 UTC.\n\
            \x20 panicked: no space\n\
            \x20 at line 7\n\
            \x20 https://jobs.example.org/jobs/00000000-0000-0000-0000-000000000000\n\
            \n\
            Resolved: Job b failed\n\
            \x20 At 2024-10-04 00:00:00 UTC. Resolved at 2024-10-04 00:09:00 UTC. An occurrence completed.\n\
            \x20 https://jobs.example.org/occurrences/00000000-0000-0000-0000-000000000000\n\
            \n\
            1 more alert is not listed.\n\
            \n\
            All alerts: https://jobs.example.org/alerts\n";
        assert_eq!(all.text(), expected);
        let test = AlertMessage { is_test: true, ..message(vec![]) };
        assert_eq!(test.text(), "This is a test of the channel. No alert fires.\n\nRule: Failures (Critical)\n");
    }

    #[test]
    fn document_has_the_documented_members() {
        let all = AlertMessage { omitted: 2, ..message(vec![AlertItem { count: 7, ..resolved("b") }]) };
        let nil = "00000000-0000-0000-0000-000000000000";
        let expected = json!({
            "version": 1,
            "id": nil,
            "isTest": false,
            "status": "resolved",
            "rule": {"id": nil, "name": "Failures", "severity": "critical"},
            "alerts": [{
                "id": nil,
                "status": "resolved",
                "title": "b",
                "detail": "",
                "jobId": null,
                "jobName": null,
                "occurrenceId": null,
                "count": 7,
                "firstAt": "2024-10-04T00:00:00Z",
                "lastAt": "2024-10-04T00:00:00Z",
                "resolvedAt": "2024-10-04T00:09:00Z",
                "resolution": "An occurrence completed.",
                "url": null
            }],
            "omitted": 2,
            "url": null
        });
        assert_eq!(all.document(), expected);
        assert_eq!(message(vec![item("a"), resolved("b")]).document()["status"], "mixed");
        assert_eq!(message(vec![item("a")]).document()["status"], "firing");
        let long = message(vec![AlertItem { detail: "x".repeat(10_000), ..item("a") }]);
        let detail = long.document()["alerts"][0]["detail"].as_str().map(|detail| detail.chars().count());
        assert_eq!(detail, Some(4_000));
    }

    #[test]
    fn slack_texts_are_escaped_and_bounded() {
        let evil = AlertItem { detail: "<!channel> & <https://evil.example|ok>".into(), ..item("Job <a> & b failed") };
        let document = AlertMessage { url: Some("https://x.example".into()), ..message(vec![evil]) }.slack_document();
        let section = document["blocks"][1]["text"]["text"].as_str().expect("a text");
        assert!(section.starts_with("*Firing*: Job &lt;a&gt; &amp; b failed\nAt "), "{section}");
        assert!(section.ends_with("&lt;!channel&gt; &amp; &lt;https://evil.example|ok&gt;"), "{section}");
        // The header is plain text, in which nothing has a meaning.
        assert_eq!(document["blocks"][0]["text"]["text"], "[Firing] Critical: Job <a> & b failed");
        let text = document["text"].as_str().expect("a text");
        assert!(!text.contains("<!") && text.contains("<https://x.example/alerts|All alerts>"), "{text}");

        let long = AlertItem { detail: "&".repeat(5_000), job_id: Some(JobId::default()), ..item(&"<".repeat(900)) };
        let document = message(vec![long; MAX_LISTED_ALERTS]).slack_document();
        let blocks = document["blocks"].as_array().expect("blocks");
        assert_eq!(blocks.len(), MAX_LISTED_ALERTS + 2);
        for block in blocks {
            let text = block["text"]["text"].as_str().or_else(|| block["elements"][0]["text"].as_str());
            assert!(text.is_some_and(|text| (1..3_000).contains(&text.chars().count())), "{block}");
        }
        assert!(document["text"].as_str().is_some_and(|text| text.chars().count() <= MAX_SLACK_TEXT_CHARS));
    }
}
