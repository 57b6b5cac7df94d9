//! Copies bytes between the two sides of a link, for as long as the link's mode allows it.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{oneshot, watch},
};

use super::{LinkDirection, LinkMode, LinkState, frame_filter::FrameFilter};

/// The number of bytes copied at once.
const COPY_BUFFER_BYTES: usize = 64 << 10;
/// The time after which a service ends a connection that was lost: the length of its keepalive.
const KEEPALIVE: Duration = Duration::from_secs(25);

/// Copies both directions until both have ended, or one fails, or the link is cut. In the last two cases both sides are
/// reset, because a connection that breaks is not closed gracefully. A connection that is lost copies nothing more; the
/// service's side is reset after [`KEEPALIVE`], and the process's side stays open until the process closes it.
pub(super) async fn copy_both(
    process: TcpStream,
    service: TcpStream,
    state: &Arc<LinkState>,
    mut cuts: watch::Receiver<u64>,
    lost: oneshot::Receiver<()>,
) -> std::io::Result<()> {
    let (mut from_process, mut to_process) = process.into_split();
    let (mut from_service, mut to_service) = service.into_split();
    let closed_gracefully = tokio::select! {
        _ = cuts.changed() => false,
        Ok(()) = lost => {
            tokio::time::sleep(KEEPALIVE).await;
            AsRef::<TcpStream>::as_ref(&from_service).set_zero_linger()?;
            drop((from_service, to_service));
            let mut nowhere = tokio::io::sink();
            return tokio::select! {
                _ = cuts.changed() => AsRef::<TcpStream>::as_ref(&from_process).set_zero_linger(),
                ended = tokio::io::copy(&mut from_process, &mut nowhere) => ended.map(drop),
            };
        }
        ended = async {
            tokio::try_join!(
                copy_one(&mut from_process, &mut to_service, state, LinkDirection::Up),
                copy_one(&mut from_service, &mut to_process, state, LinkDirection::Down),
            )
        } => ended.is_ok(),
    };
    if !closed_gracefully {
        AsRef::<TcpStream>::as_ref(&from_process).set_zero_linger()?;
        AsRef::<TcpStream>::as_ref(&from_service).set_zero_linger()?;
    }
    Ok(())
}

async fn copy_one(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    state: &Arc<LinkState>,
    direction: LinkDirection,
) -> std::io::Result<()> {
    let mut mode = state.mode.subscribe();
    let mut frames = state.amqp.then(|| FrameFilter::new(direction));
    let mut chunk = vec![0; COPY_BUFFER_BYTES];
    loop {
        wait_until_open(&mut mode, direction).await;
        let length = from.read(&mut chunk).await?;
        // The link may have been closed while the read waited for bytes.
        wait_until_open(&mut mode, direction).await;
        let now = *mode.borrow();
        if let LinkMode::Slow(milliseconds) = now {
            let delay = milliseconds + rand::random_range(0..=milliseconds);
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        if length == 0 {
            // Only this direction has ended; bytes of the other one still arrive.
            return to.shutdown().await;
        }
        match &mut frames {
            None => to.write_all(&chunk[..length]).await?,
            Some(frames) => {
                let passed = frames.pass(&chunk[..length], state);
                to.write_all(&passed.bytes).await?;
                if passed.is_last {
                    return Err(std::io::ErrorKind::ConnectionReset.into());
                }
            }
        }
    }
}

/// Waits until the link lets bytes pass in this direction.
async fn wait_until_open(mode: &mut watch::Receiver<LinkMode>, direction: LinkDirection) {
    let _ = mode
        .wait_for(|mode| match mode {
            LinkMode::Blackhole => false,
            LinkMode::HalfOpen => direction == LinkDirection::Up,
            LinkMode::Pass | LinkMode::Refuse | LinkMode::Slow(_) => true,
        })
        .await;
}
