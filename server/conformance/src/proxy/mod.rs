//! The network between a worker and its services, with faults.
//!
//! Every connection of a worker leads through a proxy of this process. The proxy can refuse connections, cut them, hold
//! what a service sends, delay it, and remove the confirms of the broker. So the kit needs no rights on the services and
//! disturbs no other client of them. The proxy of the broker also reads the frames, because the answers to deliveries
//! (acknowledgement, return, rejection) are visible in no other place.

mod frames;
mod tap;

use std::{
    collections::HashSet,
    io,
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Mutex, watch},
    task::JoinHandle,
};

use frames::{FrameBuffer, FrameOrigin, connection_blocked, connection_unblocked};
pub(crate) use tap::{DeliveryAnswer, DeliveryTap};

/// The state of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NetworkFault {
    /// True if open connections are cut and new ones are closed at once.
    pub(crate) is_down: bool,
    /// True if nothing that the service sends arrives.
    pub(crate) is_mute: bool,
    /// True if the publisher confirms of the broker are removed.
    pub(crate) without_confirms: bool,
    /// True if the messages that the worker publishes are removed.
    pub(crate) without_publishes: bool,
    /// True if the broker reads no more of a connection that publishes, as it does when it is short of memory or disk.
    pub(crate) is_blocked: bool,
    /// The delay of everything that the service sends.
    pub(crate) delay: Duration,
}

/// A proxy before one service of one worker instance.
#[derive(Debug)]
pub(crate) struct FaultyNetwork {
    address: SocketAddr,
    fault: watch::Sender<NetworkFault>,
    cuts: watch::Sender<u32>,
    accepting: JoinHandle<()>,
}

impl FaultyNetwork {
    /// Starts a proxy before a service. With a tap, the connections are read as AMQP.
    ///
    /// # Errors
    /// Returns the error of the operating system if no port is free.
    pub(crate) async fn before(target: SocketAddr, tap: Option<DeliveryTap>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (fault, cuts) = (watch::Sender::new(NetworkFault::default()), watch::Sender::new(0));
        let (faults, cut) = (fault.subscribe(), cuts.subscribe());
        let accepting = tokio::spawn(async move {
            let ids = AtomicU64::new(0);
            while let Ok((client, _)) = listener.accept().await {
                if faults.borrow().is_down {
                    continue;
                }
                let mut cut = cut.clone();
                cut.mark_unchanged();
                let connection = ProxiedConnection {
                    id: ids.fetch_add(1, Ordering::Relaxed),
                    faults: faults.clone(),
                    tap: tap.clone(),
                    announces_blocked: AtomicBool::new(false),
                };
                tokio::spawn(connection.serve(client, target, cut));
            }
        });
        Ok(Self { address, fault, cuts, accepting })
    }

    /// Returns the port of the proxy on the loopback address.
    pub(crate) const fn port(&self) -> u16 {
        self.address.port()
    }

    /// Changes the state of the network. If it is down, open connections are cut.
    pub(crate) fn set(&self, fault: NetworkFault) {
        let is_down = fault.is_down;
        self.fault.send_replace(fault);
        if is_down {
            self.cut();
        }
    }

    /// Removes every fault. Connections that were cut stay cut.
    pub(crate) fn heal(&self) {
        self.set(NetworkFault::default());
    }

    /// Cuts all open connections. New ones are accepted.
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

impl Drop for FaultyNetwork {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

/// One connection through a proxy.
struct ProxiedConnection {
    id: u64,
    faults: watch::Receiver<NetworkFault>,
    tap: Option<DeliveryTap>,
    /// True if the worker wants to be notified when the broker reads no more of the connection.
    announces_blocked: AtomicBool,
}

impl ProxiedConnection {
    async fn serve(self, client: TcpStream, target: SocketAddr, mut cut: watch::Receiver<u32>) {
        let Ok(service) = TcpStream::connect(target).await else { return };
        // A confirm and an acknowledgement are small, and must not wait for another one.
        let _ = (client.set_nodelay(true), service.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_service, to_service) = service.into_split();
        let (to_service, to_client) = (Mutex::new(to_service), Mutex::new(to_client));
        tokio::select! {
            () = self.forward(FrameOrigin::Client, from_client, &to_service, &to_client) => {}
            () = self.forward(FrameOrigin::Service, from_service, &to_client, &to_client) => {}
            _ = cut.changed() => {}
        }
        if let Some(tap) = &self.tap {
            tap.close_connection(self.id);
        }
    }

    async fn forward(
        &self,
        origin: FrameOrigin,
        mut from: OwnedReadHalf,
        to: &Mutex<OwnedWriteHalf>,
        client: &Mutex<OwnedWriteHalf>,
    ) {
        let (mut chunk, mut frames) = (vec![0; 65_536], FrameBuffer::new(origin));
        let mut faults = self.faults.clone();
        // The channels whose present message is removed.
        let mut removing = HashSet::new();
        while let Ok(length @ 1..) = from.read(&mut chunk).await {
            if origin == FrameOrigin::Service {
                if faults.wait_for(|fault| !fault.is_mute).await.is_err() {
                    return;
                }
                let delay = faults.borrow().delay;
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
            }
            let passed = match &self.tap {
                None => chunk[..length].to_vec(),
                Some(tap) => {
                    let (without_confirms, without_publishes) = {
                        let fault = faults.borrow();
                        (fault.without_confirms, fault.without_publishes)
                    };
                    frames.push(&chunk[..length]);
                    let mut passed = Vec::with_capacity(length);
                    while let Some(frame) = frames.next() {
                        if origin == FrameOrigin::Client {
                            self.announces_blocked.fetch_or(frame.announces_blocked(), Ordering::Relaxed);
                            if frame.is_publish() && faults.borrow().is_blocked {
                                // What was sent before arrives; this message and all that follows it wait.
                                let arrived = to.lock().await.write_all(&std::mem::take(&mut passed)).await;
                                if arrived.is_err() || self.wait_while_blocked(&mut faults, client).await.is_err() {
                                    return;
                                }
                            }
                        }
                        let is_confirm = origin == FrameOrigin::Service && frame.is_confirm();
                        if origin == FrameOrigin::Client && frame.is_publish() {
                            if without_publishes {
                                removing.insert(frame.channel());
                            } else {
                                removing.remove(&frame.channel());
                            }
                        }
                        let is_content = origin == FrameOrigin::Client && (frame.is_publish() || frame.is_content());
                        let is_removed = is_content && removing.contains(&frame.channel());
                        if !(is_removed || without_confirms && is_confirm) {
                            passed.extend_from_slice(frame.bytes());
                        }
                        tap.see(self.id, origin, &frame);
                    }
                    passed
                }
            };
            if to.lock().await.write_all(&passed).await.is_err() {
                return;
            }
        }
    }

    /// Reads nothing of the connection while it is blocked, and notifies the worker of the beginning and the end.
    async fn wait_while_blocked(
        &self,
        faults: &mut watch::Receiver<NetworkFault>,
        client: &Mutex<OwnedWriteHalf>,
    ) -> io::Result<()> {
        let notifies = self.announces_blocked.load(Ordering::Relaxed);
        if notifies {
            // Both directions write whole frames only, so the notice is between two of them.
            client.lock().await.write_all(&connection_blocked("low on memory")).await?;
        }
        faults.wait_for(|fault| !fault.is_blocked).await.map_err(io::Error::other)?;
        if notifies {
            client.lock().await.write_all(&connection_unblocked()).await?;
        }
        Ok(())
    }
}
