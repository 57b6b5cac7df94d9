//! A proxy in front of the broker that can drop a consumer: the worker's `basic.consume` does not reach the broker, and the
//! proxy sends the response.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Mutex, watch},
};

use super::WorkerTestEnv;

/// The class and method of AMQP 0-9-1's `basic.consume`.
const BASIC_CONSUME: [u8; 4] = [0, 60, 0, 20];
/// The class and method of AMQP 0-9-1's `basic.consume-ok`.
const BASIC_CONSUME_OK: [u8; 4] = [0, 60, 0, 21];
/// The size of a frame's type, channel and length, which precede its payload.
const FRAME_HEAD_BYTES: usize = 7;
/// The octet after a frame's payload.
const FRAME_END: u8 = 0xce;

/// The state that the proxy shares with its connections.
#[derive(Debug)]
struct DropPlan {
    queue: String,
    drops_next: AtomicBool,
    dropped: AtomicU32,
}

/// A proxy that drops consumers of one queue.
#[derive(Debug)]
pub struct ConsumerDropProxy {
    plan: Arc<DropPlan>,
    /// Changed when every connection is to be closed.
    cut: watch::Sender<()>,
}

impl ConsumerDropProxy {
    /// Starts a proxy to which workers that are built from now on connect. It drops no consumer yet.
    ///
    /// # Panics
    ///
    /// Panics if there is no free port.
    pub async fn start(env: &mut WorkerTestEnv, queue: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let target = env.redirect(&listener);
        let plan = Arc::new(DropPlan {
            queue: queue.to_owned(),
            drops_next: AtomicBool::new(false),
            dropped: AtomicU32::new(0),
        });
        let (shared, (cut, cuts)) = (plan.clone(), watch::channel(()));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&target).await.expect("the broker responds");
                let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
                let to_client = Arc::new(Mutex::new(to_client));
                let (plan, mut cuts) = (shared.clone(), cuts.clone());
                cuts.mark_unchanged();
                tokio::spawn(async move {
                    tokio::select! {
                        _ = cuts.changed() => {}
                        () = forward(from_client, to_server, to_client.clone(), &plan) => {}
                        () = backward(from_server, to_client.clone()) => {}
                    }
                });
            }
        });
        Self { plan, cut }
    }

    /// Closes every connection. The next consumer of the queue is dropped.
    pub fn drop_at_reconnect(&self) {
        self.plan.drops_next.store(true, Ordering::SeqCst);
        self.cut.send_replace(());
    }

    /// Returns the number of consumers it dropped.
    #[must_use]
    pub fn dropped(&self) -> u32 {
        self.plan.dropped.load(Ordering::SeqCst)
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    to_client: Arc<Mutex<OwnedWriteHalf>>,
    plan: &DropPlan,
) {
    // The protocol header, which precedes a client's first frame.
    let mut header = [0; 8];
    if from.read_exact(&mut header).await.is_err() || to.write_all(&header).await.is_err() {
        return;
    }
    while let Some(frame) = read_frame(&mut from).await {
        let written = match consume_request(&frame) {
            Some((queue, tag)) if queue == plan.queue.as_bytes() && plan.drops_next.swap(false, Ordering::SeqCst) => {
                plan.dropped.fetch_add(1, Ordering::SeqCst);
                to_client.lock().await.write_all(&consume_ok(&frame, tag)).await
            }
            _ => to.write_all(&frame).await,
        };
        if written.is_err() {
            return;
        }
    }
}

async fn backward(mut from: OwnedReadHalf, to: Arc<Mutex<OwnedWriteHalf>>) {
    while let Some(frame) = read_frame(&mut from).await {
        if to.lock().await.write_all(&frame).await.is_err() {
            return;
        }
    }
}

/// Reads one complete frame.
async fn read_frame(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let mut frame = vec![0; FRAME_HEAD_BYTES];
    from.read_exact(&mut frame).await.ok()?;
    let size = u32::from_be_bytes(frame[3..FRAME_HEAD_BYTES].try_into().ok()?);
    frame.resize(FRAME_HEAD_BYTES + usize::try_from(size).ok()? + 1, 0);
    from.read_exact(&mut frame[FRAME_HEAD_BYTES..]).await.ok()?;
    Some(frame)
}

/// Returns the queue and the consumer tag if the frame is a `basic.consume`.
fn consume_request(frame: &[u8]) -> Option<(&[u8], &[u8])> {
    // Class and method, two reserved octets, then two strings, each preceded by its length.
    let texts = frame[FRAME_HEAD_BYTES..].strip_prefix(&BASIC_CONSUME)?.get(2..)?;
    let (length, rest) = texts.split_first()?;
    let (queue, rest) = rest.split_at_checked((*length).into())?;
    let (length, rest) = rest.split_first()?;
    Some((queue, rest.get(..(*length).into())?))
}

/// Returns the broker's response to a `basic.consume`.
fn consume_ok(request: &[u8], tag: &[u8]) -> Vec<u8> {
    let length = u8::try_from(tag.len()).expect("a consumer tag has at most 255 bytes");
    let payload = [&BASIC_CONSUME_OK[..], &[length], tag].concat();
    let size = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    [&request[..3], &size, &payload, &[FRAME_END]].concat()
}
