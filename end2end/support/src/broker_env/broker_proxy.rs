//! A proxy in front of the broker that a test can cut.

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::WorkerTestEnv;

/// A proxy in front of the broker.
#[derive(Debug)]
pub struct BrokerProxy(watch::Sender<bool>);

impl BrokerProxy {
    /// Starts a proxy to which workers that are built from now on connect.
    ///
    /// # Panics
    ///
    /// Panics if there is no free port.
    pub async fn start(env: &mut WorkerTestEnv) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let target = env.redirect(&listener);
        let is_cut = watch::Sender::new(false);
        let cuts = is_cut.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (target, mut is_cut) = (target.clone(), cuts.subscribe());
                tokio::spawn(async move {
                    let forward = async {
                        let mut server = TcpStream::connect(&target).await.expect("the broker responds");
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                    };
                    tokio::select! {
                        biased;
                        _ = is_cut.wait_for(|is_cut| *is_cut) => {}
                        () = forward => {}
                    }
                });
            }
        });
        Self(is_cut)
    }

    /// Closes every connection, and every new one as soon as it is accepted.
    pub fn cut(&self) {
        self.0.send_replace(true);
    }

    /// Accepts connections again.
    pub fn restore(&self) {
        self.0.send_replace(false);
    }
}
