//! A network that loses connections silently: no answer comes, and no error.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::watch,
};

/// The length of PostgreSQL's message that it is ready for a statement.
const READY_BYTES: usize = 6;

/// A network between a client and a service. It can lose every open connection: neither side receives anything more,
/// and neither learns of it. It can also lose one answer, and close its connection.
#[derive(Debug)]
pub struct LossyNetwork {
    address: SocketAddr,
    losses: watch::Sender<u32>,
    closes: watch::Sender<u32>,
    loses_next_answer: Arc<AtomicBool>,
    is_cut: Arc<AtomicBool>,
}

impl LossyNetwork {
    async fn before(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let losses = watch::Sender::new(0);
        let opened = losses.subscribe();
        let closes = watch::Sender::new(0);
        let kept = closes.subscribe();
        let loses_next_answer = Arc::new(AtomicBool::new(false));
        let loses_answer = loses_next_answer.clone();
        let is_cut = Arc::new(AtomicBool::new(false));
        let cuts = is_cut.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                if cuts.load(Ordering::SeqCst) {
                    tokio::spawn(async move {
                        let _open = client;
                        std::future::pending::<()>().await;
                    });
                    continue;
                }
                let mut lost = opened.clone();
                lost.mark_unchanged();
                let mut closed = kept.clone();
                closed.mark_unchanged();
                let loses_answer = loses_answer.clone();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(target).await.expect("the service accepts");
                    let (mut requests, mut to_client) = client.split();
                    let (mut answers, mut to_server) = server.split();
                    tokio::select! {
                        _ = tokio::io::copy(&mut requests, &mut to_server) => {}
                        () = forward_answers(&mut answers, &mut to_client, &loses_answer) => {}
                        _ = closed.changed() => {}
                        _ = lost.changed() => std::future::pending().await,
                    }
                });
            }
        });
        Self { address, losses, closes, loses_next_answer, is_cut }
    }

    /// Puts a network before the service with this URL. Returns the service's URL behind it.
    ///
    /// # Panics
    ///
    /// Panics if it is not a URL with a port of this machine.
    pub async fn connect(url: &str) -> (Self, String) {
        let mut url = url::Url::parse(url).expect("a URL");
        let port = url.port().expect("a port");
        let network = Self::before(SocketAddr::from(([127, 0, 0, 1], port))).await;
        url.set_host(Some("127.0.0.1")).expect("a host");
        url.set_port(Some(network.address.port())).expect("a port");
        (network, url.into())
    }

    /// Loses every open connection and every later one, until [`restore`](Self::restore).
    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        self.lose_open_connections();
    }

    /// Lets new connections through again. Those that were lost stay lost.
    pub fn restore(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }

    /// Loses all connections that are open now. Later ones work.
    pub fn lose_open_connections(&self) {
        self.losses.send_modify(|losses| *losses += 1);
    }

    /// Closes all connections that are open now, so that both sides learn of it. Later ones work.
    pub fn close_open_connections(&self) {
        self.closes.send_modify(|closes| *closes += 1);
    }

    /// Loses the next answer of PostgreSQL to a statement, and closes its connection.
    pub fn lose_next_answer(&self) {
        self.loses_next_answer.store(true, Ordering::SeqCst);
    }

    /// Returns true if that answer was lost.
    #[must_use]
    pub fn has_lost_answer(&self) -> bool {
        !self.loses_next_answer.load(Ordering::SeqCst)
    }
}

/// Forwards what PostgreSQL sends, until an answer is to be lost.
async fn forward_answers(answers: &mut ReadHalf<'_>, client: &mut WriteHalf<'_>, loses_answer: &AtomicBool) {
    let mut buffer = vec![0; 65_536];
    while let Ok(length @ 1..) = answers.read(&mut buffer).await {
        // Shorter is only the answer to the test of a connection that is given back.
        let is_statement = length > READY_BYTES;
        if (is_statement && loses_answer.swap(false, Ordering::SeqCst))
            || client.write_all(&buffer[..length]).await.is_err()
        {
            return;
        }
    }
}
