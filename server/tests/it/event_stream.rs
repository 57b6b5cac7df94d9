//! The event stream over HTTP: resuming without a resync, the server's build, and the end of a session.

use std::{fs, sync::Arc, time::Duration};

use futures::{Stream, StreamExt};
use http::{StatusCode, header, request::Parts};
use milvaion_api::{
    events::{BUILD_FRAME, LiveEvent},
    permissions::Role,
    views::CurrentUser,
};
use milvaion_app::backend::{AccountBackend, RequestUser, TeamBackend};
use milvaion_server::{
    command::team,
    config::ServerConfig,
    http::session::{self, PostgresSessionStore, SessionOrigin},
    lifecycle::Server,
};
use milvaion_test_support::{server_env, services, wait};
use tower_sessions::Session;

use crate::users::harness;

/// One frame of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StreamFrame {
    event: String,
    pub(crate) id: String,
    pub(crate) data: String,
}

impl StreamFrame {
    fn is_resync(&self) -> bool {
        self.data.contains(r#""event":"resync""#)
    }
}

/// An open stream.
pub(crate) struct StreamReader {
    bytes: std::pin::Pin<Box<dyn Stream<Item = reqwest::Result<Vec<u8>>> + Send>>,
    rest: String,
}

impl StreamReader {
    pub(crate) async fn open(server: &Server, cookie: &str, query: &str) -> Self {
        let address = format!("http://127.0.0.1:{}/events{query}", server.address.port());
        let request = reqwest::Client::new().get(address).header(header::COOKIE, cookie);
        let response = request.send().await.expect("a response");
        assert_eq!(response.status(), StatusCode::OK);
        // Proxies pass each frame on at once, and browsers guess no other type.
        let expected = [
            ("content-type", "text/event-stream; charset=utf-8"),
            ("x-accel-buffering", "no"),
            ("x-content-type-options", "nosniff"),
        ];
        for (name, value) in expected {
            assert_eq!(response.headers().get(name).and_then(|value| value.to_str().ok()), Some(value), "{name}");
        }
        let bytes = response.bytes_stream().map(|chunk| chunk.map(|chunk| chunk.to_vec())).boxed();
        Self { bytes, rest: String::new() }
    }

    /// Returns the next frame, or `None` after the end of the stream.
    async fn next(&mut self) -> Option<StreamFrame> {
        loop {
            if let Some((text, rest)) = self.rest.split_once("\n\n") {
                let mut frame = StreamFrame::default();
                for line in text.lines() {
                    match line.split_once(": ").or_else(|| line.split_once(':')) {
                        Some(("event", value)) => frame.event = value.to_owned(),
                        Some(("id", value)) => frame.id = value.to_owned(),
                        Some(("data", value)) => frame.data = value.to_owned(),
                        _ => {}
                    }
                }
                self.rest = rest.to_owned();
                return Some(frame);
            }
            let chunk = tokio::time::timeout(wait::WAIT_TIMEOUT, self.bytes.next()).await.expect("a frame in time")?;
            self.rest.push_str(&String::from_utf8_lossy(&chunk.expect("the stream can be read")));
        }
    }

    /// Returns the first frame that matches, and the frames before it.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        matches: impl Fn(&StreamFrame) -> bool,
    ) -> (StreamFrame, Vec<StreamFrame>) {
        let mut before = Vec::new();
        loop {
            let frame = self.next().await.unwrap_or_else(|| panic!("the stream ended before {what}: {before:?}"));
            if matches(&frame) {
                return (frame, before);
            }
            before.push(frame);
        }
    }
}

/// Creates the first Admin.
pub(crate) async fn admin(server: &Server) -> CurrentUser {
    let (store, clock) = (&server.store, &server.clock);
    harness::join(store, clock, &harness::setup_link(store, clock).await, "ana").await
}

/// Signs the user in and returns the cookie.
pub(crate) async fn cookie(server: &Server, me: &CurrentUser) -> String {
    let sessions = Arc::new(PostgresSessionStore::new(server.store.clone(), server.clock.clone()));
    let session = Session::new(None, sessions, None);
    session::sign_in_session(&session, me, server.clock.now(), SessionOrigin::default()).await.expect("it is stored");
    format!("milvaion_session={}", session.id().expect("a valid id"))
}

/// Waits until the server has opened its channel to the other servers, after which all events have one order.
pub(crate) async fn wait_for_channel(server: &Server) {
    let (_, mut events) = server.hub.listen(None);
    wait::eventually("an event from the channel", || {
        server.hub.publish(server.clock.now(), vec![LiveEvent::Workers]);
        let found = events.try_recv().map(|_| ());
        async move { found }
    })
    .await;
}

/// Returns the configuration of a server whose site root has this build, or none.
async fn config_with_build(build: Option<&str>) -> ServerConfig {
    let mut config = server_env::config().await;
    config.http.site_root = config.data_dir.join(services::unique("site"));
    if let Some(build) = build {
        let files = config.http.site_root.join("pkg").join(build);
        fs::create_dir_all(&files).expect("the folder can be created");
        fs::write(files.join("icons.svg"), "<svg></svg>").expect("the icons can be written");
        fs::write(config.http.site_root.join("build.txt"), format!("{build}\n")).expect("the name can be written");
    }
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_announces_the_build_of_its_server() {
    let config = config_with_build(Some("0123456789abcdef")).await;
    let server = server_env::start(&config).await;
    let cookie = cookie(&server, &admin(&server).await).await;
    let address = format!("http://127.0.0.1:{}/login", server.address.port());
    let document = reqwest::get(address).await.expect("a response").text().await.expect("a body");
    assert!(document.contains(r#"name="milvaion-build" content="0123456789abcdef""#), "{document}");
    let mut reader = StreamReader::open(&server, &cookie, "").await;
    let (build, before) = reader.until("the build", |frame| frame.event == BUILD_FRAME).await;
    assert_eq!((build.data.as_str(), build.id.as_str()), ("0123456789abcdef", ""));
    assert_eq!(before.len(), 1, "only a ping comes first: {before:?}");
    // A connection that the browser reopens names it too: the server may have been updated meanwhile.
    let mut reader = StreamReader::open(&server, &cookie, "?last=unknown").await;
    reader.until("the build", |frame| frame.event == BUILD_FRAME).await;
    server.stop().await;
    fs::remove_dir_all(&config.http.site_root).expect("the folder can be removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumed_stream_replays_without_a_resync() {
    let server = server_env::start(&config_with_build(None).await).await;
    let cookie = cookie(&server, &admin(&server).await).await;
    wait_for_channel(&server).await;
    let mut reader = StreamReader::open(&server, &cookie, "").await;
    let (first, before) = reader.until("the resync of a new page", StreamFrame::is_resync).await;
    assert!(!first.id.is_empty(), "a resync names the position at which the stream resumes");
    let names: Vec<&str> = before.iter().map(|frame| frame.event.as_str()).collect();
    assert_eq!(names, ["ping", "session"], "a server without a build names none");

    let id = server.clock.job_id();
    server.hub.publish(server.clock.now(), vec![LiveEvent::Job { id }]);
    let (seen, _) = reader.until("the event", |frame| frame.data.contains(&id.to_string())).await;
    drop(reader);
    let missed = server.clock.job_id();
    server.hub.publish(server.clock.now(), vec![LiveEvent::Job { id: missed }]);

    let mut reader = StreamReader::open(&server, &cookie, &format!("?last={}", seen.id)).await;
    let (_, before) = reader
        .until("the missed event", |frame| {
            frame.data.contains(r#""event":{"job":"#) && frame.data.contains(&missed.to_string())
        })
        .await;
    assert!(!before.iter().any(StreamFrame::is_resync), "the page does not read again: {before:?}");
    let mut reader = StreamReader::open(&server, &cookie, "?last=unknown").await;
    reader.until("a resync for an unknown id", StreamFrame::is_resync).await;
    server.stop().await;
}

/// Requests a page and returns the position that its document names.
async fn document_position(server: &Server, cookie: &str) -> String {
    let address = format!("http://127.0.0.1:{}/", server.address.port());
    let request = reqwest::Client::new().get(address).header(header::COOKIE, cookie);
    let document = request.send().await.expect("a response").text().await.expect("a text");
    let (_, rest) = document.split_once(r#"name="milvaion-position" content=""#).expect("the document has the element");
    rest.split_once('"').expect("the value ends").0.to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_of_a_new_page_starts_at_its_document() {
    let server = server_env::start(&server_env::config().await).await;
    let cookie = cookie(&server, &admin(&server).await).await;
    wait_for_channel(&server).await;
    let position = document_position(&server, &cookie).await;
    assert!(!position.is_empty());
    let id = server.clock.job_id();
    server.hub.publish(server.clock.now(), vec![LiveEvent::Job { id }]);
    let mut reader = StreamReader::open(&server, &cookie, &format!("?last={position}")).await;
    let (_, before) = reader.until("the event after the page", |frame| frame.data.contains(&id.to_string())).await;
    assert!(!before.iter().any(StreamFrame::is_resync), "{before:?}");
    server.stop().await;
}

/// The time within which a change must reach an open stream. It is shorter than the interval at which a stream checks
/// its session by itself.
const PUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Creates another user.
pub(crate) async fn join(server: &Server, by: &RequestUser, name: &str, role: Role) -> CurrentUser {
    let path = server.backend.invite_user(by, name, role).await.expect("invited");
    harness::join(&server.store, &server.clock, &path, name).await
}

/// Returns a request in the session of a cookie.
fn parts(server: &Server, cookie: &str) -> Parts {
    let id = cookie.split_once('=').expect("a name and a value").1.parse().expect("an id");
    let sessions = Arc::new(PostgresSessionStore::new(server.store.clone(), server.clock.clone()));
    let mut parts = http::Request::post("/api/x").body(()).expect("valid").into_parts().0;
    parts.extensions.insert(Session::new(Some(id), sessions, None));
    parts
}

/// Returns the reason that ends the stream.
async fn end_of(reader: &mut StreamReader) -> String {
    let end = reader.until("the end", |frame| frame.event == "session-end");
    let (end, _) = tokio::time::timeout(PUSH_TIMEOUT, end).await.expect("the end is pushed");
    assert_eq!(reader.next().await, None, "the stream ends");
    end.data
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_a_user_are_pushed_to_open_streams() {
    let server = server_env::start(&server_env::config().await).await;
    let ana = RequestUser { user: admin(&server).await, address: None };
    let bob = join(&server, &ana, "bob", Role::Operator).await;
    wait_for_channel(&server).await;
    let (left, right) = (cookie(&server, &bob).await, cookie(&server, &bob).await);
    let mut reader = StreamReader::open(&server, &left, "").await;
    let (first, _) = reader.until("the user", |frame| frame.event == "session").await;
    assert_eq!(serde_json::from_str::<CurrentUser>(&first.data).expect("a user"), bob);

    server.backend.change_role(&ana, bob.id, Role::Viewer, false).await.expect("changed");
    let next = reader.until("the changed user", |frame| frame.event == "session");
    let (next, _) = tokio::time::timeout(PUSH_TIMEOUT, next).await.expect("the role is pushed");
    assert_eq!(serde_json::from_str::<CurrentUser>(&next.data).expect("a user").role, Role::Viewer);

    let mut other = StreamReader::open(&server, &right, "").await;
    other.until("the user", |frame| frame.event == "session").await;
    let hash = session::id_hash(parts(&server, &right).extensions.get().expect("a session"));
    let sessions = server.store.sessions_of(bob.id, server.clock.now(), hash.as_ref()).await.expect("read");
    let stolen = sessions.iter().find(|session| session.is_current).expect("the right one").id;
    let bob = RequestUser { user: bob, address: None };
    assert_eq!(server.backend.end_own_sessions(&parts(&server, &left), &bob, Some(stolen)).await, Ok(1));
    assert_eq!(end_of(&mut other).await, "revoked");

    server.backend.set_user_active(&ana, bob.id, false).await.expect("deactivated");
    assert_eq!(end_of(&mut reader).await, "deactivated", "the other session was kept until now");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_finds_a_change_that_no_server_reports() {
    let server = server_env::start(&server_env::config().await).await;
    let ana = RequestUser { user: admin(&server).await, address: None };
    let bob = join(&server, &ana, "bob", Role::Operator).await;
    let mut reader = StreamReader::open(&server, &cookie(&server, &bob).await, "").await;
    reader.until("the user", |frame| frame.event == "session").await;
    // The command changes the row, and the event is lost.
    team::set_active(&server.store, &server.clock, &ana, bob.id, false).await.expect("deactivated");
    let (end, _) = reader.until("the end", |frame| frame.event == "session-end").await;
    assert_eq!(end.data, "deactivated");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passphrase_change_ends_the_streams_of_other_sessions() {
    let server = server_env::start(&server_env::config().await).await;
    let ana = RequestUser { user: admin(&server).await, address: None };
    wait_for_channel(&server).await;
    let (own, other) = (cookie(&server, &ana).await, cookie(&server, &ana).await);
    let mut streams = [StreamReader::open(&server, &own, "").await, StreamReader::open(&server, &other, "").await];
    for stream in &mut streams {
        stream.until("the user", |frame| frame.event == "session").await;
    }
    let parts = parts(&server, &own);
    let changed = server.backend.change_passphrase(&parts, &ana, "violet tram under snow", "quiet harbor lamp seven");
    changed.await.expect("changed");
    let [mine, others] = &mut streams;
    assert_eq!(end_of(others).await, "passphrase-changed");

    // The stream of the session itself ends without a reason: the browser reconnects with the new id.
    let rest = async {
        while let Some(frame) = mine.next().await {
            assert_ne!(frame.event, "session-end", "{frame:?}");
        }
    };
    tokio::time::timeout(PUSH_TIMEOUT, rest).await.expect("the stream ends");
    let session: &Session = parts.extensions.get().expect("a session");
    let new = format!("milvaion_session={}", session.id().expect("a new id"));
    assert_ne!(new, own);
    let mut reader = StreamReader::open(&server, &new, "").await;
    reader.until("the user", |frame| frame.event == "session").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sign_out_ends_only_its_own_streams_on_all_servers() {
    let config = server_env::config().await;
    let (one, two) = (server_env::start(&config).await, server_env::start(&config).await);
    let ana = admin(&one).await;
    let (left, kept) = (cookie(&one, &ana).await, cookie(&one, &ana).await);
    let mut streams = [StreamReader::open(&one, &left, "").await, StreamReader::open(&two, &left, "").await];
    let mut other = StreamReader::open(&two, &kept, "").await;

    let address = format!("http://127.0.0.1:{}", one.address.port());
    let response = reqwest::Client::new()
        .post(format!("{address}/api/sign_out"))
        .header(header::COOKIE, &left)
        .header(header::ORIGIN, &address)
        .send()
        .await
        .expect("a response");
    assert!(response.status().is_success(), "{}", response.status());
    for stream in &mut streams {
        let (end, before) = stream.until("the end", |frame| frame.event == "session-end").await;
        assert_eq!(end.data, "signed-out");
        assert!(!before.iter().any(|frame| frame.data.contains("userId")), "the notice stays between servers");
        assert_eq!(stream.next().await, None, "the stream ends");
    }
    let id = two.clock.job_id();
    two.hub.publish(two.clock.now(), vec![LiveEvent::Job { id }]);
    let (_, before) = other.until("an event after it", |frame| frame.data.contains(&id.to_string())).await;
    assert!(!before.iter().any(|frame| frame.event == "session-end"), "{before:?}");
    one.stop().await;
    two.stop().await;
}
