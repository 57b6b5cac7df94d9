//! Somebody outside who sees every run begin and end.
//!
//! Jobs send a datagram over a socket in the file system, which no proxy and no service lies on the way of, and the kernel
//! keeps it when the sender is killed in the next instant. The witness puts its own time on it. It works on a thread of
//! its own, so that a busy harness does not make starts look late.

use std::{
    collections::HashMap,
    io,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::Context;
use serde_json::Value;

use crate::evidence::{EvidenceWriter, now};

/// The longest message; a job sends about 300 bytes.
const MAX_DATAGRAM_BYTES: usize = 4 << 10;

/// The socket's end that is listened at.
#[derive(Debug)]
pub(crate) struct Witness {
    socket: PathBuf,
    seen: Arc<Mutex<WitnessState>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What a scenario may want to know while it goes on.
#[derive(Debug, Default)]
struct WitnessState {
    starts: usize,
    /// By occurrence and attempt: which process runs it.
    running: HashMap<(String, i64), String>,
}

impl Witness {
    /// Listens from now on.
    pub(crate) fn open(socket: PathBuf, evidence: Arc<EvidenceWriter>) -> anyhow::Result<Self> {
        let _ = std::fs::remove_file(&socket);
        let listener =
            UnixDatagram::bind(&socket).with_context(|| format!("no socket can be made at {}", socket.display()))?;
        // Only so that the end is noticed.
        listener.set_read_timeout(Some(Duration::from_millis(200)))?;
        let (seen, stop) = (Arc::<Mutex<WitnessState>>::default(), Arc::<AtomicBool>::default());
        let (seen_here, stop_here) = (seen.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("witness".into()).spawn(move || {
            listen(&listener, &evidence, &seen_here, &stop_here);
        })?;
        Ok(Self { socket, seen, stop, thread: Some(thread) })
    }

    /// Where jobs report to.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// How many runs have started.
    pub(crate) fn starts(&self) -> usize {
        self.look(|seen| seen.starts)
    }

    /// How many runs a process has started and not ended. One that was killed still counts.
    pub(crate) fn running(&self, process: &str) -> usize {
        self.look(|seen| seen.running.values().filter(|name| *name == process).count())
    }

    /// Stops listening, after what has been sent.
    pub(crate) fn close(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }

    fn look<T>(&self, look: impl FnOnce(&WitnessState) -> T) -> T {
        look(&self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn listen(listener: &UnixDatagram, evidence: &EvidenceWriter, seen: &Mutex<WitnessState>, stop: &AtomicBool) {
    let clock = Instant::now();
    let mut buffer = [0; MAX_DATAGRAM_BYTES];
    loop {
        let length = match listener.recv(&mut buffer) {
            Ok(length) => length,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                continue;
            }
            Err(error) => panic!("the witness went deaf: {error}"),
        };
        let (at, mono) = (now(), i64::try_from(clock.elapsed().as_micros()).unwrap_or(i64::MAX));
        let mut told: Value = serde_json::from_slice(&buffer[..length]).expect("jobs send JSON");
        (told["at"], told["mono"]) = (at.into(), mono.into());
        let text = |name: &str| told[name].as_str().unwrap_or_default().to_owned();
        let key = (text("occurrence"), told["attempt"].as_i64().unwrap_or_default());
        {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            if told["what"] == "start" {
                seen.starts += 1;
                seen.running.insert(key, text("process"));
            } else {
                seen.running.remove(&key);
            }
        }
        evidence.append("witness.jsonl", &told);
    }
}
