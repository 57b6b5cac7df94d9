//! A proxy in front of the broker that can hold back its responses: a worker publishes and receives no confirms.

use std::sync::Arc;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

use super::WorkerTestEnv;

/// Holds back the broker's responses on publishing connections, and only on those.
#[derive(Debug)]
pub struct ConfirmHold(Arc<watch::Sender<bool>>);

impl ConfirmHold {
    /// Starts a proxy to which workers that are built from now on connect. It holds back nothing yet.
    ///
    /// # Panics
    ///
    /// Panics if there is no free port.
    pub async fn start(env: &mut WorkerTestEnv) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let target = env.redirect(&listener);
        let hold = Arc::new(watch::Sender::new(false));
        let holds = hold.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&target).await.expect("the broker responds");
                let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
                let is_publisher = Arc::new(watch::Sender::new(false));
                tokio::spawn(forward(from_client, to_server, is_publisher.clone()));
                tokio::spawn(backward(from_server, to_client, is_publisher, holds.subscribe()));
            }
        });
        Self(hold)
    }

    /// Holds back the responses, or releases them.
    pub fn set(&self, held: bool) {
        self.0.send_replace(held);
    }
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, is_publisher: Arc<watch::Sender<bool>>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        // The handshake contains the connection's name, and the worker names its connections.
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
