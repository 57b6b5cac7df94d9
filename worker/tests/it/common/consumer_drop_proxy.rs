//! A proxy before the broker that lets a consumer be dropped: the worker's wish to consume does not reach the broker, and
//! is answered as if it had.

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

/// What AMQP 0-9-1 calls `basic.consume` and `basic.consume-ok`: a class and a method.
const BASIC_CONSUME: [u8; 4] = [0, 60, 0, 20];
const BASIC_CONSUME_OK: [u8; 4] = [0, 60, 0, 21];
/// The type, channel and length before a frame's payload, and the octet after it.
const FRAME_HEAD_BYTES: usize = 7;
const FRAME_END: u8 = 0xce;

/// What the proxy is to do, and did.
struct DropPlan {
    queue: String,
    drops_next: AtomicBool,
    dropped: AtomicU32,
}

/// The line to the broker.
pub(crate) struct ConsumerDropProxy {
    plan: Arc<DropPlan>,
    /// Changed when every connection is to end.
    cut: watch::Sender<()>,
}

impl WorkerTestEnv {
    /// Makes workers built from now on reach the broker by a line on which consumers of `queue` can be dropped.
    pub(crate) async fn drop_consumers_of(&mut self, queue: &str) -> ConsumerDropProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let target = self.redirect(&listener);
        let plan = Arc::new(DropPlan {
            queue: queue.to_owned(),
            drops_next: AtomicBool::new(false),
            dropped: AtomicU32::new(0),
        });
        let (theirs, (cut, cuts)) = (plan.clone(), watch::channel(()));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&target).await.expect("the broker answers");
                let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
                let to_client = Arc::new(Mutex::new(to_client));
                let (plan, mut cuts) = (theirs.clone(), cuts.clone());
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
        ConsumerDropProxy { plan, cut }
    }
}

impl ConsumerDropProxy {
    /// Ends every connection; the consumer that comes next is dropped.
    pub(crate) fn drop_at_reconnect(&self) {
        self.plan.drops_next.store(true, Ordering::SeqCst);
        self.cut.send_replace(());
    }

    /// How many consumers were dropped.
    pub(crate) fn dropped(&self) -> u32 {
        self.plan.dropped.load(Ordering::SeqCst)
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    to_client: Arc<Mutex<OwnedWriteHalf>>,
    plan: &DropPlan,
) {
    // Before its first frame a client says which protocol it speaks.
    let mut greeting = [0; 8];
    if from.read_exact(&mut greeting).await.is_err() || to.write_all(&greeting).await.is_err() {
        return;
    }
    while let Some(frame) = read(&mut from).await {
        let written = match consumed(&frame) {
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
    while let Some(frame) = read(&mut from).await {
        if to.lock().await.write_all(&frame).await.is_err() {
            return;
        }
    }
}

/// The next whole frame.
async fn read(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let mut frame = vec![0; FRAME_HEAD_BYTES];
    from.read_exact(&mut frame).await.ok()?;
    let size = u32::from_be_bytes(frame[3..FRAME_HEAD_BYTES].try_into().ok()?);
    frame.resize(FRAME_HEAD_BYTES + usize::try_from(size).ok()? + 1, 0);
    from.read_exact(&mut frame[FRAME_HEAD_BYTES..]).await.ok()?;
    Some(frame)
}

/// The queue and the consumer's tag, if the frame is a wish to consume.
fn consumed(frame: &[u8]) -> Option<(&[u8], &[u8])> {
    // Class and method, two reserved octets, then two texts, each after its length.
    let texts = frame[FRAME_HEAD_BYTES..].strip_prefix(&BASIC_CONSUME)?.get(2..)?;
    let (length, rest) = texts.split_first()?;
    let (queue, rest) = rest.split_at_checked((*length).into())?;
    let (length, rest) = rest.split_first()?;
    Some((queue, rest.get(..(*length).into())?))
}

/// The broker's answer to a wish to consume.
fn consume_ok(wish: &[u8], tag: &[u8]) -> Vec<u8> {
    let length = u8::try_from(tag.len()).expect("a tag is a short text");
    let payload = [&BASIC_CONSUME_OK[..], &[length], tag].concat();
    let size = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&wish[..3], &size, &payload, &[FRAME_END]].concat()
}
