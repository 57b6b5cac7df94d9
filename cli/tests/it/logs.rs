//! Logs and waits on the console.

use futures::{FutureExt, future};
use milvaion_api::rest::StatusName;
use milvaion_protocol::message::LogLine;
use serde_json::json;

use crate::{
    fake::{FakeServer, StreamEnd, document, events, frame},
    samples::{OCCURRENCE, line, occurrence_detail, status_frame},
    shell::Shell,
};

#[tokio::test]
async fn followed_log_prints_lines_and_ends_with_the_status() {
    let server = FakeServer::start(|_, _| {
        let lines = vec![
            status_frame(StatusName::Running),
            frame("line", &line(1)),
            status_frame(StatusName::Failed),
            frame("line", &line(2)),
            frame("end", &json!({})),
        ];
        events(lines, StreamEnd::Silent)
    })
    .await;
    let outcome = Shell::signed_in(&server.url).run(&["occurrences", "logs", OCCURRENCE, "--follow"]).await;
    assert_eq!(outcome.code, 10);
    assert_eq!(outcome.output, "2026-11-25 12:00:00.000 info  line 1\n2026-11-25 12:00:00.000 info  line 2\n");
    let json = Shell::signed_in(&server.url).run(&["occurrences", "logs", OCCURRENCE, "-f", "-o", "json"]).await;
    assert_eq!(json.output.lines().count(), 2, "one document per line");
}

#[tokio::test]
async fn interrupt_ends_a_followed_log() {
    let server = FakeServer::start(|_, _| events(vec![status_frame(StatusName::Running)], StreamEnd::Silent)).await;
    let mut shell = Shell::signed_in(&server.url);
    shell.console.interrupt = future::ready(()).boxed().shared();
    let outcome = shell.run(&["occurrences", "logs", OCCURRENCE, "--follow"]).await;
    assert_eq!((outcome.code, outcome.output.as_str()), (130, ""));
}

#[tokio::test]
async fn wait_ends_with_the_final_status() {
    for (ended, code) in [
        (StatusName::Completed, 0),
        (StatusName::Failed, 10),
        (StatusName::TimedOut, 11),
        (StatusName::Cancelled, 12),
        (StatusName::Skipped, 13),
    ] {
        let server = FakeServer::start(move |_, _| {
            // The end of the log, which may come later, is not waited for.
            events(vec![status_frame(StatusName::Queued), status_frame(ended)], StreamEnd::Silent)
        })
        .await;
        let wait = ["occurrences", "wait", OCCURRENCE, "--timeout", "20s"];
        let outcome = Shell::signed_in(&server.url).run(&wait).await;
        assert_eq!((outcome.code, outcome.output.as_str()), (code, ""), "{ended:?}");
        assert!(server.lines()[0].ends_with("after=9007199254740991"), "a wait reads no lines");
    }
}

#[tokio::test]
async fn wait_has_a_limit() {
    let server = FakeServer::start(|_, _| events(vec![status_frame(StatusName::Running)], StreamEnd::Silent)).await;
    let outcome = Shell::signed_in(&server.url).run(&["occurrences", "wait", OCCURRENCE, "--timeout", "0s"]).await;
    assert_eq!(outcome.code, 14);
}

#[tokio::test]
async fn stream_that_ends_without_a_status_is_looked_up() {
    let server = FakeServer::start(|request, _| match request.target.contains("stream") {
        true => events(vec![frame("end", &json!({}))], StreamEnd::Closed),
        false => document(200, &occurrence_detail(StatusName::Cancelled)),
    })
    .await;
    let outcome = Shell::signed_in(&server.url).run(&["occurrences", "wait", OCCURRENCE]).await;
    assert_eq!(outcome.code, 12);
}

#[tokio::test]
async fn stored_log_is_read_to_its_end() {
    let server = FakeServer::start(|request, _| {
        let after: i64 = request.target.rsplit('=').next().and_then(|text| text.parse().ok()).expect("after");
        let lines: Vec<_> = (after + 1..=(after + 500).min(700)).map(line).collect();
        document(200, &json!({ "lines": lines, "status": "running" }))
    })
    .await;
    let outcome = Shell::signed_in(&server.url).run(&["occurrences", "logs", OCCURRENCE]).await;
    assert_eq!((outcome.code, outcome.output.lines().count()), (0, 700));
    assert!(outcome.output.ends_with("line 700\n"));
}

#[tokio::test]
async fn fields_of_a_line_are_shown_without_its_span() {
    let server = FakeServer::start(|_, _| {
        let data = json!({ "rows": 12, "trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": "b7ad6b7169203331" });
        let line = LogLine { data: Some(data), ..line(1) };
        events(
            vec![frame("line", &line), status_frame(StatusName::Completed), frame("end", &json!({}))],
            StreamEnd::Closed,
        )
    })
    .await;
    let shown = Shell::signed_in(&server.url).run(&["occurrences", "logs", OCCURRENCE, "--follow"]).await;
    assert_eq!(shown.output, "2026-11-25 12:00:00.000 info  line 1 rows=12\n");
    let json = Shell::signed_in(&server.url).run(&["occurrences", "logs", OCCURRENCE, "-f", "-o", "json"]).await;
    assert!(json.output.contains("b7ad6b7169203331"), "{}", json.output);
}

#[tokio::test]
async fn trace_id_of_an_occurrence_is_shown() {
    let server = FakeServer::start(|_, _| document(200, &occurrence_detail(StatusName::Completed))).await;
    let shown = Shell::signed_in(&server.url).run(&["occurrences", "get", OCCURRENCE]).await;
    let trace = shown.output.lines().find(|line| line.starts_with("Trace"));
    assert!(trace.is_some_and(|line| line.ends_with("019a9b3f7c007abc8def0123456789ab")), "{}", shown.output);
}
