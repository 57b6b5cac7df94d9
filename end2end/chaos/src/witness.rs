//! A witness outside the product, which receives the start and the end of each run.
//!
//! Jobs send a datagram over a Unix socket. No proxy and no service is on its way, and the kernel keeps it even if the
//! sender is killed in the next instant. The witness stamps it with its own time. It receives on a thread of its own,
//! so that a busy harness does not make starts look late.

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

/// The maximum size of a datagram; a job sends about 300 bytes.
const MAX_DATAGRAM_BYTES: usize = 4 << 10;

/// The receiving end of the socket, with its thread.
#[derive(Debug)]
pub(crate) struct Witness {
    socket: PathBuf,
    state: Arc<Mutex<WitnessState>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The figures that a scenario can query while it runs.
#[derive(Debug, Default)]
struct WitnessState {
    starts: usize,
    /// The process that executes each run, by occurrence and attempt.
    running: HashMap<(String, i64), String>,
}

impl Witness {
    /// Binds the socket and starts to receive. Each datagram is appended to `witness.jsonl`.
    pub(crate) fn open(socket: PathBuf, evidence: Arc<EvidenceWriter>) -> anyhow::Result<Self> {
        let _ = std::fs::remove_file(&socket);
        let listener = UnixDatagram::bind(&socket).with_context(|| format!("{} cannot be bound", socket.display()))?;
        // The timeout lets the thread notice that it must stop.
        listener.set_read_timeout(Some(Duration::from_millis(200)))?;
        let (state, stop) = (Arc::<Mutex<WitnessState>>::default(), Arc::<AtomicBool>::default());
        let (thread_state, thread_stop) = (state.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("witness".into()).spawn(move || {
            listen(&listener, &evidence, &thread_state, &thread_stop);
        })?;
        Ok(Self { socket, state, stop, thread: Some(thread) })
    }

    /// Returns the socket that jobs report to.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the number of runs that have started.
    pub(crate) fn starts(&self) -> usize {
        self.read(|state| state.starts)
    }

    /// Returns the number of runs that a process has started and not ended. Those of a killed process count until their next
    /// attempt starts.
    pub(crate) fn running(&self, process: &str) -> usize {
        self.read(|state| state.running.values().filter(|name| *name == process).count())
    }

    /// Returns the occurrences of the runs that [`running`](Self::running) counts.
    pub(crate) fn running_occurrences(&self, process: &str) -> Vec<String> {
        self.read(|state| {
            let of_process = state.running.iter().filter(|(_, name)| *name == process);
            of_process.map(|((occurrence, _), _)| occurrence.clone()).collect()
        })
    }

    /// Receives everything that was sent, and stops.
    pub(crate) fn close(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }

    fn read<T>(&self, read: impl FnOnce(&WitnessState) -> T) -> T {
        read(&self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn listen(listener: &UnixDatagram, evidence: &EvidenceWriter, state: &Mutex<WitnessState>, stop: &AtomicBool) {
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
            Err(error) => panic!("the witness cannot receive: {error}"),
        };
        let (at, mono) = (now(), i64::try_from(clock.elapsed().as_micros()).unwrap_or(i64::MAX));
        let mut event: Value = serde_json::from_slice(&buffer[..length]).expect("jobs send JSON");
        (event["at"], event["mono"]) = (at.into(), mono.into());
        let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        let key = (text("occurrence"), event["attempt"].as_i64().unwrap_or_default());
        {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            if event["what"] == "start" {
                state.starts += 1;
                state.running.remove(&(key.0.clone(), key.1 - 1));
                state.running.insert(key, text("process"));
            } else {
                state.running.remove(&key);
            }
        }
        evidence.append("witness.jsonl", &event);
    }
}
