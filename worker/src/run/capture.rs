//! Captures `tracing` events of a run as lines of its log.
//!
//! Jobs call libraries, and libraries log through `tracing`. [`CaptureLayer`] is installed in the subscriber of the
//! process and copies each event that happens inside a run into the log of that run. The run is identified by the task
//! in which the event happens. A task that a job spawns is a separate task and belongs to no run, unless the job wraps
//! it with [`JobContext::scope`].

use std::fmt;

use milvaion_protocol::message::LogLevel;
use serde_json::{Map, Value};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

use crate::api::context::JobContext;

/// A `tracing` layer that copies events into the log of the run in which they happen. Add it to the subscriber:
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
/// Events below `INFO` are ignored unless [`up_to`](Self::up_to) sets another level. Lines have the same bounds as
/// those that the job writes itself. Fields of an event become fields of the line.
#[derive(Clone, Copy, Debug)]
pub struct CaptureLayer {
    max_level: Level,
}

impl Default for CaptureLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl CaptureLayer {
    /// Captures events of level `INFO` and above.
    #[must_use]
    pub const fn new() -> Self {
        Self { max_level: Level::INFO }
    }

    /// Captures events of the given level and above.
    #[must_use]
    pub const fn up_to(level: Level) -> Self {
        Self { max_level: level }
    }
}

impl<S: Subscriber> Layer<S> for CaptureLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() > self.max_level {
            return;
        }
        let Some(run) = JobContext::current() else { return };
        let mut recorded = EventFields::default();
        event.record(&mut recorded);
        let level = match *event.metadata().level() {
            Level::ERROR => LogLevel::Error,
            Level::WARN => LogLevel::Warn,
            Level::INFO => LogLevel::Info,
            _ => LogLevel::Debug,
        };
        recorded.fields.insert("target".to_owned(), event.metadata().target().into());
        run.log_with(level, recorded.message, Value::Object(recorded.fields));
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
