//! Connections to PostgreSQL that a network loses silently: no answer comes, and no error.

use std::{net::SocketAddr, time::Duration};

use milvaion_server::{config::database::DatabaseConfig, store::Store};
use milvaion_test_support::database;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// The number of times that all connections are lost.
const ROUNDS: usize = 4;
/// The connections of the pool.
const CONNECTIONS: u32 = 4;

/// A network between a client and PostgreSQL. It can lose every open connection: neither side receives anything more,
/// and neither learns of it.
struct LossyNetwork {
    address: SocketAddr,
    losses: watch::Sender<u32>,
}

impl LossyNetwork {
    async fn before(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let losses = watch::Sender::new(0);
        let opened = losses.subscribe();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut lost = opened.clone();
                lost.mark_unchanged();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(target).await.expect("PostgreSQL accepts");
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        _ = lost.changed() => std::future::pending().await,
                    }
                });
            }
        });
        Self { address, losses }
    }

    fn lose_open_connections(&self) {
        self.losses.send_modify(|losses| *losses += 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_statements_keep_no_place_in_the_pool() {
    let mut url = url::Url::parse(&database::create().await).expect("a URL");
    let port = url.port().expect("a port");
    let network = LossyNetwork::before(SocketAddr::from(([127, 0, 0, 1], port))).await;
    url.set_host(Some("127.0.0.1")).expect("a host");
    url.set_port(Some(network.address.port())).expect("a port");
    let store =
        Store::connect(&DatabaseConfig { url: url.into(), max_connections: CONNECTIONS }).await.expect("connected");

    for round in 0..ROUNDS {
        // One more caller than connections: the last waits for a place that an abandoned statement has freed.
        let callers = (0..=CONNECTIONS).map(|_| store.is_cluster_paused());
        let answers = tokio::time::timeout(Duration::from_secs(30), futures::future::join_all(callers)).await;
        let answers = answers.unwrap_or_else(|_| panic!("round {round}: no place was freed"));
        for answer in answers {
            assert!(!answer.expect("an answer"), "round {round}");
        }
        network.lose_open_connections();
        let abandoned = (0..CONNECTIONS).map(async |number| {
            let in_transaction = number % 2 == 0;
            let statement = async {
                if in_transaction {
                    store.lock_sample_job().await.map(drop)
                } else {
                    store.is_cluster_paused().await.map(drop)
                }
            };
            tokio::time::timeout(Duration::from_millis(20), statement).await
        });
        let abandoned = futures::future::join_all(abandoned).await;
        assert!(abandoned.iter().any(Result::is_err), "round {round}: the network has lost a statement");
    }
    store.close().await;
}
