//! Turns the panic of a job into a failure of its attempt, with the location of the panic.
//!
//! Location and backtrace are available only to the panic hook of the process, while the panic unwinds. The hook
//! installed here stores them for a thread that runs a job, and passes every other panic to the previously installed
//! hook.

use std::{
    any::Any,
    backtrace::Backtrace,
    cell::{Cell, RefCell},
    fmt,
    future::Future,
    panic::{self, AssertUnwindSafe},
    sync::Once,
};

use futures::FutureExt;

thread_local! {
    static IN_JOB: Cell<bool> = const { Cell::new(false) };
    static PANIC_LOCATION: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The text of a caught panic, with its location and backtrace.
#[derive(Debug)]
pub(crate) struct JobPanic(String);

impl fmt::Display for JobPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Polls the future of a job and catches its panic.
///
/// # Errors
/// Returns the panic.
pub(crate) async fn catch_panic<T>(job: impl Future<Output = T>) -> Result<T, JobPanic> {
    install_hook();
    let job = AssertUnwindSafe(job).catch_unwind();
    futures::pin_mut!(job);
    // Marked during each poll only, because tasks move between threads and threads between tasks.
    let ended = std::future::poll_fn(|context| {
        let _guard = InJobGuard::set();
        job.as_mut().poll(context)
    })
    .await;
    ended.map_err(|panic| JobPanic(describe(&*panic)))
}

/// Calls code of a job that blocks its thread, and catches its panic.
///
/// # Errors
/// Returns the panic.
pub(crate) fn catch_panic_sync<T>(code: impl FnOnce() -> T) -> Result<T, JobPanic> {
    install_hook();
    let _guard = InJobGuard::set();
    panic::catch_unwind(AssertUnwindSafe(code)).map_err(|panic| JobPanic(describe(&*panic)))
}

/// Marks the current thread as running a job, until dropped. Holds the previous mark.
struct InJobGuard(bool);

impl InJobGuard {
    fn set() -> Self {
        Self(IN_JOB.replace(true))
    }
}

impl Drop for InJobGuard {
    fn drop(&mut self) {
        IN_JOB.set(self.0);
    }
}

fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IN_JOB.get() {
                return previous(info);
            }
            let location = info.location().map(|location| format!("\nat {location}")).unwrap_or_default();
            PANIC_LOCATION.set(Some(format!("{location}\n{}", Backtrace::force_capture())));
        }));
    });
}

fn describe(panic: &(dyn Any + Send)) -> String {
    let text = if let Some(text) = panic.downcast_ref::<&str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "with a value that is not a string"
    };
    format!("panicked: {text}{}", PANIC_LOCATION.take().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_reports_text_location_and_backtrace() {
        let caught = catch_panic(async { panic!("no {}", "milk") }).await;
        let text = match caught {
            Ok(()) => panic!("the job panics"),
            Err(panic) => panic.to_string(),
        };
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("panicked: no milk"));
        assert!(
            lines
                .next()
                .is_some_and(|line| line.starts_with("at worker/src/run/panics.rs") || line.contains("panics.rs:"))
        );
        assert!(text.contains("panic_reports_text"), "the backtrace names the function: {text}");
    }
}
