//! Log lines of runs reach the pages that show them, and nothing else.

use std::{collections::HashSet, ops::Range};

use futures::{Stream, StreamExt};
use milvaion_api::events::{EventEnvelope, LiveEvent};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLevel, LogLine, LogMessage},
};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    broker::consumer::BatchHandler, cache::Cache, config::ServerConfig, ingest::logs::LogConsumer, lifecycle::Server,
};
use milvaion_test_support::{jobs, private_service::PrivateService, runs, server_env, wait};

use crate::event_stream::{StreamReader, admin, cookie, wait_for_channel};

/// Creates an occurrence.
async fn occurrence(server: &Server) -> OccurrenceId {
    let job = jobs::insert(&server.store, &server.clock, Schedule::Manual, None).await;
    runs::insert_manual(&server.store, &server.clock, job).await
}

/// Ingests one log line on a server.
async fn log(server: &Server, occurrence_id: OccurrenceId, seq: i64) {
    log_all(server, occurrence_id, seq..seq + 1).await;
}

/// Ingests log lines on a server in one message.
async fn log_all(server: &Server, occurrence_id: OccurrenceId, seqs: Range<i64>) {
    let (at, level) = (server.clock.now(), LogLevel::default());
    let lines = seqs.map(|seq| LogLine { seq, at, level, message: format!("line {seq}"), data: None }).collect();
    let message = LogMessage { occurrence_id, lines };
    let consumer = LogConsumer { store: server.store.clone(), hub: server.hub.clone(), clock: server.clock.clone() };
    consumer.handle(vec![serde_json::to_vec(&message).expect("it serializes")]).await.expect("the line is stored");
}

/// Returns the events that cross Redis.
async fn tap(config: &ServerConfig) -> impl Stream<Item = LiveEvent> + use<> {
    let cache = Cache::new(&config.cache).expect("a valid URL");
    let (_, messages) = cache.listen().await.expect("Redis responds");
    Box::pin(messages.filter_map(|(is_event, text)| {
        let event = is_event.then(|| serde_json::from_str::<EventEnvelope>(&text).expect("an event").event);
        async move { event }
    }))
}

/// Returns the events up to one that `server` publishes now.
async fn until_now(server: &Server, events: &mut (impl Stream<Item = LiveEvent> + Unpin)) -> Vec<LiveEvent> {
    let mark = LiveEvent::Job { id: server.clock.job_id() };
    server.hub.publish(server.clock.now(), vec![mark.clone()]);
    let mut before = Vec::new();
    loop {
        let next = tokio::time::timeout(wait::WAIT_TIMEOUT, events.next()).await.expect("an event in time");
        match next.expect("Redis is there") {
            event if event == mark => return before,
            event => before.push(event),
        }
    }
}

fn logged(events: &[LiveEvent]) -> HashSet<OccurrenceId> {
    let of = |event: &LiveEvent| match event {
        LiveEvent::Log { occurrence_id, .. } => Some(*occurrence_id),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

fn is_watched(data: &str, id: OccurrenceId) -> bool {
    data.contains(r#""kind":"logsWatched""#) && data.contains(&id.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_lines_cross_redis_only_while_a_page_shows_them() {
    let config = server_env::config().await;
    let (one, two) = (server_env::start(&config).await, server_env::start(&config).await);
    let cookie = cookie(&two, &admin(&two).await).await;
    wait_for_channel(&one).await;
    wait_for_channel(&two).await;
    let mut crossing = tap(&config).await;
    let (shown, other) = (occurrence(&one).await, occurrence(&one).await);
    log(&one, shown, 1).await;
    assert_eq!(logged(&until_now(&one, &mut crossing).await), HashSet::new());

    // The page is at one server, and the lines arrive at the other.
    let mut reader = StreamReader::open(&two, &cookie, &format!("?log={shown}")).await;
    let (watched, _) = reader.until("the announcement", |frame| is_watched(&frame.data, shown)).await;
    assert_eq!(watched.id, "", "it belongs to this stream, so that no browser resumes at it");
    let view = two.store.occurrence(shown, 100, two.clock.now()).await.expect("the query succeeds").expect("it exists");
    assert_eq!(view.log.len(), 1, "the line before it is read");
    for seq in 2..5 {
        log(&one, shown, seq).await;
        log(&one, other, seq).await;
        let text = format!(r#""line {seq}""#);
        let (frame, _) = reader.until("the line", |frame| frame.data.contains(&text)).await;
        assert!(frame.data.contains(&shown.to_string()), "{frame:?}");
    }
    assert_eq!(logged(&until_now(&one, &mut crossing).await), HashSet::from([shown]));

    // The page is left.
    drop(reader);
    wait::until("the end of the watch", async || {
        one.cache.watched_logs(&[shown]).await.expect("Redis responds").is_empty()
    })
    .await;
    log(&one, shown, 5).await;
    assert_eq!(logged(&until_now(&one, &mut crossing).await), HashSet::new());

    // A log that exceeds its bounds is trimmed while it arrives, to within a twentieth.
    let long = occurrence(&one).await;
    for first in (0..12_000).step_by(200) {
        log_all(&one, long, first..first + 200).await;
    }
    let kept = one.store.count_log_lines(long, i64::MIN, i64::MAX).await.expect("the query succeeds");
    assert!((9_500..10_700).contains(&kept), "{kept} lines are kept");
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_misses_no_line_while_it_begins_to_watch() {
    let config = server_env::config().await;
    let (one, two) = (server_env::start(&config).await, server_env::start(&config).await);
    let cookie = cookie(&two, &admin(&two).await).await;
    wait_for_channel(&one).await;
    wait_for_channel(&two).await;
    let shown = occurrence(&one).await;
    let writer = async {
        for seq in 1..=200 {
            log(&one, shown, seq).await;
        }
    };
    let page = async {
        let mut reader = StreamReader::open(&two, &cookie, &format!("?log={shown}")).await;
        reader.until("the announcement", |frame| is_watched(&frame.data, shown)).await;
        let lines = two.store.log_before(shown, i64::MAX, 1_000).await.expect("the query succeeds");
        let mut seen: HashSet<i64> = lines.iter().map(|line| line.seq).collect();
        while seen.len() < 200 {
            let (frame, _) = reader.until("a line", |frame| frame.data.contains(r#""kind":"log""#)).await;
            let envelope: EventEnvelope = serde_json::from_str(&frame.data).expect("an event");
            let LiveEvent::Log { lines, .. } = envelope.event else { panic!("{envelope:?}") };
            seen.extend(lines.iter().map(|line| line.seq));
        }
    };
    tokio::join!(writer, page);
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_receives_the_lines_of_its_own_server_without_redis() {
    let mut redis = PrivateService::redis().await.expect("Redis starts");
    let mut config = server_env::config().await;
    config.cache.url = redis.url().to_owned();
    let server = server_env::start(&config).await;
    let cookie = cookie(&server, &admin(&server).await).await;
    wait_for_channel(&server).await;
    let (shown, other) = (occurrence(&server).await, occurrence(&server).await);
    redis.kill().await.expect("Redis is killed");
    let mut reader = StreamReader::open(&server, &cookie, &format!("?log={shown}")).await;
    reader.until("the announcement", |frame| is_watched(&frame.data, shown)).await;
    log(&server, other, 1).await;
    log(&server, shown, 2).await;
    reader.until("the line", |frame| frame.data.contains(r#""line 2""#)).await;

    // When Redis is back, the page reads again, and every later line is announced before that.
    redis.start().await.expect("Redis starts");
    reader.until("the resync", |frame| frame.data.contains(r#""kind":"resync""#)).await;
    // The first request finds the connection broken.
    let watched =
        wait::eventually("a connection", || async { server.cache.watched_logs(&[shown, other]).await.ok() }).await;
    assert_eq!(watched, HashSet::from([shown]));
    server.stop().await;
    redis.close().await.expect("Redis is stopped");
}
