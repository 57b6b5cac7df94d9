//! A proxy before the broker that can hold its answers back, so that a worker publishes and hears no confirmation.

use std::sync::Arc;

use lapin::uri::AMQPUri;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

use super::WorkerTestEnv;

impl WorkerTestEnv {
    /// Makes workers built from now on look for the broker where a proxy listens; answers where it really is.
    pub(crate) fn redirect(&mut self, proxy: &TcpListener) -> (String, u16) {
        let mut uri: AMQPUri = self.amqp_url.parse().expect("a valid address");
        let target = (uri.authority.host, uri.authority.port);
        uri.authority.host = "127.0.0.1".to_owned();
        uri.authority.port = proxy.local_addr().expect("bound").port();
        self.amqp_url = uri.to_string();
        target
    }

    /// Makes workers built from now on reach the broker through a proxy.
    pub(crate) async fn hold_confirmations(&mut self) -> ConfirmHold {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let target = self.redirect(&listener);
        let hold = Arc::new(watch::Sender::new(false));
        let theirs = hold.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&target).await.expect("the broker answers");
                let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
                let is_publisher = Arc::new(watch::Sender::new(false));
                tokio::spawn(forward(from_client, to_server, is_publisher.clone()));
                tokio::spawn(backward(from_server, to_client, is_publisher, theirs.subscribe()));
            }
        });
        ConfirmHold(hold)
    }
}

/// Decides whether the broker's answers reach the publishing connection.
pub(crate) struct ConfirmHold(Arc<watch::Sender<bool>>);

impl ConfirmHold {
    pub(crate) fn set(&self, held: bool) {
        self.0.send_replace(held);
    }
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, is_publisher: Arc<watch::Sender<bool>>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        // The worker names its connections in the handshake.
        if buffer[..read].windows(8).any(|window| window == b" publish") {
            is_publisher.send_replace(true);
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

async fn backward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    is_publisher: Arc<watch::Sender<bool>>,
    mut hold: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if *is_publisher.borrow() && hold.wait_for(|held| !held).await.is_err() {
            return;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
