//! Channels of alerts: messages reach a mail server, a webhook and Slack, and errors say what to do without secrets.

use std::{fmt, fs, path::PathBuf, process::Stdio, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use chrono::{DateTime, TimeDelta, Utc};
use milvaion_api::alerts::{AlertSeverity, AlertTarget};
use milvaion_protocol::id::{AlertId, AlertRuleId, JobId};
use milvaion_server::{
    background::{dispatcher, heartbeat_url::WatcherCalls},
    clock::Clock,
    config::{ServerConfig, secret_text::SecretText},
    domain::alert_message::{AlertItem, AlertMessage},
    engine::{Service, dispatch_pulse::DispatchPulse, status::ServiceStatuses},
    notify::{Notifier, SEND_LIMIT, SendError},
};
use milvaion_test_support::{
    database::{self, TestConnection},
    http_sink::{HttpAnswer, HttpSink},
    net, paths, server_env, services,
    smtp_sink::SmtpSink,
    wait,
};
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpListener,
    process::Command,
};

/// A folder with secrets, which is removed with its owner.
struct SecretsDir(PathBuf);

impl SecretsDir {
    fn with(secrets: &[(&str, &str)]) -> Self {
        let path = std::env::temp_dir().join(services::unique("alert-secrets"));
        fs::create_dir_all(&path).expect("the folder can be created");
        for (name, value) in secrets {
            fs::write(path.join(name), value).expect("the file can be written");
        }
        Self(path)
    }
}

impl Drop for SecretsDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns settings on the real services that allow requests to this machine.
async fn config() -> ServerConfig {
    let mut config = server_env::config().await;
    config.alerts.http_allow = vec!["127.0.0.1".parse().expect("a rule")];
    config
}

fn now() -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(20_000)
}

fn message() -> AlertMessage {
    AlertMessage {
        id: "0193d7a1-0000-7000-8000-00000000000a".parse().expect("an id"),
        rule_id: AlertRuleId::default(),
        rule_name: "Failures".into(),
        severity: AlertSeverity::Critical,
        alerts: vec![AlertItem {
            id: AlertId::default(),
            is_resolved: false,
            title: "Job nightly-report failed".into(),
            detail: "panicked: kein Platz für <b>Ö</b>".into(),
            job_id: Some(JobId::default()),
            job_name: Some("nightly-report".into()),
            occurrence_id: None,
            count: 2_000,
            first_at: now(),
            last_at: now() + TimeDelta::minutes(3),
            resolved_at: None,
            resolution: None,
        }],
        omitted: 0,
        url: Some("https://jobs.example.org".into()),
        is_test: false,
    }
}

fn webhook(url: String, signing_secret: Option<&str>) -> AlertTarget {
    AlertTarget::Webhook { url, signing_secret: signing_secret.map(str::to_owned) }
}

const fn answer(status: &'static str) -> HttpAnswer {
    HttpAnswer { status, headers: "", body: "" }
}

/// Computes HMAC-SHA-256 from its definition in RFC 2104, for keys of at most 64 bytes.
fn hmac_sha256(key: &[u8], text: &[u8]) -> Vec<u8> {
    let padded = |with: u8| -> Vec<u8> { (0..64).map(|index| key.get(index).copied().unwrap_or(0) ^ with).collect() };
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().to_vec()
}

#[tokio::test]
async fn webhook_is_signed_for_its_receiver() {
    let sink = HttpSink::start(&[]).await;
    let key: Vec<u8> = (1..=32).collect();
    let encoded = format!("whsec_{}", BASE64_STANDARD.encode(&key));
    let secrets = SecretsDir::with(&[("HOOK", &encoded), ("PLAIN", "c4n4ry c4n4ry c4n4ry\n")]);
    let mut config = config().await;
    config.alerts.secrets_dir = Some(secrets.0.clone());
    let notifier = Notifier::new(&config);
    assert!(notifier.has_secret("HOOK") && !notifier.has_secret("OTHER"));

    for (name, key) in [("HOOK", key.as_slice()), ("PLAIN", b"c4n4ry c4n4ry c4n4ry")] {
        let count = sink.requests().len();
        let target = webhook(sink.url("/hook?team=ops"), Some(name));
        notifier.send(&target, &message(), now()).await.expect("accepted");
        let request = sink.requests().remove(count);
        assert_eq!(request.line, "POST /hook?team=ops HTTP/1.1");
        assert_eq!(request.header("content-type"), Some("application/json"));
        assert_eq!(request.header("webhook-id"), Some(message().id.to_string().as_str()));
        assert_eq!(request.header("webhook-timestamp"), Some("1728000000"));
        let signed = format!("{}.1728000000.{}", message().id, request.body);
        let expected = format!("v1,{}", BASE64_STANDARD.encode(hmac_sha256(key, signed.as_bytes())));
        assert_eq!(request.header("webhook-signature"), Some(expected.as_str()), "{name}");
        let document: serde_json::Value = serde_json::from_str(&request.body).expect("JSON");
        assert_eq!(document, message().document());
        assert!(!format!("{request:?}").contains("c4n4ry"));
    }

    let unsigned = webhook(sink.url("/"), None);
    notifier.send(&unsigned, &message(), now()).await.expect("accepted");
    let request = sink.requests().remove(2);
    assert_eq!(request.header("webhook-signature"), None);
    assert!(request.header("webhook-id").is_some());
}

/// Returns the receiver of docs/monitoring/alerts.md, which checks signatures.
fn documented_receiver() -> String {
    let page = fs::read_to_string(paths::repository_root().join("docs/monitoring/alerts.md")).expect("the page");
    let (_, rest) = page.split_once("```python\n").expect("an example in Python");
    rest.split_once("```").expect("its end").0.to_owned()
}

#[tokio::test]
async fn documented_receiver_accepts_only_genuine_webhooks() {
    let secret = |bytes: &[u8]| format!("whsec_{}", BASE64_STANDARD.encode(bytes));
    let secrets = SecretsDir::with(&[("HOOK", &secret(&[7; 24])), ("FORGED", &secret(&[8; 24]))]);
    let port = net::free_port().expect("a free port");
    let mut receiver = Command::new("python3")
        .args(["-c", &documented_receiver(), &port.to_string()])
        .env("WEBHOOK_SECRET", secret(&[7; 24]))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("Python starts");
    wait::until("the receiver", async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()).await;
    let mut config = config().await;
    config.alerts.secrets_dir = Some(secrets.0.clone());
    let notifier = Notifier::new(&config);
    let now = Clock::system().now();
    let send = async |name: Option<&str>, at| {
        notifier.send(&webhook(format!("http://127.0.0.1:{port}/"), name), &message(), at).await
    };
    send(Some("HOOK"), now).await.expect("genuine");
    for (name, at) in [(Some("FORGED"), now), (None, now), (Some("HOOK"), now - TimeDelta::minutes(10))] {
        let error = send(name, at).await.expect_err("forged or old");
        assert!(error.reason.contains("401"), "{error}");
    }
    let mut printed = BufReader::new(receiver.stdout.take().expect("its output")).lines();
    let line = printed.next_line().await.expect("the output can be read");
    assert_eq!(line.as_deref(), Some("firing Failures 1"));
}

#[tokio::test]
async fn webhook_status_decides_whether_to_retry() {
    let moved = HttpAnswer { status: "302 Found", headers: "location: /elsewhere\r\n", body: "" };
    let cases = [
        (answer("200 OK"), None),
        (answer("202 Accepted"), None),
        (answer("400 Bad Request"), Some(true)),
        (answer("401 Unauthorized"), Some(true)),
        (answer("404 Not Found"), Some(true)),
        (answer("410 Gone"), Some(true)),
        (moved, Some(true)),
        (answer("408 Request Timeout"), Some(false)),
        (answer("425 Too Early"), Some(false)),
        (answer("429 Too Many Requests"), Some(false)),
        (answer("500 Internal Server Error"), Some(false)),
        (answer("503 Service Unavailable"), Some(false)),
    ];
    let sink = HttpSink::start(&cases.map(|(answer, _)| answer)).await;
    let notifier = Notifier::new(&config().await);
    for (sent, (answer, expected)) in cases.into_iter().enumerate() {
        let result = notifier.send(&webhook(sink.url("/hook"), None), &message(), now()).await;
        assert_eq!(result.as_ref().err().map(|error| error.is_permanent), expected, "{}: {result:?}", answer.status);
        if let Err(error) = result {
            assert!(error.reason.contains(&answer.status[..3]), "{error}");
        }
        assert_eq!(sink.requests().len(), sent + 1, "no redirect is followed");
    }
}

#[tokio::test]
async fn internal_addresses_get_no_webhook() {
    let sink = HttpSink::start(&[]).await;
    let notifier = Notifier::new(&server_env::config().await);
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433"] {
        let target = webhook(format!("http://{host}:{}/", sink.port), None);
        let error = notifier.send(&target, &message(), now()).await.expect_err(host);
        assert!(error.is_permanent && error.reason.contains("to the server's ALERT_HTTP_ALLOW"), "{error}");
    }
    for url in ["ftp://example.org/", "http://u:c4n4ry@example.org/", "no address"] {
        let error = notifier.send(&webhook(url.into(), None), &message(), now()).await.expect_err(url);
        assert!(error.is_permanent && !error.reason.contains("c4n4ry"), "{error}");
    }
    let mut config = config().await;
    config.alerts.http_deny = vec!["127.0.0.0/8".parse().expect("a rule")];
    let error = Notifier::new(&config).send(&webhook(sink.url("/"), None), &message(), now()).await;
    assert!(
        error.is_err_and(|error| error.is_permanent && error.reason.contains("the server's ALERT_HTTP_DENY forbids"))
    );
    assert!(sink.requests().is_empty());
}

#[tokio::test]
async fn own_services_get_no_webhook_even_if_allowed() {
    let mut config = config().await;
    config.alerts.http_allow = ["0.0.0.0/0", "::/0"].map(|rule| rule.parse().expect("a rule")).to_vec();
    let notifier = Notifier::new(&config);
    for url in [&config.database.url, &config.cache.url, &config.broker.url] {
        let authority = url.rsplit_once('@').map_or(url.as_str(), |(_, rest)| rest);
        let authority = authority.split(['/', '?']).next().expect("a host");
        let target = webhook(format!("http://{authority}/"), None);
        let error = notifier.send(&target, &message(), now()).await.expect_err(authority);
        assert!(error.is_permanent && error.reason.contains("the server depends on; no alert may reach it"), "{error}");
    }
}

#[tokio::test]
async fn slack_gets_blocks_at_a_secret_address() {
    let sink = HttpSink::start(&[
        answer("200 OK"),
        HttpAnswer { status: "404 Not Found", headers: "", body: "no_service" },
        HttpAnswer { status: "403 Forbidden", headers: "", body: "denied for /services/c4n4ry" },
        answer("500 Internal Server Error"),
    ])
    .await;
    let secrets = SecretsDir::with(&[
        ("SLACK", &sink.url("/services/c4n4ry")),
        ("WRONG", "hooks.example.org/c4n4ry"),
        ("CLOSED", "http://127.0.0.1:1/c4n4ry"),
    ]);
    let mut config = config().await;
    config.alerts.secrets_dir = Some(secrets.0.clone());
    let notifier = Notifier::new(&config);
    let slack = |name: &str| AlertTarget::Slack { url_secret: name.into() };
    notifier.send(&slack("SLACK"), &message(), now()).await.expect("accepted");
    let request = sink.requests().remove(0);
    assert_eq!(request.line, "POST /services/c4n4ry HTTP/1.1");
    let document: serde_json::Value = serde_json::from_str(&request.body).expect("JSON");
    assert_eq!(document, message().slack_document());
    assert_eq!(document["blocks"][0]["text"]["text"], "[Firing] Critical: Job nightly-report failed (2,000 times)");

    for (name, is_permanent, words) in [
        ("SLACK", true, "(no_service) answered 404"),
        ("SLACK", true, "the webhook of the secret SLACK answered 403"),
        ("SLACK", false, "answered 500"),
        ("WRONG", false, "correct ALERT_SECRET_WRONG or its file"),
        ("CLOSED", false, "check that the receiver is reachable"),
        ("MISSING", false, "set ALERT_SECRET_MISSING in its environment"),
    ] {
        let error = notifier.send(&slack(name), &message(), now()).await.expect_err(name);
        assert_eq!(error.is_permanent, is_permanent, "{error}");
        assert!(error.reason.contains(words) && !format!("{error:?}").contains("c4n4ry"), "{error}");
    }
}

/// Returns settings with a mail server on this machine.
async fn mail_config(port: u16) -> ServerConfig {
    let mut config = config().await;
    config.alerts.smtp_url = Some(SecretText::new(format!("smtp://alerts:p4ss%2Dc4n4ry@127.0.0.1:{port}")));
    config.alerts.smtp_from = Some("Milvaion <alerts@example.org>".parse().expect("an address"));
    config
}

fn email(to: &[&str]) -> AlertTarget {
    AlertTarget::Email { to: to.iter().map(|to| (*to).to_owned()).collect() }
}

#[tokio::test]
async fn mail_reaches_all_recipients_at_once() {
    let sink = SmtpSink::start().await;
    let notifier = Notifier::new(&mail_config(sink.port).await);
    assert!(notifier.has_mail_server());
    notifier.send(&email(&["ann@example.org", "ben@example.org"]), &message(), now()).await.expect("accepted");
    let lines = sink.lines();
    for line in ["MAIL FROM:<alerts@example.org>", "RCPT TO:<ann@example.org>", "RCPT TO:<ben@example.org>"] {
        assert!(lines.iter().any(|sent| sent.starts_with(line)), "{line} is not in {lines:?}");
    }
    let mails = sink.mails();
    assert_eq!(mails.len(), 1);
    for line in [
        "Message-ID: <0193d7a1-0000-7000-8000-00000000000a@example.org>",
        "Date: Fri, 04 Oct 2024 00:00:00 +0000",
        "From: Milvaion <alerts@example.org>",
        "To: ann@example.org, ben@example.org",
        "Subject: [Firing] Critical: Job nightly-report failed (2,000 times)",
        "Auto-Submitted: auto-generated",
        "Content-Type: text/plain; charset=utf-8",
        "Rule: Failures (Critical)",
        "https://jobs.example.org/alerts",
    ] {
        assert!(mails[0].replace('"', "").lines().any(|sent| sent.ends_with(line)), "{line} is not in\n{}", mails[0]);
    }
}

#[tokio::test]
async fn mail_to_a_refused_recipient_reaches_the_others() {
    let sink = SmtpSink::start_refusing("RCPT TO:<gone@", "550 5.1.1 no such user: p4ss-c4n4ry").await;
    let notifier = Notifier::new(&mail_config(sink.port).await);
    let target = email(&["ann@example.org", "gone@example.org", "ben@example.org"]);
    notifier.send(&target, &message(), now()).await.expect("a repetition would reach the others again");
    assert_eq!(sink.mails().len(), 2);
    let test = AlertMessage { is_test: true, ..message() };
    let error = notifier.send(&target, &test, now()).await.expect_err("a test shows what is wrong");
    assert!(error.is_permanent, "{error}");
    assert!(error.reason.starts_with("1 of 3 recipients did not get the mail"), "{error}");
    assert!(error.reason.contains("gone@example.org: the mail server refused the mail"), "{error}");
    assert!(!error.reason.contains("c4n4ry"), "{error}");
    assert_eq!(sink.mails().len(), 4);
    // Alone, it is refused as a whole.
    let error = notifier.send(&email(&["gone@example.org"]), &message(), now()).await.expect_err("refused");
    assert!(error.is_permanent && error.reason.contains("550"), "{error}");
}

#[tokio::test]
async fn mail_server_answer_decides_whether_to_retry() {
    for (at, line, is_permanent, remedy) in [
        ("MAIL", "451 4.3.0 try later", false, "451"),
        ("RCPT", "450 4.2.1 busy: p4ss-c4n4ry", false, "450"),
        ("RCPT", "550 5.1.1 unknown user", true, "550"),
        (".", "554 5.7.1 looks like spam", true, "554"),
        // An operator can correct the password while the message waits.
        ("AUTH", "535 5.7.8 wrong: AGFsZXJ0cwBwNHNzLWM0bjRyeQ==", false, "check user and password in ALERT_SMTP_URL"),
    ] {
        let sink = SmtpSink::start_refusing(at, line).await;
        let notifier = Notifier::new(&mail_config(sink.port).await);
        let error = notifier.send(&email(&["ann@example.org"]), &message(), now()).await.expect_err(line);
        assert_eq!(error.is_permanent, is_permanent, "{error}");
        assert!(error.reason.contains(remedy), "{error}");
        assert!(!error.reason.contains("c4n4ry") && !error.reason.contains("AGFsZXJ0cw"), "{error}");
    }
    let without = Notifier::new(&config().await);
    assert!(!without.has_mail_server());
    let error = without.send(&email(&["ann@example.org"]), &message(), now()).await.expect_err("no mail server");
    assert!(!error.is_permanent && error.reason.contains("set ALERT_SMTP_URL and ALERT_SMTP_FROM"), "{error}");
    let closed = Notifier::new(&mail_config(1).await);
    let error = closed.send(&email(&["ann@example.org"]), &message(), now()).await.expect_err("nothing listens");
    assert!(!error.is_permanent && error.reason.contains("check ALERT_SMTP_URL"), "{error}");
    let error = closed.send(&email(&["ann"]), &message(), now()).await.expect_err("no address");
    assert!(error.is_permanent && error.reason.contains("correct the recipients"), "{error}");
}

#[tokio::test]
async fn attempt_ends_within_its_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let notifier = Notifier::new(&mail_config(port).await);
    // Connections are accepted by the system, and nothing ever answers.
    tokio::time::pause();
    for target in [webhook(format!("http://127.0.0.1:{port}/"), None), email(&["ann@example.org"])] {
        let since = tokio::time::Instant::now();
        let error: SendError = notifier.send(&target, &message(), now()).await.expect_err("no answer");
        assert!(!error.is_permanent, "{error}");
        assert!(since.elapsed() <= SEND_LIMIT + Duration::from_secs(1), "{error}");
    }
}

/// A log at the most detailed level.
#[derive(Clone, Default)]
pub(crate) struct CapturedLog(Arc<std::sync::Mutex<Vec<u8>>>);

impl CapturedLog {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("the lock is not poisoned")).into_owned()
    }
}

impl std::io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("the lock is not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for CapturedLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text())
    }
}

#[tokio::test]
async fn secrets_are_in_no_log_line() {
    let log = CapturedLog::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone());
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    let (sink, mail) = (HttpSink::start(&[]).await, SmtpSink::start().await);
    let secrets = SecretsDir::with(&[("SLACK", &sink.url("/services/c4n4ry")), ("HOOK", "c4n4ry c4n4ry c4n4ry")]);
    let mut config = mail_config(mail.port).await;
    config.alerts.secrets_dir = Some(secrets.0.clone());
    config.alerts.heartbeat_url = Some(SecretText::new(sink.url("/ping/c4n4ry")));
    let notifier = Notifier::new(&config);
    for target in [
        AlertTarget::Slack { url_secret: "SLACK".into() },
        webhook(sink.url("/"), Some("HOOK")),
        email(&["ann@example.org"]),
    ] {
        notifier.send(&target, &message(), now()).await.expect("accepted");
    }
    let (mut watcher, _) = watcher(&config);
    assert!(watcher.tick().await.expect("the tick succeeds").was_accepted);
    assert!(log.text().contains("127.0.0.1"), "the libraries log at this level: {}", log.text());
    assert!(!log.text().contains("c4n4ry"), "{log:?}");
    assert!(!format!("{config:?} {notifier:?} {watcher:?}").contains("c4n4ry"));
}

/// Returns the calls to the watcher of the settings, beside a dispatcher that has just ticked.
fn watcher(config: &ServerConfig) -> (WatcherCalls, ServiceStatuses) {
    let statuses = ServiceStatuses::default();
    statuses.record_tick(dispatcher::NAME, Duration::ZERO, Duration::from_secs(60), None);
    let pulse = DispatchPulse::default();
    (WatcherCalls::with(config.alerts.heartbeat_url.clone(), pulse, statuses.clone()), statuses)
}

#[tokio::test]
async fn watcher_is_called_only_while_the_dispatcher_works() {
    let sink = HttpSink::start(&[answer("200 OK"), answer("500 Internal Server Error")]).await;
    let mut config = server_env::config().await;
    config.alerts.heartbeat_url = Some(SecretText::new(sink.url("/ping/c4n4ry")));
    let (mut calls, statuses) = watcher(&config);
    let report = calls.tick().await.expect("the tick succeeds");
    assert!(report.was_accepted && calls.next_tick_in().is_none(), "{report:?}");
    assert_eq!(sink.requests()[0].line, "GET /ping/c4n4ry HTTP/1.1");

    let report = calls.tick().await.expect("a failed call is no failed tick");
    assert!(report.failure.as_deref().is_some_and(|reason| reason.contains("500")), "{report:?}");
    assert!(calls.next_tick_in().is_some_and(|wait| wait <= Duration::from_secs(10)), "it is repeated soon");
    assert!(calls.tick().await.expect("the tick succeeds").was_accepted);
    assert_eq!(sink.requests().len(), 3);

    statuses.record_tick(dispatcher::NAME, Duration::ZERO, Duration::from_secs(60), Some("no answer".into()));
    let report = calls.tick().await.expect("the tick succeeds");
    assert_eq!(report.failure.as_deref(), Some("the dispatcher fails"));
    statuses.record_standby(dispatcher::NAME, Duration::from_secs(60));
    let report = calls.tick().await.expect("the tick succeeds");
    assert!(!report.was_accepted, "it leads, and its dispatcher has not ticked yet");
    statuses.record_tick(dispatcher::NAME, Duration::ZERO, Duration::from_secs(60), None);
    calls.max_delay = Duration::ZERO;
    let report = calls.tick().await.expect("the tick succeeds");
    assert_eq!(report.failure.as_deref(), Some("the dispatcher has stalled"));
    assert_eq!(sink.requests().len(), 3, "no call without a working dispatcher");

    calls.max_delay = Duration::from_secs(60);
    calls.url = Some(SecretText::new("http://127.0.0.1:1/c4n4ry"));
    let reason = calls.tick().await.expect("the tick succeeds").failure.expect("nothing listens");
    assert!(reason.contains("check HEARTBEAT_URL") && !reason.contains("c4n4ry"), "{reason}");
}

#[tokio::test]
async fn leader_calls_its_watcher_also_while_the_cluster_is_paused() {
    let sink = HttpSink::start(&[]).await;
    let mut config = server_env::config().await;
    // The tables are created.
    database::open(&config.database.url).await.close().await;
    let mut connection = TestConnection::open(&config.database.url).await;
    connection.execute("INSERT INTO cluster_pause (since, by_whom, reason) VALUES (now(), 'ana', 'maintenance')").await;
    config.alerts.heartbeat_url = Some(SecretText::new(sink.url("/ping")));
    let server = server_env::start(&config).await;
    let requests = sink.wait_for(1).await;
    assert_eq!(requests[0].line, "GET /ping HTTP/1.1");
    wait::eventually("the record of the tick", async || server.services.since_last_tick(WatcherCalls::NAME)).await;
    server.stop().await;
}
