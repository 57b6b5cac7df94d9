//! The thread that keeps a worker alive in the eyes of others.
//!
//! Jobs are other people's code: one that never yields holds up every task beside it. Heartbeats, the renewal of claims
//! and the reports therefore have an operating system thread and a runtime of their own, with their own connections.
//! A worker whose jobs block is slow; it is not taken for dead, and nothing it runs is started a second time. Here it
//! also listens for cancellations, keeps its outbox and says how it is.

use std::{net::TcpListener, thread, time::Duration};

use lapin::uri::AMQPUri;
use milvaion_protocol::{
    message::Hello,
    topology::{Keys, Topology},
};
use tokio::{runtime, sync::oneshot, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    cancel,
    claim::Claims,
    error::WorkerError,
    heartbeat::Pulse,
    outbox::{Gate, Warning},
    publisher::Publisher,
    reporter,
    reporter::{Inbox, Papers},
    running::Running,
    vitals::{Health, Vitals},
};

/// How long the outbox may take to be closed.
const CLOSING: Duration = Duration::from_secs(10);

/// What the thread needs to begin.
pub(crate) struct Needs {
    pub(crate) amqp: AMQPUri,
    pub(crate) redis_url: String,
    pub(crate) topology: Topology,
    pub(crate) keys: Keys,
    pub(crate) hello: Hello,
    pub(crate) running: Running,
    pub(crate) inbox: Inbox,
    pub(crate) papers: Papers,
    pub(crate) warning: Warning,
    /// Where health is answered, if anywhere.
    pub(crate) health: Option<(TcpListener, Vitals, Gate)>,
}

/// The running thread.
pub(crate) struct Lifeline {
    leave: CancellationToken,
    ended: oneshot::Receiver<()>,
}

impl Lifeline {
    /// Starts the thread.
    pub(crate) fn start(needs: Needs) -> Result<Self, WorkerError> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(WorkerError::Lifeline)?;
        let leave = CancellationToken::new();
        let (end, ended) = oneshot::channel();
        let theirs = leave.clone();
        thread::Builder::new()
            .name("milvaion-lifeline".to_owned())
            .spawn(move || {
                if let Err(error) = runtime.block_on(live(needs, theirs)) {
                    tracing::error!(error = %error, "the lifeline cannot be held");
                }
                drop(end);
            })
            .map_err(WorkerError::Lifeline)?;
        Ok(Self { leave, ended })
    }

    /// Ends when the thread does, which it should not before [`leave`](Self::leave).
    pub(crate) async fn lost(&mut self) {
        let _ = (&mut self.ended).await;
    }

    /// Says goodbye and closes what the thread has open. Reports should have been flushed; what was not stays in the outbox.
    pub(crate) async fn leave(self) {
        self.leave.cancel();
        let _ = self.ended.await;
    }
}

async fn live(needs: Needs, leave: CancellationToken) -> redis::RedisResult<()> {
    let Needs { amqp, redis_url, topology, keys, hello, running, inbox, papers, warning, health } = needs;
    let claims = Claims::new(&redis_url, keys.clone(), &hello.instance_id)?;
    let listener = tokio::spawn(cancel::listen(redis::Client::open(redis_url)?, keys, claims.clone(), running.clone()));
    let close = CancellationToken::new();
    let (publisher, keep_open) = Publisher::new(amqp, topology.clone(), hello.instance_id.clone(), close.clone());
    let keeper = tokio::spawn(keep_open);
    if let Some((listener, vitals, gate)) = health {
        let health = Health { vitals, publisher: publisher.clone(), gate };
        tokio::spawn(health.serve(listener));
    }
    let desk = tokio::spawn(reporter::run(inbox, publisher.clone(), topology.clone(), papers, close.clone()));
    Pulse::new(hello, claims, running, publisher, &topology, warning).run(leave).await;
    listener.abort();
    close.cancel();
    let _ = timeout(CLOSING, keeper).await;
    let _ = timeout(CLOSING, desk).await;
    Ok(())
}
