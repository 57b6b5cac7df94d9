//! A queue that the broker refuses delays its own job type only, and two servers share what they send again.

use std::time::Duration;

use milvaion_protocol::status::OccurrenceStatus;
use milvaion_server::{broker::Broker, clock::Clock, store::Store};
use milvaion_test_support::{database, jobs, runs, server_env, wait, worker_env};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_with_other_arguments_delays_its_own_job_type_only() {
    let mut config = server_env::config().await;
    config.background.republish = Duration::from_secs(1);
    let broker = Broker::new(&config.broker).expect("a valid URL");
    let connection = broker.connect("test").await.expect("the broker responds");
    let channel = connection.create_channel().await.expect("a channel");
    let queue = broker.topology().job_queue("w", "foreign");
    let declaring = channel.queue_declare(queue.as_str().into(), Default::default(), Default::default());
    declaring.await.expect("declared without priorities");

    let server = server_env::start(&config).await;
    let worker = worker_env::start(&config);
    let job = async |target: &str| {
        let form = milvaion_api::requests::JobForm { target: target.into(), ..jobs::form(target) };
        server.jobs.save(&jobs::admin(), &form).await.expect("saved")
    };
    let (foreign, echo) = (job("w/foreign").await, job("w/echo").await);
    let run = async |id| server.jobs.run_now(&jobs::admin(), id, Default::default()).await.expect("requested");
    let refused = run(foreign).await;
    let mut started = Vec::new();
    for _ in 0..3 {
        let id = run(echo).await;
        assert_eq!(runs::ended(&server, id).await.row.status, OccurrenceStatus::Completed);
        started.push(id);
    }
    assert_eq!(worker.started(), started, "each is sent once, over a connection that stays open");
    let view = async || server.store.occurrence(refused, 1, server.clock.now()).await.ok()?;
    let waiting = view().await.expect("it exists");
    assert_eq!((waiting.row.status, waiting.published_at), (OccurrenceStatus::Queued, None));
    // Between the end of a pause and the next try, nothing is parked.
    let parked = [("w".to_owned(), "foreign".to_owned())];
    wait::eventually("a pause of the queue", async || (server.jobs.publisher.parked() == parked).then_some(())).await;

    channel.queue_delete(queue.as_str().into(), Default::default()).await.expect("deleted");
    wait::eventually("the message", async || view().await?.published_at).await;
    worker.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn an_unsent_occurrence_is_claimed_by_one_server() {
    let url = database::create().await;
    let (one, two, clock) = (database::open(&url).await, database::open(&url).await, Clock::system());
    let job_id = jobs::insert(&one, &clock, milvaion_schedule::schedule::Schedule::Manual, None).await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(runs::insert_manual(&one, &clock, job_id).await);
    }
    ids.sort_unstable();
    let now = clock.now() + chrono::Duration::seconds(10);
    let claim = async |store: &Store| store.claim_unsent(now, &[], &[], 12, now).await.expect("the query succeeds");
    let (first, second) = tokio::join!(claim(&one), claim(&two));
    let mut claimed: Vec<_> = first.iter().chain(&second).map(|queued| queued.id).collect();
    claimed.extend(claim(&two).await.iter().map(|queued| queued.id));
    claimed.sort_unstable();
    assert_eq!(claimed, ids, "each once");
    assert!(claim(&one).await.is_empty());
    // The server that claimed them has ended, or could not send them.
    let later = now + chrono::Duration::seconds(10);
    let again = one.claim_unsent(later, &[], &[], 100, later).await.expect("the query succeeds");
    assert_eq!(again.len(), 20);
    let target = &again[0];
    let parked = [(target.worker_id.clone(), target.job_type.clone())];
    let none = one.claim_unsent(later + chrono::Duration::seconds(10), &[], &parked, 100, later).await;
    assert!(none.expect("the query succeeds").is_empty(), "their queue is refused");
}
