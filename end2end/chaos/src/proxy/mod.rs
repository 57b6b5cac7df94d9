//! A link between one process and one service: a TCP proxy that can refuse, hold back or slow down the connections, cut
//! them, or drop a publisher confirm or a message.
//!
//! Each process has links of its own, so any pair can be partitioned while all other connections work. A link that
//! holds bytes back behaves as a network does: neither side is notified, and the bytes arrive when the link passes
//! again, however late. Single bytes are never removed from a stream, because no network does that.
//!
//! A link can also lose a single connection, as a firewall does that has forgotten it: the process is never notified, and
//! the service notices by its keepalive.
//!
//! There are two exceptions. A publisher confirm is removed as a whole, and the connection ends after it: this is how a
//! broker's answer is lost in practice. A message is lost while it is in flight when a connection ends: the operating
//! system of the sender has accepted it, and nothing received it.

mod copy;
mod frame_filter;

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
};

/// The behavior of a link at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LinkMode {
    /// Bytes arrive.
    #[default]
    Pass,
    /// New connections are refused, and open ones are reset.
    Refuse,
    /// Bytes arrive on neither side, and no side is notified.
    Blackhole,
    /// Bytes of the process arrive at the service; none come back.
    HalfOpen,
    /// Bytes arrive later: by this many milliseconds, and up to as many again at random.
    Slow(u64),
}

/// The direction of bytes on a link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LinkDirection {
    /// From the process to the service.
    Up,
    /// From the service to the process.
    Down,
}

/// A link from one process to one service.
#[derive(Debug)]
pub(crate) struct ProxyLink {
    name: String,
    port: u16,
    state: Arc<LinkState>,
}

/// The state that all connections of a link share.
#[derive(Debug, Default)]
struct LinkState {
    /// True if the bytes are AMQP frames, which are parsed.
    amqp: bool,
    /// The mode.
    mode: watch::Sender<LinkMode>,
    /// The number of cuts; a change ends every connection.
    cuts: watch::Sender<u64>,
    /// The number of connections so far.
    opened: AtomicU64,
    /// The open connections that are not lost, by their number.
    open: Mutex<BTreeMap<u64, oneshot::Sender<()>>>,
    /// The number of publisher confirms that are still to be dropped.
    to_drop: AtomicU32,
    dropped: AtomicU64,
    /// The number of messages that are still to be lost, each with its connection.
    to_swallow: AtomicU32,
    swallowed: AtomicU64,
    /// The number of deliveries over this link, by occurrence.
    delivered: Mutex<HashMap<String, u32>>,
}

impl ProxyLink {
    /// Opens a link to `target` on a free port. `name` contains the process and the service: `server-1>redis`.
    pub(crate) async fn open(name: String, target: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port is free for a proxy")?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(LinkState { amqp: name.ends_with(">rabbitmq"), ..LinkState::default() });
        tokio::spawn(accept(listener, target, Arc::downgrade(&state)));
        Ok(Self { name, port, state })
    }

    /// Returns its name: the process, `>`, and the service.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the port that the process connects to.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Sets the mode. [`LinkMode::Refuse`] also ends the open connections.
    pub(crate) fn set(&self, mode: LinkMode) {
        self.state.mode.send_replace(mode);
        if mode == LinkMode::Refuse {
            self.cut();
        }
    }

    /// Ends every open connection once.
    pub(crate) fn cut(&self) {
        self.state.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Returns the number of open connections that are not lost.
    pub(crate) fn open_connections(&self) -> usize {
        self.state.open_connections().len()
    }

    /// Loses the connection that has been open for the longest time. Returns false if none is open.
    pub(crate) fn lose_connection(&self) -> bool {
        let oldest = self.state.open_connections().pop_first();
        // It may have ended at this moment.
        oldest.is_some_and(|(_, lose)| lose.send(()).is_ok())
    }

    /// Drops the next publisher confirms; the connection ends with the last of them.
    pub(crate) fn drop_confirms(&self, count: u32) {
        self.state.to_drop.store(count, Ordering::SeqCst);
    }

    /// Loses the next message of the process, the bytes after it, and the connection.
    pub(crate) fn lose_next_publish(&self) {
        self.state.to_swallow.store(1, Ordering::SeqCst);
    }

    /// Returns the number of messages lost so far. Messages behind a lost one on its connection are not counted.
    pub(crate) fn swallowed(&self) -> u64 {
        self.state.swallowed.load(Ordering::SeqCst)
    }

    /// Returns the number of publisher confirms dropped so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.state.dropped.load(Ordering::SeqCst)
    }

    /// Returns the number of deliveries over this link, by occurrence.
    pub(crate) fn delivered(&self) -> HashMap<String, u32> {
        self.state.delivered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl LinkState {
    fn open_connections(&self) -> MutexGuard<'_, BTreeMap<u64, oneshot::Sender<()>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, state: std::sync::Weak<LinkState>) {
    while let Ok((stream, _)) = listener.accept().await {
        let Some(state) = state.upgrade() else { return };
        tokio::spawn(async move {
            // An error needs no handling: it ends both sides of the connection.
            let _ = forward(stream, target, &state).await;
        });
    }
}

async fn forward(process: TcpStream, target: SocketAddr, state: &Arc<LinkState>) -> std::io::Result<()> {
    let mut mode = state.mode.subscribe();
    let cuts = state.cuts.subscribe();
    if *mode.borrow() == LinkMode::Refuse {
        return process.set_zero_linger();
    }
    // The process is connected, and receives nothing, as behind a firewall that drops packets.
    let _ = mode.wait_for(|mode| !matches!(mode, LinkMode::Blackhole)).await;
    let service = match tokio::time::timeout(Duration::from_secs(5), TcpStream::connect(target)).await {
        Ok(Ok(service)) => service,
        _ => return process.set_zero_linger(),
    };
    process.set_nodelay(true)?;
    service.set_nodelay(true)?;
    let number = state.opened.fetch_add(1, Ordering::SeqCst);
    let (lose, lost) = oneshot::channel();
    state.open_connections().insert(number, lose);
    let ended = copy::copy_both(process, service, state, cuts, lost).await;
    state.open_connections().remove(&number);
    ended
}
