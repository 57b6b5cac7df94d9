//! The type of the queues: a queue that is declared without one gets the default of its virtual host, so both sides name it.

use lapin::{Connection, ConnectionProperties};
use milvaion_protocol::topology::Topology;
use milvaion_server::broker::topology;
use milvaion_test_support::{
    broker_env::{CountingJob, WorkerTestEnv},
    private_service::PrivateService,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_and_worker_declare_classic_queues() {
    let broker = PrivateService::rabbitmq().await.expect("RabbitMQ starts");
    let connection = Connection::connect(broker.url(), ConnectionProperties::default()).await.expect("it responds");
    let channel = connection.create_channel().await.expect("a channel");
    let names = Topology::new("server");
    topology::declare(&channel, &names).await.expect("declared");
    let (declared, _) = topology::declare_job_queues(&channel, &names, &[("mail".to_owned(), "send".to_owned())]).await;
    assert_eq!(declared, 1);
    let (of_server, classic) = broker.queues_and_classic_ones().await.expect("counted");
    assert!(of_server > 4 && classic == of_server, "{classic} of {of_server} queues of the server");

    let url = std::env::var("REDIS_URL").expect("REDIS_URL names a Redis for tests");
    let env = WorkerTestEnv::on(broker.url().to_owned(), url, "worker", "classic:").await;
    let worker = env.start(env.worker().job(CountingJob::new(true)), "count").await;
    let (all, classic) = broker.queues_and_classic_ones().await.expect("counted");
    assert!(all > of_server + 4 && classic == all, "{classic} of {all} queues, with those of a worker");
    worker.stop().await;
    broker.close().await.expect("it stops");
}
