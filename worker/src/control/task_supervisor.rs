//! Detects inner tasks of a worker that end although the worker runs.
//!
//! A worker without its reporter still sends heartbeats and looks healthy, and no report ever leaves it. A worker without
//! its claim batcher starts every run without a claim. Such a worker must not go on. Each inner task is therefore guarded:
//! if it panics, or ends before it was asked to, the failure is recorded, and the worker stops and returns an error that
//! names the task. The tasks run on two runtimes, which is why they are not the tasks of one `JoinSet`.

use std::{
    any::Any,
    future::Future,
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
};

use futures::FutureExt;
use tokio_util::sync::CancellationToken;

/// The first failure among the inner tasks of one worker. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct TaskSupervisor(Arc<SupervisorState>);

#[derive(Default)]
struct SupervisorState {
    failure: OnceLock<TaskFailure>,
    failed: CancellationToken,
}

/// The unexpected end of an inner task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskFailure {
    /// The name of the task.
    pub(crate) task: &'static str,
    /// The cause, without a full stop.
    pub(crate) reason: String,
}

impl TaskSupervisor {
    /// Guards a task that runs until `stop` fires. It is a failure if the task panics, or ends earlier.
    pub(crate) fn guard<F: Future<Output = ()>>(
        &self,
        task: &'static str,
        stop: &CancellationToken,
        work: F,
    ) -> impl Future<Output = ()> + use<F> {
        let (supervisor, stop) = (self.clone(), stop.clone());
        async move {
            match AssertUnwindSafe(work).catch_unwind().await {
                Ok(()) if stop.is_cancelled() => {}
                Ok(()) => supervisor.fail(task, "it has ended".to_owned()),
                Err(panic) => supervisor.fail(task, describe(&*panic)),
            }
        }
    }

    /// Guards a task that may end at any time. It is a failure if it panics.
    pub(crate) fn guard_panics<F: Future<Output = ()>>(
        &self,
        task: &'static str,
        work: F,
    ) -> impl Future<Output = ()> + use<F> {
        let supervisor = self.clone();
        async move {
            if let Err(panic) = AssertUnwindSafe(work).catch_unwind().await {
                supervisor.fail(task, describe(&*panic));
            }
        }
    }

    /// Records a failure. Only the first one counts, because the others usually follow from it.
    pub(crate) fn fail(&self, task: &'static str, reason: String) {
        tracing::error!(
            worker.task = task,
            reason,
            "the task {task} of this worker has failed: {reason}; the worker stops"
        );
        let _ = self.0.failure.set(TaskFailure { task, reason });
        self.0.failed.cancel();
    }

    /// Waits for the first failure.
    pub(crate) async fn failed(&self) {
        self.0.failed.cancelled().await;
    }

    /// Returns the first failure, if there is one.
    pub(crate) fn failure(&self) -> Option<TaskFailure> {
        self.0.failure.get().cloned()
    }
}

fn describe(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("it panicked: {}", text.unwrap_or("with a value that is not a string"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn early_end_and_panic_are_failures_that_name_the_task() {
        let stop = CancellationToken::new();
        let supervisor = TaskSupervisor::default();
        tokio::spawn(supervisor.guard("reporter", &stop, async {}));
        supervisor.failed().await;
        let failure = supervisor.failure().expect("a failure");
        assert_eq!((failure.task, failure.reason.as_str()), ("reporter", "it has ended"));

        for guards_end in [true, false] {
            let supervisor = TaskSupervisor::default();
            let work = async { panic!("no {}", "milk") };
            if guards_end {
                tokio::spawn(supervisor.guard("delivery", &stop, work));
            } else {
                tokio::spawn(supervisor.guard_panics("delivery", work));
            }
            supervisor.failed().await;
            let failure = supervisor.failure().expect("a failure");
            assert_eq!((failure.task, failure.reason.as_str()), ("delivery", "it panicked: no milk"));
        }
    }

    #[tokio::test]
    async fn end_after_the_stop_is_no_failure() {
        let (supervisor, stop) = (TaskSupervisor::default(), CancellationToken::new());
        let ends = stop.clone();
        let task = tokio::spawn(supervisor.guard("reporter", &stop, async move { ends.cancelled().await }));
        stop.cancel();
        task.await.expect("it does not panic");
        supervisor.guard_panics("delivery", async {}).await;
        assert_eq!(supervisor.failure(), None);
    }
}
