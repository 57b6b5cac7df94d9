//! Tests against an SMTP server on a socket.

use milvaion_protocol::status::OccurrenceStatus;
use milvaion_test_support::smtp_sink::SmtpSink;
use milvaion_worker::{CancellationToken, testing::TestReport};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;
use crate::context::tests::{all_of, test_run};

const SECRETS: &[(&str, &str)] = &[("code", "c4n4ry-code")];

fn job(port: u16) -> SendEmail {
    let url = format!("smtp://jobs:p4ss-c4n4ry@127.0.0.1:{port}?from=Jobs%20%3Cjobs@example.org%3E");
    SendEmail { accounts: BTreeMap::from([("news".to_owned(), url.parse().expect("an account"))]) }
}

fn email_input() -> Value {
    json!({"account": "News", "to": ["Ann <ann@example.org>"], "subject": "Über alles", "text": "Hello"})
}

fn with(mut input: Value, more: Value) -> Value {
    let fields = more.as_object().expect("fields").clone();
    input.as_object_mut().expect("fields").extend(fields);
    input
}

async fn send(port: u16, input: Value) -> TestReport {
    test_run(job(port), SECRETS, input).run().await
}

#[tokio::test]
async fn message_arrives_with_all_parts() {
    let sink = SmtpSink::start().await;
    let input = with(
        email_input(),
        json!({
            "cc": ["cc@example.org"], "bcc": ["bcc@example.org"], "replyTo": "answers@example.org",
            "text": "Your code: {{secret:code}}", "html": "<b>Hello</b>",
            "attachments": [{"name": "a b.csv", "contentType": "text/csv", "content": "YSxiCjEsMgo="}]
        }),
    );
    let record = send(sink.port, input).await;
    assert_eq!(record.status(), OccurrenceStatus::Completed, "{record:?}");
    let received = sink.lines().join("\n");
    for line in [
        "AUTH PLAIN AGpvYnMAcDRzcy1jNG40cnk=",
        "MAIL FROM:<jobs@example.org>",
        "RCPT TO:<ann@example.org>",
        "RCPT TO:<cc@example.org>",
        "RCPT TO:<bcc@example.org>",
        "From: \"Jobs\" <jobs@example.org>",
        "To: \"Ann\" <ann@example.org>",
        "Cc: cc@example.org",
        "Reply-To: answers@example.org",
        "Subject: =?utf-8?b?w5xiZXI=?= alles",
        "Your code: c4n4ry-code",
        "<b>Hello</b>",
        "filename=\"a b.csv\"",
        "Content-Type: text/csv",
        "a,b\n1,2",
    ] {
        let plain = received.replace("From: Jobs", "From: \"Jobs\"").replace("To: Ann", "To: \"Ann\"");
        let attached = plain.contains("YSxiCjEsMgo=") && line == "a,b\n1,2";
        assert!(plain.contains(line) || attached, "{line} is not in\n{received}");
    }
    let message = received.split("DATA").nth(1).expect("a message");
    assert!(!message.contains("bcc@example.org"), "{message}");
    let result: Value = serde_json::from_str(record.end().result.as_deref().expect("a result")).expect("JSON");
    assert_eq!((&result["recipients"], &result["response"]), (&json!(3), &json!("250 2.0.0 queued as 4711")));
    let id = result["messageId"].as_str().expect("an id");
    assert!(id.ends_with("@example.org>") && message.contains(&format!("Message-ID: {id}")), "{id}\n{message}");
    assert!(!all_of(&record).contains("c4n4ry"), "{record:?}");
}

#[tokio::test]
async fn smtp_5xx_is_permanent_and_4xx_is_retryable() {
    for (at, answer, is_permanent) in [
        ("MAIL", "451 4.3.0 try later", false),
        ("RCPT", "450 4.2.1 busy: p4ss-c4n4ry", false),
        ("RCPT", "550 5.1.1 unknown user", true),
        (".", "554 5.7.1 looks like spam", true),
        (".", "452 4.3.1 disk full", false),
        ("AUTH", "535 5.7.8 wrong password", true),
        ("AUTH", "454 4.7.0 not now", false),
    ] {
        let port = SmtpSink::start_refusing(at, answer).await.port;
        let account = &job(port).accounts["news"];
        let input: SendEmailInput = serde_json::from_value(email_input()).expect("an input");
        let (message, _) = message::compose(&input, account, "id").expect("a message");
        let refused =
            classify_smtp_error(account.transport().expect("a transport").send(message).await.expect_err(answer));
        assert_eq!(refused.is_permanent(), is_permanent, "{answer}: {refused}");
        // The same error as a run reports it.
        let record = send(port, email_input()).await;
        let text = record.end().exception.as_deref().expect("a failure");
        assert!(text.contains("the mail server refused") && text.contains(&answer[..3]), "{text}");
        assert!(!text.contains("c4n4ry"), "{text}");
    }
}

#[tokio::test]
async fn unreachable_or_slow_server_is_retryable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let token = CancellationToken::new();
    token.cancel();
    let record = test_run(job(port), SECRETS, email_input()).cancelled_by(token, "by ann").run().await;
    assert_eq!(record.status(), OccurrenceStatus::Cancelled);
    drop(listener);
    let account = &job(port).accounts["news"];
    let input: SendEmailInput = serde_json::from_value(email_input()).expect("an input");
    let (message, _) = message::compose(&input, account, "id").expect("a message");
    let unreachable = classify_smtp_error(
        account.transport().expect("a transport").send(message).await.expect_err("no server listens"),
    );
    assert!(!unreachable.is_permanent() && unreachable.to_string().contains("could not be delivered"), "{unreachable}");
}

#[tokio::test]
async fn invalid_input_names_the_field_and_sends_nothing() {
    let sink = SmtpSink::start().await;
    let file = json!({"name": "x", "content": "eA=="});
    for (more, field) in [
        (json!({"account": "other"}), "`account`"),
        (json!({"to": []}), "`to`"),
        (json!({"to": ["ann"]}), "`to`"),
        (json!({"to": ["a@b.test\r\nBcc: evil@b.test"]}), "`to`"),
        (json!({"cc": ["a@b.test, c@d.test"]}), "`cc`"),
        (json!({"bcc": vec!["a@b.test"; 100]}), "`to`, `cc` and `bcc`"),
        (json!({"from": "x\ny@b.test"}), "`from`"),
        (json!({"replyTo": "{{secret:code}}"}), "`replyTo`"),
        (json!({"subject": "a\r\nBcc: evil@b.test"}), "`subject`"),
        (json!({"subject": ""}), "`subject`"),
        (json!({"subject": "x".repeat(501)}), "`subject`"),
        (json!({"text": "", "html": null}), "`text` and `html`"),
        (json!({"attachments": [{"name": "x", "content": "?"}]}), "`attachments[0].content`"),
        (json!({"attachments": [{"name": "x\ny", "content": "eA=="}]}), "`attachments[0].name`"),
        (
            json!({"attachments": [{"name": "x", "contentType": "csv", "content": "eA=="}]}),
            "`attachments[0].contentType`",
        ),
        (json!({"attachments": vec![file; 11]}), "`attachments`"),
    ] {
        let record = send(sink.port, with(email_input(), more.clone())).await;
        assert!(record.end().exception.as_deref().is_some_and(|text| text.contains(field)), "{more}: {record:?}");
        assert!(!all_of(&record).contains("c4n4ry"), "{record:?}");
    }
    assert!(sink.lines().is_empty(), "{:?}", sink.lines());
}
