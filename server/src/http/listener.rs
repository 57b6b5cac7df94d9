//! Accepts HTTP connections, within limits.
//!
//! Any client that reaches the port can open connections, and each one holds memory and a file, which the connections
//! to PostgreSQL and RabbitMQ need too. Three limits protect the server. A client must send the whole header of a
//! request within ten seconds, also of the first one and of the next one on a connection that is kept open. The number
//! of connections is limited, and one network may use a quarter of them. A connection beyond a limit is closed at once.
//!
//! A trusted proxy and this machine stand for many clients: the limit per network does not apply to them. They may also
//! keep an idle connection for three minutes, because a proxy that reuses a connection at the moment at which the
//! server closes it loses a request.
//!
//! Connections use HTTP/1.1. Browsers use HTTP/2 only over TLS, which the proxy terminates.

use std::{
    collections::HashMap,
    convert::Infallible,
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{Router, extract::ConnectInfo};
use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::{net::TcpListener, time::Instant};
use tokio_util::sync::CancellationToken;
use tower::Service;

use super::client_address::may_be_proxy;
use crate::{config::http::HttpConfig, domain::network::network_of};

/// The longest time for the header of a request, and for which a connection may be idle.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// The same for a proxy. It exceeds the time for which common proxies keep idle connections.
const PROXY_HEADER_TIMEOUT: Duration = Duration::from_secs(180);

/// The part of all connections that one network may use.
const NETWORK_SHARE: usize = 4;

/// The time without accepting after an error such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The shortest time between two warnings about refused connections.
const REFUSAL_WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The number of files that the server opens besides HTTP connections.
const OTHER_FILES: u64 = 512;

/// The limits of connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// The most open connections.
    pub total: usize,
    /// The most open connections from one network.
    pub per_network: usize,
    /// The longest time for the header of a request.
    pub header_timeout: Duration,
    /// The longest time for the header of a request from a trusted proxy or from this machine.
    pub proxy_header_timeout: Duration,
}

impl ConnectionLimits {
    /// Returns the limits of a configuration.
    #[must_use]
    pub fn of(config: &HttpConfig) -> Self {
        Self {
            total: config.max_connections,
            per_network: (config.max_connections / NETWORK_SHARE).max(1),
            header_timeout: HEADER_TIMEOUT,
            proxy_header_timeout: PROXY_HEADER_TIMEOUT,
        }
    }
}

/// Raises the limit of open files so that `connections` fit, as far as the system allows it. Logs a warning if they do
/// not.
pub fn raise_file_limit(connections: usize) {
    let needed = u64::try_from(connections).unwrap_or(u64::MAX).saturating_add(OTHER_FILES);
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    if soft >= needed {
        return;
    }
    let raised = needed.min(hard);
    let limit = if setrlimit(Resource::RLIMIT_NOFILE, raised, hard).is_ok() { raised } else { soft };
    if limit < needed {
        tracing::warn!(
            files.limit = limit,
            files.needed = needed,
            "this process may open {limit} files, but MAX_CONNECTIONS={connections} needs {needed}; raise the hard \
             limit of open files or lower MAX_CONNECTIONS"
        );
    }
}

/// Serves `router` on `listener` until `stop` is cancelled and the requests that are open then have ended. Each request
/// carries the address of its peer as [`ConnectInfo`].
pub async fn serve(
    listener: TcpListener,
    router: Router,
    config: Arc<HttpConfig>,
    limits: ConnectionLimits,
    stop: CancellationToken,
) {
    let graceful = GracefulShutdown::new();
    let connections = OpenConnections::new(limits);
    let mut refusals = RefusalWarning::default();
    loop {
        let Some(accepted) = stop.run_until_cancelled(listener.accept()).await else { break };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            // The client has closed the connection before it was accepted.
            Err(error) if is_of_the_client(&error) => continue,
            Err(error) => {
                tracing::error!(
                    error = %error,
                    "connections cannot be accepted for a second; check the limit of open files"
                );
                stop.run_until_cancelled(tokio::time::sleep(ACCEPT_PAUSE)).await;
                continue;
            }
        };
        let is_proxy = may_be_proxy(&config, peer.ip());
        let network = (!is_proxy).then(|| network_of(peer.ip()));
        let Some(counted) = connections.admit(network) else {
            refusals.record(peer, limits);
            continue;
        };
        // Without this, the small messages of an event stream wait for each other. An error means that the connection
        // has ended, which serving it finds too.
        let _ = stream.set_nodelay(true);
        let router = router.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            let mut router = router.clone();
            async move { Ok::<_, Infallible>(router.call(request).await.unwrap_or_else(|never| match never {})) }
        });
        let timeout = if is_proxy { limits.proxy_header_timeout } else { limits.header_timeout };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(timeout)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %error, "a connection of {peer} ended early");
            }
            drop(counted);
        });
    }
    // Further clients are refused by the system and can connect to another server.
    drop(listener);
    graceful.shutdown().await;
}

fn is_of_the_client(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset)
}

/// The counts of open connections. Clones share them.
#[derive(Clone, Debug)]
struct OpenConnections {
    limits: ConnectionLimits,
    counts: Arc<Mutex<ConnectionCounts>>,
}

#[derive(Debug, Default)]
struct ConnectionCounts {
    total: usize,
    networks: HashMap<IpAddr, usize>,
}

/// One open connection; it is counted until it is dropped.
#[derive(Debug)]
struct OpenConnection {
    connections: OpenConnections,
    network: Option<IpAddr>,
}

impl OpenConnections {
    fn new(limits: ConnectionLimits) -> Self {
        Self { limits, counts: Arc::default() }
    }

    fn counts(&self) -> MutexGuard<'_, ConnectionCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more connection; from `network`, unless its peer stands for many clients. Returns `None` if a
    /// limit is reached.
    fn admit(&self, network: Option<IpAddr>) -> Option<OpenConnection> {
        let mut counts = self.counts();
        if counts.total >= self.limits.total {
            return None;
        }
        if let Some(network) = network {
            let open = counts.networks.entry(network).or_default();
            if *open >= self.limits.per_network {
                return None;
            }
            *open += 1;
        }
        counts.total += 1;
        Some(OpenConnection { connections: self.clone(), network })
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut counts = self.connections.counts();
        counts.total -= 1;
        if let Some(network) = self.network
            && let Some(open) = counts.networks.get_mut(&network)
        {
            *open -= 1;
            if *open == 0 {
                counts.networks.remove(&network);
            }
        }
    }
}

/// The refused connections since the last warning about them.
#[derive(Debug, Default)]
struct RefusalWarning {
    refused: u64,
    warned_at: Option<Instant>,
}

impl RefusalWarning {
    /// Counts a refused connection, and logs a warning if the last one is old enough.
    fn record(&mut self, peer: SocketAddr, limits: ConnectionLimits) {
        self.refused += 1;
        if self.warned_at.is_some_and(|at| at.elapsed() < REFUSAL_WARNING_INTERVAL) {
            return;
        }
        tracing::warn!(
            connections.refused = self.refused,
            client.address = %peer.ip(),
            "{} connections were refused, the last one from {}: at most {} may be open, and {} from one network; raise \
             MAX_CONNECTIONS if these are your users",
            self.refused,
            peer.ip(),
            limits.total,
            limits.per_network
        );
        *self = Self { refused: 0, warned_at: Some(Instant::now()) };
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        sync::Notify,
        task::JoinHandle,
        time::timeout,
    };

    use super::*;

    const REQUEST: &[u8] = b"GET /peer HTTP/1.1\r\nHost: localhost\r\n\r\n";
    /// The longest wait of a test for what must happen.
    const PATIENCE: Duration = Duration::from_secs(30);

    struct RunningListener {
        address: SocketAddr,
        stop: CancellationToken,
        serving: JoinHandle<()>,
        release: Arc<Notify>,
        arrived: Arc<Notify>,
    }

    /// Starts a listener. `/peer` returns the address of the client, `/slow` waits for `release`.
    async fn start(total: usize, header_timeout: Duration) -> RunningListener {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let (release, arrived) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (gate, signal) = (Arc::clone(&release), Arc::clone(&arrived));
        let slow = async move || {
            signal.notify_one();
            gate.notified().await;
            "done"
        };
        let router = Router::new()
            .route("/peer", get(async |ConnectInfo(peer): ConnectInfo<SocketAddr>| peer.to_string()))
            .route("/slow", get(slow));
        let limits =
            ConnectionLimits { total, per_network: total, header_timeout, proxy_header_timeout: header_timeout };
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, router, Arc::default(), limits, stop.clone()));
        RunningListener { address, stop, serving, release, arrived }
    }

    /// Reads one response. Returns `None` if the connection was closed instead.
    async fn response(stream: &mut TcpStream) -> Option<String> {
        let mut text = Vec::new();
        let reading = async {
            loop {
                let mut piece = [0; 1_024];
                match stream.read(&mut piece).await {
                    Ok(0) | Err(_) => return None,
                    Ok(read) => text.extend_from_slice(&piece[..read]),
                }
                let response = String::from_utf8_lossy(&text);
                let Some((head, body)) = response.split_once("\r\n\r\n") else { continue };
                let length =
                    head.to_lowercase().split("content-length: ").nth(1)?.lines().next()?.parse::<usize>().ok()?;
                if body.len() == length {
                    return Some(body.to_owned());
                }
            }
        };
        timeout(PATIENCE, reading).await.expect("a response or the end of the connection")
    }

    async fn ask(stream: &mut TcpStream) -> Option<String> {
        stream.write_all(REQUEST).await.ok()?;
        response(stream).await
    }

    async fn connect(server: &RunningListener) -> TcpStream {
        TcpStream::connect(server.address).await.expect("the system accepts the connection")
    }

    async fn ended(server: RunningListener) {
        server.stop.cancel();
        timeout(PATIENCE, server.serving).await.expect("it ends").expect("it does not panic");
    }

    #[tokio::test]
    async fn requests_carry_the_address_of_their_peer() {
        let server = start(4, PATIENCE).await;
        let mut stream = connect(&server).await;
        let own = stream.local_addr().expect("connected").to_string();
        for _ in 0..2 {
            assert_eq!(ask(&mut stream).await, Some(own.clone()), "also the second one on the connection");
        }
        ended(server).await;
    }

    #[tokio::test]
    async fn half_a_header_and_silence_end_the_connection() {
        let server = start(4, Duration::from_millis(50)).await;
        for sent in [&b"GET /peer HTTP/1.1\r\nHost: loc"[..], b""] {
            let mut stream = connect(&server).await;
            stream.write_all(sent).await.expect("sent");
            assert_eq!(response(&mut stream).await, None, "{sent:?}");
        }
        // A connection that is idle after a request.
        let mut stream = connect(&server).await;
        assert!(ask(&mut stream).await.is_some());
        assert_eq!(response(&mut stream).await, None);
        // A request that takes longer than the timeout is not cut off.
        let mut stream = connect(&server).await;
        stream.write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("sent");
        let mut silent = connect(&server).await;
        assert_eq!(response(&mut silent).await, None, "the timeout has passed");
        server.release.notify_one();
        assert_eq!(response(&mut stream).await.as_deref(), Some("done"));
        ended(server).await;
    }

    #[tokio::test]
    async fn a_connection_beyond_the_limit_is_refused_until_another_closes() {
        let server = start(2, PATIENCE).await;
        let (mut one, mut two) = (connect(&server).await, connect(&server).await);
        assert!(ask(&mut one).await.is_some() && ask(&mut two).await.is_some());
        assert_eq!(ask(&mut connect(&server).await).await, None);
        assert!(ask(&mut two).await.is_some(), "open connections are not affected");
        drop(one);
        // The server finds the end of the first connection a moment later.
        let admitted = async { while ask(&mut connect(&server).await).await.is_none() {} };
        timeout(PATIENCE, admitted).await.expect("the next connection is admitted");
        ended(server).await;
    }

    #[tokio::test]
    async fn stop_lets_requests_end_and_closes_idle_connections() {
        let server = start(4, PATIENCE).await;
        let (mut busy, mut idle) = (connect(&server).await, connect(&server).await);
        assert!(ask(&mut idle).await.is_some());
        busy.write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("sent");
        server.arrived.notified().await;
        server.stop.cancel();
        assert_eq!(response(&mut idle).await, None);
        assert!(!server.serving.is_finished());
        assert!(TcpStream::connect(server.address).await.is_err(), "no connection is accepted any more");
        server.release.notify_one();
        assert_eq!(response(&mut busy).await.as_deref(), Some("done"));
        ended(server).await;
    }

    #[test]
    fn one_network_may_use_a_quarter_of_the_connections() {
        let limits = ConnectionLimits::of(&HttpConfig { max_connections: 64, ..HttpConfig::default() });
        let connections = OpenConnections::new(limits);
        let network = |text: &str| Some(network_of(text.parse().expect("an address")));
        let mut open: Vec<_> = (0..16)
            .map(|host| connections.admit(network(&format!("2001:db8::{host:x}"))).expect("below the limit"))
            .collect();
        assert!(connections.admit(network("2001:db8::ffff")).is_none());
        open.push(connections.admit(network("203.0.113.9")).expect("another network"));
        open.extend((17..64).map(|_| connections.admit(None).expect("a proxy has no limit of its own")));
        assert!(connections.admit(None).is_none(), "the limit of all connections holds for a proxy too");
        drop(open);
        let counts = connections.counts();
        assert!(counts.total == 0 && counts.networks.is_empty(), "{counts:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_are_logged_once_a_minute() {
        let limits = ConnectionLimits::of(&HttpConfig::default());
        let peer = SocketAddr::from(([203, 0, 113, 9], 4_711));
        let mut warning = RefusalWarning::default();
        warning.record(peer, limits);
        assert_eq!(warning.refused, 0, "the first one is logged");
        warning.record(peer, limits);
        warning.record(peer, limits);
        assert_eq!(warning.refused, 2);
        tokio::time::advance(REFUSAL_WARNING_INTERVAL).await;
        warning.record(peer, limits);
        assert_eq!(warning.refused, 0);
    }
}
