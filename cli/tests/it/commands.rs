//! The commands: their output, questions and exit codes.

use clap::Parser;
use serde_json::{Value, json};

use milvaion_api::rest::StatusName;

use crate::{
    fake::{FakeServer, StreamEnd, document, events, frame, no_content, page, problem, unused_address},
    samples::{JOB, OCCURRENCE, job, occurrence, occurrence_detail, status_frame},
    shell::{Program, Shell},
};

#[tokio::test]
async fn jobs_are_a_table_for_people() {
    let server = FakeServer::start(|_, _| page(&[job()], None)).await;
    let outcome = Shell::signed_in(&server.url).run(&["jobs", "list", "--paused", "--tag", "night"]).await;
    assert_eq!(
        outcome.output,
        "JOB        NAME       STATE   SCHEDULE            NEXT DUE                      LATEST\n\
         mail.send  Send mail  active  Every day at 03:00  2026-11-25 15:00:00 (in 3 h)  failed\n"
    );
    assert_eq!((outcome.code, outcome.messages.as_str()), (0, ""));
    assert_eq!(server.lines(), ["GET /jobs?tag=night&active=false&limit=50"]);
}

#[tokio::test]
async fn workers_show_the_state_and_the_runs_of_each_instance() {
    let instance = json!({
        "id": "mail-1", "host": "h", "version": "1.0", "capacity": 10, "state": "completing", "running": 1,
        "priorities": [{ "priority": 5, "running": 1, "waiting": 2 }],
        "startedAt": "2026-11-25T11:00:00Z", "lastHeartbeatAt": "2026-11-25T11:59:58Z",
    });
    let mut gone = instance.clone();
    (gone["id"], gone["state"], gone["stoppedAt"]) = (json!("mail-2"), json!("gone"), json!("2026-11-25T11:30:00Z"));
    let worker = json!({ "id": "mail", "instances": [instance, gone], "jobTypes": [] });
    let server = FakeServer::start(move |_, _| page(&[&worker], None)).await;
    let output = Shell::signed_in(&server.url).run(&["workers", "list"]).await.output;
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines[1].starts_with("mail    mail-1    completing  1 of 10  critical 1 (2 waiting)"), "{output}");
    assert!(lines[2].starts_with("mail    mail-2    gone        –") && lines[2].contains("11:30:00"), "{output}");
}

#[tokio::test]
async fn colors_need_a_terminal() {
    let server = FakeServer::start(|_, _| page(&[job()], None)).await;
    let output = async |terminal: bool, no_color: bool, arguments: &[&str]| {
        let mut shell = Shell::signed_in(&server.url);
        shell.console.is_output_terminal = terminal;
        shell.console.environment.no_color = no_color;
        shell.run(arguments).await.output
    };
    assert!(output(true, false, &["jobs", "list"]).await.contains("\x1b[32mactive\x1b[0m"));
    assert!(!output(false, false, &["jobs", "list"]).await.contains('\x1b'));
    assert!(!output(true, true, &["jobs", "list"]).await.contains('\x1b'));
    assert!(!output(true, false, &["jobs", "list", "--no-color"]).await.contains('\x1b'));
    assert!(!output(true, false, &["jobs", "list", "-o", "json"]).await.contains('\x1b'));
}

#[tokio::test]
async fn documents_are_those_of_the_api() {
    let server = FakeServer::start(|request, _| match request.target.ends_with("mail.send") {
        true => document(200, &job()),
        false => page(&[occurrence(StatusName::Failed)], None),
    })
    .await;
    let json = Shell::signed_in(&server.url).run(&["occurrences", "list", "-o", "json"]).await;
    let list: Value = serde_json::from_str(&json.output).expect("JSON");
    assert_eq!(list, json!([occurrence(StatusName::Failed)]));
    let yaml = Shell::signed_in(&server.url).run(&["jobs", "get", "mail.send", "-o", "yaml"]).await;
    assert!(yaml.output.starts_with(&format!("id: {JOB}\nkey: mail.send\n")), "{}", yaml.output);
    assert!(yaml.output.contains("\n  jobData:\n    to: a@b.c\n"), "{}", yaml.output);
}

#[tokio::test]
async fn failed_request_has_the_code_of_its_status() {
    for (status, code) in [(400, 1), (401, 3), (403, 3), (404, 4), (409, 5), (412, 5), (422, 1), (500, 1)] {
        let server = FakeServer::start(move |_, _| problem(status, "The cause.\nThe remedy.")).await;
        let outcome = Shell::signed_in(&server.url).run(&["jobs", "get", "mail.send"]).await;
        assert_eq!(outcome.code, code, "{status}");
        assert_eq!(outcome.output, "");
        assert!(outcome.messages.starts_with("milvaion: The cause."), "{}", outcome.messages);
    }
    let outcome = Shell::signed_in(&unused_address().await).run(&["whoami"]).await;
    assert_eq!(outcome.code, 6);
    assert_eq!(Shell::signed_in(&unused_address().await).run(&["enqueue", "a"]).await.code, 6);
    assert!(outcome.messages.contains("cannot be reached") && outcome.messages.contains("caused by"), "{outcome:?}");
}

#[tokio::test]
async fn proxy_without_a_server_counts_as_unreachable() {
    let server = FakeServer::start(|_, _| document(502, &"Bad Gateway")).await;
    let job = Shell::signed_in(&server.url).run(&["jobs", "delete", "mail.send", "--yes"]).await;
    assert_eq!(job.code, 6);
}

#[tokio::test]
async fn deletion_needs_consent() {
    let server = FakeServer::start(|request, _| match request.method.as_str() {
        "DELETE" => no_content(),
        _ => document(200, &job()),
    })
    .await;
    let arguments = ["jobs", "delete", "mail.send"];
    let script = Shell::signed_in(&server.url).with_input("y\n").run(&arguments).await;
    assert_eq!(script.code, 2, "the input of a script is no consent");
    assert!(script.messages.contains("--yes"), "{}", script.messages);
    let refused = Shell::signed_in(&server.url).with_answer("\n").run(&arguments).await;
    assert_eq!(refused.code, 1);
    assert!(refused.messages.contains("Delete the job \"Send mail\" (mail.send)? [y/N]"), "{}", refused.messages);
    assert!(server.received().iter().all(|request| request.method != "DELETE"), "nothing was deleted");
    let agreed = Shell::signed_in(&server.url).with_answer("Y\n").run(&arguments).await;
    let with_yes = Shell::signed_in(&server.url).run(&["jobs", "delete", "mail.send", "-y"]).await;
    assert_eq!((agreed.code, with_yes.code), (0, 0));
    let deletions = server.lines().into_iter().filter(|line| *line == format!("DELETE /jobs/{JOB}"));
    assert_eq!(deletions.count(), 2);
}

#[tokio::test]
async fn run_prints_the_id_and_sends_the_input() {
    let server = FakeServer::start(|request, _| match request.method.as_str() {
        "POST" => document(202, &occurrence_detail(StatusName::Queued)),
        _ => document(200, &job()),
    })
    .await;
    let outcome = Shell::signed_in(&server.url)
        .with_input("{\"to\": 7}")
        .run(&["jobs", "run", "mail.send", "--input", "-", "--reason", "A test", "--force"])
        .await;
    assert_eq!((outcome.code, outcome.output), (0, format!("{OCCURRENCE}\n")));
    let request = server.received().pop().expect("a request");
    assert_eq!(request.line(), format!("POST /api/v1/jobs/{JOB}/run"));
    assert_eq!(request.json(), json!({ "input": { "to": 7 }, "reason": "A test", "force": true }));
    let wrong = Shell::signed_in(&server.url).run(&["jobs", "run", "mail.send", "--input", "a@b.c"]).await;
    assert_eq!(wrong.code, 2);
}

#[tokio::test]
async fn awaited_run_prints_one_document_at_its_end() {
    let server = FakeServer::start(|request, _| match request.target.rsplit('/').next().unwrap_or_default() {
        "run" => document(202, &occurrence_detail(StatusName::Queued)),
        "mail.send" => document(200, &job()),
        OCCURRENCE => document(200, &occurrence_detail(StatusName::Failed)),
        _ => events(vec![status_frame(StatusName::Failed), frame("end", &"")], StreamEnd::Closed),
    })
    .await;
    let outcome = Shell::signed_in(&server.url).run(&["jobs", "run", "mail.send", "--wait", "-o", "json"]).await;
    let document: Value = serde_json::from_str(&outcome.output).expect("one document");
    assert_eq!((outcome.code, &document["status"]), (10, &json!("failed")));
    assert!(outcome.messages.contains("ended: failed"), "{}", outcome.messages);
}

#[tokio::test]
async fn failures_are_resolved_by_filter_in_parts() {
    let failure = json!({
        "occurrenceId": OCCURRENCE, "jobId": JOB, "jobName": "Send mail", "jobVersion": 1, "workerId": "mail",
        "jobType": "send", "attempt": 3, "failedAt": "2026-11-25T11:00:00Z", "cause": "exhausted", "exception": "no route",
        "fingerprint": "f1", "jobData": null, "resolvedAt": null, "resolvedBy": null, "resolutionNote": null,
        "resolutionAction": null, "retriedAs": null,
    });
    let server = FakeServer::start(move |request, number| match request.method.as_str() {
        "GET" => page(&vec![failure.clone(); 2], None),
        _ => document(200, &json!({ "done": 1, "skipped": 0, "skipReason": null, "more": number == 2 })),
    })
    .await;
    let outcome = Shell::signed_in(&server.url)
        .run(&["failures", "resolve", "--fingerprint", "f1", "--note", "known", "--yes"])
        .await;
    assert_eq!((outcome.code, outcome.messages.as_str()), (0, "2 failures resolved.\n"));
    let posts: Vec<_> = server.received().into_iter().filter(|request| request.method == "POST").collect();
    assert_eq!(posts.len(), 2);
    let body = posts[0].json();
    assert_eq!((&body["expected"], &body["note"]), (&json!(2), &json!("known")));
    assert_eq!(body["selection"]["filter"]["resolved"], json!(false));
    for arguments in [&["failures", "resolve"][..], &["failures", "retry", OCCURRENCE, "--text", "x"]] {
        assert_eq!(Shell::signed_in(&server.url).run(arguments).await.code, 2, "{arguments:?}");
    }
}

#[tokio::test]
async fn new_token_is_the_only_output() {
    let server = FakeServer::start(|_, _| {
        let token = json!({
            "id": OCCURRENCE, "name": "ci", "owner": "ann@example.com", "role": "operator", "readOnly": false, "tag": null,
            "hint": "wxyz", "state": "active", "createdAt": "2026-11-25T12:00:00Z", "createdBy": "ann@example.com",
            "expiresAt": "2026-12-25T12:00:00Z", "lastUsedAt": null, "lastUsedAddress": null, "lastUsedRoute": null,
            "revokedAt": null,
        });
        document(201, &json!({ "token": token, "secret": "milvaion_abc" }))
    })
    .await;
    let arguments = ["tokens", "create", "ci", "--role", "operator", "--expires-in", "30"];
    let outcome = Shell::signed_in(&server.url).run(&arguments).await;
    assert_eq!(outcome.output, "milvaion_abc\n");
    assert!(outcome.messages.contains("It expires on 2026-12-25."), "{}", outcome.messages);
    assert_eq!(server.received()[0].json()["expiresInDays"], json!(30));
}

#[tokio::test]
async fn closed_pipe_is_no_failure() {
    struct Closed;
    impl std::io::Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let server = FakeServer::start(|_, _| page(&[job()], None)).await;
    let mut shell = Shell::signed_in(&server.url);
    shell.console.output = Box::new(Closed);
    let outcome = shell.run(&["jobs", "list"]).await;
    assert_eq!((outcome.code, outcome.messages.as_str()), (0, ""));
}

#[tokio::test]
async fn loops_are_listed_and_controlled() {
    let row = json!({
        "name": "price-feed", "status": "leading", "isEnabled": true, "epoch": 7, "schedule": "every 100ms",
        "leader": { "instanceId": "prices-1", "epoch": 7, "leaseRemainingMs": 9000 }, "leaseMs": 10000,
        "runs": 12, "errors": 1, "p99Ms": 20.5, "lastEndedAt": "2026-11-25T11:59:30Z", "instanceCount": 2,
        "lastError": "no price",
    });
    let server = FakeServer::start(move |request, _| match (request.method.as_str(), request.target.as_str()) {
        ("DELETE", _) => no_content(),
        ("GET", target) if target.ends_with("/singleton-loops") => page(std::slice::from_ref(&row), None),
        _ => document(200, &row),
    })
    .await;
    let list = Shell::signed_in(&server.url).run(&["loops", "list"]).await;
    for text in ["price-feed", "running", "prices-1", "every 100ms", "20.5 ms"] {
        assert!(list.output.contains(text), "{text}: {}", list.output);
    }
    let one = Shell::signed_in(&server.url).run(&["loops", "get", "price-feed"]).await;
    assert!(one.output.contains("9000 of 10000 ms remain") && one.output.contains("no price"), "{}", one.output);
    let dots = Shell::signed_in(&server.url).run(&["loops", "get", ".."]).await;
    assert_eq!((dots.code, dots.output.as_str()), (2, ""));
    assert!(dots.messages.contains("\"..\" cannot be the name of a singleton loop"), "{}", dots.messages);
    let json = Shell::signed_in(&server.url).run(&["loops", "enable", "price-feed", "-o", "json"]).await;
    let enabled: Value = serde_json::from_str(&json.output).expect("JSON");
    assert_eq!(enabled["name"], json!("price-feed"));
    for command in ["disable", "yield", "forget"] {
        let asked = Shell::signed_in(&server.url).run(&["loops", command, "price-feed"]).await;
        assert_eq!(asked.code, 2, "{command} needs consent");
        let done = Shell::signed_in(&server.url).run(&["loops", command, "price-feed", "--yes"]).await;
        assert_eq!(done.code, 0, "{command}: {}", done.messages);
        assert!(done.messages.contains("price-feed"), "{}", done.messages);
    }
    assert_eq!(
        server.lines(),
        [
            "GET /singleton-loops",
            "GET /singleton-loops/price-feed",
            "POST /singleton-loops/price-feed/enable",
            "POST /singleton-loops/price-feed/disable",
            "POST /singleton-loops/price-feed/yield",
            "DELETE /singleton-loops/price-feed",
        ]
    );
}

#[tokio::test]
async fn enqueue_sends_its_options_and_prints_the_id() {
    let server = FakeServer::start(|_, number| {
        let result = match number {
            1 => json!({ "id": OCCURRENCE, "outcome": "accepted" }),
            2 => json!({ "id": JOB, "outcome": "duplicate", "existingId": OCCURRENCE }),
            _ => {
                json!({ "id": OCCURRENCE, "outcome": "rejected", "reason": "notBefore: is more than 366 days ahead." })
            }
        };
        document(200, &json!({ "results": [result] }))
    })
    .await;
    let arguments = [
        "enqueue",
        "mail.send",
        "--input",
        "{\"to\": 7}",
        "--after",
        "15m",
        "--priority",
        "5",
        "--unique",
        "a",
        "--unique-for",
        "1h",
    ];
    let new = Shell::signed_in(&server.url).run(&arguments).await;
    assert_eq!((new.code, new.output.as_str(), new.messages.as_str()), (0, format!("{OCCURRENCE}\n").as_str(), ""));
    let request = server.received().pop().expect("a request");
    let sent = &request.json()["occurrences"][0];
    assert_eq!(request.line(), "POST /api/v1/occurrences");
    assert_eq!(
        (&sent["jobKey"], &sent["input"], &sent["priority"]),
        (&json!("mail.send"), &json!({ "to": 7 }), &json!(5))
    );
    assert_eq!((&sent["uniquenessKey"], &sent["uniqueForSeconds"]), (&json!("a"), &json!(3_600)));
    assert_eq!(sent["notBefore"], json!("2026-11-25T12:15:00Z"));

    let known = Shell::signed_in(&server.url).run(&["enqueue", "--type", "mail/send", "-o", "json"]).await;
    let result: Value = serde_json::from_str(&known.output).expect("JSON");
    assert_eq!((known.code, &result["existingId"]), (0, &json!(OCCURRENCE)));
    assert!(known.messages.contains("has the same uniqueness key"), "{}", known.messages);
    let sent = server.received().pop().expect("a request").json();
    assert_eq!(sent["occurrences"][0]["workerId"], json!("mail"));

    let at = ["enqueue", "mail.send", "--at", "2030-01-01T00:00:00Z"];
    let refused = Shell::signed_in(&server.url).run(&at).await;
    assert_eq!((refused.code, refused.output.as_str()), (1, ""));
    assert!(refused.messages.contains("--at or --after: is more than 366 days ahead."), "{}", refused.messages);
}

#[tokio::test]
async fn enqueue_refuses_arguments_before_a_request() {
    for arguments in [
        &["enqueue"][..],
        &["enqueue", "mail.send", "--type", "mail/send"],
        &["enqueue", "--type", "send"],
        &["enqueue", "mail.send", "--at", "tomorrow"],
        &["enqueue", "mail.send", "--at", "2026-12-24T08:00:00Z", "--after", "1h"],
        &["enqueue", "mail.send", "--priority", "6"],
        &["enqueue", "mail.send", "--unique", ""],
        &["enqueue", "mail.send", "--unique-for", "1h"],
        &["enqueue", "mail.send", "--timeout", "1m"],
    ] {
        let parsed = Program::try_parse_from(std::iter::once(&"milvaion").chain(arguments));
        assert_eq!(parsed.expect_err("invalid").exit_code(), 2, "{arguments:?}");
    }
    let server = FakeServer::start(|_, _| problem(500, "There is no request.")).await;
    for (input, expected) in [
        ("a@b.c", "--input: the input is not JSON: "),
        (r#"{"id": 18446744073709551616}"#, "--input: /id: 18446744073709551616 would be rounded to "),
    ] {
        for command in [&["enqueue", "mail.send"][..], &["jobs", "run", "mail.send"]] {
            let outcome = Shell::signed_in(&server.url).run(&[command, &["--input", input]].concat()).await;
            assert_eq!(outcome.code, 2);
            assert!(outcome.messages.contains(expected), "{}", outcome.messages);
        }
    }
    assert!(server.received().is_empty());
}

#[tokio::test]
async fn skipped_due_time_is_the_named_or_the_next_one() {
    let mut later = job();
    later["nextDueAt"] = json!("2026-11-26T15:00:00Z");
    let server = FakeServer::start(move |request, _| match request.method.as_str() {
        "GET" => document(200, &job()),
        _ => document(200, &later),
    })
    .await;
    for (named, due) in
        [(&["--due-at", "2026-11-25T16:00:00.25+01:00"][..], "2026-11-25T15:00:00.250Z"), (&[], "2026-11-25T15:00:00Z")]
    {
        let arguments = [&["jobs", "skip-due", "mail.send"], named].concat();
        let done = Shell::signed_in(&server.url).run(&arguments).await;
        let message = "The job \"Send mail\" is due next at 2026-11-26 15:00:00 (in 27 h).";
        assert!(done.code == 0 && done.messages.contains(message), "{}", done.messages);
        let request = server.received().pop().expect("a request");
        assert_eq!(request.line(), format!("POST /api/v1/jobs/{JOB}/skip-due"));
        assert_eq!(request.json(), json!({ "dueAt": due }));
    }
}

#[tokio::test]
async fn delayed_occurrences_are_cancelled_in_parts() {
    let mut found = job();
    found["delayedOccurrences"] = json!(10_001);
    let server = FakeServer::start(move |request, number| match request.method.as_str() {
        "GET" => document(200, &found),
        _ => document(200, &json!({ "cancelled": 10, "more": number == 3 })),
    })
    .await;
    let arguments = ["jobs", "cancel-delayed", "mail.send", "--reason", "wrong input"];
    let asked = Shell::signed_in(&server.url).with_answer("n\n").run(&arguments).await;
    assert!(asked.messages.contains("Cancel more than 10000 delayed occurrences"), "{}", asked.messages);
    let done = Shell::signed_in(&server.url).with_answer("y\n").run(&arguments).await;
    assert_eq!(done.code, 0);
    assert!(
        done.messages.contains("20 delayed occurrences of the job \"Send mail\" are cancelled."),
        "{}",
        done.messages
    );
    let request = server.received().pop().expect("a request");
    assert_eq!(request.line(), format!("POST /api/v1/jobs/{JOB}/cancel-delayed"));
    assert_eq!(request.json(), json!({ "reason": "wrong input" }));
}
