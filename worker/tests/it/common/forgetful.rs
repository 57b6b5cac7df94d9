//! A proxy before the broker that lets a consumer be forgotten: the worker's wish to consume does not reach the broker, and
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

use super::Stack;

/// What AMQP 0-9-1 calls `basic.consume` and `basic.consume-ok`: a class and a method.
const CONSUME: [u8; 4] = [0, 60, 0, 20];
const CONSUME_OK: [u8; 4] = [0, 60, 0, 21];
/// The type, channel and length before a frame's payload, and the octet after it.
const HEAD: usize = 7;
const END: u8 = 0xce;

/// What the proxy is to do, and did.
struct Plan {
    queue: String,
    is_to_forget: AtomicBool,
    forgotten: AtomicU32,
}

/// The line to the broker.
pub(crate) struct Forgetful {
    plan: Arc<Plan>,
    /// Changed when every connection is to end.
    cut: watch::Sender<()>,
}

impl Stack {
    /// Makes workers built from now on reach the broker by a line on which consumers of `queue` can be forgotten.
    pub(crate) async fn forgetful(&mut self, queue: &str) -> Forgetful {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let target = self.redirect(&listener);
        let plan = Arc::new(Plan {
            queue: queue.to_owned(),
            is_to_forget: AtomicBool::new(false),
            forgotten: AtomicU32::new(0),
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
        Forgetful { plan, cut }
    }
}

impl Forgetful {
    /// Ends every connection; the consumer that comes next is forgotten.
    pub(crate) fn forget_at_a_reconnect(&self) {
        self.plan.is_to_forget.store(true, Ordering::SeqCst);
        self.cut.send_replace(());
    }

    /// How many consumers were forgotten.
    pub(crate) fn forgotten(&self) -> u32 {
        self.plan.forgotten.load(Ordering::SeqCst)
    }
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, to_client: Arc<Mutex<OwnedWriteHalf>>, plan: &Plan) {
    // Before its first frame a client says which protocol it speaks.
    let mut greeting = [0; 8];
    if from.read_exact(&mut greeting).await.is_err() || to.write_all(&greeting).await.is_err() {
        return;
    }
    while let Some(frame) = read(&mut from).await {
        let written = match consumed(&frame) {
            Some((queue, tag)) if queue == plan.queue.as_bytes() && plan.is_to_forget.swap(false, Ordering::SeqCst) => {
                plan.forgotten.fetch_add(1, Ordering::SeqCst);
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
    let mut frame = vec![0; HEAD];
    from.read_exact(&mut frame).await.ok()?;
    let size = u32::from_be_bytes(frame[3..HEAD].try_into().ok()?);
    frame.resize(HEAD + usize::try_from(size).ok()? + 1, 0);
    from.read_exact(&mut frame[HEAD..]).await.ok()?;
    Some(frame)
}

/// The queue and the consumer's tag, if the frame is a wish to consume.
fn consumed(frame: &[u8]) -> Option<(&[u8], &[u8])> {
    // Class and method, two reserved octets, then two texts, each after its length.
    let texts = frame[HEAD..].strip_prefix(&CONSUME)?.get(2..)?;
    let (length, rest) = texts.split_first()?;
    let (queue, rest) = rest.split_at_checked((*length).into())?;
    let (length, rest) = rest.split_first()?;
    Some((queue, rest.get(..(*length).into())?))
}

/// The broker's answer to a wish to consume.
fn consume_ok(wish: &[u8], tag: &[u8]) -> Vec<u8> {
    let length = u8::try_from(tag.len()).expect("a tag is a short text");
    let payload = [&CONSUME_OK[..], &[length], tag].concat();
    let size = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&wish[..3], &size, &payload, &[END]].concat()
}
