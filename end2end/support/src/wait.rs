//! Waiting for conditions.
//!
//! Each wait polls the condition itself instead of sleeping for a fixed time: it returns as soon as the condition holds,
//! and a slow machine only makes it longer.

use std::time::Duration;

use tokio::time::Instant;

/// The maximum time a test waits for a condition. Generous, because the machine may be busy.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// The interval between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Polls `look` until it returns a value, and returns that value.
///
/// # Panics
///
/// Panics if there is no value within [`WAIT_TIMEOUT`].
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(since.elapsed() < WAIT_TIMEOUT, "timed out after {} s: {what}", WAIT_TIMEOUT.as_secs());
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Polls `holds` until it returns true.
///
/// # Panics
///
/// Panics if it does not return true within [`WAIT_TIMEOUT`].
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let since = Instant::now();
    while !holds().await {
        assert!(since.elapsed() < WAIT_TIMEOUT, "timed out after {} s: {what}", WAIT_TIMEOUT.as_secs());
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
