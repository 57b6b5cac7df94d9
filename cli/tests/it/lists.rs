//! The lengths of lists.

use milvaion_api::rest::StatusName;
use serde_json::Value;

use crate::{
    fake::{FakeServer, Received, page},
    samples::{OCCURRENCE, occurrence},
    shell::Shell,
};

/// Answers with as many occurrences as were asked for, of an endless list.
fn endless(request: &Received) -> axum::response::Response {
    let limit = request.target.rsplit("limit=").next().and_then(|text| text.parse().ok()).expect("a limit");
    page(&vec![occurrence(StatusName::Completed); limit], Some(OCCURRENCE))
}

async fn list(arguments: &[&str]) -> (usize, String, Vec<String>) {
    let server = FakeServer::start(|request, _| endless(request)).await;
    let arguments = [&["occurrences", "list", "-o", "json"], arguments].concat();
    let outcome = Shell::signed_in(&server.url).run(&arguments).await;
    let items: Vec<Value> = serde_json::from_str(&outcome.output).expect("JSON");
    (items.len(), outcome.messages, server.lines())
}

#[tokio::test]
async fn list_has_fifty_items_and_names_the_rest() {
    let (items, messages, requests) = list(&[]).await;
    assert_eq!((items, requests), (50, vec!["GET /occurrences?limit=50".to_owned()]));
    assert_eq!(messages, "There are more occurrences. Use --all, or a larger --limit.\n");
}

#[tokio::test]
async fn larger_list_follows_cursors() {
    let (items, _, requests) = list(&["--limit", "250"]).await;
    let second = format!("GET /occurrences?before={OCCURRENCE}&limit=50");
    assert_eq!((items, requests), (250, vec!["GET /occurrences?limit=200".to_owned(), second]));
}

#[tokio::test]
async fn whole_list_is_bounded() {
    let (items, messages, requests) = list(&["--all"]).await;
    assert_eq!((items, requests.len()), (10_000, 50));
    assert_eq!(messages, "Only the first 10,000 occurrences are listed. Narrow the list down with a filter.\n");
}

#[tokio::test]
async fn empty_list_is_a_message_for_people_only() {
    let server = FakeServer::start(|_, _| page(&[] as &[u8], None)).await;
    let people = Shell::signed_in(&server.url).run(&["calendars", "list"]).await;
    assert_eq!((people.output.as_str(), people.messages.as_str()), ("", "There are no such calendars.\n"));
    let program = Shell::signed_in(&server.url).run(&["calendars", "list", "-o", "json"]).await;
    assert_eq!((program.output.as_str(), program.messages.as_str()), ("[]\n", ""));
}
