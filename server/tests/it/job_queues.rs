//! Job queues are declared many at once, and only if they are missing.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::StreamExt;
use lapin::{
    Channel,
    options::BasicGetOptions,
    types::{AMQPValue, FieldTable},
};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{JobBundle, JobMessage},
    topology::{BUNDLE_TYPE, MAX_PRIORITY, Topology},
};
use milvaion_server::{
    broker::{
        Broker,
        publisher::{OutgoingMessage, Publisher},
    },
    clock::Clock,
    config::broker::BrokerConfig,
    domain::bundles::{BundleSizes, CriticalTypes, SendPlan},
};
use milvaion_test_support::{messages, server_env, wait};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

/// The class and method of AMQP 0-9-1's `queue.declare` and of its answer.
const DECLARE: [u8; 4] = [0, 50, 0, 10];
const DECLARE_OK: [u8; 4] = [0, 50, 0, 11];
/// The size of a frame's type, channel and length, which precede its payload.
const FRAME_HEAD_BYTES: usize = 7;

/// The declarations that passed a proxy.
#[derive(Debug, Default)]
struct Declarations {
    requested: AtomicUsize,
    answered: AtomicUsize,
    /// The most that waited for an answer at once.
    most_in_flight: AtomicUsize,
}

/// A proxy in front of the broker that counts the declarations of queues.
struct CountingProxy {
    address: SocketAddr,
    declarations: Arc<Declarations>,
    cuts: watch::Sender<()>,
}

impl CountingProxy {
    /// Starts a proxy, and directs the configuration to it.
    async fn start(config: &mut BrokerConfig) -> Self {
        let mut url = url::Url::parse(&config.url).expect("a URL");
        let target = SocketAddr::from(([127, 0, 0, 1], url.port().expect("a port")));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        url.set_port(Some(address.port())).expect("a port");
        config.url = url.into();
        let (declarations, cuts) = (Arc::<Declarations>::default(), watch::Sender::new(()));
        let (counted, opened) = (declarations.clone(), cuts.subscribe());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (counted, mut cut) = (counted.clone(), opened.clone());
                cut.mark_unchanged();
                tokio::spawn(async move {
                    let server = TcpStream::connect(target).await.expect("the broker accepts");
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    tokio::select! {
                        () = forward_requests(from_client, to_server, &counted) => {}
                        () = forward_frames(from_server, to_client, |method| if method == DECLARE_OK {
                            counted.answered.fetch_add(1, Ordering::SeqCst);
                        }) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { address, declarations, cuts }
    }

    fn requested(&self) -> usize {
        self.declarations.requested.load(Ordering::SeqCst)
    }

    fn close_connections(&self) {
        self.cuts.send_replace(());
    }
}

async fn forward_requests(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    declarations: &Declarations,
) {
    // The protocol header, which precedes a client's first frame.
    let mut header = [0; 8];
    if from.read_exact(&mut header).await.is_err() || to.write_all(&header).await.is_err() {
        return;
    }
    forward_frames(from, to, |method| {
        if method == DECLARE {
            let requested = declarations.requested.fetch_add(1, Ordering::SeqCst) + 1;
            let in_flight = requested.saturating_sub(declarations.answered.load(Ordering::SeqCst));
            declarations.most_in_flight.fetch_max(in_flight, Ordering::SeqCst);
        }
    })
    .await;
}

async fn forward_frames(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut see: impl FnMut(&[u8])) {
    loop {
        let mut frame = vec![0; FRAME_HEAD_BYTES];
        if from.read_exact(&mut frame).await.is_err() {
            return;
        }
        let size = u32::from_be_bytes(frame[3..].try_into().expect("four bytes"));
        frame.resize(FRAME_HEAD_BYTES + usize::try_from(size).expect("a length") + 1, 0);
        if from.read_exact(&mut frame[FRAME_HEAD_BYTES..]).await.is_err() {
            return;
        }
        see(frame.get(FRAME_HEAD_BYTES..FRAME_HEAD_BYTES + 4).unwrap_or_default());
        if to.write_all(&frame).await.is_err() {
            return;
        }
    }
}

/// A publisher behind a proxy, and a channel that goes around it.
struct Harness {
    config: BrokerConfig,
    clock: Clock,
    proxy: CountingProxy,
    publisher: Publisher,
    names: Topology,
    channel: Channel,
    stop: CancellationToken,
    keeps_open: JoinHandle<()>,
}

impl Harness {
    async fn new() -> Self {
        Self::with(server_env::config().await.broker).await
    }

    async fn with(given: BrokerConfig) -> Self {
        let mut config = given.clone();
        let connection = Broker::new(&config).expect("a valid URL").connect("test").await.expect("the broker responds");
        let channel = connection.create_channel().await.expect("a channel");
        let proxy = CountingProxy::start(&mut config).await;
        let broker = Broker::new(&config).expect("a valid URL");
        let (publisher, keep_open) = Publisher::new(&broker);
        let stop = CancellationToken::new();
        let keeps_open = tokio::spawn(keep_open(stop.clone()));
        publisher.wait_until_up().await;
        assert_ne!(proxy.address.port(), 0);
        Self {
            config: given,
            clock: Clock::system(),
            proxy,
            publisher,
            names: broker.topology().clone(),
            channel,
            stop,
            keeps_open,
        }
    }

    /// Publishes one message for each of the first `count` job types. Returns the numbers of those that were confirmed.
    async fn publish(&self, count: usize) -> BTreeSet<usize> {
        let messages: Vec<OutgoingMessage> = (0..count).map(|number| message(number, &self.clock)).collect();
        let ids: Vec<OccurrenceId> = messages.iter().map(|out| out.message.occurrence_id).collect();
        // As many batches in flight as the sender has.
        let single = SendPlan::default();
        let batches = futures::stream::iter(messages.chunks(500)).map(|batch| self.publisher.publish(batch, &single));
        let sent: Vec<_> = batches.buffer_unordered(16).collect().await;
        let sent: BTreeSet<OccurrenceId> = sent.into_iter().flatten().map(|message| message.id).collect();
        (0..count).filter(|number| sent.contains(&ids[*number])).collect()
    }

    /// Closes the publisher's connection and waits for the next one.
    async fn reconnect(&self) {
        self.proxy.close_connections();
        self.publisher.wait_until_down().await;
        self.publisher.wait_until_up().await;
    }

    async fn delete_queue(&self, number: usize) {
        let queue = self.names.job_queue("w", &job_type(number));
        self.channel.queue_delete(queue.into(), Default::default()).await.expect("deleted");
    }

    async fn stop(self) {
        self.stop.cancel();
        self.keeps_open.await.expect("the task does not panic");
    }
}

fn job_type(number: usize) -> String {
    format!("type-{number}")
}

fn message(number: usize, clock: &Clock) -> OutgoingMessage {
    let (id, now) = (clock.occurrence_id(), clock.now());
    let message = messages::job_message(id, &job_type(number), serde_json::json!({}), now);
    OutgoingMessage { worker_id: "w".into(), message, republished: false }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_are_declared_together_and_not_after_a_reconnect() {
    const QUEUES: usize = 60;
    let harness = Harness::new().await;
    let shared = harness.proxy.requested();
    assert_eq!(harness.publish(QUEUES).await.len(), QUEUES);
    assert_eq!(harness.proxy.requested() - shared, QUEUES);
    let most = harness.proxy.declarations.most_in_flight.load(Ordering::SeqCst);
    assert!(most > 20, "{most} declarations were in flight at once");

    let before = harness.proxy.requested();
    harness.reconnect().await;
    assert_eq!(harness.publish(QUEUES).await.len(), QUEUES);
    assert_eq!(harness.proxy.requested() - before, shared, "only the common queues are declared again");

    // As after a broker that has lost its data: the messages come back, and their queues with them.
    for number in [3, 30, QUEUES - 1] {
        harness.delete_queue(number).await;
    }
    let before = harness.proxy.requested();
    assert_eq!(harness.publish(QUEUES).await.len(), QUEUES, "each is sent again at once");
    assert_eq!(harness.proxy.requested() - before, 3);
    assert!(harness.publisher.take_unsent().is_empty());
    publish_bundles(&harness).await;
    publish_critical(&harness).await;
    for number in 0..QUEUES {
        harness.delete_queue(number).await;
    }
    harness.stop().await;
}

/// Publishes twelve runs of a job type whose queue is missing, of which ten share a message.
async fn publish_bundles(harness: &Harness) {
    harness.delete_queue(0).await;
    let mut messages: Vec<OutgoingMessage> = (0..12).map(|_| message(0, &harness.clock)).collect();
    // It may have been delivered before, so it is sent alone.
    messages[3].republished = true;
    // A further attempt, too.
    messages[7].message.attempt = 2;
    let job_type = job_type(0);
    let sizes = BundleSizes::from([(("w", job_type.as_str(), 3), 10)]);
    let sent = harness.publisher.publish(&messages, &SendPlan { sizes, ..SendPlan::default() }).await;
    assert_eq!(sent.len(), 12, "the confirm of a message is that of each of its runs");
    let queue = harness.names.job_queue("w", &job_type);
    let mut kinds = Vec::new();
    let no_ack = BasicGetOptions { no_ack: true };
    while let Some(got) = harness.channel.basic_get(queue.as_str().into(), no_ack).await.expect("the broker responds") {
        let kind = got.delivery.properties.kind().as_ref().map(|kind| kind.to_string());
        let runs = match &kind {
            Some(_) => serde_json::from_slice::<JobBundle>(&got.delivery.data).expect("a bundle").runs,
            None => vec![serde_json::from_slice::<JobMessage>(&got.delivery.data).expect("a job message")],
        };
        kinds.push((kind, runs.len()));
    }
    kinds.sort_unstable();
    assert_eq!(kinds, [(None, 1), (None, 1), (Some(BUNDLE_TYPE.to_owned()), 10)]);
}

/// Publishes two critical runs and another one, while the queue of critical runs is missing, has room for one message, and is
/// full.
async fn publish_critical(harness: &Harness) {
    let job_type = job_type(0);
    let (queue, critical_queue) =
        (harness.names.job_queue("w", &job_type), harness.names.critical_queue("w", &job_type));
    let plan = SendPlan { critical: CriticalTypes::from([("w", job_type.as_str())]), ..SendPlan::default() };
    let publish = async || {
        let mut messages: Vec<OutgoingMessage> = (0..3).map(|_| message(0, &harness.clock)).collect();
        messages[..2].iter_mut().for_each(|out| out.message.priority = MAX_PRIORITY);
        let sent = harness.publisher.publish(&messages, &plan).await;
        (sent.len(), sent.iter().filter(|message| message.is_critical).count())
    };
    let purge = async |queue: &str| {
        harness.channel.queue_purge(queue.into(), Default::default()).await.expect("the queue exists")
    };
    let declared = harness.proxy.requested();
    assert_eq!(publish().await, (3, 0), "they are sent to the queue of the job type at once");
    assert_eq!(purge(queue.as_str()).await, 3);
    assert_eq!(harness.proxy.requested(), declared, "a queue of critical runs is declared by workers only");

    // As by a worker, except that it has room for one message.
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let declaring = harness.channel.queue_declare(critical_queue.as_str().into(), Default::default(), arguments);
    declaring.await.expect("declared");
    let (exchange, key) = (harness.names.jobs_exchange(), Topology::critical_binding("w", &job_type));
    let (bound, exchange, key) = (critical_queue.as_str().into(), exchange.into(), key.into());
    let binding = harness.channel.queue_bind(bound, exchange, key, Default::default(), FieldTable::default());
    binding.await.expect("bound");
    assert_eq!(publish().await, (2, 1), "the queue is full after the first one");
    assert!(!harness.publisher.take_unsent().is_empty(), "the republisher sends the second one");
    // It is parked for a second, which a busy machine may exceed.
    wait::until("messages to the queue of the job type", async || publish().await == (3, 0)).await;
    assert_eq!(purge(critical_queue.as_str()).await, 1);
    assert!(purge(queue.as_str()).await >= 4);
    assert!(harness.publisher.parked().is_empty(), "the queue of the job type is open");
    harness.channel.queue_delete(critical_queue.into(), Default::default()).await.expect("deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusal_of_one_queue_parks_no_other() {
    const REFUSED: [usize; 3] = [0, 17, 39];
    let harness = Harness::new().await;
    for number in REFUSED {
        let queue = harness.names.job_queue("w", &job_type(number));
        let declaring = harness.channel.queue_declare(queue.into(), Default::default(), FieldTable::default());
        declaring.await.expect("declared without priorities");
    }
    let confirmed = harness.publish(40).await;
    let refused: BTreeSet<usize> = REFUSED.into();
    assert_eq!(confirmed, (0..40).filter(|number| !refused.contains(number)).collect());
    // Each is parked for a second, so on a busy machine the first may be free again; no other was ever parked.
    let parked: BTreeSet<String> = harness.publisher.parked().into_iter().map(|(_, job_type)| job_type).collect();
    assert!(parked.is_subset(&REFUSED.map(job_type).into()), "{parked:?}");
    assert!(harness.publisher.is_up(), "a refusal closes its channel only");
    for number in 0..40 {
        harness.delete_queue(number).await;
    }
    harness.stop().await;
}

mod exhaustive {
    use super::*;

    /// Prints what a reconnect costs with many queues. RabbitMQ takes up to 25 ms to create one.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn thousands_of_queues_survive_a_reconnect() {
        const QUEUES: usize = 2_000;
        let harness = Harness::new().await;
        let since = tokio::time::Instant::now();
        assert_eq!(harness.publish(QUEUES).await.len(), QUEUES);
        println!("declared and published: {:?}", since.elapsed());
        let since = tokio::time::Instant::now();
        harness.reconnect().await;
        println!("reconnected: {:?}", since.elapsed());
        assert_eq!(harness.publish(QUEUES).await.len(), QUEUES);
        println!("reconnected and published: {:?}", since.elapsed());
        let since = tokio::time::Instant::now();
        assert_eq!(harness.publish(QUEUES).await.len(), QUEUES);
        println!("published without a reconnect: {:?}", since.elapsed());
        let fresh = Harness::with(harness.config.clone()).await;
        let since = tokio::time::Instant::now();
        assert_eq!(fresh.publish(QUEUES).await.len(), QUEUES);
        println!("declared by another server and published: {:?}", since.elapsed());
        fresh.stop().await;
        futures::future::join_all((0..QUEUES).map(|number| harness.delete_queue(number))).await;
        harness.stop().await;
    }
}
