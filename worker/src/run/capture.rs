//! What a job writes with `tracing` becomes lines of its occurrence's log.
//!
//! A job calls libraries, and libraries speak through `tracing`. [`CaptureLayer`] goes into the process's subscriber and
//! copies each event that happens inside a run into that run's log; which run it is, is known from the task it happens
//! in. What a job spawns is a task of its own and belongs to no run, unless it is given the run's context with
//! [`JobContext::scope`].

use std::fmt;

use milvaion_protocol::message::LogLevel;
use serde_json::{Map, Value};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

use crate::api::job::JobContext;

tokio::task_local! {
    static CURRENT_RUN: JobContext;
}

/// Polls a future as part of a run.
pub(crate) async fn in_run<T>(run: JobContext, job: impl Future<Output = T>) -> T {
    CURRENT_RUN.scope(run, job).await
}

/// Copies `tracing` events into the log of the run they happen in: put it into the subscriber.
///
/// ```no_run
/// use tracing_subscriber::prelude::*;
///
/// tracing_subscriber::registry()
///     .with(tracing_subscriber::fmt::layer())
///     .with(milvaion_worker::CaptureLayer::new())
///     .init();
/// ```
///
/// Events below `INFO` are left out unless [`up_to`](Self::up_to) asks for them. Lines are bounded as those a job writes
/// itself; fields become the line's fields.
#[derive(Clone, Copy, Debug)]
pub struct CaptureLayer {
    least: Level,
}

impl Default for CaptureLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl CaptureLayer {
    /// Captures `INFO` and what is louder.
    #[must_use]
    pub const fn new() -> Self {
        Self { least: Level::INFO }
    }

    /// Captures `level` and what is louder.
    #[must_use]
    pub const fn up_to(level: Level) -> Self {
        Self { least: level }
    }
}

impl<S: Subscriber> Layer<S> for CaptureLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() > self.least {
            return;
        }
        let Ok(run) = CURRENT_RUN.try_with(Clone::clone) else { return };
        let mut words = EventFields::default();
        event.record(&mut words);
        let level = match *event.metadata().level() {
            Level::ERROR => LogLevel::Error,
            Level::WARN => LogLevel::Warn,
            Level::INFO => LogLevel::Info,
            _ => LogLevel::Debug,
        };
        words.fields.insert("target".to_owned(), event.metadata().target().into());
        run.log_with(level, words.message, Value::Object(words.fields));
    }
}

#[derive(Default)]
struct EventFields {
    message: String,
    fields: Map<String, Value>,
}

impl EventFields {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => drop(self.fields.insert(name.to_owned(), value)),
        }
    }
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}
