//! Pages follow the logs of runs: events say that there are new lines, and the pages read them.

use std::{ops::Range, time::Instant};

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

use crate::event_stream::{StreamFrame, StreamReader, admin, cookie, wait_for_channel};

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
    let messages = cache.listen().await.expect("Redis responds");
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

/// Returns true if an event says that the log of an occurrence has new lines.
fn is_about(frame: &StreamFrame, id: OccurrenceId) -> bool {
    serde_json::from_str::<EventEnvelope>(&frame.data).is_ok_and(|envelope| envelope.event.concerns_log(id))
}

/// Waits for an event about a log, and checks that it has no line.
async fn until_event(reader: &mut StreamReader, id: OccurrenceId) {
    let (frame, _) = reader.until("the event", |frame| is_about(frame, id)).await;
    assert!(!frame.data.contains("line "), "{frame:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_lines_are_announced_to_pages_of_all_servers() {
    let config = server_env::config().await;
    let (one, two) = (server_env::start(&config).await, server_env::start(&config).await);
    let cookie = cookie(&two, &admin(&two).await).await;
    wait_for_channel(&one).await;
    wait_for_channel(&two).await;
    let mut crossing = tap(&config).await;
    let (shown, other) = (occurrence(&one).await, occurrence(&one).await);

    // The page is at one server, and the lines arrive at the other.
    let mut reader = StreamReader::open(&two, &cookie, "").await;
    log(&one, shown, 1).await;
    until_event(&mut reader, shown).await;
    let view = two.store.occurrence(shown, 100, two.clock.now()).await.expect("the query succeeds").expect("it exists");
    assert_eq!(view.log.len(), 1, "the line is read");

    // The lines of all runs cost two events in a second.
    until_now(&one, &mut crossing).await;
    let since = Instant::now();
    for seq in 2..100 {
        log(&one, shown, seq).await;
        log(&one, other, seq).await;
    }
    let took = since.elapsed();
    until_event(&mut reader, shown).await;
    let events = until_now(&one, &mut crossing).await;
    let about_logs = events.iter().filter(|event| matches!(event, LiveEvent::Log { .. })).count();
    assert!(about_logs >= 1 && about_logs as u128 <= took.as_millis() / 500 + 2, "{about_logs} events in {took:?}");

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
async fn page_that_reads_after_each_event_misses_no_line() {
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
        let mut reader = StreamReader::open(&two, &cookie, "").await;
        let mut last = 0;
        loop {
            let lines = two.store.oldest_log_lines(shown, last, i64::MAX, 500).await.expect("the query succeeds");
            last = lines.last().map_or(last, |line| line.seq);
            if last == 200 {
                return;
            }
            until_event(&mut reader, shown).await;
        }
    };
    tokio::join!(writer, page);
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_of_the_own_server_are_announced_without_redis() {
    let mut redis = PrivateService::redis().await.expect("Redis starts");
    let mut config = server_env::config().await;
    config.cache.url = redis.url().to_owned();
    let server = server_env::start(&config).await;
    let cookie = cookie(&server, &admin(&server).await).await;
    wait_for_channel(&server).await;
    let shown = occurrence(&server).await;
    redis.kill().await.expect("Redis is killed");
    let mut reader = StreamReader::open(&server, &cookie, "").await;
    reader.until("the resync of a new page", |frame| frame.data.contains(r#""event":"resync""#)).await;
    log(&server, shown, 1).await;
    until_event(&mut reader, shown).await;

    // When Redis is back, the page reads again, and later lines are announced.
    redis.start().await.expect("Redis starts");
    reader.until("the resync", |frame| frame.data.contains(r#""event":"resync""#)).await;
    log(&server, shown, 2).await;
    until_event(&mut reader, shown).await;
    server.stop().await;
    redis.close().await.expect("Redis is stopped");
}
