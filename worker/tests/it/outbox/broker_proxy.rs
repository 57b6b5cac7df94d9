//! The line to the broker, which a test can cut.

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::common::WorkerTestEnv;

/// A proxy before the broker.
pub(super) struct BrokerProxy(watch::Sender<bool>);

impl BrokerProxy {
    /// Makes workers built from now on reach the broker by a line of its own.
    pub(super) async fn new(stack: &mut WorkerTestEnv) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let target = stack.redirect(&listener);
        let is_cut = watch::Sender::new(false);
        let theirs = is_cut.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (target, mut is_cut) = (target.clone(), theirs.subscribe());
                tokio::spawn(async move {
                    let forward = async {
                        let mut server = TcpStream::connect(&target).await.expect("the broker answers");
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

    /// Ends every connection, and every new one at once.
    pub(super) fn cut(&self) {
        self.0.send_replace(true);
    }

    pub(super) fn mend(&self) {
        self.0.send_replace(false);
    }
}
