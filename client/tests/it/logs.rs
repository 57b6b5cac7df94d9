//! Logs that are followed over lost connections.

use std::{sync::Arc, time::Duration};

use milvaion_api::rest::{OccurrenceDetail, StatusName};
use milvaion_client::{Client, ClientError, LogEvent};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::Notify;

use crate::{
    client::{client, quick},
    fake::{FakeServer, StreamEnd, document, events, frame, problem},
    samples::{OCCURRENCE, line, occurrence_detail, status_frame},
};

/// Follows the log to its end. A line is its number, and everything else a word.
async fn follow(client: &Client) -> Result<Vec<String>, ClientError> {
    follow_and(client, |_| ()).await
}

/// Follows the log to its end, with a call after each line.
async fn follow_and(client: &Client, received: impl Fn(i64)) -> Result<Vec<String>, ClientError> {
    let mut follower = client.follow_log(OCCURRENCE.parse().expect("an id"), 0);
    let mut seen = Vec::new();
    while let Some(event) = follower.next().await? {
        seen.push(match event {
            LogEvent::Line(line) => {
                received(line.seq);
                line.seq.to_string()
            }
            LogEvent::Status(occurrence) => occurrence.status.as_str().to_owned(),
            LogEvent::Lost(_) => "lost".to_owned(),
            LogEvent::End => "end".to_owned(),
            _ => "unknown".to_owned(),
        });
    }
    Ok(seen)
}

#[tokio::test]
async fn lost_stream_resumes_without_repeated_or_lost_lines() {
    let kill = Arc::new(Notify::new());
    let killed = kill.clone();
    let server = FakeServer::start(move |_, number| match number {
        1 => events(
            vec![
                status_frame(StatusName::Running),
                frame("line", &line(1)),
                frame("line", &line(2)),
                "event: line\nda".into(),
            ],
            StreamEnd::Broken(killed.clone()),
        ),
        2 => problem(503, "The server is being stopped."),
        // Lines that were sent before are sent again.
        3 => events(vec![": ping\n\n".into(), frame("line", &line(2)), frame("line", &line(3))], StreamEnd::Closed),
        // Line 4 was stored late.
        _ => events(
            vec![
                frame("line", &line(5)),
                frame("line", &line(4)),
                status_frame(StatusName::Completed),
                frame("end", &json!({})),
            ],
            StreamEnd::Silent,
        ),
    })
    .await;
    let kill_after_two = |seq| {
        if seq == 2 {
            kill.notify_one();
        }
    };
    let seen = follow_and(&client(&server.url), kill_after_two).await.expect("the whole log");
    assert_eq!(seen, ["running", "1", "2", "lost", "lost", "3", "lost", "5", "4", "completed", "end"]);
    let path = format!("GET /occurrences/{OCCURRENCE}/log/stream?after=");
    assert_eq!(server.lines(), [0, 2, 2, 3].map(|after| format!("{path}{after}")));
}

#[tokio::test]
async fn silent_stream_is_replaced() {
    let server = FakeServer::start(|request, _| match request.target.ends_with("after=0") {
        true => events(vec![frame("line", &line(1))], StreamEnd::Silent),
        false => events(vec![frame("end", &json!({}))], StreamEnd::Closed),
    })
    .await;
    let mut options = quick();
    options.stream_idle_timeout = Duration::from_millis(200);
    let client = Client::with_options(&server.url, "milvaion_secret", options).expect("a client");
    let seen = follow(&client).await.expect("the whole log");
    // A slow machine may also lose a connection before its first event.
    let mut events = seen.iter().map(String::as_str).skip_while(|event| *event == "lost");
    assert_eq!((events.next(), events.next(), events.last()), (Some("1"), Some("lost"), Some("end")), "{seen:?}");
}

#[tokio::test]
async fn refused_stream_is_final() {
    let server = FakeServer::start(|_, _| problem(404, "There is no such occurrence.")).await;
    let error = follow(&client(&server.url)).await.expect_err("a refusal");
    assert_eq!(error.to_string(), "There is no such occurrence.");
    assert_eq!(server.received().len(), 1);
}

#[tokio::test]
async fn follower_gives_up_after_ten_connections_without_an_event() {
    let server = FakeServer::start(|_, _| events(Vec::new(), StreamEnd::Closed)).await;
    assert!(follow(&client(&server.url)).await.is_err());
    assert_eq!(server.received().len(), 10);
}

/// Starts a server at which the occurrence has this end and this result.
async fn ended_server(status: StatusName, result: Option<&'static str>) -> FakeServer {
    FakeServer::start(move |request, number| match (request.target.contains("stream"), number) {
        // The first connection is lost before the end.
        (true, 1) => events(vec![status_frame(StatusName::Running)], StreamEnd::Closed),
        (true, _) => events(vec![status_frame(status)], StreamEnd::Silent),
        (false, _) => {
            let result = result.map(str::to_owned);
            document(200, &OccurrenceDetail { result, ..occurrence_detail(status) })
        }
    })
    .await
}

#[derive(Debug, PartialEq, serde::Deserialize)]
struct Letters {
    count: u32,
}

#[tokio::test]
async fn library_waits_for_the_end_of_an_occurrence() {
    let server = ended_server(StatusName::Failed, None).await;
    let ended = client(&server.url).wait(OCCURRENCE.parse().expect("an id")).await.expect("an end is no error");
    assert_eq!(ended.summary.status, StatusName::Failed);
    let stream = format!("GET /occurrences/{OCCURRENCE}/log/stream?after=9007199254740991");
    assert_eq!(server.lines(), [stream.clone(), stream, format!("GET /occurrences/{OCCURRENCE}")]);
}

#[tokio::test]
async fn result_is_read_as_a_value() {
    async fn read<T: DeserializeOwned>(result: Option<&'static str>) -> Result<T, String> {
        let server = ended_server(StatusName::Completed, result).await;
        let read = client(&server.url).wait_for_result(OCCURRENCE.parse().expect("an id")).await;
        read.map_err(|error| error.to_string())
    }
    assert_eq!(read(Some(r#"{"count":5}"#)).await, Ok(Letters { count: 5 }));
    // A string is stored without its quotation marks, also one that looks like a number.
    assert_eq!(read(Some("Hello, Ada!")).await, Ok("Hello, Ada!".to_owned()));
    assert_eq!(read(Some("42")).await, Ok("42".to_owned()));
    assert_eq!(read(Some("Hello, Ada!")).await, Ok(json!("Hello, Ada!")));
    assert_eq!(read(None).await, Ok(()));
    for (result, is) in [(Some(r#"{"count":"#), r#"begins with "{\"count\":""#), (None, "is empty")] {
        let error = read::<Letters>(result).await.expect_err("no letters");
        assert!(error.contains("is not JSON of the type ") && error.contains("::Letters: it "), "{error}");
        assert!(error.contains(is) && error.contains("64 KiB"), "{error}");
    }
}

#[tokio::test]
async fn occurrence_that_did_not_complete_has_no_result() {
    for (status, word) in [(StatusName::Failed, "failed"), (StatusName::TimedOut, "timed out")] {
        let server = ended_server(status, None).await;
        let id = OCCURRENCE.parse().expect("an id");
        let error = client(&server.url).wait_for_result::<()>(id).await.expect_err("it has no result");
        let text = format!("Occurrence {OCCURRENCE} has no result, because it ended as {word}: line one");
        assert_eq!(error.to_string(), text);
    }
}
