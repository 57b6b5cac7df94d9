//! Carries bytes from one side to the other for as long as the line lets it.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

use super::{LinkMode, LinkState, frame_filter::FrameFilter};

/// How much is carried at once.
const COPY_BUFFER_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkDirection {
    /// From the process to the service.
    Up,
    /// From the service to the process.
    Down,
}

/// Both ways, until both have ended, or one breaks, or the line is cut. Both sides are reset then: a cut line says no
/// goodbye.
pub(super) async fn both(
    process: TcpStream,
    service: TcpStream,
    state: &Arc<LinkState>,
    mut cuts: watch::Receiver<u64>,
) -> std::io::Result<()> {
    let (mut from_process, mut to_process) = process.into_split();
    let (mut from_service, mut to_service) = service.into_split();
    let in_peace = tokio::select! {
        _ = cuts.changed() => false,
        ended = async {
            tokio::try_join!(
                one(&mut from_process, &mut to_service, state, LinkDirection::Up),
                one(&mut from_service, &mut to_process, state, LinkDirection::Down),
            )
        } => ended.is_ok(),
    };
    if !in_peace {
        AsRef::<TcpStream>::as_ref(&from_process).set_zero_linger()?;
        AsRef::<TcpStream>::as_ref(&from_service).set_zero_linger()?;
    }
    Ok(())
}

async fn one(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    state: &Arc<LinkState>,
    way: LinkDirection,
) -> std::io::Result<()> {
    let mut mode = state.mode.subscribe();
    let mut frames = state.amqp.then(|| FrameFilter::new(way));
    let mut chunk = vec![0; COPY_BUFFER_BYTES];
    loop {
        open(&mut mode, way).await;
        let length = from.read(&mut chunk).await?;
        // It may have been closed while we waited for something to carry.
        open(&mut mode, way).await;
        let now = *mode.borrow();
        if let LinkMode::Slow(milliseconds) = now {
            let delay = milliseconds + rand::random_range(0..=milliseconds);
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        if length == 0 {
            // Only this way has ended; what is still said the other way arrives.
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

/// Waits until something may pass.
async fn open(mode: &mut watch::Receiver<LinkMode>, way: LinkDirection) {
    let _ = mode
        .wait_for(|mode| match mode {
            LinkMode::Blackhole => false,
            LinkMode::HalfOpen => way == LinkDirection::Up,
            LinkMode::Pass | LinkMode::Refuse | LinkMode::Slow(_) => true,
        })
        .await;
}
