//! The page of the singleton loops without a script: its cards, and the forms that control a loop.

use axum::http::StatusCode;
use milvaion_api::permissions::Role;

use super::done;
use crate::common::{FakeBackend, PageResponse, get, post};

/// Returns the card of a loop.
fn card<'a>(page: &'a PageResponse, name: &str) -> &'a str {
    let start = format!("data-loop=\"{name}\"");
    let card = page.body.split_once(&start).and_then(|(_, rest)| rest.split_once("</section>"));
    card.expect("the page has a card of the loop").0
}

#[tokio::test]
async fn card_shows_leader_counters_and_last_error() {
    let page = get(&FakeBackend::signed_in(Role::Viewer).ready(), "/singleton-loops").await;
    assert_eq!(page.status, StatusCode::OK);
    let led = card(&page, "price-feed");
    for text in [
        "Running",
        "fixed rate 100ms",
        "prices-1",
        "host-a",
        "1795269000",
        "7.5 s of 10.0 s",
        "prices-2",
        "Last 3 runs, oldest first: 1 succeeded, 1 failed, 1 cancelled",
        "5,990",
        "12.5 ms / 80.0 ms",
        "no price for &lt;b&gt;EUR&lt;/b&gt;",
    ] {
        assert!(led.contains(text), "{text}: {led}");
    }
    for (name, state) in [("orders", "No leader"), ("retired", "Not offered"), ("balances", "Disabled")] {
        assert!(card(&page, name).contains(state), "{name}");
    }
    assert!(card(&page, "balances").contains("Disabled by grace@example.org"));
    page.assert_lacks(&["/api/control_loop", "?confirm="]);
}

#[tokio::test]
async fn operator_controls_a_loop_with_plain_forms() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let page = get(&fake, "/singleton-loops?confirm=disable&loop=price-feed").await;
    page.assert_contains(&["Disable loop price-feed?", "action=\"/api/control_loop\""]);
    get(&fake, "/singleton-loops?confirm=disable&loop=unknown").await.assert_lacks(&["id=\"confirm\""]);
    for (action, name) in
        [("disable", "price-feed"), ("enable", "balances"), ("yield", "price-feed"), ("forget", "retired")]
    {
        let answer = post(&fake, "/api/control_loop", &format!("name={name}&action={action}")).await;
        assert_eq!(answer.location.as_deref(), Some("/singleton-loops"), "{action}");
    }
    let expected = ["disable loop price-feed", "enable loop balances", "yield loop price-feed", "forget loop retired"];
    assert_eq!(done(&fake), expected);
    post(&fake, "/api/control_loop", "name=orders&action=forget").await;
    get(&fake, "/singleton-loops").await.assert_contains(&["An instance offers the singleton loop orders."]);
}

#[tokio::test]
async fn loops_are_searched_by_name() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let page = get(&fake, "/singleton-loops?q=PRICE").await;
    page.assert_contains(&["data-loop=\"price-feed\""]).assert_lacks(&["data-loop=\"orders\""]);
    get(&fake, "/singleton-loops?q=nothing").await.assert_contains(&["No singleton loop matches"]);
}

#[tokio::test]
async fn empty_page_names_the_next_step() {
    let page = get(&FakeBackend::signed_in(Role::Viewer).empty().ready(), "/singleton-loops").await;
    page.assert_contains(&["No singleton loops", ".singleton(", "docs/singleton-loops.md"]);
}
