//! Counts of queues, for as long as a server runs.

use lapin::{options::QueueDeclareOptions, types::FieldTable};
use milvaion_server::broker::{
    Broker,
    queue_probe::{QueueCounts, QueueProbe},
};
use milvaion_test_support::server_env;

#[tokio::test]
async fn missing_queues_do_not_disturb_later_counts() {
    let mut config = server_env::config().await.broker;
    // The channels of a connection are numbered from 1 again after the fourth one.
    config.url.push_str("?channel_max=4");
    let broker = Broker::new(&config).expect("a valid URL");
    let connection = broker.connect("test").await.expect("the broker responds");
    let channel = connection.create_channel().await.expect("a channel");
    let (missing, empty) = (format!("{}.missing", config.prefix), format!("{}.empty", config.prefix));
    let declared = channel.queue_declare(empty.as_str().into(), QueueDeclareOptions::default(), FieldTable::default());
    declared.await.expect("declared");

    let mut probe = QueueProbe::new(broker);
    let queues = [missing.clone(), empty.clone(), missing.clone()];
    for round in 0..6 {
        let waiting = probe.waiting(&missing).await;
        assert_eq!(waiting.expect("counted"), Some(QueueCounts::default()), "round {round}");
        let counts = probe.counts(&queues).await.expect("counted");
        assert_eq!(counts, [None, Some(QueueCounts { messages: 0, consumers: 0 }), None], "round {round}");
    }
    let consumer = channel.basic_consume(empty.as_str().into(), "c".into(), Default::default(), FieldTable::default());
    let _consumer = consumer.await.expect("consumed");
    assert!(!probe.delete_unused(&empty).await.expect("answered"), "it has a consumer");
    channel.basic_cancel("c".into(), Default::default()).await.expect("cancelled");
    for round in 0..2 {
        assert!(probe.delete_unused(&empty).await.expect("answered"), "round {round}: it is gone");
    }
    assert!(probe.counts(&[empty]).await.expect("counted").iter().all(Option::is_none));
}
