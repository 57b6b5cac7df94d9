//! A job that panics ends its attempt and nothing else, and says where it happened.
//!
//! The place and the call stack are known only while the panic unwinds, to the process's panic hook. The hook that is set
//! here keeps them for the thread that runs a job, and hands every other panic on to the hook that was there before.

use std::{
    any::Any,
    backtrace::Backtrace,
    cell::{Cell, RefCell},
    future::Future,
    panic::{self, AssertUnwindSafe},
    sync::Once,
};

use futures::FutureExt;

thread_local! {
    static IN_JOB: Cell<bool> = const { Cell::new(false) };
    static PANIC_LOCATION: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Polls a job's future; a panic becomes its text, with the place and the call stack behind it.
pub(crate) async fn catch_panic<T>(job: impl Future<Output = T>) -> Result<T, String> {
    install();
    let job = AssertUnwindSafe(job).catch_unwind();
    futures::pin_mut!(job);
    // Marked at each poll and for that poll only: a task moves between threads, and a thread between tasks.
    let ended = std::future::poll_fn(|context| {
        let _mark = InJobGuard::set();
        job.as_mut().poll(context)
    })
    .await;
    ended.map_err(|panic| describe(&*panic))
}

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

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IN_JOB.get() {
                return before(info);
            }
            let place = info.location().map(|place| format!("\nat {place}")).unwrap_or_default();
            PANIC_LOCATION.set(Some(format!("{place}\n{}", Backtrace::force_capture())));
        }));
    });
}

fn describe(panic: &(dyn Any + Send)) -> String {
    let text = if let Some(text) = panic.downcast_ref::<&str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "with a value that is no text"
    };
    format!("panicked: {text}{}", PANIC_LOCATION.take().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_tells_its_text_its_place_and_its_stack() {
        let caught = catch_panic(async { panic!("no {}", "milk") }).await;
        let text = match caught {
            Ok(()) => panic!("it panicked"),
            Err(text) => text,
        };
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("panicked: no milk"));
        assert!(
            lines
                .next()
                .is_some_and(|line| line.starts_with("at worker/src/run/panics.rs") || line.contains("panics.rs:"))
        );
        assert!(text.contains("a_panic_tells_its_text"), "the stack names the function: {text}");
    }
}
