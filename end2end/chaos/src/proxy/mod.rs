//! A line between one process and one service, which can be cut, held up, slowed down, or made to lose a confirmation or
//! a message.
//!
//! Every process has lines of its own, so that any pair can be parted while all others go on. A line that is held up
//! holds what was sent as a network does: nobody is told, and what waits arrives when it is let go, however late. Bytes
//! are never taken out of a stream, because no network does that either. The one exception is the confirmation of a
//! message, taken out as a whole and followed by the end of the connection, which is how a broker's answer is lost in
//! life. A message is lost as it is on its way when a connection ends: the sender's machine has taken it, and nobody more.

mod copy;
mod frame_filter;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// What a line does at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LinkMode {
    /// What is sent arrives.
    #[default]
    Pass,
    /// Nobody gets through, and everybody is told at once.
    Refuse,
    /// Nothing arrives on either side, and nobody is told.
    Blackhole,
    /// What the process sends arrives; no answer comes back.
    HalfOpen,
    /// Everything arrives later: by this many milliseconds, and up to as many again at random.
    Slow(u64),
}

/// One line.
#[derive(Debug)]
pub(crate) struct ProxyLink {
    name: String,
    port: u16,
    state: Arc<LinkState>,
}

/// What the pumps of one line share.
#[derive(Debug)]
struct LinkState {
    /// Whether frames are looked into.
    amqp: bool,
    mode: watch::Sender<LinkMode>,
    /// Counts the cuts: a change ends every connection.
    cuts: watch::Sender<u64>,
    /// How many confirmations are still to be lost.
    to_drop: AtomicU32,
    dropped: AtomicU64,
    /// How many messages are still to be lost, each with its connection.
    to_swallow: AtomicU32,
    swallowed: AtomicU64,
    /// How often each occurrence's message was delivered over this line.
    delivered: Mutex<HashMap<String, u32>>,
}

impl ProxyLink {
    /// Opens a line to `target` on a free port. `name` says from whom to whom: `server-1>redis`.
    pub(crate) async fn open(name: String, target: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port is free for a proxy")?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(LinkState {
            amqp: name.ends_with(">rabbitmq"),
            mode: watch::Sender::default(),
            cuts: watch::Sender::default(),
            to_drop: AtomicU32::new(0),
            dropped: AtomicU64::new(0),
            to_swallow: AtomicU32::new(0),
            swallowed: AtomicU64::new(0),
            delivered: Mutex::default(),
        });
        tokio::spawn(accept(listener, target, Arc::downgrade(&state)));
        Ok(Self { name, port, state })
    }

    /// From whom to whom.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where the process connects to.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// From now on. [`LinkMode::Refuse`] also ends what is connected.
    pub(crate) fn set(&self, mode: LinkMode) {
        self.state.mode.send_replace(mode);
        if mode == LinkMode::Refuse {
            self.cut();
        }
    }

    /// Ends every connection, once.
    pub(crate) fn cut(&self) {
        self.state.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Loses the next confirmations of the broker; the connection ends with the last of them.
    pub(crate) fn drop_confirms(&self, count: u32) {
        self.state.to_drop.store(count, Ordering::SeqCst);
    }

    /// Loses the next message that the process sends, whatever it sent after it, and the connection.
    pub(crate) fn lose_next_publish(&self) {
        self.state.to_swallow.store(1, Ordering::SeqCst);
    }

    /// How many messages have been lost so far, with what came after each not counted.
    pub(crate) fn swallowed(&self) -> u64 {
        self.state.swallowed.load(Ordering::SeqCst)
    }

    /// How many confirmations have been lost so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.state.dropped.load(Ordering::SeqCst)
    }

    /// How often each occurrence's message was delivered here.
    pub(crate) fn delivered(&self) -> HashMap<String, u32> {
        self.state.delivered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, state: std::sync::Weak<LinkState>) {
    while let Ok((stream, _)) = listener.accept().await {
        let Some(state) = state.upgrade() else { return };
        tokio::spawn(async move {
            // Whatever ends a connection ends both its sides: that is all there is to do about it.
            let _ = carry(stream, target, &state).await;
        });
    }
}

async fn carry(process: TcpStream, target: SocketAddr, state: &Arc<LinkState>) -> std::io::Result<()> {
    let mut mode = state.mode.subscribe();
    let cuts = state.cuts.subscribe();
    if *mode.borrow() == LinkMode::Refuse {
        return process.set_zero_linger();
    }
    // The process believes that it is connected, as it does when a firewall swallows what follows.
    let _ = mode.wait_for(|mode| !matches!(mode, LinkMode::Blackhole)).await;
    let service = match tokio::time::timeout(Duration::from_secs(5), TcpStream::connect(target)).await {
        Ok(Ok(service)) => service,
        _ => return process.set_zero_linger(),
    };
    process.set_nodelay(true)?;
    service.set_nodelay(true)?;
    copy::both(process, service, state, cuts).await
}
